//! Text to tokens.
use crate::ast::Span;
use crate::literal::{quote, quote_char};

/// Kinds of tokens; symbols and keywords carry their own spelling in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Eof,
    /// What the lexer could not read, in words; always the last token.
    Error(String),
    Identifier,
    /// A name with a colon.
    MetricIdentifier,
    String,
    Number,
    Duration,
    Symbol(&'static str),
    Keyword(&'static str),
}

/// A token and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub kind: TokenKind,
    pub span: Span,
}

/// Words with a meaning; all but a few may still name metrics and labels.
const KEYWORDS: [&str; 37] = [
    "and",
    "or",
    "unless",
    "atan2",
    "sum",
    "avg",
    "count",
    "min",
    "max",
    "group",
    "stddev",
    "stdvar",
    "topk",
    "bottomk",
    "count_values",
    "quantile",
    "limitk",
    "limit_ratio",
    "offset",
    "smoothed",
    "anchored",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "fill",
    "fill_left",
    "fill_right",
    "bool",
    "start",
    "end",
    "step",
    "range",
    "max_of",
    "min_of",
];
const SET_WORDS: [&str; 4] = ["and", "or", "unless", "atan2"];
const MODIFIER_WORDS: [&str; 13] = [
    "offset",
    "smoothed",
    "anchored",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "fill",
    "fill_left",
    "fill_right",
    "bool",
];
const DURATION_WORDS: [&str; 4] = ["step", "range", "max_of", "min_of"];

impl Token {
    /// As error messages name it.
    pub fn describe(&self, query: &str) -> String {
        let text = &query[self.span.start as usize..self.span.end as usize];
        match &self.kind {
            TokenKind::Eof => "end of input".into(),
            TokenKind::Error(message) => message.clone(),
            TokenKind::Identifier => format!("identifier {}", quote(text)),
            TokenKind::MetricIdentifier => format!("metric identifier {}", quote(text)),
            TokenKind::String => format!("string {}", shortened(text)),
            TokenKind::Number => format!("number {}", shortened(text)),
            TokenKind::Duration => format!("duration {}", shortened(text)),
            TokenKind::Symbol(symbol) if is_operator(symbol) => format!("<op:{text}>"),
            TokenKind::Symbol(_) => quote(text),
            TokenKind::Keyword(word) if SET_WORDS.contains(word) => format!("<op:{text}>"),
            TokenKind::Keyword(word) if MODIFIER_WORDS.contains(word) => format!("<{text}>"),
            TokenKind::Keyword(word) if crate::ast::AggregateOp::from_name(word).is_some() => {
                format!("<aggr:{text}>")
            }
            TokenKind::Keyword(_) => shortened(text),
        }
    }
}

fn shortened(text: &str) -> String {
    if text.len() > 10 {
        format!("{}...", quote(&text.chars().take(10).collect::<String>()))
    } else {
        quote(text)
    }
}

fn is_operator(symbol: &str) -> bool {
    !matches!(symbol, "(" | ")" | "{" | "}" | "[" | "]" | "," | "=" | ":")
}

