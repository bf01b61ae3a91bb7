//! Relabelling: rules that rewrite label sets, of targets before they are scraped and of series before they are
//! stored.
use md5::{Digest, Md5};
use metricsstore_model::LabelBuf;
use regex::Regex;

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sets the target label to the replacement when the regex matches the source value.
    Replace,
    /// Drops the set unless the regex matches.
    Keep,
    /// Drops the set when the regex matches.
    Drop,
    /// Drops the set unless source value and target label are equal.
    KeepEqual,
    /// Drops the set when source value and target label are equal.
    DropEqual,
    /// Sets the target label to the source value's hash modulo `modulus`.
    HashMod,
    /// Copies labels whose name the regex matches to the name that the replacement gives.
    LabelMap,
    /// Removes labels whose name the regex matches.
    LabelDrop,
    /// Removes labels whose name the regex does not match.
    LabelKeep,
    /// Sets the target label to the source value in lower case.
    Lowercase,
    /// Sets the target label to the source value in upper case.
    Uppercase,
}

impl Action {
    /// Every action.
    pub const ALL: [Action; 11] = [
        Action::Replace,
        Action::Keep,
        Action::Drop,
        Action::KeepEqual,
        Action::DropEqual,
        Action::HashMod,
        Action::LabelMap,
        Action::LabelDrop,
        Action::LabelKeep,
        Action::Lowercase,
        Action::Uppercase,
    ];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Replace => "replace",
            Action::Keep => "keep",
            Action::Drop => "drop",
            Action::KeepEqual => "keepequal",
            Action::DropEqual => "dropequal",
            Action::HashMod => "hashmod",
            Action::LabelMap => "labelmap",
            Action::LabelDrop => "labeldrop",
            Action::LabelKeep => "labelkeep",
            Action::Lowercase => "lowercase",
            Action::Uppercase => "uppercase",
        }
    }

    /// The action of that name, in any case.
    pub fn from_name(name: &str) -> Option<Action> {
        Action::ALL.into_iter().find(|action| action.name().eq_ignore_ascii_case(name))
    }
}

/// A regex that matches whole values; `.` matches a line break too.
#[derive(Debug, Clone)]
pub struct RelabelRegex {
    text: String,
    compiled: Regex,
}

impl RelabelRegex {
    /// Compiles `text`.
    pub fn new(text: &str) -> Result<RelabelRegex, RelabelError> {
        let compiled = Regex::new(&format!("^(?s:{text})$"))
            .map_err(|error| RelabelError::Regex { regex: text.to_owned(), reason: error.to_string() })?;
        Ok(RelabelRegex { text: text.to_owned(), compiled })
    }

    /// The regex as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for RelabelRegex {
    fn eq(&self, other: &RelabelRegex) -> bool {
        self.text == other.text
    }
}

const DEFAULT_SEPARATOR: &str = ";";
const DEFAULT_REGEX: &str = "(.*)";
const DEFAULT_REPLACEMENT: &str = "$1";

/// A rule that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelabelError {
    /// The regex does not compile.
    #[error("regex {regex:?} does not compile: {reason}")]
    Regex {
        /// As written.
        regex: String,
        /// What is wrong.
        reason: String,
    },
    /// `hashmod` without modulus.
    #[error("relabel configuration for hashmod requires non-zero modulus")]
    NoModulus,
    /// An action without the label it works on.
    #[error("relabel configuration for {action} action requires 'target_label' value")]
    NoTargetLabel {
        /// The action's name.
        action: &'static str,
    },
    /// A replacement where none is used.
    #[error("'replacement' can not be set for {action} action")]
    ReplacementUnused {
        /// The action's name.
        action: &'static str,
    },
    /// A replacement that cannot be a label's name.
    #[error("{replacement:?} is invalid 'replacement' for labelmap action")]
    EmptyReplacement {
        /// As written.
        replacement: String,
    },
    /// More fields than `keepequal` and `dropequal` use.
    #[error("{action} action requires only 'source_labels' and `target_label`, and no other fields")]
    OnlyLabels {
        /// The action's name.
        action: &'static str,
    },
    /// More fields than `labeldrop` and `labelkeep` use.
    #[error("{action} action requires only 'regex', and no other fields")]
    OnlyRegex {
        /// The action's name.
        action: &'static str,
    },
}

/// One rule. [`RelabelConfig::new`] gives the defaults; check with [`RelabelConfig::validate`].
#[derive(Debug, Clone, PartialEq)]
pub struct RelabelConfig {
    /// Labels whose values make the source value.
    pub source_labels: Vec<String>,
    /// Between those values.
    pub separator: String,
    /// What the source value, or a label's name, must match.
    pub regex: RelabelRegex,
    /// For `hashmod`; 0 when absent.
    pub modulus: u64,
    /// Label to set or compare; may hold `$1` and `${name}` for `replace`. Empty when absent.
    pub target_label: String,
    /// New value or name; may hold `$1` and `${name}`.
    pub replacement: String,
    /// What to do.
    pub action: Action,
}

impl RelabelConfig {
    /// A rule with the defaults of the other fields.
    pub fn new(action: Action) -> Result<RelabelConfig, RelabelError> {
        Ok(RelabelConfig {
            source_labels: Vec::new(),
            separator: DEFAULT_SEPARATOR.into(),
            regex: RelabelRegex::new(DEFAULT_REGEX)?,
            modulus: 0,
            target_label: String::new(),
            replacement: DEFAULT_REPLACEMENT.into(),
            action,
        })
    }

