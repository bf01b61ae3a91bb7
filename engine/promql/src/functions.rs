//! Signatures of the functions.
use crate::ast::Type;
use crate::ast::Type::{Matrix, Scalar, String, Vector};

/// How many arguments beyond the required ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Optional {
    /// Exactly as many as there are types.
    None,
    /// The last type may be left out, or stand up to so many times.
    UpTo(usize),
    /// The last type may be left out, or stand any number of times.
    Any,
}

/// Whether a function may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Always.
    Stable,
    /// With `promql-experimental-functions`.
    Experimental,
    /// Not yet: calling it is an error that says so.
    Unsupported,
}

/// A function's signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Name.
    pub name: &'static str,
    /// Types of the arguments.
    pub args: &'static [Type],
    /// Which of them may be left out or repeated.
    pub optional: Optional,
    /// Type of the result.
    pub returns: Type,
    /// Whether it may be called.
    pub status: Status,
}

const fn of(name: &'static str, args: &'static [Type], returns: Type) -> Function {
    Function { name, args, optional: Optional::None, returns, status: Status::Stable }
}

const fn optional(name: &'static str, args: &'static [Type], optional: Optional) -> Function {
    Function { name, args, optional, returns: Vector, status: Status::Stable }
}

const fn experimental(function: Function) -> Function {
    Function { status: Status::Experimental, ..function }
}

const fn unsupported(name: &'static str, returns: Type) -> Function {
    Function { name, args: &[], optional: Optional::Any, returns, status: Status::Unsupported }
}

const ONE: Optional = Optional::UpTo(1);

/// Sorted by name.
static FUNCTIONS: &[Function] = &[
    of("abs", &[Vector], Vector),
    of("absent", &[Vector], Vector),
    of("absent_over_time", &[Matrix], Vector),
    of("acos", &[Vector], Vector),
    of("acosh", &[Vector], Vector),
    of("asin", &[Vector], Vector),
    of("asinh", &[Vector], Vector),
    of("atan", &[Vector], Vector),
    of("atanh", &[Vector], Vector),
    of("avg_over_time", &[Matrix], Vector),
    of("ceil", &[Vector], Vector),
    of("changes", &[Matrix], Vector),
    of("clamp", &[Vector, Scalar, Scalar], Vector),
    of("clamp_max", &[Vector, Scalar], Vector),
    of("clamp_min", &[Vector, Scalar], Vector),
    of("cos", &[Vector], Vector),
    of("cosh", &[Vector], Vector),
    of("count_over_time", &[Matrix], Vector),
    optional("day_of_month", &[Vector], ONE),
    optional("day_of_week", &[Vector], ONE),
    optional("day_of_year", &[Vector], ONE),
    optional("days_in_month", &[Vector], ONE),
    of("deg", &[Vector], Vector),
    of("delta", &[Matrix], Vector),
    of("deriv", &[Matrix], Vector),
    experimental(of("double_exponential_smoothing", &[Matrix, Scalar, Scalar], Vector)),
    unsupported("end", Scalar),
    of("exp", &[Vector], Vector),
    of("first_over_time", &[Matrix], Vector),
    of("floor", &[Vector], Vector),
    unsupported("histogram_avg", Vector),
    unsupported("histogram_count", Vector),
    of("histogram_fraction", &[Scalar, Scalar, Vector], Vector),
    of("histogram_quantile", &[Scalar, Vector], Vector),
    unsupported("histogram_quantiles", Vector),
    unsupported("histogram_stddev", Vector),
    unsupported("histogram_stdvar", Vector),
    unsupported("histogram_sum", Vector),
    optional("hour", &[Vector], ONE),
    of("idelta", &[Matrix], Vector),
    of("increase", &[Matrix], Vector),
    unsupported("info", Vector),
    experimental(optional("integral", &[Matrix, Scalar], ONE)),
    of("irate", &[Matrix], Vector),
    optional("label_join", &[Vector, String, String, String], Optional::Any),
    of("label_replace", &[Vector, String, String, String, String], Vector),
    of("last_over_time", &[Matrix], Vector),
    of("ln", &[Vector], Vector),
    of("log10", &[Vector], Vector),
    of("log2", &[Vector], Vector),
    experimental(of("mad_over_time", &[Matrix], Vector)),
    experimental(of("max_of", &[Scalar, Scalar], Scalar)),
    of("max_over_time", &[Matrix], Vector),
    experimental(of("min_of", &[Scalar, Scalar], Scalar)),
    of("min_over_time", &[Matrix], Vector),
    optional("minute", &[Vector], ONE),
    optional("month", &[Vector], ONE),
    of("pi", &[], Scalar),
    of("predict_linear", &[Matrix, Scalar], Vector),
    of("present_over_time", &[Matrix], Vector),
    of("quantile_over_time", &[Scalar, Matrix], Vector),
    of("rad", &[Vector], Vector),
    unsupported("range", Scalar),
    of("rate", &[Matrix], Vector),
    of("resets", &[Matrix], Vector),
    optional("round", &[Vector, Scalar], ONE),
    of("scalar", &[Vector], Scalar),
    of("sgn", &[Vector], Vector),
    of("sin", &[Vector], Vector),
    of("sinh", &[Vector], Vector),
    of("sort", &[Vector], Vector),
    experimental(optional("sort_by_label", &[Vector, String], Optional::Any)),
    experimental(optional("sort_by_label_desc", &[Vector, String], Optional::Any)),
    of("sort_desc", &[Vector], Vector),
    of("sqrt", &[Vector], Vector),
    unsupported("start", Scalar),
    unsupported("start_timestamp", Vector),
    of("stddev_over_time", &[Matrix], Vector),
    of("stdvar_over_time", &[Matrix], Vector),
    unsupported("step", Scalar),
    of("sum_over_time", &[Matrix], Vector),
    of("tan", &[Vector], Vector),
    of("tanh", &[Vector], Vector),
    of("time", &[], Scalar),
    of("timestamp", &[Vector], Vector),
    experimental(of("ts_of_first_over_time", &[Matrix], Vector)),
    experimental(of("ts_of_last_over_time", &[Matrix], Vector)),
    experimental(of("ts_of_max_over_time", &[Matrix], Vector)),
    experimental(of("ts_of_min_over_time", &[Matrix], Vector)),
    of("vector", &[Scalar], Vector),
    optional("year", &[Vector], ONE),
];

/// The function of that name.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.binary_search_by(|function| function.name.cmp(name)).ok().map(|index| &FUNCTIONS[index])
}

#[cfg(test)]
mod tests {
    use super::{FUNCTIONS, find};

    #[test]
    fn every_function_is_found_by_its_name() {
        for function in FUNCTIONS {
            assert_eq!(find(function.name), Some(function));
        }
        assert_eq!(find("holt_winters"), None);
    }
}
