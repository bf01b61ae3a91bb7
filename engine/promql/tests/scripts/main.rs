//! Runs the scripts of `tests/data` against the engine, in process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
mod check;
mod script;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use metricsstore_model::{LabelBuf, Matcher};
use metricsstore_promql::ast::{Expr, ExprKind};
use metricsstore_promql::{Engine, EngineOptions, Features};

use script::{Command, Eval, Value};
use store::Store;

fn engine(delayed_name_removal: bool) -> Engine {
    let features = Features {
        experimental_functions: true,
        delayed_name_removal,
        unquoted_utf8_names: true,
        binop_fill_modifiers: true,
        extended_range_selectors: true,
        type_and_unit_labels: false,
    };
    Engine::new(EngineOptions { features, ..EngineOptions::default() })
}

#[derive(Default)]
struct Tally {
    passed: usize,
    skipped: BTreeMap<String, usize>,
    failed: Vec<String>,
}

/// Matchers of every selector in an expression.
fn selectors<'e>(expr: &'e Expr, found: &mut Vec<&'e [Matcher]>) {
    match &expr.kind {
        ExprKind::Number(_) | ExprKind::String(_) => {}
        ExprKind::Selector(selector) => found.push(&selector.matchers),
        ExprKind::Range(range) => found.push(&range.selector.matchers),
        ExprKind::Subquery(subquery) => selectors(&subquery.expr, found),
        ExprKind::Paren(inner) => selectors(inner, found),
        ExprKind::Unary(unary) => selectors(&unary.expr, found),
        ExprKind::Binary(binary) => {
            selectors(&binary.lhs, found);
            selectors(&binary.rhs, found);
        }
        ExprKind::Aggregate(aggregate) => selectors(&aggregate.expr, found),
        ExprKind::Call(call) => call.args.iter().for_each(|arg| selectors(arg, found)),
    }
}

/// Why an evaluation cannot be judged yet.
fn reason_to_skip(
    engine: &Engine,
    eval: &Eval,
    histograms: &[LabelBuf],
    section: Option<&str>,
) -> Option<String> {
    if let Some(reason) = section {
        return Some(reason.to_owned());
    }
    if eval.series.iter().any(|(_, values)| values.contains(&Value::Histogram)) {
        return Some("native histograms".into());
    }
    match engine.parse(&eval.query) {
        Err(error) => {
            let text = error.to_string();
            let unsupported = text.contains("is not supported") || text.contains("are not supported");
            unsupported.then(|| text.split("parse error: ").last().unwrap_or_default().to_owned())
        }
        Ok(expr) => {
            let mut found = Vec::new();
            selectors(&expr, &mut found);
            let reads_histograms = found.iter().any(|matchers| {
                histograms.iter().any(|labels| {
                    matchers.iter().all(|matcher| matcher.matches(labels.get(&matcher.name).unwrap_or("")))
                })
            });
            reads_histograms.then(|| "native histograms".into())
        }
    }
}

fn run(path: &Path, engine: &Engine, tally: &mut Tally) {
    let mut store = Store::default();
    let mut histograms: Vec<LabelBuf> = Vec::new();
    let mut section: Option<&str> = None;
    for command in script::parse(&std::fs::read_to_string(path).unwrap()) {
        match command {
            Command::Clear => {
                store = Store::default();
                histograms.clear();
                section = None;
            }
            Command::Load { gap_ms, series, unsupported } => {
                section = section.or(unsupported);
                for (labels, values) in series {
                    if values.contains(&Value::Histogram) {
                        histograms.push(labels.clone());
                    }
                    let samples = values.iter().enumerate().filter_map(|(index, value)| match value {
                        Value::Sample(value) => Some((index as i64 * gap_ms, *value)),
                        _ => None,
                    });
                    store.append(&labels, samples);
                }
            }
            Command::Eval(eval) => {
                if let Some(reason) = reason_to_skip(engine, &eval, &histograms, section) {
                    *tally.skipped.entry(reason).or_default() += 1;
                    continue;
                }
                match check::check(engine, &store, &eval) {
                    Ok(()) => tally.passed += 1,
                    Err(problem) => tally.failed.push(format!(
                        "{}:{}: {}\n    {problem}",
                        path.file_name().unwrap_or_default().display(),
                        eval.line,
                        eval.query
                    )),
                }
            }
        }
    }
}

fn run_folder(folder: &str, engine: &Engine) -> Tally {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder);
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    let mut tally = Tally::default();
    for path in paths {
        run(&path, engine, &mut tally);
    }
    let skipped: usize = tally.skipped.values().sum();
    println!("{folder}: {} passed, {skipped} skipped, {} failed", tally.passed, tally.failed.len());
    for (reason, count) in &tally.skipped {
        println!("  {count:4} skipped: {reason}");
    }
    tally
}

fn assert_all_hold(tally: &Tally, least: usize) {
    assert!(tally.failed.is_empty(), "{} failed\n{}", tally.failed.len(), tally.failed.join("\n"));
    assert!(tally.passed >= least, "only {} were run", tally.passed);
}

#[test]
fn classic_scripts_hold() {
    assert_all_hold(&run_folder("classic", &engine(true)), 477);
}

#[test]
fn classic_scripts_hold_when_names_are_dropped_at_once() {
    let tally = run_folder("classic", &engine(false));
    assert_all_hold(&tally, 470);
}

#[test]
fn current_scripts_hold_where_they_are_supported() {
    assert_all_hold(&run_folder("current", &engine(true)), 570);
}
