//! Expressions written back, as Prometheus writes them.
use std::fmt::{self, Display, Formatter, Write as _};

use metricsstore_model::{METRIC_NAME, MatchOp, Matcher, is_legacy_label_name};

use crate::ast::{Aggregate, At, Binary, Cardinality, Expr, ExprKind, NumberLiteral, Selector};
use crate::literal::{format_duration_ms, format_float, quote};

impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ExprKind::Number(number) => write!(f, "{number}"),
            ExprKind::String(text) => f.write_str(&quote(text)),
            ExprKind::Selector(selector) => {
                write!(f, "{selector}")?;
                write_modifiers(f, selector.at, selector.offset_ms)
            }
            ExprKind::Range(range) => {
                write!(f, "{}[{}]", range.selector, format_duration_ms(range.range_ms))?;
                write_modifiers(f, range.selector.at, range.selector.offset_ms)
            }
            ExprKind::Subquery(subquery) => {
                let step = subquery.step_ms.map(format_duration_ms).unwrap_or_default();
                write!(f, "{}[{}:{step}]", subquery.expr, format_duration_ms(subquery.range_ms))?;
                write_modifiers(f, subquery.at, subquery.offset_ms)
            }
            ExprKind::Paren(inner) => write!(f, "({inner})"),
            ExprKind::Unary(unary) => write!(f, "{}{}", if unary.negative { '-' } else { '+' }, unary.expr),
            ExprKind::Binary(binary) => write!(f, "{binary}"),
            ExprKind::Aggregate(aggregate) => write!(f, "{aggregate}"),
            ExprKind::Call(call) => {
                write!(f, "{}(", call.function.name)?;
                write_list(f, &call.args)?;
                f.write_char(')')
            }
        }
    }
}

impl Display for NumberLiteral {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.is_duration {
            f.write_str(&format_duration_ms((self.value * 1000.0).round() as i64))
        } else {
            f.write_str(&format_float(self.value))
        }
    }
}

/// The selector without `@` and `offset`, which stand after the range.
impl Display for Selector {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or_default();
        f.write_str(name)?;
        let is_name = |matcher: &&Matcher| {
            &*matcher.name == METRIC_NAME
                && matcher.op == MatchOp::Equal
                && &*matcher.value == name
                && !name.is_empty()
        };
        let mut texts: Vec<String> = self
            .matchers
            .iter()
            .filter(|matcher| !is_name(matcher))
            .map(|matcher| {
                format!("{}{}{}", label_name(&matcher.name), matcher.op.symbol(), quote(&matcher.value))
            })
            .collect();
        if texts.is_empty() {
            return Ok(());
        }
        texts.sort();
        write!(f, "{{{}}}", texts.join(","))
    }
}

fn label_name(name: &str) -> String {
    if is_legacy_label_name(name) { name.to_owned() } else { quote(name) }
}

fn label_list(labels: &[String]) -> String {
    labels.iter().map(|label| label_name(label)).collect::<Vec<_>>().join(", ")
}

fn write_list(f: &mut Formatter<'_>, exprs: &[Expr]) -> fmt::Result {
    for (index, expr) in exprs.iter().enumerate() {
        if index > 0 {
            f.write_str(", ")?;
        }
        write!(f, "{expr}")?;
    }
    Ok(())
}

fn write_modifiers(f: &mut Formatter<'_>, at: Option<At>, offset_ms: i64) -> fmt::Result {
    match at {
        None => {}
        Some(At::Time(ms)) => write!(f, " @ {:.3}", ms as f64 / 1000.0)?,
        Some(At::Start) => f.write_str(" @ start()")?,
        Some(At::End) => f.write_str(" @ end()")?,
    }
    if offset_ms != 0 {
        write!(f, " offset {}", format_duration_ms(offset_ms))?;
    }
    Ok(())
}

impl Display for Binary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.lhs, self.op.symbol())?;
        if self.return_bool {
            f.write_str(" bool")?;
        }
        if let Some(matching) = &self.matching {
            let group = match matching.cardinality {
                Cardinality::ManyToOne => Some("group_left"),
                Cardinality::OneToMany => Some("group_right"),
                _ => None,
            };
            if !matching.labels.is_empty() || matching.on || group.is_some() {
                let word = if matching.on { "on" } else { "ignoring" };
                write!(f, " {word} ({})", label_list(&matching.labels))?;
            }
            if let Some(group) = group {
                write!(f, " {group} ({})", label_list(&matching.include))?;
            }
        }
        write!(f, " {}", self.rhs)
    }
}

impl Display for Aggregate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.name())?;
        if self.without {
            write!(f, " without ({}) ", label_list(&self.grouping))?;
        } else if !self.grouping.is_empty() {
            write!(f, " by ({}) ", label_list(&self.grouping))?;
        }
        f.write_char('(')?;
        if let Some(param) = &self.param {
            write!(f, "{param}, ")?;
        }
        write!(f, "{})", self.expr)
    }
}
