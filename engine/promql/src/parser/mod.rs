//! Tokens to tree: operator precedence parsing. The first error ends it.
mod selector;

use metricsstore_model::Matcher;

use crate::ast::{
    Aggregate, AggregateOp, Binary, BinaryOp, Call, Cardinality, Expr, ExprKind, Matching, NumberLiteral,
    Span, Type, Unary,
};
use crate::engine::Features;
use crate::error::ParseError;
use crate::functions::{self, Status};
use crate::lexer::{Token, TokenKind, tokenize};
use crate::literal::{parse_duration_ms, parse_number, quote, unquote};

/// Longest query in bytes.
const MAX_QUERY_BYTES: usize = 1 << 20;
/// Deepest tree; parser and evaluator recurse, so this bounds their stack.
const MAX_DEPTH: u32 = 200;

/// Binds tighter than every binary operator but `^`.
const UNARY_BINDING: u8 = 6;

/// Parses and checks a query with every feature off.
pub fn parse(query: &str) -> Result<Expr, ParseError> {
    parse_with(query, Features::default())
}

/// Parses and checks a query.
pub fn parse_with(query: &str, features: Features) -> Result<Expr, ParseError> {
    let mut parser = Parser::new(query, features)?;
    if parser.peek().kind == TokenKind::Eof {
        return Err(ParseError::new(query, Span::default(), "no expression found in input"));
    }
    let mut expr = parser.expression(0)?;
    parser.expect_end()?;
    crate::check::check(query, &mut expr)?;
    Ok(expr)
}

/// Parses a series selector such as a `match[]` parameter, with every feature off. Whether a matcher must not match
/// the empty string is left to the caller.
pub fn parse_selector(text: &str) -> Result<Vec<Matcher>, ParseError> {
    parse_selector_with(text, Features::default())
}

/// Parses a series selector.
pub fn parse_selector_with(text: &str, features: Features) -> Result<Vec<Matcher>, ParseError> {
    let mut parser = Parser::new(text, features)?;
    let (selector, _) = parser.vector_selector()?;
    parser.expect_end()?;
    Ok(selector.matchers)
}

struct Parser<'q> {
    query: &'q str,
    tokens: Vec<Token>,
    next: usize,
    features: Features,
    depth: u32,
}

type Parsed<T> = Result<T, ParseError>;

impl<'q> Parser<'q> {
    fn new(query: &'q str, features: Features) -> Parsed<Parser<'q>> {
        if query.len() > MAX_QUERY_BYTES {
            let message = format!("query is longer than {MAX_QUERY_BYTES} bytes");
            return Err(ParseError::new(query, Span::default(), message));
        }
        let tokens = tokenize(query, features.unquoted_utf8_names);
        Ok(Parser { query, tokens, next: 0, features, depth: 0 })
    }

    fn peek(&self) -> &Token {
        // The last token is `Eof` or `Error` and is never passed.
        &self.tokens[self.next]
    }

    fn peek_second(&self) -> &Token {
        &self.tokens[(self.next + 1).min(self.tokens.len() - 1)]
    }

    fn advance(&mut self) -> Token {
        let token = self.tokens[self.next].clone();
        if self.next + 1 < self.tokens.len() {
            self.next += 1;
        }
        token
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek().kind, TokenKind::Symbol(found) if found == symbol)
    }

