//! Selectors and what follows an expression: `[…]`, `offset`, `@`.
use metricsstore_model::{METRIC_NAME, MatchOp, Matcher};

use crate::ast::{At, Expr, ExprKind, RangeSelector, Selector, Span, Subquery};
use crate::lexer::TokenKind;

use super::{Parsed, Parser};

/// Words that cannot name a metric.
const RESERVED: [&str; 6] = ["atan2", "bool", "group_left", "group_right", "ignoring", "on"];
/// Seconds that still fit Prometheus' 64-bit nanoseconds.
const MAX_DURATION_SECONDS: f64 = 9_223_372_036.0;

impl Parser<'_> {
    pub(super) fn vector_selector(&mut self) -> Parsed<(Selector, Span)> {
        let token = self.peek().clone();
        let named = match token.kind {
            TokenKind::Identifier | TokenKind::MetricIdentifier => true,
            TokenKind::Keyword(word) => !RESERVED.contains(&word),
            _ => false,
        };
        let mut selector = Selector { name: None, matchers: vec![], at: None, offset_ms: 0 };
        let mut span = token.span;
        if named {
            self.advance();
            selector.name = Some(self.text(token.span).into());
        }
        if let Some(open) = self.accept_symbol("{") {
            let close = self.matchers(&mut selector.matchers)?;
            span = if named { span.to(close) } else { open.to(close) };
        } else if !named {
            return self.unexpected("", "");
        }
        if let Some(name) = &selector.name {
            selector.matchers.push(Matcher::equal(METRIC_NAME, name));
        }
        Ok((selector, span))
    }

    /// Matchers up to the closing brace, which is returned.
    fn matchers(&mut self, matchers: &mut Vec<Matcher>) -> Parsed<Span> {
        const CONTEXT: &str = "label matching";
        loop {
            if let Some(close) = self.accept_symbol("}") {
                return Ok(close);
            }
            matchers.push(self.matcher()?);
            if self.accept_symbol(",").is_none() && !self.is_symbol("}") {
                return self.unexpected(CONTEXT, "\",\" or \"}\"");
            }
        }
    }

    fn matcher(&mut self) -> Parsed<Matcher> {
        const CONTEXT: &str = "label matching";
        let token = self.peek().clone();
        let name = match token.kind {
            TokenKind::Identifier => self.text(token.span).to_owned(),
            TokenKind::String => self.unquoted(token.span)?,
            _ => return self.unexpected(CONTEXT, "identifier or \"}\""),
        };
        self.advance();
        let op = match self.peek().kind {
            TokenKind::Symbol("=") => MatchOp::Equal,
            TokenKind::Symbol("!=") => MatchOp::NotEqual,
            TokenKind::Symbol("=~") => MatchOp::Regex,
            TokenKind::Symbol("!~") => MatchOp::NotRegex,
            _ if token.kind == TokenKind::String => return Ok(Matcher::equal(METRIC_NAME, &name)),
            _ => return self.unexpected(CONTEXT, "label matching operator"),
        };
        self.advance();
        let value_token = self.peek().clone();
        if value_token.kind != TokenKind::String {
            return self.unexpected(CONTEXT, "string");
        }
        let value = self.unquoted(value_token.span)?;
        self.advance();
        Matcher::new(op, &name, &value)
            .or_else(|error| self.error(token.span.to(value_token.span), error.to_string()))
    }

    pub(super) fn postfix(&mut self, mut expr: Expr) -> Parsed<Expr> {
        let depth = self.depth;
        loop {
            self.descend()?;
            if self.is_symbol("[") {
                expr = self.brackets(expr)?;
            } else if self.accept_keyword("offset").is_some() {
                self.offset(&mut expr)?;
            } else if self.accept_symbol("@").is_some() {
                self.at(&mut expr)?;
            } else if let Some(word @ ("anchored" | "smoothed")) = self.keyword() {
                return self.error(self.peek().span, format!("modifier {word} is not supported"));
            } else {
                self.depth = depth;
                return Ok(expr);
            }
        }
    }

    /// Passes a sign, if there is one; says whether it is a minus.
    fn accept_sign(&mut self) -> bool {
        let negative = self.accept_symbol("-").is_some();
        if !negative {
            self.accept_symbol("+");
        }
        negative
    }

    /// A signed literal in milliseconds. Expressions of durations are refused rather than misread.
    fn duration_ms(&mut self, context: &str, expected: &str) -> Parsed<(i64, Span)> {
        let start = self.peek().span;
        let negative = self.accept_sign();
        if !matches!(self.peek().kind, TokenKind::Number | TokenKind::Duration) {
            if self.is_symbol("(") || self.keyword().is_some() {
                return self.error(start, "duration expressions are not supported");
            }
            return self.unexpected(context, expected);
        }
        let literal = self.number()?;
        let span = start.to(literal.span);
        let ExprKind::Number(number) = literal.kind else { return self.unexpected(context, expected) };
        let seconds = if negative { -number.value } else { number.value };
        if seconds.is_nan() || seconds.abs() > MAX_DURATION_SECONDS {
            return self.error(span, "duration out of range");
        }
        Ok(((seconds * 1000.0).round() as i64, span))
    }

    fn positive_duration_ms(&mut self, context: &str, expected: &str) -> Parsed<i64> {
        let (ms, span) = self.duration_ms(context, expected)?;
        if ["+", "-", "*", "/", "%", "^"].iter().any(|symbol| self.is_symbol(symbol)) {
            return self.error(span, "duration expressions are not supported");
        }
        if ms <= 0 {
            return self.error(span, "duration must be greater than 0");
        }
        Ok(ms)
    }

    fn brackets(&mut self, expr: Expr) -> Parsed<Expr> {
        let open = self.advance().span;
        let range_ms =
            self.positive_duration_ms("subquery or range selector", "number, duration, step(), or range()")?;
        if self.accept_symbol(":").is_some() {
            return self.subquery(expr, range_ms);
        }
        let Some(close) = self.accept_symbol("]") else {
            return self.unexpected("subquery or range", "\":\" or \"]\"");
        };
        let message = match &expr.kind {
            ExprKind::Selector(selector) if selector.offset_ms != 0 => {
                "no offset modifiers allowed before range"
            }
            ExprKind::Selector(selector) if selector.at.is_some() => "no @ modifiers allowed before range",
            ExprKind::Selector(_) => "",
            _ => "ranges only allowed for vector selectors",
        };
        let span = expr.span.to(close);
        match expr.kind {
            ExprKind::Selector(selector) if message.is_empty() => {
                Ok(Expr { kind: ExprKind::Range(RangeSelector { selector, range_ms }), span })
            }
            _ => self.error(open.to(close), message),
        }
    }

    fn subquery(&mut self, expr: Expr, range_ms: i64) -> Parsed<Expr> {
        const CONTEXT: &str = "subquery selector";
        let step_ms = if self.is_symbol("]") {
            None
        } else {
            Some(self.positive_duration_ms(CONTEXT, "number, duration, step(), range(), or \"]\"")?)
        };
        let Some(close) = self.accept_symbol("]") else { return self.unexpected(CONTEXT, "\"]\"") };
        let span = expr.span.to(close);
        let subquery = Subquery { expr, range_ms, step_ms, at: None, offset_ms: 0 };
        Ok(Expr { kind: ExprKind::Subquery(Box::new(subquery)), span })
    }

    fn offset(&mut self, expr: &mut Expr) -> Parsed<()> {
        let (ms, span) = self.duration_ms("offset", "number, duration, step(), or range()")?;
        let Some((_, offset_ms)) = modifiers(expr) else {
            let message = "offset modifier must be preceded by an instant vector selector or range vector selector \
                           or a subquery";
            return self.error(expr.span, message);
        };
        if *offset_ms != 0 {
            return self.error(expr.span, "offset may not be set multiple times");
        }
        *offset_ms = ms;
        expr.span.end = span.end;
        Ok(())
    }

    fn at(&mut self, expr: &mut Expr) -> Parsed<()> {
        let (at, end) = match self.keyword() {
            Some(word @ ("start" | "end")) => {
                self.advance();
                self.expect_symbol("(")?;
                let end = self.expect_symbol(")")?;
                (if word == "start" { At::Start } else { At::End }, end)
            }
            _ => self.at_time(expr)?,
        };
        let Some((slot, _)) = modifiers(expr) else {
            let message = "@ modifier must be preceded by an instant vector selector or range vector selector or a subquery";
            return self.error(expr.span, message);
        };
        if slot.is_some() {
            return self.error(expr.span, "@ <timestamp> may not be set multiple times");
        }
        *slot = Some(at);
        expr.span.end = end.end;
        Ok(())
    }

    fn at_time(&mut self, expr: &Expr) -> Parsed<(At, Span)> {
        let negative = self.accept_sign();
        if !matches!(self.peek().kind, TokenKind::Number | TokenKind::Duration) {
            return self.unexpected("@", "timestamp");
        }
        let literal = self.number()?;
        let ExprKind::Number(number) = literal.kind else { return self.unexpected("@", "timestamp") };
        let seconds = if negative { -number.value } else { number.value };
        if !seconds.is_finite() || seconds.abs() >= i64::MAX as f64 {
            let text =
                if seconds.is_finite() { format!("{seconds:.6}") } else { crate::format_float(seconds) };
            return self.error(expr.span, format!("timestamp out of bounds for @ modifier: {text}"));
        }
        Ok((At::Time((seconds * 1000.0).round() as i64), literal.span))
    }
}

/// Where an expression keeps its `@` and its `offset`.
fn modifiers(expr: &mut Expr) -> Option<(&mut Option<At>, &mut i64)> {
    match &mut expr.kind {
        ExprKind::Selector(selector) => Some((&mut selector.at, &mut selector.offset_ms)),
        ExprKind::Range(range) => Some((&mut range.selector.at, &mut range.selector.offset_ms)),
        ExprKind::Subquery(subquery) => Some((&mut subquery.at, &mut subquery.offset_ms)),
        _ => None,
    }
}
