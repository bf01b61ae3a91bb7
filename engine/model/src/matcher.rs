//! Label matchers of a selector.
use std::fmt;
use std::sync::Arc;

/// How a matcher compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatchOp {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `=~`, anchored at both ends
    Regex,
    /// `!~`, anchored at both ends
    NotRegex,
}

impl MatchOp {
    /// As written in PromQL.
    pub const fn symbol(self) -> &'static str {
        match self {
            MatchOp::Equal => "=",
            MatchOp::NotEqual => "!=",
            MatchOp::Regex => "=~",
            MatchOp::NotRegex => "!~",
        }
    }
}

/// A regular expression that does not compile.
#[derive(Debug, Clone, thiserror::Error)]
#[error("error parsing regexp: {reason}")]
pub struct MatcherError {
    /// The compiler's words, on one line.
    pub reason: String,
}

/// One comparison of a label's value. A label that a series does not have counts as the empty string.
#[derive(Clone)]
pub struct Matcher {
    /// Label name.
    pub name: Arc<str>,
    /// Comparison.
    pub op: MatchOp,
    /// Text or pattern, as written.
    pub value: Arc<str>,
    pattern: Option<Arc<Pattern>>,
}

enum Pattern {
    /// `a|b|c` of plain words: no automaton needed, and an index can look each one up.
    Words(Vec<Box<str>>),
    Regex(regex::Regex),
}

impl Matcher {
    /// A matcher; patterns are compiled here, with a bound on their compiled size (10 MiB).
    pub fn new(op: MatchOp, name: &str, value: &str) -> Result<Matcher, MatcherError> {
        let pattern = match op {
            MatchOp::Equal | MatchOp::NotEqual => None,
            MatchOp::Regex | MatchOp::NotRegex => Some(Arc::new(compile(value)?)),
        };
        Ok(Matcher { name: name.into(), op, value: value.into(), pattern })
    }

    /// `name = value`.
    pub fn equal(name: &str, value: &str) -> Matcher {
        Matcher { name: name.into(), op: MatchOp::Equal, value: value.into(), pattern: None }
    }

    /// Whether a value passes.
    pub fn matches(&self, value: &str) -> bool {
        let hit = match self.pattern.as_deref() {
            None => &*self.value == value,
            Some(Pattern::Words(words)) => words.iter().any(|word| &**word == value),
            Some(Pattern::Regex(regex)) => regex.is_match(value),
        };
        hit == matches!(self.op, MatchOp::Equal | MatchOp::Regex)
    }

    /// Whether a series without the label passes.
    pub fn matches_empty(&self) -> bool {
        self.matches("")
    }

    /// The only values that can pass, where they can be listed: one for `=`, all words of `=~"a|b"`.
    pub fn words(&self) -> Option<Vec<&str>> {
        match (self.op, self.pattern.as_deref()) {
            (MatchOp::Equal, _) => Some(vec![&self.value]),
            (MatchOp::Regex, Some(Pattern::Words(words))) => Some(words.iter().map(|word| &**word).collect()),
            _ => None,
        }
    }
}

fn compile(pattern: &str) -> Result<Pattern, MatcherError> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '/' | '-' | ' ' | '@' | ',' | '=');
    if pattern.chars().all(|c| plain(c) || c == '|') {
        return Ok(Pattern::Words(pattern.split('|').map(Box::from).collect()));
    }
    // As in Prometheus 3, `.` also matches a line break.
    regex::RegexBuilder::new(&format!("^(?s:{pattern})$"))
        .size_limit(10 << 20)
        .build()
        .map(Pattern::Regex)
        .map_err(|error| MatcherError {
            reason: error.to_string().lines().last().unwrap_or_default().trim().to_owned(),
        })
}

impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{:?}", self.name, self.op.symbol(), self.value)
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for Matcher {
    fn eq(&self, other: &Matcher) -> bool {
        self.op == other.op && self.name == other.name && self.value == other.value
    }
}

#[cfg(test)]
mod tests {
    use super::{MatchOp, Matcher};

    #[test]
    fn patterns_are_anchored_and_dot_matches_a_line_break() {
        let matcher = Matcher::new(MatchOp::Regex, "a", "b.*").unwrap();
        assert!(matcher.matches("b\nc") && !matcher.matches("ab"));
        let words = Matcher::new(MatchOp::NotRegex, "a", "x|y").unwrap();
        assert!(words.matches("z") && !words.matches("x") && !words.matches("y"));
    }

    #[test]
    fn an_alternative_cannot_escape_its_anchors() {
        let matcher = Matcher::new(MatchOp::Regex, "a", "b.|c").unwrap();
        assert!(!matcher.matches("bbc") && matcher.matches("c"));
    }

    #[test]
    fn an_empty_word_matches_the_missing_label() {
        assert!(Matcher::new(MatchOp::Regex, "a", "x|").unwrap().matches_empty());
    }
}
