//! Types: what may stand where. Fills in what follows from types (set operators are many-to-many, scalars do not
//! match).
use metricsstore_model::METRIC_NAME;

use crate::ast::{Aggregate, Binary, Call, Cardinality, Expr, ExprKind, Selector, Span, Type};
use crate::error::ParseError;
use crate::functions::Optional;
use crate::literal::quote;
use crate::parser::is_operand;

/// Checks an expression and everything in it.
pub(crate) fn check(query: &str, expr: &mut Expr) -> Result<(), ParseError> {
    Checker { query }.expr(expr)
}

struct Checker<'q> {
    query: &'q str,
}

type Checked = Result<(), ParseError>;

impl Checker<'_> {
    fn error(&self, span: Span, message: impl Into<String>) -> Checked {
        Err(ParseError::new(self.query, span, message))
    }

    fn expr(&self, expr: &mut Expr) -> Checked {
        let span = expr.span;
        match &mut expr.kind {
            ExprKind::Number(_) | ExprKind::String(_) => Ok(()),
            ExprKind::Selector(selector) => self.selector(selector, span),
            ExprKind::Range(range) => self.selector(&range.selector, span),
            ExprKind::Subquery(subquery) => {
                self.expr(&mut subquery.expr)?;
                match subquery.expr.value_type() {
                    Type::Vector => Ok(()),
                    other => {
                        let name = other.name();
                        self.error(
                            span,
                            format!("subquery is only allowed on instant vector, got {name} instead"),
                        )
                    }
                }
            }
            ExprKind::Paren(inner) => self.expr(inner),
            ExprKind::Unary(unary) => {
                self.expr(&mut unary.expr)?;
                let found = unary.expr.value_type();
                if is_operand(found) {
                    return Ok(());
                }
                let found = quote(found.documented());
                self.error(
                    span,
                    format!("unary expression only allowed on expressions of type scalar or instant vector, got {found}"),
                )
            }
            ExprKind::Binary(binary) => self.binary(binary, span),
            ExprKind::Aggregate(aggregate) => self.aggregate(aggregate),
            ExprKind::Call(call) => self.call(call, span),
        }
    }

    fn selector(&self, selector: &Selector, span: Span) -> Checked {
        if let Some(name) = &selector.name {
            let written = &selector.matchers[..selector.matchers.len().saturating_sub(1)];
            if let Some(other) = written.iter().find(|matcher| &*matcher.name == METRIC_NAME) {
                let (one, two) = (quote(name), quote(&other.value));
                return self.error(span, format!("metric name must not be set twice: {one} or {two}"));
            }
            return Ok(());
        }
        if selector.matchers.iter().all(metricsstore_model::Matcher::matches_empty) {
            return self.error(span, "vector selector must contain at least one non-empty matcher");
        }
        Ok(())
    }

    fn expect(&self, expr: &mut Expr, wanted: Type, context: &str) -> Checked {
        self.expr(expr)?;
        let found = expr.value_type();
        if found == wanted {
            return Ok(());
        }
        let (wanted, found) = (wanted.documented(), found.documented());
        self.error(expr.span, format!("expected type {wanted} in {context}, got {found}"))
    }

    fn aggregate(&self, aggregate: &mut Aggregate) -> Checked {
        self.expect(&mut aggregate.expr, Type::Vector, "aggregation expression")?;
        match (aggregate.op.parameter(), &mut aggregate.param) {
            (Some(wanted), Some(param)) => self.expect(param, wanted, "aggregation parameter"),
            _ => Ok(()),
        }
    }

    fn binary(&self, binary: &mut Binary, span: Span) -> Checked {
        self.expr(&mut binary.lhs)?;
        self.expr(&mut binary.rhs)?;
        let (op, left, right) = (binary.op, binary.lhs.value_type(), binary.rhs.value_type());
        let op_span = self.operator_span(binary);
        if binary.return_bool && !op.is_comparison() {
            return self.error(op_span, "bool modifier can only be used on comparison operators");
        }
        if op.is_comparison() && !binary.return_bool && left == Type::Scalar && right == Type::Scalar {
            return self.error(op_span, "comparisons between scalars must use BOOL modifier");
        }
        if let Some(matching) = &mut binary.matching {
            if op.is_set() && matching.cardinality == Cardinality::OneToOne {
                matching.cardinality = Cardinality::ManyToMany;
            }
            let twice = matching.labels.iter().find(|label| matching.on && matching.include.contains(label));
            if let Some(label) = twice {
                let label = quote(label);
                return self
                    .error(op_span, format!("label {label} must not occur in ON and GROUP clause at once"));
            }
        }
        for (side, found) in [(&binary.lhs, left), (&binary.rhs, right)] {
            if !is_operand(found) {
                return self
                    .error(side.span, "binary expression must contain only scalar and instant vector types");
            }
        }
        if left == Type::Vector && right == Type::Vector {
            return self.set_operation(binary, span);
        }
        if binary.matching.as_ref().is_some_and(|matching| !matching.labels.is_empty()) {
            return self.error(span, "vector matching only allowed between instant vectors");
        }
        binary.matching = None;
        if op.is_set() {
            let op = quote(op.symbol());
            return self.error(span, format!("set operator {op} not allowed in binary scalar expression"));
        }
        Ok(())
    }

    fn set_operation(&self, binary: &Binary, span: Span) -> Checked {
        let grouped = binary.matching.as_ref().is_some_and(|matching| {
            matches!(matching.cardinality, Cardinality::ManyToOne | Cardinality::OneToMany)
        });
        if binary.op.is_set() && grouped {
            let op = quote(binary.op.symbol());
            return self.error(span, format!("no grouping allowed for {op} operation"));
        }
        Ok(())
    }

    /// The operator with its modifiers, blanks around it left out.
    fn operator_span(&self, binary: &Binary) -> Span {
        let bytes = self.query.as_bytes();
        let (mut start, mut end) = (binary.lhs.span.end as usize, binary.rhs.span.start as usize);
        while start < end && bytes.get(start).is_some_and(u8::is_ascii_whitespace) {
            start += 1;
        }
        while end > start && bytes.get(end - 1).is_some_and(u8::is_ascii_whitespace) {
            end -= 1;
        }
        Span { start: start as u32, end: end as u32 }
    }

    fn call(&self, call: &mut Call, span: Span) -> Checked {
        let function = call.function;
        let (name, types, given) = (quote(function.name), function.args.len(), call.args.len());
        let (least, most) = match function.optional {
            Optional::None => (types, types),
            Optional::UpTo(extra) => (types - 1, types - 1 + extra),
            Optional::Any => (types.saturating_sub(1), usize::MAX),
        };
        if function.optional == Optional::None && given != types {
            return self.error(span, format!("expected {types} argument(s) in call to {name}, got {given}"));
        }
        if given < least {
            return self.error(
                span,
                format!("expected at least {least} argument(s) in call to {name}, got {given}"),
            );
        }
        if given > most {
            return self
                .error(span, format!("expected at most {most} argument(s) in call to {name}, got {given}"));
        }
        let context = format!("call to function {name}");
        for (index, arg) in call.args.iter_mut().enumerate() {
            if let Some(&wanted) = function.args.get(index).or(function.args.last()) {
                self.expect(arg, wanted, &context)?;
            }
        }
        Ok(())
    }
}
