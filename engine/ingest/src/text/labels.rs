//! From a series' text and its target to stored labels.
use metricsstore_model::{LabelBuf, LabelDecoder, LabelError, METRIC_NAME};

use super::cursor::{Cursor, Failure, unescape_into};

/// Prefix of exposed labels that give way to a target label.
const EXPORTED_PREFIX: &str = "exported_";

/// Decodes the rows of one target's pages: exposed labels, then the target's, then relabelling.
pub struct TextLabels<'t> {
    /// Labels of the target that are stored (none that begin with `__`).
    pub target: &'t LabelBuf,
    /// Exposed labels win over the target's.
    pub honor_labels: bool,
    /// Last change to the set; `false` drops the series. Must leave it in a state of its own choosing; it is sorted
    /// and checked afterwards.
    pub relabel: &'t (dyn Fn(&mut LabelBuf) -> bool + Sync),
}

impl LabelDecoder for TextLabels<'_> {
    fn decode(&self, raw_labels: &[u8], labels: &mut LabelBuf) -> Result<bool, LabelError> {
        labels.clear();
        read_series(raw_labels, labels)?;
        labels.sort();
        if self.honor_labels {
            for (name, value) in self.target.iter() {
                if labels.get(name).is_none() {
                    labels.push(name, value);
                }
            }
        } else {
            self.put_target_first(labels);
        }
        labels.retain(|_, value| !value.is_empty());
        if !(self.relabel)(labels) {
            return Ok(false);
        }
        labels.retain(|_, value| !value.is_empty());
        labels.sort();
        check(labels)
    }
}

impl TextLabels<'_> {
    /// Sets the target's labels; exposed ones of the same names are renamed, those with short names first.
    fn put_target_first(&self, labels: &mut LabelBuf) {
        let mut conflicts = Vec::new();
        for (name, value) in self.target.iter() {
            match labels.get(name) {
                Some(exposed) if !exposed.is_empty() => {
                    conflicts.push((name, exposed.to_owned()));
                    labels.set(name, value);
                }
                Some(_) => labels.set(name, value),
                None => labels.push(name, value),
            }
        }
        conflicts.sort_by_key(|(name, _)| name.len());
        for (name, exposed) in conflicts {
            let mut renamed = format!("{EXPORTED_PREFIX}{name}");
            while labels.get(&renamed).is_some_and(|value| !value.is_empty()) {
                renamed.insert_str(0, EXPORTED_PREFIX);
            }
            labels.set(&renamed, &exposed);
        }
    }
}

fn check(labels: &LabelBuf) -> Result<bool, LabelError> {
    if labels.is_empty() {
        return Ok(false);
    }
    if labels.iter().any(|(name, _)| name.is_empty()) {
        return Err(LabelError::EmptyName);
    }
    if let Some(name) = labels.duplicate_name() {
        return Err(LabelError::Duplicate(name.to_owned()));
    }
    if labels.get(METRIC_NAME).is_none() {
        return Err(LabelError::NoMetricName);
    }
    Ok(true)
}

/// Reads `name{labels}` or `{"name",labels}` as a page's parser has accepted it.
fn read_series(text: &[u8], labels: &mut LabelBuf) -> Result<(), LabelError> {
    let mut cursor = Cursor::new(text);
    cursor.skip_blanks();
    let has_name = cursor.metric_name();
    if has_name {
        // Blanks before the name belong to it, as in Prometheus.
        push(&text[..cursor.at], METRIC_NAME, labels)?;
        cursor.skip_blanks();
    }
    if cursor.is_at_end() {
        return Ok(());
    }
    if cursor.peek() != b'{' {
        return Err(malformed(&cursor.fail("")));
    }
    let mut outcome = Ok(());
    let (mut name_text, mut reader) = (String::new(), cursor);
    let metric_name = reader.braces(has_name, |name, value| {
        name_text.clear();
        if outcome.is_ok() {
            outcome = utf8(&text[name.clone()]).and_then(|name| {
                unescape_into(name, &mut name_text);
                push(&text[value], &name_text, labels)
            });
        }
        Ok(())
    });
    outcome?;
    if let Some(name) = metric_name.map_err(|failure| malformed(&failure))? {
        push(&text[name], METRIC_NAME, labels)?;
    }
    Ok(())
}

fn push(escaped: &[u8], name: &str, labels: &mut LabelBuf) -> Result<(), LabelError> {
    let escaped = std::str::from_utf8(escaped).map_err(|_| LabelError::NotUtf8(name.to_owned()))?;
    if escaped.contains('\\') {
        let mut value = String::with_capacity(escaped.len());
        unescape_into(escaped, &mut value);
        labels.push(name, &value);
    } else {
        labels.push(name, escaped);
    }
    Ok(())
}

fn utf8(bytes: &[u8]) -> Result<&str, LabelError> {
    std::str::from_utf8(bytes).map_err(|_| LabelError::NotUtf8(String::from_utf8_lossy(bytes).into_owned()))
}

fn malformed(failure: &Failure) -> LabelError {
    LabelError::Malformed { offset: failure.offset as u32, what: "a series in the text format" }
}
