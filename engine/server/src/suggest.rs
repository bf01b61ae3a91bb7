//! "Did you mean …": the nearest known name, where one is near enough to be what was meant.

/// The known name nearest to `typed`; `None` when nothing resembles it.
pub fn nearest<'k>(typed: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(typed, name), name))
        .filter(|(score, _)| *score >= 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// `unknown KIND "typed", did you mean "nearest"?`, or without the second half.
pub fn unknown<'k>(kind: &str, typed: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    match nearest(typed, known) {
        Some(name) => format!("unknown {kind} {typed:?}, did you mean {name:?}?"),
        None => format!("unknown {kind} {typed:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::unknown;

    #[test]
    fn a_slip_names_what_was_meant_and_a_stranger_nothing() {
        let known = ["scrape_interval", "scrape_timeout", "job_name"];
        assert_eq!(
            unknown("key", "scrape_intervall", known),
            r#"unknown key "scrape_intervall", did you mean "scrape_interval"?"#
        );
        assert_eq!(unknown("key", "zzz", known), r#"unknown key "zzz""#);
    }
}