/// All tokens of a query; the last is `Eof` or `Error`.
pub(crate) fn tokenize(query: &str, unquoted_utf8_names: bool) -> Vec<Token> {
    let mut lexer = Lexer {
        query,
        at: 0,
        unquoted_utf8_names,
        paren_depth: 0,
        brace_open: false,
        bracket_open: false,
        bracket_start: false,
        got_colon: false,
        error_follows: false,
        tokens: Vec::new(),
    };
    loop {
        lexer.skip_blank();
        let mut start = lexer.at;
        let kind = lexer.token().unwrap_or_else(TokenKind::Error);
        if lexer.error_follows {
            start = lexer.at;
        }
        let last = matches!(kind, TokenKind::Eof | TokenKind::Error(_));
        lexer.tokens.push(Token { kind, span: Span { start: start as u32, end: lexer.at as u32 } });
        if last {
            return lexer.tokens;
        }
    }
}

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a state of its own, as brackets and braces exclude each other"
)]
struct Lexer<'q> {
    query: &'q str,
    at: usize,
    unquoted_utf8_names: bool,
    paren_depth: u32,
    brace_open: bool,
    bracket_open: bool,
    /// Inside brackets and the last token was not a number: an operand or an operator of a duration may follow.
    bracket_start: bool,
    got_colon: bool,
    /// The error is reported after the character that it is about, as Prometheus does for some.
    error_follows: bool,
    tokens: Vec<Token>,
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.query[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn accept(&mut self, wanted: impl Fn(char) -> bool) -> bool {
        let found = self.peek().is_some_and(wanted);
        if found {
            self.next();
        }
        found
    }

    fn skip_blank(&mut self) {
        loop {
            while self.accept(|c| matches!(c, ' ' | '\t' | '\n' | '\r')) {}
            if self.bracket_open || !self.rest().starts_with('#') {
                return;
            }
            while self.accept(|c| !matches!(c, '\n' | '\r')) {}
        }
    }

    fn token(&mut self) -> Result<TokenKind, String> {
        if self.brace_open {
            return self.token_in_braces();
        }
        if self.bracket_open {
            return self.token_in_brackets();
        }
        let Some(c) = self.peek() else {
            return if self.paren_depth > 0 {
                Err("unclosed left parenthesis".into())
            } else {
                Ok(TokenKind::Eof)
            };
        };
        match c {
            '"' | '\'' | '`' => return self.string(),
            c if c.is_ascii_digit() => return self.number_or_duration(),
            '.' if self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                return self.number_or_duration();
            }
            c if self.is_name_start(c) || c == ':' => return Ok(self.word()),
            _ => {}
        }
        self.next();
        self.symbol(c).map(TokenKind::Symbol)
    }

    fn symbol(&mut self, c: char) -> Result<&'static str, String> {
        Ok(match c {
            ',' => ",",
            '*' => "*",
            '/' => "/",
            '%' => "%",
            '+' => "+",
            '-' => "-",
            '^' => "^",
            '@' => "@",
            '=' if self.accept(|c| c == '=') => "==",
            '=' if self.rest().starts_with('~') => {
                return Err(format!("unexpected character after '=': {}", quote_char('~')));
            }
            '=' => "=",
            '!' if self.accept(|c| c == '=') => "!=",
            '!' => {
                let found = self.next().unwrap_or(char::REPLACEMENT_CHARACTER);
                return Err(format!("unexpected character after '!': {}", quote_char(found)));
            }
            '<' if self.accept(|c| c == '=') => "<=",
            '<' if self.accept(|c| c == '/') => "</",
            '<' => "<",
            '>' if self.accept(|c| c == '=') => ">=",
            '>' if self.accept(|c| c == '/') => ">/",
            '>' => ">",
            '(' => {
                self.paren_depth += 1;
                "("
            }
            ')' => {
                let Some(depth) = self.paren_depth.checked_sub(1) else {
                    self.error_follows = true;
                    return Err(format!("unexpected right parenthesis {}", quote_char(c)));
                };
                self.paren_depth = depth;
                ")"
            }
            '{' => {
                self.brace_open = true;
                "{"
            }
            '[' => {
                self.bracket_open = true;
                self.bracket_start = true;
                self.got_colon = false;
                "["
            }
            ']' => return Err(format!("unexpected right bracket {}", quote_char(c))),
            c => return Err(format!("unexpected character: {}", quote_char(c))),
        })
    }

    fn token_in_braces(&mut self) -> Result<TokenKind, String> {
        let Some(c) = self.peek() else {
            return Err("unexpected end of input inside braces".into());
        };
        if self.is_name_start(c) {
            while self.peek().is_some_and(|c| self.is_name_continue(c)) {
                self.next();
            }
            return Ok(TokenKind::Identifier);
        }
        if matches!(c, '"' | '\'' | '`') {
            return self.string();
        }
        self.next();
        let symbol = match c {
            ',' => ",",
            '=' if self.accept(|c| c == '~') => "=~",
            '=' => "=",
            '!' if self.accept(|c| c == '~') => "!~",
            '!' if self.accept(|c| c == '=') => "!=",
            '!' => {
                let found = self.next().unwrap_or(char::REPLACEMENT_CHARACTER);
                return Err(format!("unexpected character after '!' inside braces: {}", quote_char(found)));
            }
            '{' => return Err(format!("unexpected left brace {}", quote_char(c))),
            '}' => {
                self.brace_open = false;
                "}"
            }
            c => return Err(format!("unexpected character inside braces: {}", quote_char(c))),
        };
        Ok(TokenKind::Symbol(symbol))
    }

    fn token_in_brackets(&mut self) -> Result<TokenKind, String> {
        let Some(c) = self.peek() else {
            return Err(if self.bracket_start {
                "unexpected end of input in duration expression".into()
            } else {
                "unclosed left bracket".into()
            });
        };
        let dotted_number = c == '.' && self.rest()[1..].starts_with(|c: char| c.is_ascii_digit());
        if c.is_ascii_digit() || dotted_number {
            self.bracket_start = false;
            return self.number_or_duration();
        }
        if c.is_ascii_alphabetic() {
            return self.duration_word();
        }
        self.next();
        let symbol = match c {
            ']' => {
                self.bracket_open = false;
                "]"
            }
            ':' if self.got_colon && self.bracket_start => {
                self.error_follows = true;
                return Err("unexpected repeated colon in duration expression".into());
            }
            ':' if self.got_colon => return Err(format!("unexpected colon {}", quote_char(c))),
            ':' if self.bracket_start => {
                self.error_follows = true;
                return Err("unexpected colon before duration in duration expression".into());
            }
            ':' => {
                self.got_colon = true;
                ":"
            }
            '[' => return Err(format!("unexpected left bracket {}", quote_char(c))),
            '(' | ')' | '+' | '-' | '*' | '/' | '%' | '^' | ',' => self.symbol(c)?,
            c if self.bracket_start => {
                return Err(format!("unexpected character in duration expression: {}", quote_char(c)));
            }
            c => return Err(format!("unexpected character: {}", quote_char(c))),
        };
        self.bracket_start = true;
        Ok(TokenKind::Symbol(symbol))
    }

    fn duration_word(&mut self) -> Result<TokenKind, String> {
        let start = self.at;
        let first = self.peek().unwrap_or_default();
        while self.accept(|c| c.is_ascii_alphabetic() || c == '_') {}
        let word = self.query[start..self.at].to_ascii_lowercase();
        if let Some(found) = DURATION_WORDS.iter().find(|known| **known == word) {
            self.bracket_start = false;
            return Ok(TokenKind::Keyword(found));
        }
        Err(if self.bracket_start {
            format!("unexpected character in duration expression: {}", quote_char(first))
        } else {
            format!("unexpected character: {}, expected {}", quote_char(first), quote_char(':'))
        })
    }

    fn is_name_start(&self, c: char) -> bool {
        c == '_'
            || c.is_ascii_alphabetic()
            || (self.unquoted_utf8_names && !c.is_ascii() && c.is_alphabetic())
    }

    fn is_name_continue(&self, c: char) -> bool {
        self.is_name_start(c) || c.is_ascii_digit() || (self.unquoted_utf8_names && c == '.')
    }

    fn word(&mut self) -> TokenKind {
        let start = self.at;
        while self.peek().is_some_and(|c| self.is_name_continue(c) || c == ':') {
            self.next();
        }
        let word = &self.query[start..self.at];
        if word.eq_ignore_ascii_case("inf") || word.eq_ignore_ascii_case("nan") {
            return TokenKind::Number;
        }
        if let Some(keyword) = KEYWORDS.iter().find(|keyword| keyword.eq_ignore_ascii_case(word)) {
            // These came late to the language; without a parenthesis they are names, as they were before.
            let needs_paren = matches!(*keyword, "fill" | "fill_left" | "fill_right");
            if needs_paren && !self.rest().trim_start().starts_with('(') {
                return TokenKind::Identifier;
            }
            return TokenKind::Keyword(keyword);
        }
        if word.contains(':') { TokenKind::MetricIdentifier } else { TokenKind::Identifier }
    }

    fn string(&mut self) -> Result<TokenKind, String> {
        let quote = self.next().unwrap_or_default();
        let raw = quote == '`';
        loop {
            match self.next() {
                None if raw => return Err("unterminated raw string".into()),
                None => return Err("unterminated quoted string".into()),
                Some('\n') if !raw => return Err("unterminated quoted string".into()),
                Some(c) if c == quote => return Ok(TokenKind::String),
                Some('\\') if !raw => self.escape(quote)?,
                Some(_) => {}
            }
        }
    }

    fn escape(&mut self, quote: char) -> Result<(), String> {
        let Some(c) = self.next() else { return Err("escape sequence not terminated".into()) };
        let (digits, radix, limit) = match c {
            'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '\\' => return Ok(()),
            c if c == quote => return Ok(()),
            '0'..='7' => {
                self.at -= 1;
                (3, 8, 255)
            }
            'x' => (2, 16, 255),
            'u' => (4, 16, 0x0010_ffff),
            'U' => (8, 16, 0x0010_ffff),
            c => return Err(format!("unknown escape sequence U+{:04X} '{c}'", c as u32)),
        };
        let mut code = 0u64;
        for _ in 0..digits {
            let Some(c) = self.next() else { return Err("escape sequence not terminated".into()) };
            let Some(digit) = c.to_digit(radix) else {
                return Err(format!("illegal character U+{:04X} '{c}' in escape sequence", c as u32));
            };
            code = code * u64::from(radix) + u64::from(digit);
        }
        if code > limit || (0xd800..0xe000).contains(&code) {
            return Err("escape sequence is an invalid Unicode code point".into());
        }
        Ok(())
    }

    fn number_or_duration(&mut self) -> Result<TokenKind, String> {
        let start = self.at;
        if self.number() {
            return Ok(TokenKind::Number);
        }
        if self.duration_tail() {
            return Ok(TokenKind::Duration);
        }
        // As the message of a second dot shows it.
        self.accept(|c| c == '.');
        Err(format!("bad number or duration syntax: {}", quote(&self.query[start..self.at])))
    }

    /// Reads digits with dots, exponents and underscores; false when what follows cannot end a number.
    fn number(&mut self) -> bool {
        let rest = self.rest().as_bytes();
        let hex = rest.len() > 1 && rest[0] == b'0' && matches!(rest[1], b'x' | b'X');
        let mut length = if hex { 2 } else { 0 };
        let mut seen_dot = false;
        let mut seen_exponent = false;
        while let Some(&byte) = rest.get(length) {
            match byte {
                b'0'..=b'9' => {}
                b'a'..=b'f' | b'A'..=b'F' if hex => {}
                b'_' if rest.get(length + 1).is_some_and(u8::is_ascii_hexdigit) => {}
                b'.' if !hex && !seen_dot && !seen_exponent => seen_dot = true,
                b'e' | b'E' if !seen_exponent => {
                    seen_exponent = true;
                    if matches!(rest.get(length + 1), Some(b'+' | b'-')) {
                        length += 1;
                    }
                    if !rest.get(length + 1).is_some_and(u8::is_ascii_digit) {
                        break;
                    }
                }
                _ => break,
            }
            length += 1;
        }
        self.at += length;
        !self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))
    }

    /// Reads the units (and further numbers with units) after the digits of a duration.
    fn duration_tail(&mut self) -> bool {
        loop {
            if !self.accept(|c| matches!(c, 's' | 'm' | 'h' | 'd' | 'w' | 'y')) {
                return false;
            }
            self.accept(|c| c == 's');
            if !self.peek().is_some_and(|c| c.is_ascii_digit()) {
                if !self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
                    return true;
                }
                // The message shows the character that is too many.
                self.next();
                return false;
            }
            while self.accept(|c| c.is_ascii_digit()) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TokenKind, tokenize};

    fn kinds(query: &str) -> Vec<TokenKind> {
        tokenize(query, false).into_iter().map(|token| token.kind).collect()
    }

    #[test]
    fn a_duration_is_not_a_number() {
        assert_eq!(
            kinds("5m 1h30m 0x1F 1e5 1_000 .5")[..],
            [
                TokenKind::Duration,
                TokenKind::Duration,
                TokenKind::Number,
                TokenKind::Number,
                TokenKind::Number,
                TokenKind::Number,
                TokenKind::Eof
            ]
        );
    }

    #[test]
    fn keywords_inside_braces_are_names() {
        assert_eq!(kinds(r#"{sum="a"}"#)[1], TokenKind::Identifier);
        assert_eq!(kinds("SUM")[0], TokenKind::Keyword("sum"));
    }

    #[test]
    fn a_comment_ends_with_its_line() {
        assert_eq!(kinds("1 # a ( b\n+ 2").len(), 4);
    }
}
