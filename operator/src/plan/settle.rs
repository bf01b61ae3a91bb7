//! What engines say about what they were given: is it in force, is it refused, is something shed.

use metricsstore_contract::{ConfigVerdict, RuntimeInfo, content_hash};

use super::children::piece_file;
use super::{Plan, names, sizing};
use crate::reconcile::{Refusal, Seen, Valid};

/// Levels of pressure from which data are refused.
const SHEDDING: [&str; 2] = ["refuse_series", "refuse_writes"];
/// The share of the budget from which new series are refused, for engines whose level has another name.
const SHEDDING_SHARE: f64 = 0.93;

/// What an engine does not have in force yet, in words.
pub fn not_yet_in_force(valid: &Valid, plan: &Plan, info: &RuntimeInfo) -> Option<String> {
    if let (Some(runtime), Some(wanted)) = (&info.runtime_config, engine_yaml_hash(plan)) {
        if runtime.content_hash != wanted {
            return Some("engine.yaml has not arrived yet".into());
        }
        if let Some(error) = &runtime.error {
            return Some(format!("engine.yaml is not in force: {error}"));
        }
    }
    if files_to_read(plan, info) {
        return Some("the scrape configuration has not arrived yet".into());
    }
    sizing::not_yet_in_force(valid, info)
}

fn engine_yaml_hash(plan: &Plan) -> Option<String> {
    let data = plan.children.config_map.data.as_ref()?;
    data.get(names::ENGINE_FILE).map(|text| content_hash(text.as_bytes()))
}

/// Whether the engine has not yet judged the scrape configuration as it is planned.
pub fn files_to_read(plan: &Plan, info: &RuntimeInfo) -> bool {
    let planned = plan.children.scrape.data.iter().flatten();
    let mut planned = planned.map(|(file, contents)| (file, content_hash(&contents.0)));
    planned.any(|(file, hash)| verdict_on(info, file).is_none_or(|verdict| verdict.content_hash != hash))
}

fn verdict_on<'a>(info: &'a RuntimeInfo, file: &str) -> Option<&'a ConfigVerdict> {
    info.config_files.iter().find(|verdict| file_name(&verdict.path) == file)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The first scrape configuration that does not exist or is no text.
pub fn missing_piece(seen: &Seen) -> Option<Refusal> {
    seen.pieces.iter().find_map(|piece| piece.content.as_ref().err().cloned())
}

/// The first scrape configuration that an engine refuses, named as the user knows it. A verdict on other contents than the
/// planned ones is an old one: the new contents are still on their way.
pub fn refused_config(seen: &Seen, plan: &Plan) -> Option<Refusal> {
    let verdicts =
        seen.engines.values().filter_map(|info| info.as_ref().ok()).flat_map(|info| &info.config_files);
    let planned = plan.children.scrape.data.as_ref()?;
    let mut current = verdicts.filter(|verdict| {
        let contents = planned.get(file_name(&verdict.path));
        contents.is_some_and(|contents| content_hash(&contents.0) == verdict.content_hash)
    });
    current.find_map(|verdict| {
        let error = verdict.error.as_ref()?;
        let piece = seen.pieces.iter().find(|piece| piece_file(&piece.source) == file_name(&verdict.path));
        // The operator's own path means nothing to a user; what follows it is the place in the user's text.
        let place = error.strip_prefix(verdict.path.as_str()).unwrap_or(error);
        let message = match piece {
            Some(piece) => {
                let source = &piece.source;
                let place = if place.len() == error.len() { format!(": {error}") } else { place.to_owned() };
                format!("{} {}, {}{place}", source.kind.word(), source.name, source.key)
            }
            None => error.clone(),
        };
        let last =
            if verdict.in_force_hash.is_some() { "; the last good contents stay in force" } else { "" };
        Some(Refusal::new("ScrapeConfigInvalid", format!("{message}{last}")))
    })
}

