//! PromQL: the language ([`parse`], [`Expr`]) and its evaluator ([`Engine`]), which reads through
//! [`metricsstore_model::read::Source`].
//!
//! A query goes text → tokens → tree ([`ast`]) → types checked → evaluated over batches of *series × steps*
//! → [`Value`]. Nothing here does I/O or starts threads.
#![forbid(unsafe_code)]

mod annotation;
pub mod ast;
mod check;
mod display;
mod engine;
mod error;
mod eval;
mod functions;
mod lexer;
mod literal;
mod parser;
mod value;

pub use ast::Expr;
pub use engine::{
    Engine, EngineOptions, Features, Interrupt, MAX_RANGE_POINTS, QueryOptions, QueryOutput, range_points,
};
pub use error::{ErrorKind, ParseError, QueryError};
pub use literal::format_float;
pub use parser::{parse, parse_selector, parse_selector_with, parse_with};
pub use value::{LabelTable, Matrix, Point, Value, Vector};
