//! Warnings and infos that come with a result: what was found odd, once each, with the place in the query.
use crate::ast::Span;
use crate::error::line_and_column;
use crate::eval::calendar::format_utc;
use crate::literal::{format_g, quote};

/// Most annotations of a kind that are returned.
const MOST: usize = 10;
/// Most distinct annotations that are remembered.
const MOST_REMEMBERED: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Severity {
    Warning,
    Info,
}

/// How far counts of classic buckets had to be corrected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Monotonicity {
    pub least_bucket: f64,
    pub greatest_bucket: f64,
    pub greatest_difference: f64,
    pub first_ms: i64,
    pub last_ms: i64,
    pub samples: u64,
}

impl Monotonicity {
    fn merge(&mut self, other: &Monotonicity) {
        self.least_bucket = self.least_bucket.min(other.least_bucket);
        self.greatest_bucket = self.greatest_bucket.max(other.greatest_bucket);
        self.greatest_difference = self.greatest_difference.max(other.greatest_difference);
        self.first_ms = self.first_ms.min(other.first_ms);
        self.last_ms = self.last_ms.max(other.last_ms);
        self.samples += other.samples;
    }
}

#[derive(Debug, Clone)]
struct Annotation {
    severity: Severity,
    text: String,
    span: Span,
    monotonicity: Option<Monotonicity>,
}

/// What one query collected.
#[derive(Debug, Clone, Default)]
pub(crate) struct Annotations {
    found: Vec<Annotation>,
}

impl Annotations {
    fn add(&mut self, severity: Severity, span: Span, text: String) {
        if let Some(known) = self.found.iter_mut().find(|known| known.text == text) {
            // The last place stands for all.
            known.span = span;
        } else if self.found.len() < MOST_REMEMBERED {
            self.found.push(Annotation { severity, text, span, monotonicity: None });
        }
    }

    pub fn invalid_quantile(&mut self, quantile: f64, span: Span) {
        let got = format_g(quantile, None);
        let text = format!("PromQL warning: quantile value should be between 0 and 1, got {got}");
        self.add(Severity::Warning, span, text);
    }

    pub fn invalid_ratio(&mut self, ratio: f64, capped: f64, span: Span) {
        let (got, to) = (format_g(ratio, None), format_g(capped, None));
        let text =
            format!("PromQL warning: ratio value should be between -1 and 1, got {got}, capping to {to}");
        self.add(Severity::Warning, span, text);
    }

    pub fn invalid_integral_strategy(&mut self, strategy: f64, span: Span) {
        let got = format_g(strategy, None);
        let text = format!("PromQL warning: strategy should be 0, 1, or 2 (default), using 2, got {got}");
        self.add(Severity::Warning, span, text);
    }

    pub fn bad_bucket_label(&mut self, metric: &str, label: &str, span: Span) {
        let text = format!(
            "PromQL warning: bucket label \"le\" is missing or has a malformed value of {}{}",
            quote(label),
            for_metric(metric)
        );
        self.add(Severity::Warning, span, text);
    }

    pub fn sort_in_range_query(&mut self, span: Span) {
        let text = "PromQL warning: sort is ineffective for range queries since results are always ordered by labels";
        self.add(Severity::Warning, span, text.into());
    }

    pub fn possible_non_counter(&mut self, metric: &str, span: Span) {
        let text = format!(
            "PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: {}",
            quote(metric)
        );
        self.add(Severity::Info, span, text);
    }

    pub fn possible_non_counter_type(&mut self, metric: &str, type_label: &str, span: Span) {
        let text = format!(
            "PromQL info: metric might not be a counter, __type__ label is not set to \"counter\" or \"histogram\", \
             got {}: {}",
            quote(type_label),
            quote(metric)
        );
        self.add(Severity::Info, span, text);
    }

    pub fn forced_monotonicity(&mut self, metric: &str, span: Span, details: Monotonicity) {
        let text = format!(
            "PromQL info: input to histogram_quantile needed to be fixed for monotonicity \
             (see https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile){}",
            for_metric(metric)
        );
        let known = self.found.iter_mut().find(|known| known.text == text);
        if let Some(merged) = known.and_then(|known| known.monotonicity.as_mut()) {
            merged.merge(&details);
        } else if self.found.len() < MOST_REMEMBERED {
            self.found.push(Annotation { severity: Severity::Info, text, span, monotonicity: Some(details) });
        }
    }

    /// Warnings and infos as texts.
    pub fn into_texts(self, query: &str) -> (Vec<String>, Vec<String>) {
        let (mut warnings, mut infos) = (Vec::new(), Vec::new());
        for annotation in &self.found {
            let texts = if annotation.severity == Severity::Warning { &mut warnings } else { &mut infos };
            texts.push(annotation.render(query));
        }
        (capped(warnings, "warning"), capped(infos, "info"))
    }
}

impl Annotation {
    fn render(&self, query: &str) -> String {
        let (line, column) = line_and_column(query, self.span.start);
        let details = self.monotonicity.map(|found| {
            format!(
                ", from buckets {} to {}, with a max diff of {}, over {} samples from {} to {}",
                format_g(found.least_bucket, None),
                format_g(found.greatest_bucket, None),
                format_g(found.greatest_difference, Some(2)),
                found.samples,
                format_utc(found.first_ms),
                format_utc(found.last_ms)
            )
        });
        format!("{}{} ({line}:{column})", self.text, details.unwrap_or_default())
    }
}

fn for_metric(metric: &str) -> String {
    if metric.is_empty() { String::new() } else { format!(" for metric name {}", quote(metric)) }
}

fn capped(mut texts: Vec<String>, kind: &str) -> Vec<String> {
    if texts.len() > MOST {
        let omitted = texts.len() - MOST;
        texts.truncate(MOST);
        texts.push(format!("{omitted} more {kind} annotations omitted"));
    }
    texts
}