/// Whether an engine refuses data at this moment.
pub fn sheds(info: &RuntimeInfo) -> bool {
    SHEDDING.contains(&info.pressure.as_str()) || info.budget_used >= SHEDDING_SHARE
}

/// The same in words, with the cure. Without figures that change with every look.
pub fn shedding(pod: &str, info: &RuntimeInfo) -> String {
    format!(
        "{pod} has used up its memory budget of {}Mi and refuses new series; existing series continue, but above 97% all \
         writes wait and senders must retry. Set resources.limits.memory higher or send fewer series",
        info.memory_budget_bytes >> 20
    )
}

/// What an engine has refused since it started, two significant digits.
pub fn refusals(pod: &str, info: &RuntimeInfo) -> Option<String> {
    let some = info.refusals.iter().filter(|(_, count)| **count > 0);
    let lines: Vec<String> =
        some.map(|(what, count)| format!("{what} {}", short(two_digits(*count)))).collect();
    (!lines.is_empty()).then(|| format!("{pod} has refused since it started: {}", lines.join(", ")))
}

/// Rounded to two significant digits, so that small movements change nothing.
pub fn two_digits(value: u64) -> u64 {
    let step = 10_u64.pow(value.checked_ilog10().unwrap_or(0).saturating_sub(1));
    (value.saturating_add(step / 2)) / step * step
}

/// A count in a few characters, such as 1.2M.
pub fn short(value: u64) -> String {
    let (unit, name) = match value {
        1_000_000_000.. => (1_000_000_000, "G"),
        1_000_000.. => (1_000_000, "M"),
        1_000.. => (1_000, "k"),
        _ => return value.to_string(),
    };
    let (whole, tenth) = (value / unit, value % unit * 10 / unit);
    if whole >= 10 || tenth == 0 { format!("{whole}{name}") } else { format!("{whole}.{tenth}{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::reconcile::{Piece, Source, SourceKind};

    #[test]
    fn counts_are_rounded_to_two_digits_and_printed_short() {
        for (value, rounded, shown) in [
            (0, 0, "0"),
            (7, 7, "7"),
            (99, 99, "99"),
            (1_249, 1_200, "1.2k"),
            (1_250, 1_300, "1.3k"),
            (999_999, 1_000_000, "1M"),
            (88_400, 88_000, "88k"),
            (1_234_567, 1_200_000, "1.2M"),
        ] {
            assert_eq!(two_digits(value), rounded);
            assert_eq!(short(rounded), shown);
        }
    }

    #[test]
    fn an_engines_verdict_is_told_in_the_users_terms() {
        let mut seen = fixtures::seen("resources: { limits: { memory: 1Gi } }");
        let source = Source { kind: SourceKind::Secret, name: "extra".into(), key: "scrape.yaml".into() };
        let path = format!("{}/{}", names::SCRAPE_DIR, piece_file(&source));
        seen.pieces.push(Piece { source, content: Ok(b"bad".to_vec()) });
        let verdict = ConfigVerdict {
            content_hash: content_hash(b"bad"),
            error: Some(format!(
                "{path}:14:5: unknown key \"scrape_intervall\", did you mean \"scrape_interval\"?"
            )),
            path,
            ..ConfigVerdict::default()
        };
        let info = RuntimeInfo { config_files: vec![verdict], ..RuntimeInfo::default() };
        seen.engines.insert("main-0".into(), Ok(info));
        let valid = fixtures::valid("resources: { limits: { memory: 1Gi } }");
        let plan = |seen: &Seen| crate::plan::plan(&valid, seen, "token").unwrap();
        assert_eq!(
            refused_config(&seen, &plan(&seen)).unwrap().message,
            "Secret extra, scrape.yaml:14:5: unknown key \"scrape_intervall\", did you mean \"scrape_interval\"?"
        );
        // The user has corrected it, and the engine has not seen that yet.
        seen.pieces[0].content = Ok(b"good".to_vec());
        assert_eq!(refused_config(&seen, &plan(&seen)), None);
    }
}
