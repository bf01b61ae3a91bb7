//! `--enable-feature`: the names Prometheus 3.16 knows.

/// Every feature name of Prometheus 3.16; a name that is not here is a warning, as there.
pub const KNOWN: &[&str] = &[
    "auto-reload-config",
    "concurrent-rule-eval",
    "created-timestamp-zero-ingestion",
    "delayed-compaction",
    "exemplar-storage",
    "extra-scrape-metrics",
    "fast-startup",
    "histograms-st-encoding",
    "memory-snapshot-on-shutdown",
    "metadata-wal-records",
    "native-histograms",
    "old-ui",
    "ooo-native-histograms",
    "openmetrics2",
    "otlp-deltatocumulative",
    "otlp-native-delta-ingestion",
    "promql-binop-fill-modifiers",
    "promql-delayed-name-removal",
    "promql-duration-expr",
    "promql-experimental-functions",
    "promql-extended-range-selectors",
    "promql-per-step-stats",
    "promql-unquoted-utf8-names",
    "query-cost",
    "search-api",
    "st-storage",
    "st-synthesis",
    "type-and-unit-labels",
    "use-start-timestamps",
    "use-uncached-io",
    "xor2-encoding",
    "zstd-scrape",
];

/// Names that change an answer here today; the others are accepted so that command lines carry over, and a line in
/// the log says that they have no effect.
pub const EFFECTIVE: &[&str] = &[
    "exemplar-storage",
    "promql-delayed-name-removal",
    "promql-experimental-functions",
    "promql-unquoted-utf8-names",
    "type-and-unit-labels",
];

/// Splits the values of `--enable-feature` (comma-separated, repeatable) into names.
pub fn split(values: &[String]) -> Vec<String> {
    values
        .iter()
        .flat_map(|value| value.split(','))
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}