    fn keyword(&self) -> Option<&'static str> {
        match self.peek().kind {
            TokenKind::Keyword(word) => Some(word),
            _ => None,
        }
    }

    fn accept_symbol(&mut self, symbol: &str) -> Option<Span> {
        self.is_symbol(symbol).then(|| self.advance().span)
    }

    fn accept_keyword(&mut self, word: &str) -> Option<Span> {
        (self.keyword() == Some(word)).then(|| self.advance().span)
    }

    fn text(&self, span: Span) -> &'q str {
        &self.query[span.start as usize..span.end as usize]
    }

    fn error<T>(&self, span: Span, message: impl Into<String>) -> Parsed<T> {
        Err(ParseError::new(self.query, span, message))
    }

    /// The error for a token that cannot stand where it does.
    fn unexpected<T>(&self, context: &str, expected: &str) -> Parsed<T> {
        let token = self.peek();
        if let TokenKind::Error(message) = &token.kind {
            return self.error(token.span, message.clone());
        }
        let mut message = format!("unexpected {}", token.describe(self.query));
        if !context.is_empty() {
            message = format!("{message} in {context}");
        }
        if !expected.is_empty() {
            message = format!("{message}, expected {expected}");
        }
        self.error(token.span, message)
    }

    fn expect_end(&self) -> Parsed<()> {
        if self.peek().kind == TokenKind::Eof { Ok(()) } else { self.unexpected("", "") }
    }

    fn expect_symbol(&mut self, symbol: &str) -> Parsed<Span> {
        match self.accept_symbol(symbol) {
            Some(span) => Ok(span),
            None => self.unexpected("", ""),
        }
    }

    fn descend(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let message = format!("expression is nested deeper than {MAX_DEPTH} levels");
            return self.error(self.peek().span, message);
        }
        Ok(())
    }

    fn expression(&mut self, least_binding: u8) -> Parsed<Expr> {
        let depth = self.depth;
        self.descend()?;
        let mut lhs = self.operand()?;
        while let Some((op, binding)) = self.binary_operator()? {
            if binding < least_binding {
                break;
            }
            self.descend()?;
            self.advance();
            let (return_bool, matching) = self.binary_modifiers()?;
            let right_associative = op == BinaryOp::Pow;
            let rhs = self.expression(if right_associative { binding } else { binding + 1 })?;
            let span = lhs.span.to(rhs.span);
            let binary = Binary { op, lhs, rhs, return_bool, matching: Some(matching) };
            lhs = Expr { kind: ExprKind::Binary(Box::new(binary)), span };
        }
        self.depth = depth;
        Ok(lhs)
    }

    fn binary_operator(&self) -> Parsed<Option<(BinaryOp, u8)>> {
        let (TokenKind::Symbol(spelling) | TokenKind::Keyword(spelling)) = self.peek().kind else {
            return Ok(None);
        };
        Ok(Some(match spelling {
            "or" => (BinaryOp::Or, 1),
            "and" => (BinaryOp::And, 2),
            "unless" => (BinaryOp::Unless, 2),
            "==" => (BinaryOp::Eq, 3),
            "!=" => (BinaryOp::Ne, 3),
            "<" => (BinaryOp::Lt, 3),
            "<=" => (BinaryOp::Le, 3),
            ">" => (BinaryOp::Gt, 3),
            ">=" => (BinaryOp::Ge, 3),
            "+" => (BinaryOp::Add, 4),
            "-" => (BinaryOp::Sub, 4),
            "*" => (BinaryOp::Mul, 5),
            "/" => (BinaryOp::Div, 5),
            "%" => (BinaryOp::Mod, 5),
            "atan2" => (BinaryOp::Atan2, 5),
            "^" => (BinaryOp::Pow, 6),
            "</" | ">/" => {
                return self.error(self.peek().span, format!("operator {spelling} is not supported"));
            }
            _ => return Ok(None),
        }))
    }

    fn binary_modifiers(&mut self) -> Parsed<(bool, Matching)> {
        let mut matching =
            Matching { cardinality: Cardinality::OneToOne, on: false, labels: vec![], include: vec![] };
        let return_bool = self.accept_keyword("bool").is_some();
        if let Some(word @ ("on" | "ignoring")) = self.keyword() {
            self.advance();
            matching.on = word == "on";
            matching.labels = self.grouping_labels()?;
            if let Some(side @ ("group_left" | "group_right")) = self.keyword() {
                self.advance();
                matching.cardinality =
                    if side == "group_left" { Cardinality::ManyToOne } else { Cardinality::OneToMany };
                if self.is_symbol("(") {
                    matching.include = self.grouping_labels()?;
                }
            }
        }
        if let Some(word @ ("fill" | "fill_left" | "fill_right")) = self.keyword() {
            let message = if self.features.binop_fill_modifiers {
                format!("modifier {word} is not supported")
            } else {
                "binop fill modifiers are experimental and not enabled".to_owned()
            };
            return self.error(self.peek().span, message);
        }
        Ok((return_bool, matching))
    }

    fn operand(&mut self) -> Parsed<Expr> {
        if self.is_symbol("-") || self.is_symbol("+") {
            let sign = self.advance();
            let negative = self.text(sign.span) == "-";
            let mut expr = self.expression(UNARY_BINDING)?;
            let span = sign.span.to(expr.span);
            if let ExprKind::Number(number) = &mut expr.kind {
                number.value = if negative { -number.value } else { number.value };
                expr.span = span;
                return Ok(expr);
            }
            return Ok(Expr { kind: ExprKind::Unary(Box::new(Unary { negative, expr })), span });
        }
        let primary = self.primary()?;
        self.postfix(primary)
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let token = self.peek().clone();
        match token.kind {
            TokenKind::Number | TokenKind::Duration => self.number(),
            TokenKind::String => {
                self.advance();
                let text = self.unquoted(token.span)?;
                Ok(Expr { kind: ExprKind::String(text.into()), span: token.span })
            }
            TokenKind::Symbol("(") => {
                self.advance();
                let inner = self.expression(0)?;
                let end = self.expect_symbol(")")?;
                Ok(Expr { kind: ExprKind::Paren(Box::new(inner)), span: token.span.to(end) })
            }
            TokenKind::Identifier
            | TokenKind::Keyword("start" | "end" | "range" | "step" | "max_of" | "min_of")
                if matches!(self.peek_second().kind, TokenKind::Symbol("(")) =>
            {
                self.call()
            }
            TokenKind::Keyword(word) => match AggregateOp::from_name(word) {
                Some(op) if self.aggregation_follows()? => self.aggregation(op),
                _ => self.selector_expression(),
            },
            TokenKind::Identifier | TokenKind::MetricIdentifier | TokenKind::Symbol("{") => {
                self.selector_expression()
            }
            _ => self.unexpected("", ""),
        }
    }

    fn selector_expression(&mut self) -> Parsed<Expr> {
        let (selector, span) = self.vector_selector()?;
        Ok(Expr { kind: ExprKind::Selector(selector), span })
    }

    fn unquoted(&self, span: Span) -> Parsed<String> {
        unquote(self.text(span)).or_else(|message| self.error(span, message))
    }

    /// A number or duration literal without a sign.
    fn number(&mut self) -> Parsed<Expr> {
        let token = self.advance();
        let text = self.text(token.span);
        let is_duration = token.kind == TokenKind::Duration;
        let value = if is_duration {
            parse_duration_ms(text).map(|ms| ms as f64 / 1000.0)
        } else {
            parse_number(text)
        };
        match value {
            Ok(value) => {
                Ok(Expr { kind: ExprKind::Number(NumberLiteral { value, is_duration }), span: token.span })
            }
            Err(message) => self.error(token.span, message),
        }
    }

    fn call(&mut self) -> Parsed<Expr> {
        let name = self.advance();
        let (args, end) = self.arguments()?;
        // Only names met as words can be functions; case matters.
        let text = self.text(name.span);
        let Some(function) = functions::find(text) else {
            return self.error(name.span, format!("unknown function with name {}", quote(text)));
        };
        match function.status {
            Status::Unsupported => {
                return self.error(name.span, format!("function {} is not supported", quote(text)));
            }
            Status::Experimental if !self.features.experimental_functions => {
                return self.error(name.span, format!("function {} is not enabled", quote(text)));
            }
            Status::Experimental | Status::Stable => {}
        }
        Ok(Expr { kind: ExprKind::Call(Call { function, args }), span: name.span.to(end) })
    }

    fn arguments(&mut self) -> Parsed<(Vec<Expr>, Span)> {
        self.expect_symbol("(")?;
        let mut args = Vec::new();
        if let Some(end) = self.accept_symbol(")") {
            return Ok((args, end));
        }
        loop {
            args.push(self.expression(0)?);
            if let Some(end) = self.accept_symbol(")") {
                return Ok((args, end));
            }
            let comma = self.expect_symbol(",")?;
            if self.is_symbol(")") {
                return self.error(comma, "trailing commas not allowed in function call args");
            }
        }
    }

    /// Whether the name of an aggregation is one here, or the name of a metric.
    fn aggregation_follows(&mut self) -> Parsed<bool> {
        match self.peek_second().kind {
            TokenKind::Symbol("(") | TokenKind::Keyword("by" | "without") => Ok(true),
            TokenKind::Symbol("=" | ":")
            | TokenKind::Identifier
            | TokenKind::MetricIdentifier
            | TokenKind::String
            | TokenKind::Number
            | TokenKind::Duration => {
                self.advance();
                self.unexpected("", "")
            }
            _ => Ok(false),
        }
    }

    fn aggregation(&mut self, op: AggregateOp) -> Parsed<Expr> {
        let start = self.advance().span;
        let mut modifier = self.aggregation_modifier()?;
        if !self.is_symbol("(") {
            return self.unexpected("aggregation", "");
        }
        let (mut args, mut end) = self.arguments()?;
        if modifier.is_none() {
            modifier = self.aggregation_modifier()?;
            end = self.tokens[self.next.saturating_sub(1)].span;
        }
        let span = start.to(end);
        let (without, grouping) = modifier.unwrap_or_default();
        if args.is_empty() {
            return self.error(span, "no arguments for aggregate expression provided");
        }
        if op.is_experimental() && !self.features.experimental_functions {
            let message = format!(
                "{}() is experimental and must be enabled with --enable-feature=promql-experimental-functions",
                op.name()
            );
            return self.error(span, message);
        }
        let wanted = 1 + usize::from(op.parameter().is_some());
        let given = args.len();
        let (Some(expr), true) = (args.pop(), given == wanted) else {
            let message = format!(
                "wrong number of arguments for aggregate expression provided, expected {wanted}, got {given}"
            );
            return self.error(span, message);
        };
        let aggregate = Aggregate { op, param: args.pop(), expr, without, grouping };
        Ok(Expr { kind: ExprKind::Aggregate(Box::new(aggregate)), span })
    }

    fn aggregation_modifier(&mut self) -> Parsed<Option<(bool, Vec<String>)>> {
        let Some(word @ ("by" | "without")) = self.keyword() else { return Ok(None) };
        self.advance();
        Ok(Some((word == "without", self.grouping_labels()?)))
    }

    fn grouping_labels(&mut self) -> Parsed<Vec<String>> {
        const CONTEXT: &str = "grouping opts";
        if self.accept_symbol("(").is_none() {
            return self.unexpected(CONTEXT, "\"(\"");
        }
        let mut labels = Vec::new();
        while self.accept_symbol(")").is_none() {
            let token = self.peek().clone();
            let label = match token.kind {
                TokenKind::String => self.unquoted(token.span)?,
                TokenKind::Identifier | TokenKind::MetricIdentifier | TokenKind::Keyword(_) => {
                    self.text(token.span).to_owned()
                }
                _ => return self.unexpected(CONTEXT, "label"),
            };
            if label.is_empty() {
                return self.error(token.span, format!("invalid label name for grouping: {}", quote(&label)));
            }
            self.advance();
            labels.push(label);
            if self.accept_symbol(",").is_none() && !self.is_symbol(")") {
                return self.unexpected(CONTEXT, "\",\" or \")\"");
            }
        }
        Ok(labels)
    }
}

/// Whether a type may stand beside an operator.
pub(crate) fn is_operand(value_type: Type) -> bool {
    matches!(value_type, Type::Scalar | Type::Vector)
}
