//! The tree of a query. Every node knows where it stands in the text.
use metricsstore_model::Matcher;

use crate::functions::Function;

/// Bytes `start..end` of the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// After the last byte.
    pub end: u32,
}

impl Span {
    /// From the start of this to the end of `other`.
    #[must_use]
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start, end: other.end }
    }
}

/// Types of expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// A number per step.
    Scalar,
    /// A text.
    String,
    /// A sample per series and step.
    Vector,
    /// A window of samples per series and step.
    Matrix,
}

impl Type {
    /// As the documentation calls it.
    pub const fn documented(self) -> &'static str {
        match self {
            Type::Scalar => "scalar",
            Type::String => "string",
            Type::Vector => "instant vector",
            Type::Matrix => "range vector",
        }
    }

    /// As the API's `resultType` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Type::Scalar => "scalar",
            Type::String => "string",
            Type::Vector => "vector",
            Type::Matrix => "matrix",
        }
    }
}

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// Where it stands.
    pub span: Span,
}

impl Expr {
    /// The matchers of every selector in it, in the order in which they are written.
    pub fn selectors(&self) -> Vec<&[Matcher]> {
        let mut found = Vec::new();
        self.collect_selectors(&mut found);
        found
    }

    fn collect_selectors<'e>(&'e self, found: &mut Vec<&'e [Matcher]>) {
        match &self.kind {
            ExprKind::Number(_) | ExprKind::String(_) => {}
            ExprKind::Selector(selector) => found.push(&selector.matchers),
            ExprKind::Range(range) => found.push(&range.selector.matchers),
            ExprKind::Subquery(subquery) => subquery.expr.collect_selectors(found),
            ExprKind::Paren(inner) => inner.collect_selectors(found),
            ExprKind::Unary(unary) => unary.expr.collect_selectors(found),
            ExprKind::Binary(binary) => {
                binary.lhs.collect_selectors(found);
                binary.rhs.collect_selectors(found);
            }
            ExprKind::Aggregate(aggregate) => {
                for inner in aggregate.param.iter().chain([&aggregate.expr]) {
                    inner.collect_selectors(found);
                }
            }
            ExprKind::Call(call) => call.args.iter().for_each(|argument| argument.collect_selectors(found)),
        }
    }
}

/// Kinds of expressions.
#[derive(Debug, Clone, PartialEq)]
pub enum ExprKind {
    /// `1.5`, `0x1F`, `5m`.
    Number(NumberLiteral),
    /// `"text"`
    String(Box<str>),
    /// `name{a="b"} @ 5 offset 1m`
    Selector(Selector),
    /// `name[5m]`
    Range(RangeSelector),
    /// `expr[1h:1m]`
    Subquery(Box<Subquery>),
    /// `(expr)`
    Paren(Box<Expr>),
    /// `-expr`, `+expr`
    Unary(Box<Unary>),
    /// `a + on (b) c`
    Binary(Box<Binary>),
    /// `sum by (a) (b)`
    Aggregate(Box<Aggregate>),
    /// `rate(a[5m])`
    Call(Call),
}

/// A number as written.
#[derive(Debug, Clone, Copy)]
pub struct NumberLiteral {
    /// The number; seconds when written as a duration.
    pub value: f64,
    /// Whether it was written as a duration.
    pub is_duration: bool,
}

impl PartialEq for NumberLiteral {
    fn eq(&self, other: &NumberLiteral) -> bool {
        self.is_duration == other.is_duration && self.value.to_bits() == other.value.to_bits()
    }
}

/// `@ …`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// A time in milliseconds.
    Time(i64),
    /// Start of the query.
    Start,
    /// End of the query.
    End,
}

/// An instant vector selector, or what stands before `[…]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Selector {
    /// The name written before the braces; among the matchers too.
    pub name: Option<Box<str>>,
    /// All matchers.
    pub matchers: Vec<Matcher>,
    /// The fixed time, if any.
    pub at: Option<At>,
    /// Milliseconds into the past.
    pub offset_ms: i64,
}

/// A range vector selector.
#[derive(Debug, Clone, PartialEq)]
pub struct RangeSelector {
    /// The series; `@` and `offset` that stand after the brackets are kept here.
    pub selector: Selector,
    /// Length of the window in milliseconds.
    pub range_ms: i64,
}

/// A range vector made of an expression evaluated again and again.
#[derive(Debug, Clone, PartialEq)]
pub struct Subquery {
    /// The expression.
    pub expr: Expr,
    /// Length of the window in milliseconds.
    pub range_ms: i64,
    /// Milliseconds between evaluations; `None`: the global evaluation interval.
    pub step_ms: Option<i64>,
    /// The fixed time, if any.
    pub at: Option<At>,
    /// Milliseconds into the past.
    pub offset_ms: i64,
}

/// A sign before an expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Unary {
    /// Whether the sign is `-`.
    pub negative: bool,
    /// What it stands before.
    pub expr: Expr,
}

/// Operators between two expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "their symbols say what they are")]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Pow,
    Atan2,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
    Unless,
}

impl BinaryOp {
    /// As written.
    pub const fn symbol(self) -> &'static str {
        match self {
            BinaryOp::Add => "+",
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
            BinaryOp::Mod => "%",
            BinaryOp::Pow => "^",
            BinaryOp::Atan2 => "atan2",
            BinaryOp::Eq => "==",
            BinaryOp::Ne => "!=",
            BinaryOp::Lt => "<",
            BinaryOp::Le => "<=",
            BinaryOp::Gt => ">",
            BinaryOp::Ge => ">=",
            BinaryOp::And => "and",
            BinaryOp::Or => "or",
            BinaryOp::Unless => "unless",
        }
    }

    /// Whether it compares.
    pub const fn is_comparison(self) -> bool {
        use BinaryOp::{Eq, Ge, Gt, Le, Lt, Ne};
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge)
    }

    /// Whether it works on sets of series.
    pub const fn is_set(self) -> bool {
        matches!(self, BinaryOp::And | BinaryOp::Or | BinaryOp::Unless)
    }
}

