//! Relabelling rules against their documented effect.
#![allow(clippy::unwrap_used)]

use metricsstore_model::LabelBuf;
use metricsstore_scrape::relabel::relabel;
use metricsstore_scrape::{Action, RelabelConfig, RelabelError, RelabelRegex};

/// A rule: sources, regex, target, replacement.
fn rule(action: Action, sources: &[&str], regex: &str, target: &str, replacement: &str) -> RelabelConfig {
    let mut rule = RelabelConfig::new(action).unwrap();
    rule.source_labels = sources.iter().map(|&name| name.to_owned()).collect();
    rule.regex = RelabelRegex::new(regex).unwrap();
    rule.target_label = target.into();
    rule.replacement = replacement.into();
    rule
}

fn apply(labels: &[(&str, &str)], rules: &[RelabelConfig]) -> Option<String> {
    let mut labels = LabelBuf::from_pairs(labels.iter().copied());
    relabel(rules, &mut labels).then(|| labels.to_string())
}

fn applied(labels: &[(&str, &str)], rule: RelabelConfig) -> String {
    apply(labels, &[rule]).unwrap_or_else(|| "dropped".into())
}

#[test]
fn replace_sets_moves_and_removes() {
    use Action::Replace;
    let labels = [("a", "foo"), ("b", "bar"), ("c", "baz")];
    let cases = [
        (
            rule(Replace, &["a"], "f(.*)", "d", "ch${1}-ch${1}"),
            r#"{a="foo", b="bar", c="baz", d="choo-choo"}"#,
        ),
        (rule(Replace, &["a", "b"], "f(.*);(.*)r", "a", "b${1}${2}m"), r#"{a="boobam", b="bar", c="baz"}"#),
        (rule(Replace, &["a"], "(?P<first>.)oo", "d", "${first}x"), r#"{a="foo", b="bar", c="baz", d="fx"}"#),
        // The regex is anchored at both ends.
        (rule(Replace, &["a"], "o", "d", "x"), r#"{a="foo", b="bar", c="baz"}"#),
        (rule(Replace, &["a"], ".*(b)|foo", "d", "x$1"), r#"{a="foo", b="bar", c="baz", d="x"}"#),
        // An empty value removes the label.
        (rule(Replace, &["a"], ".*", "a", ""), r#"{b="bar", c="baz"}"#),
        (rule(Replace, &["none"], "(.*)", "b", "$1"), r#"{a="foo", c="baz"}"#),
        // The target may come from the match; an empty one changes nothing.
        (rule(Replace, &["a"], "(f)(oo)", "${1}_$2", "x"), r#"{a="foo", b="bar", c="baz", f_oo="x"}"#),
        (rule(Replace, &["a"], "foo", "$1", "x"), r#"{a="foo", b="bar", c="baz"}"#),
        // `$1x` names the group `1x`.
        (rule(Replace, &["a"], "(f)oo", "d", "$1x"), r#"{a="foo", b="bar", c="baz"}"#),
        (rule(Replace, &["a"], "foo", "d", "$$1"), r#"{a="foo", b="bar", c="baz", d="$1"}"#),
    ];
    for (rule, expected) in cases {
        assert_eq!(applied(&labels, rule.clone()), expected, "{rule:?}");
    }
    assert_eq!(applied(&[("a", "x\ny")], rule(Replace, &["a"], "x.y", "a", "z")), r#"{a="z"}"#);
}

#[test]
fn keep_and_drop_look_at_the_whole_value() {
    let labels = [("a", "foo"), ("b", "bar")];
    let kept = r#"{a="foo", b="bar"}"#;
    assert_eq!(applied(&labels, rule(Action::Keep, &["a"], "f.*", "", "$1")), kept);
    assert_eq!(applied(&labels, rule(Action::Keep, &["a"], "o", "", "$1")), "dropped");
    assert_eq!(applied(&labels, rule(Action::Drop, &["a", "b"], "foo;bar", "", "$1")), "dropped");
    assert_eq!(applied(&labels, rule(Action::Drop, &["a"], "f", "", "$1")), kept);
    // Without sources the value is empty.
    assert_eq!(applied(&labels, rule(Action::Drop, &[], ".*", "", "$1")), "dropped");
}

#[test]
fn keepequal_and_dropequal_compare_labels() {
    let labels = [("port", "80"), ("want", "80"), ("other", "81")];
    let is_kept =
        |action, target| applied(&labels, rule(action, &["port"], "(.*)", target, "$1")) != "dropped";
    assert!(is_kept(Action::KeepEqual, "want"));
    assert!(!is_kept(Action::KeepEqual, "other"));
    assert!(!is_kept(Action::DropEqual, "want"));
    assert!(is_kept(Action::DropEqual, "other"));
}

/// Expected residues from `int(md5(value)[16:], 16) % modulus`.
#[test]
fn hashmod_shards_like_everybody_else() {
    let mut sharding = rule(Action::HashMod, &["c"], "(.*)", "d", "$1");
    sharding.modulus = 1000;
    assert_eq!(applied(&[("c", "baz")], sharding.clone()), r#"{c="baz", d="976"}"#);
    sharding.source_labels = vec!["a".into(), "b".into()];
    assert_eq!(applied(&[("a", "foo"), ("b", "bar")], sharding), r#"{a="foo", b="bar", d="750"}"#);
}

#[test]
fn labelmap_labeldrop_and_labelkeep_look_at_names() {
    let labels = [("__meta_a", "1"), ("__meta_b", "2"), ("c", "3")];
    let map = rule(Action::LabelMap, &[], "__meta_(.+)", "", "x_$1");
    assert_eq!(applied(&labels, map), r#"{__meta_a="1", __meta_b="2", c="3", x_a="1", x_b="2"}"#);
    assert_eq!(applied(&labels, rule(Action::LabelDrop, &[], "__meta_.*", "", "$1")), r#"{c="3"}"#);
    assert_eq!(
        applied(&labels, rule(Action::LabelKeep, &[], "__meta_a|c", "", "$1")),
        r#"{__meta_a="1", c="3"}"#
    );
}

#[test]
fn letters_change_case_one_by_one() {
    let labels = [("a", "Straße Éa")];
    let changed = |action| applied(&labels, rule(action, &["a"], "(.*)", "a", "$1"));
    assert_eq!(changed(Action::Lowercase), r#"{a="straße éa"}"#);
    assert_eq!(changed(Action::Uppercase), r#"{a="STRAßE ÉA"}"#);
}

#[test]
fn rules_apply_in_order_until_one_drops() {
    let rules = [
        rule(Action::Replace, &["a"], "(.*)", "b", "$1"),
        rule(Action::Keep, &["b"], "x", "", "$1"),
        rule(Action::LabelDrop, &[], "a", "", "$1"),
    ];
    assert_eq!(apply(&[("a", "x")], &rules).as_deref(), Some(r#"{b="x"}"#));
    assert_eq!(apply(&[("a", "y")], &rules), None);
}

#[test]
fn rules_that_make_no_sense_are_refused() {
    let invalid = [
        (
            rule(Action::HashMod, &["a"], "(.*)", "b", "$1"),
            "relabel configuration for hashmod requires non-zero modulus",
        ),
        (
            rule(Action::Replace, &["a"], "(.*)", "", "$1"),
            "relabel configuration for replace action requires 'target_label' value",
        ),
        (
            rule(Action::Lowercase, &["a"], "(.*)", "b", "x"),
            "'replacement' can not be set for lowercase action",
        ),
        (rule(Action::LabelMap, &[], "(.*)", "", ""), r#""" is invalid 'replacement' for labelmap action"#),
        (
            rule(Action::KeepEqual, &["a"], "x", "b", "$1"),
            "keepequal action requires only 'source_labels' and `target_label`, and no other fields",
        ),
        (
            rule(Action::LabelDrop, &["a"], "x", "", "$1"),
            "labeldrop action requires only 'regex', and no other fields",
        ),
    ];
    for (rule, message) in invalid {
        assert_eq!(rule.validate().unwrap_err().to_string(), message);
    }
    for action in [Action::Keep, Action::Drop] {
        assert_eq!(rule(action, &["a"], "x", "", "$1").validate(), Ok(()));
    }
    assert!(matches!(RelabelRegex::new("("), Err(RelabelError::Regex { .. })));
    assert_eq!(Action::from_name("LabelKeep"), Some(Action::LabelKeep));
    assert_eq!(Action::from_name("label_keep"), None);
}
