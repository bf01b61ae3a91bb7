//! The language: what is refused and in which words, and how expressions are written back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
use metricsstore_promql::{Features, parse, parse_selector, parse_with};

fn refused(query: &str) -> String {
    match parse(query) {
        Ok(expr) => panic!("{query:?} parses as {expr}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn syntax_errors_say_where_and_what() {
    for (query, text) in [
        ("", "1:1: parse error: no expression found in input"),
        ("1 /", "1:4: parse error: unexpected end of input"),
        ("1 1", "1:3: parse error: unexpected number \"1\""),
        ("(1", "1:3: parse error: unclosed left parenthesis"),
        ("1)", "1:3: parse error: unexpected right parenthesis ')'"),
        ("foo{a=}", "1:7: parse error: unexpected \"}\" in label matching, expected string"),
        (
            "foo{a b}",
            "1:7: parse error: unexpected identifier \"b\" in label matching, expected label matching operator",
        ),
        ("sum by x (foo)", "1:8: parse error: unexpected identifier \"x\" in grouping opts, expected \"(\""),
        ("rate(foo[5m],)", "1:13: parse error: trailing commas not allowed in function call args"),
        ("foo[0]", "1:5: parse error: duration must be greater than 0"),
        (
            "foo offset",
            "1:11: parse error: unexpected end of input in offset, expected number, duration, step(), or range()",
        ),
        ("\n 1 ~ 2", "2:4: parse error: unexpected character: '~'"),
        ("\"open", "1:1: parse error: unterminated quoted string"),
        ("nosuch(foo)", "1:1: parse error: unknown function with name \"nosuch\""),
        ("foo{a=~\"(\"}", "1:5: parse error: error parsing regexp"),
    ] {
        let found = refused(query);
        assert!(found.starts_with(text), "{query:?}: {found:?}, want {text:?}");
    }
}

#[test]
fn type_errors_say_where_and_what() {
    for (query, text) in [
        (
            "rate(foo)",
            "1:6: parse error: expected type range vector in call to function \"rate\", got instant vector",
        ),
        (
            "abs(foo[5m])",
            "1:5: parse error: expected type instant vector in call to function \"abs\", got range vector",
        ),
        ("sum(1)", "1:5: parse error: expected type instant vector in aggregation expression, got scalar"),
        (
            "topk(foo, foo)",
            "1:6: parse error: expected type scalar in aggregation parameter, got instant vector",
        ),
        (
            "topk(foo)",
            "1:1: parse error: wrong number of arguments for aggregate expression provided, expected 2, got 1",
        ),
        ("1 == 1", "1:3: parse error: comparisons between scalars must use BOOL modifier"),
        ("foo + bool bar", "1:5: parse error: bool modifier can only be used on comparison operators"),
        ("1 and foo", "1:1: parse error: set operator \"and\" not allowed in binary scalar expression"),
        ("foo and on(a) group_left(b) bar", "1:1: parse error: no grouping allowed for \"and\" operation"),
        (
            "foo + on(a) group_left(a) bar",
            "1:5: parse error: label \"a\" must not occur in ON and GROUP clause at once",
        ),
        ("foo + on(a) 1", "1:1: parse error: vector matching only allowed between instant vectors"),
        (
            "foo[5m] + 1",
            "1:1: parse error: binary expression must contain only scalar and instant vector types",
        ),
        (
            "-\"a\"",
            "1:1: parse error: unary expression only allowed on expressions of type scalar or instant vector, got \"string\"",
        ),
        ("sum(foo)[5m]", "1:9: parse error: ranges only allowed for vector selectors"),
        ("foo offset 5m [5m]", "1:15: parse error: no offset modifiers allowed before range"),
        (
            "foo[5m:1m][5m:]",
            "1:1: parse error: subquery is only allowed on instant vector, got matrix instead",
        ),
        ("{a=~\".*\"}", "1:1: parse error: vector selector must contain at least one non-empty matcher"),
        ("foo{__name__=\"bar\"}", "1:1: parse error: metric name must not be set twice: \"foo\" or \"bar\""),
        ("round(foo, 1, 2)", "1:1: parse error: expected at most 2 argument(s) in call to \"round\", got 3"),
        ("foo @ 1 @ 2", "1:1: parse error: @ <timestamp> may not be set multiple times"),
        (
            "limitk(1, foo)",
            "1:1: parse error: limitk() is experimental and must be enabled with --enable-feature=promql-experimental-functions",
        ),
        ("mad_over_time(foo[5m])", "1:1: parse error: function \"mad_over_time\" is not enabled"),
    ] {
        assert_eq!(refused(query), text, "{query:?}");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let features =
        Features { experimental_functions: true, extended_range_selectors: true, ..Features::default() };
    for query in ["foo[5m] anchored", "foo smoothed", "foo[5m + 1m]", "foo[step()]", "info(foo)", "foo >/ 1"]
    {
        let text = parse_with(query, features).unwrap_err().to_string();
        assert!(text.contains("not supported"), "{query:?}: {text}");
    }
}

#[test]
fn expressions_are_written_back_in_one_form() {
    for (query, written) in [
        ("sum by(a,b)(foo)", "sum by (a, b) (foo)"),
        ("SUM(foo) WITHOUT (a)", "sum without (a) (foo)"),
        ("foo{b='x',a=~\"y.*\"}", "foo{a=~\"y.*\",b=\"x\"}"),
        ("{\"my.metric\",\"a.b\"=\"c\"}", "{\"a.b\"=\"c\",__name__=\"my.metric\"}"),
        ("rate(foo[300])", "rate(foo[5m])"),
        ("foo[1h:] offset -5m @ 1.5", "foo[1h:] @ 1.500 offset -5m"),
        ("foo @ end()", "foo @ end()"),
        ("a+b*c^d^e", "a + b * c ^ d ^ e"),
        ("-1^2", "-1 ^ 2"),
        ("a*on(x)group_left(y)b", "a * on (x) group_left (y) b"),
        ("a == bool b", "a == bool b"),
        ("5m+3", "5m + 3"),
        ("0x1F + 1_000", "31 + 1000"),
        ("topk(5, foo)", "topk(5, foo)"),
        ("sum + by", "sum + by"),
        ("on:total", "on:total"),
        ("\"a\\\"b\"", "\"a\\\"b\""),
        ("`a\\b`", "\"a\\\\b\""),
    ] {
        let text = parse(query).unwrap().to_string();
        assert_eq!(text, written, "{query:?}");
    }
}

#[test]
fn operators_bind_as_in_mathematics() {
    let grouped = |query: &str| {
        fn show(expr: &metricsstore_promql::Expr) -> String {
            use metricsstore_promql::ast::ExprKind;
            match &expr.kind {
                ExprKind::Binary(b) => format!("({} {} {})", show(&b.lhs), b.op.symbol(), show(&b.rhs)),
                ExprKind::Unary(unary) => format!("(-{})", show(&unary.expr)),
                _ => expr.to_string(),
            }
        }
        show(&parse(query).unwrap())
    };
    assert_eq!(grouped("a + b * c"), "(a + (b * c))");
    assert_eq!(grouped("a ^ b ^ c"), "(a ^ (b ^ c))");
    assert_eq!(grouped("a - b - c"), "((a - b) - c)");
    assert_eq!(grouped("-a ^ b * c"), "((-(a ^ b)) * c)");
    assert_eq!(grouped("2 ^ -a * b"), "((2 ^ (-a)) * b)");
    assert_eq!(grouped("a or b and c == d"), "(a or (b and (c == d)))");
    assert_eq!(grouped("a unless b and c"), "((a unless b) and c)");
    assert_eq!(grouped("a atan2 b + c"), "((a atan2 b) + c)");
}

#[test]
fn unquoted_names_may_hold_dots_only_with_the_feature() {
    let features = Features { unquoted_utf8_names: true, ..Features::default() };
    assert!(parse("http.requests").is_err());
    assert!(parse_with("http.requests{service.name=\"a\"}", features).is_ok());
}

#[test]
fn a_series_selector_is_parsed_on_its_own() {
    let matchers = parse_selector("up{job=~\"a|b\", instance!=\"c\"}").unwrap();
    let texts: Vec<String> = matchers.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["job=~\"a|b\"", "instance!=\"c\"", "__name__=\"up\""]);
    assert!(parse_selector("sum(up)").is_err() && parse_selector("up[5m]").is_err());
}

#[test]
fn nesting_ends_with_an_error_and_not_with_the_stack() {
    // As much stack as a worker thread of the server has.
    let run = || {
        let nested = format!("{}1{}", "(".repeat(10_000), ")".repeat(10_000));
        assert!(refused(&nested).contains("nested deeper"));
        let chained = vec!["a"; 10_000].join(" or ");
        assert!(refused(&chained).contains("nested deeper"));
        assert!(refused(&format!("{}1", "-".repeat(10_000))).contains("nested deeper"));
        assert!(parse(&format!("{}1{}", "(".repeat(190), ")".repeat(190))).is_ok());
        assert!(parse(&vec!["a"; 190].join(" or ")).is_ok());
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
}
