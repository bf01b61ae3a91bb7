//! The grammar below the line: names, quoted strings, braces.
use std::ops::Range;

/// The text is not what the grammar wants at `offset`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) offset: usize,
    pub(super) message: String,
}

/// A position in a text. Behind its end lies a line break, as if the last line always had one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'t> {
    pub(super) text: &'t [u8],
    pub(super) at: usize,
}

/// Longest piece of the text shown in a message, in bytes.
const SHOWN_BYTES: usize = 40;

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t [u8]) -> Cursor<'t> {
        Cursor { text, at: 0 }
    }

    #[inline]
    pub(super) fn peek(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(b'\n')
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.text.len()
    }

    #[inline]
    pub(super) fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\t') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    /// Bytes from the position on, none behind the end.
    pub(super) fn rest(&self) -> &'t [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Passes over `[a-zA-Z_:][a-zA-Z0-9_:]*`; says whether there was one.
    #[inline]
    pub(super) fn metric_name(&mut self) -> bool {
        let length = name_length(self.rest(), true);
        self.at += length;
        length > 0
    }

    /// Passes over a quoted string that holds no NUL and returns what stands between the quotes, escapes as written.
    pub(super) fn quoted_name(&mut self) -> Result<Range<usize>, Failure> {
        let start = self.at + 1;
        let mut at = start;
        loop {
            match self.text.get(at) {
                Some(b'"') => break,
                Some(b'\\') => match self.text.get(at + 1) {
                    None | Some(b'\n' | 0) => return Err(self.expected("a quoted name")),
                    Some(_) => at += 2,
                },
                None | Some(0) => return Err(self.expected("a quoted name")),
                Some(_) => at += 1,
            }
        }
        self.at = at + 1;
        Ok(start..at)
    }

    /// Passes over a quoted label value and returns what stands between the quotes, escapes as written.
    #[inline]
    fn label_value(&mut self) -> Result<Range<usize>, Failure> {
        if self.peek() != b'"' {
            return Err(self.expected("label value"));
        }
        let start = self.at + 1;
        let mut at = start;
        loop {
            let Some(found) = self.text.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) else {
                return Err(self.expected("label value"));
            };
            at += found;
            if self.text[at] == b'"' {
                break;
            }
            at += 1;
            while self.text.get(at) == Some(&0) {
                at += 1;
            }
            if matches!(self.text.get(at), None | Some(b'\n')) {
                return Err(self.expected("label value"));
            }
            at += 1;
        }
        self.at = at + 1;
        Ok(start..at)
    }

    /// Passes over braces, the opening one included. `label` gets name and value of each label without their
    /// quotes. `has_name` says whether the metric's name stands before the braces; returns the quoted name
    /// inside them otherwise.
    pub(super) fn braces(
        &mut self,
        has_name: bool,
        mut label: impl FnMut(Range<usize>, Range<usize>) -> Result<(), Failure>,
    ) -> Result<Option<Range<usize>>, Failure> {
        self.at += 1;
        let mut metric_name = None;
        loop {
            self.skip_blanks();
            let first = self.peek();
            if first == b'}' {
                self.at += 1;
                return Ok(metric_name);
            }
            let name = if first == b'"' {
                let name = self.quoted_name()?;
                self.skip_blanks();
                if matches!(self.peek(), b',' | b'}') {
                    if has_name || metric_name.is_some() {
                        return Err(self.fail("metric name already set"));
                    }
                    metric_name = Some(name);
                    if self.peek() == b',' {
                        self.at += 1;
                    }
                    continue;
                }
                name
            } else {
                let length = name_length(self.rest(), false);
                if length == 0 {
                    return Err(self.expected("label name"));
                }
                self.at += length;
                self.at - length..self.at
            };
            self.skip_blanks();
            if self.peek() != b'=' {
                return Err(self.expected("equal"));
            }
            self.at += 1;
            self.skip_blanks();
            let value = self.label_value()?;
            label(name, value)?;
            self.skip_blanks();
            if self.peek() == b',' {
                self.at += 1;
            }
        }
    }

    pub(super) fn fail(&self, message: impl Into<String>) -> Failure {
        Failure { offset: self.at.min(self.text.len()), message: message.into() }
    }

    pub(super) fn expected(&self, what: &str) -> Failure {
        self.fail(format!("expected {what}, got {}", self.shown()))
    }

    /// What stands here, quoted, up to the end of the line.
    fn shown(&self) -> String {
        let rest = self.rest();
        let line = memchr::memchr(b'\n', rest).map_or(rest, |end| &rest[..end.max(1)]);
        if line.is_empty() {
            return "end of page".into();
        }
        format!("{:?}", String::from_utf8_lossy(&line[..line.len().min(SHOWN_BYTES)]))
    }
}

/// Classes of bytes in unquoted names.
const NAME_START: u8 = 1;
const NAME_COLON: u8 = 2;
const NAME_DIGIT: u8 = 4;

static NAME_BYTES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let ascii = byte as u8;
        if ascii.is_ascii_alphabetic() || ascii == b'_' {
            classes[byte] = NAME_START;
        } else if ascii == b':' {
            classes[byte] = NAME_COLON;
        } else if ascii.is_ascii_digit() {
            classes[byte] = NAME_DIGIT;
        }
        byte += 1;
    }
    classes
};

#[inline]
fn name_length(text: &[u8], with_colon: bool) -> usize {
    let start = if with_colon { NAME_START | NAME_COLON } else { NAME_START };
    if text.first().is_none_or(|&byte| NAME_BYTES[byte as usize] & start == 0) {
        return 0;
    }
    let inner = start | NAME_DIGIT;
    text.iter().position(|&byte| NAME_BYTES[byte as usize] & inner == 0).unwrap_or(text.len())
}

/// Resolves `\"`, `\\` and `\n`; other backslashes stay.
pub(super) fn unescape_into(escaped: &str, out: &mut String) {
    let mut rest = escaped;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let (text, used) = match rest.as_bytes().get(at + 1) {
            Some(b'"') => ("\"", 2),
            Some(b'\\') => ("\\", 2),
            Some(b'n') => ("\n", 2),
            _ => ("\\", 1),
        };
        out.push_str(text);
        rest = &rest[at + used..];
    }
    out.push_str(rest);
}