    /// Whether the fields fit the action.
    pub fn validate(&self) -> Result<(), RelabelError> {
        let action = self.action.name();
        let needs_target = matches!(
            self.action,
            Action::Replace
                | Action::HashMod
                | Action::Lowercase
                | Action::Uppercase
                | Action::KeepEqual
                | Action::DropEqual
        );
        if self.modulus == 0 && self.action == Action::HashMod {
            return Err(RelabelError::NoModulus);
        }
        if needs_target && self.target_label.is_empty() {
            return Err(RelabelError::NoTargetLabel { action });
        }
        let default_replacement = self.replacement == DEFAULT_REPLACEMENT;
        let others_default = self.modulus == 0 && self.separator == DEFAULT_SEPARATOR && default_replacement;
        match self.action {
            Action::Lowercase | Action::Uppercase if !default_replacement => {
                Err(RelabelError::ReplacementUnused { action })
            }
            Action::LabelMap if self.replacement.is_empty() => {
                Err(RelabelError::EmptyReplacement { replacement: self.replacement.clone() })
            }
            Action::KeepEqual | Action::DropEqual
                if !others_default || self.regex.as_str() != DEFAULT_REGEX =>
            {
                Err(RelabelError::OnlyLabels { action })
            }
            Action::LabelDrop | Action::LabelKeep
                if !others_default || !self.source_labels.is_empty() || !self.target_label.is_empty() =>
            {
                Err(RelabelError::OnlyRegex { action })
            }
            _ => Ok(()),
        }
    }

    /// Applies the rule; `false` drops the set.
    fn apply(&self, labels: &mut LabelBuf) -> bool {
        match self.action {
            Action::Keep => return self.matches(&self.source(labels)),
            Action::Drop => return !self.matches(&self.source(labels)),
            Action::KeepEqual => return self.target_equals_source(labels),
            Action::DropEqual => return !self.target_equals_source(labels),
            Action::Replace => self.replace(labels),
            Action::HashMod => {
                let residue = hash(&self.source(labels)).checked_rem(self.modulus).unwrap_or(0);
                labels.set(&self.target_label, &residue.to_string());
            }
            Action::LabelMap => self.map_names(labels),
            Action::LabelDrop => labels.retain(|name, _| !self.matches(name)),
            Action::LabelKeep => labels.retain(|name, _| self.matches(name)),
            Action::Lowercase => {
                let value = self.source(labels).chars().map(lower).collect::<String>();
                labels.set(&self.target_label, &value);
            }
            Action::Uppercase => {
                let value = self.source(labels).chars().map(upper).collect::<String>();
                labels.set(&self.target_label, &value);
            }
        }
        true
    }

    fn matches(&self, text: &str) -> bool {
        self.regex.compiled.is_match(text)
    }

    fn source(&self, labels: &LabelBuf) -> String {
        let values: Vec<&str> =
            self.source_labels.iter().map(|name| labels.get(name).unwrap_or("")).collect();
        values.join(&self.separator)
    }

    fn target_equals_source(&self, labels: &LabelBuf) -> bool {
        labels.get(&self.target_label).unwrap_or("") == self.source(labels)
    }

    fn replace(&self, labels: &mut LabelBuf) {
        let source = self.source(labels);
        let Some(captures) = self.regex.compiled.captures(&source) else { return };
        let mut target = String::new();
        captures.expand(&self.target_label, &mut target);
        if target.is_empty() {
            return;
        }
        let mut value = String::new();
        captures.expand(&self.replacement, &mut value);
        labels.set(&target, &value);
    }

    fn map_names(&self, labels: &mut LabelBuf) {
        let mut renamed = Vec::new();
        for (name, value) in labels.iter() {
            if let Some(captures) = self.regex.compiled.captures(name) {
                let mut new_name = String::new();
                captures.expand(&self.replacement, &mut new_name);
                renamed.push((new_name, value.to_owned()));
            }
        }
        for (name, value) in &renamed {
            labels.set(name, value);
        }
    }
}

/// Applies rules in order; `false` drops the set. The set comes out sorted.
pub fn relabel(rules: &[RelabelConfig], labels: &mut LabelBuf) -> bool {
    let kept = rules.iter().all(|rule| rule.apply(labels));
    labels.sort();
    kept
}

/// The last eight bytes of the MD5 sum, big-endian: the same shard for a value as everywhere else.
fn hash(text: &str) -> u64 {
    let sum = Md5::digest(text.as_bytes());
    sum[8..].iter().fold(0, |hash, &byte| hash << 8 | u64::from(byte))
}

/// Lower case where it is one character: the mapping of single characters, not of words.
fn lower(character: char) -> char {
    let mut mapped = character.to_lowercase();
    match (mapped.next(), mapped.next()) {
        (Some(only), None) => only,
        // U+0130 is the one letter whose single mapping is the first of its full one.
        (Some(first), _) => first,
        _ => character,
    }
}

/// Upper case where it is one character.
fn upper(character: char) -> char {
    let mut mapped = character.to_uppercase();
    match (mapped.next(), mapped.next()) {
        (Some(only), None) => only,
        _ => character,
    }
}