/// How many series of a side may meet one of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cardinality {
    /// One to one.
    OneToOne,
    /// `group_left`
    ManyToOne,
    /// `group_right`
    OneToMany,
    /// Set operators.
    ManyToMany,
}

/// Which labels must be equal for two series to meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matching {
    /// Cardinality.
    pub cardinality: Cardinality,
    /// `on (…)` rather than `ignoring (…)`.
    pub on: bool,
    /// Labels named by `on` or `ignoring`.
    pub labels: Vec<String>,
    /// Labels that `group_left` or `group_right` copies from the one side.
    pub include: Vec<String>,
}

/// An operator between two expressions.
#[derive(Debug, Clone, PartialEq)]
pub struct Binary {
    /// The operator.
    pub op: BinaryOp,
    /// Left side.
    pub lhs: Expr,
    /// Right side.
    pub rhs: Expr,
    /// Whether `bool` was given.
    pub return_bool: bool,
    /// Only between two instant vectors.
    pub matching: Option<Matching>,
}

/// Aggregation operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "their names say what they are")]
pub enum AggregateOp {
    Sum,
    Avg,
    Min,
    Max,
    Count,
    Group,
    Stddev,
    Stdvar,
    Topk,
    Bottomk,
    Quantile,
    CountValues,
    Limitk,
    LimitRatio,
}

impl AggregateOp {
    /// As written.
    pub const fn name(self) -> &'static str {
        match self {
            AggregateOp::Sum => "sum",
            AggregateOp::Avg => "avg",
            AggregateOp::Min => "min",
            AggregateOp::Max => "max",
            AggregateOp::Count => "count",
            AggregateOp::Group => "group",
            AggregateOp::Stddev => "stddev",
            AggregateOp::Stdvar => "stdvar",
            AggregateOp::Topk => "topk",
            AggregateOp::Bottomk => "bottomk",
            AggregateOp::Quantile => "quantile",
            AggregateOp::CountValues => "count_values",
            AggregateOp::Limitk => "limitk",
            AggregateOp::LimitRatio => "limit_ratio",
        }
    }

    /// The operator of that name (lower case).
    pub fn from_name(name: &str) -> Option<AggregateOp> {
        use AggregateOp::{
            Avg, Bottomk, Count, CountValues, Group, LimitRatio, Limitk, Max, Min, Quantile, Stddev, Stdvar,
            Sum, Topk,
        };
        [
            Sum,
            Avg,
            Min,
            Max,
            Count,
            Group,
            Stddev,
            Stdvar,
            Topk,
            Bottomk,
            Quantile,
            CountValues,
            Limitk,
            LimitRatio,
        ]
        .into_iter()
        .find(|op| op.name() == name)
    }

    /// Type of the parameter, for those that take one.
    pub const fn parameter(self) -> Option<Type> {
        match self {
            AggregateOp::Topk
            | AggregateOp::Bottomk
            | AggregateOp::Quantile
            | AggregateOp::Limitk
            | AggregateOp::LimitRatio => Some(Type::Scalar),
            AggregateOp::CountValues => Some(Type::String),
            _ => None,
        }
    }

    /// Whether it needs `promql-experimental-functions`.
    pub const fn is_experimental(self) -> bool {
        matches!(self, AggregateOp::Limitk | AggregateOp::LimitRatio)
    }

    /// Whether it picks input series rather than making new ones.
    pub const fn picks_series(self) -> bool {
        matches!(
            self,
            AggregateOp::Topk | AggregateOp::Bottomk | AggregateOp::Limitk | AggregateOp::LimitRatio
        )
    }
}

/// An aggregation over series.
#[derive(Debug, Clone, PartialEq)]
pub struct Aggregate {
    /// The operator.
    pub op: AggregateOp,
    /// Its parameter, if it takes one.
    pub param: Option<Expr>,
    /// What is aggregated.
    pub expr: Expr,
    /// `without (…)` rather than `by (…)`.
    pub without: bool,
    /// Labels named by `by` or `without`.
    pub grouping: Vec<String>,
}

/// A function call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The function.
    pub function: &'static Function,
    /// Arguments.
    pub args: Vec<Expr>,
}

impl Expr {
    /// The type.
    pub fn value_type(&self) -> Type {
        match &self.kind {
            ExprKind::Number(_) => Type::Scalar,
            ExprKind::String(_) => Type::String,
            ExprKind::Selector(_) | ExprKind::Aggregate(_) => Type::Vector,
            ExprKind::Range(_) | ExprKind::Subquery(_) => Type::Matrix,
            ExprKind::Paren(inner) => inner.value_type(),
            ExprKind::Unary(unary) => unary.expr.value_type(),
            ExprKind::Binary(binary) => match (binary.lhs.value_type(), binary.rhs.value_type()) {
                (Type::Scalar, Type::Scalar) => Type::Scalar,
                _ => Type::Vector,
            },
            ExprKind::Call(call) => call.function.returns,
        }
    }

    /// The expression inside any parentheses.
    pub fn unwrap_parens(&self) -> &Expr {
        let mut expr = self;
        while let ExprKind::Paren(inner) = &expr.kind {
            expr = inner;
        }
        expr
    }
}
