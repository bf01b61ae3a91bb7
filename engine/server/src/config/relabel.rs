//! `relabel_configs` and `metric_relabel_configs`.
use metricsstore_scrape::{Action, RelabelConfig, RelabelRegex};

use super::yaml::{ConfigError, Node};
use crate::suggest;

/// The rules of a list.
pub fn rules(node: &Node) -> Result<Vec<RelabelConfig>, ConfigError> {
    node.list()?.iter().map(rule).collect()
}

fn rule(node: &Node) -> Result<RelabelConfig, ConfigError> {
    let section = node.section(
        &["source_labels", "separator", "regex", "modulus", "target_label", "replacement", "action"],
        &[],
    )?;
    let action = section
        .read("action", |node| {
            node.parsed(|name| {
                Action::from_name(name)
                    .ok_or_else(|| suggest::unknown("relabel action", name, Action::ALL.map(Action::name)))
            })
        })?
        .unwrap_or(Action::Replace);
    let mut rule = RelabelConfig::new(action).map_err(|error| node.error(error.to_string()))?;
    if let Some(labels) = section.read("source_labels", Node::texts)? {
        rule.source_labels = labels;
    }
    if let Some(separator) = section.read("separator", Node::text)? {
        separator.clone_into(&mut rule.separator);
    }
    if let Some(regex) = section.read("regex", |node| node.parsed(RelabelRegex::new))? {
        rule.regex = regex;
    }
    if let Some(modulus) = section.read("modulus", Node::number)? {
        rule.modulus = modulus;
    }
    if let Some(target) = section.read("target_label", Node::text)? {
        target.clone_into(&mut rule.target_label);
    }
    if let Some(replacement) = section.read("replacement", Node::text)? {
        replacement.clone_into(&mut rule.replacement);
    }
    rule.validate().map_err(|error| node.error(error.to_string()))?;
    Ok(rule)
}
