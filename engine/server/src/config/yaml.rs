//! YAML as a tree that knows where each node stands, so that an error can name file, line and column.
use std::fmt;

use saphyr::{MarkedYaml, ScalarStyle, YamlData, YamlLoader};

use crate::suggest;

/// What is wrong with a configuration file, and where: `file:line:column: message`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file as it was named.
    pub file: String,
    /// Line and column, from 1; `None` when the file as a whole is meant.
    pub at: Option<(usize, usize)>,
    /// What is wrong, with the cure where there is one.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some((line, column)) => write!(f, "{}:{line}:{column}: {}", self.file, self.message),
            None => write!(f, "{}: {}", self.file, self.message),
        }
    }
}

/// A node of the tree.
#[derive(Debug, Clone)]
pub struct Node {
    file: std::sync::Arc<str>,
    line: usize,
    column: usize,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Null,
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

/// Longest configuration file, in bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

impl Node {
    /// Reads one document; an empty file is an empty mapping.
    pub fn parse(file: &str, text: &str) -> Result<Node, ConfigError> {
        let name: std::sync::Arc<str> = file.into();
        let mut loader = YamlLoader::<MarkedYaml<'_>>::default();
        // Scalars stay as written: `08080` and `yes` are texts where a text is wanted.
        loader.early_parse(false);
        let mut parser = saphyr_parser::Parser::new_from_str(text);
        let failed = parser.load(&mut loader, true).err().or_else(|| loader.error().cloned());
        if let Some(error) = failed {
            let at = Some((error.marker().line(), error.marker().col() + 1));
            return Err(ConfigError { file: file.to_owned(), at, message: error.info().to_owned() });
        }
        let documents = loader.into_documents();
        if documents.len() > 1 {
            let message = "holds more than one YAML document; keep one".to_owned();
            return Err(ConfigError { file: file.to_owned(), at: None, message });
        }
        let empty = Node { file: name.clone(), line: 1, column: 1, kind: Kind::Null };
        Ok(documents.first().map_or(empty, |document| convert(&name, document)))
    }

    /// An error at this node.
    pub fn error(&self, message: impl Into<String>) -> ConfigError {
        ConfigError {
            file: self.file.to_string(),
            at: Some((self.line, self.column)),
            message: message.into(),
        }
    }

    /// Whether nothing is written here, or an empty list or mapping.
    pub fn is_empty(&self) -> bool {
        match &self.kind {
            Kind::Null => true,
            Kind::Scalar(_) => false,
            Kind::List(items) => items.is_empty(),
            Kind::Map(pairs) => pairs.is_empty(),
        }
    }

    /// The text of a scalar; nothing written counts as the empty text.
    pub fn text(&self) -> Result<&str, ConfigError> {
        match &self.kind {
            Kind::Null => Ok(""),
            Kind::Scalar(text) => Ok(text),
            Kind::List(_) => Err(self.error("a single value is expected here, not a list")),
            Kind::Map(_) => Err(self.error("a single value is expected here, not a mapping")),
        }
    }

    /// A truth value as YAML 1.1 and 1.2 write it.
    pub fn boolean(&self) -> Result<bool, ConfigError> {
        match self.text()? {
            "true" | "True" | "TRUE" | "yes" | "Yes" | "on" | "On" => Ok(true),
            "false" | "False" | "FALSE" | "no" | "No" | "off" | "Off" => Ok(false),
            other => Err(self.error(format!("{other:?} is not a truth value: write true or false"))),
        }
    }

    /// A whole number, not negative.
    pub fn number(&self) -> Result<u64, ConfigError> {
        let text = self.text()?;
        text.parse().map_err(|_| self.error(format!("{text:?} is not a whole number")))
    }

    /// What `parse` makes of the text; its error stands at this node.
    pub fn parsed<T, E: fmt::Display>(
        &self,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, ConfigError> {
        parse(self.text()?).map_err(|error| self.error(error.to_string()))
    }

    /// The items of a list; nothing written counts as the empty list.
    pub fn list(&self) -> Result<&[Node], ConfigError> {
        match &self.kind {
            Kind::Null => Ok(&[]),
            Kind::List(items) => Ok(items),
            Kind::Scalar(_) | Kind::Map(_) => Err(self.error("a list is expected here")),
        }
    }

    /// The texts of a list.
    pub fn texts(&self) -> Result<Vec<String>, ConfigError> {
        self.list()?.iter().map(|item| item.text().map(str::to_owned)).collect()
    }

    /// The pairs of a mapping; nothing written counts as the empty mapping.
    pub fn pairs(&self) -> Result<&[(Node, Node)], ConfigError> {
        match &self.kind {
            Kind::Null => Ok(&[]),
            Kind::Map(pairs) => Ok(pairs),
            Kind::Scalar(_) | Kind::List(_) => Err(self.error("a mapping is expected here")),
        }
    }

    /// A mapping of texts to texts.
    pub fn text_pairs(&self) -> Result<Vec<(String, String)>, ConfigError> {
        self.pairs()?
            .iter()
            .map(|(key, value)| Ok((key.text()?.to_owned(), value.text()?.to_owned())))
            .collect()
    }

    /// The tree as YAML in block style, with secrets left out.
    pub fn shown(&self) -> String {
        let mut out = String::new();
        self.show(&mut out, 0, false);
        out
    }

    fn show(&self, out: &mut String, depth: usize, after_dash: bool) {
        let indent = |out: &mut String, first: bool| {
            if !(first && after_dash) {
                out.push_str(&"  ".repeat(depth));
            }
        };
        match &self.kind {
            Kind::Null => out.push_str("null\n"),
            Kind::Scalar(text) => {
                out.push_str(&quoted(text));
                out.push('\n');
            }
            Kind::List(items) if items.is_empty() => out.push_str("[]\n"),
            Kind::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    indent(out, index == 0);
                    out.push_str("- ");
                    item.show(out, depth + 1, true);
                }
            }
            Kind::Map(pairs) if pairs.is_empty() => out.push_str("{}\n"),
            Kind::Map(pairs) => {
                for (index, (key, value)) in pairs.iter().enumerate() {
                    indent(out, index == 0);
                    let name = key.text().unwrap_or("?");
                    out.push_str(&quoted(name));
                    out.push(':');
                    if SECRETS.contains(&name) && !value.is_empty() {
                        out.push_str(" <secret>\n");
                        continue;
                    }
                    let nested = matches!(value.kind, Kind::List(_) | Kind::Map(_)) && !value.is_empty();
                    out.push(if nested { '\n' } else { ' ' });
                    value.show(out, depth + 1, false);
                }
            }
        }
    }

    /// The mapping as a section with known keys. A key that is in neither list is an error that names the nearest;
    /// so is a key of `later` with a value, as nothing would come of it.
    pub fn section(&self, known: &[&str], later: &[&str]) -> Result<Section<'_>, ConfigError> {
        let pairs = self.pairs()?;
        for (key, value) in pairs {
            let name = key.text()?;
            if later.contains(&name) {
                if !value.is_empty() {
                    return Err(key.error(format!("{name} is not supported in this version; remove it")));
                }
            } else if !known.contains(&name) {
                let all = known.iter().chain(later).copied();
                return Err(key.error(suggest::unknown("key", name, all)));
            }
        }
        Ok(Section { node: self, pairs })
    }
}

/// Keys whose values are never shown.
const SECRETS: &[&str] = &["password", "bearer_token", "credentials", "secrets", "client_secret", "key"];

/// A scalar as it may stand in YAML: plain where that is safe, else in JSON's quotes, which are YAML's too.
fn quoted(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte))
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "null" | "true" | "false" | "yes" | "no" | "on" | "off"
        );
    let number = text.parse::<u64>().is_ok();
    if plain || number { text.to_owned() } else { format!("{}", serde_json::Value::from(text)) }
}

/// A mapping whose keys have been checked.
#[derive(Clone, Copy)]
pub struct Section<'n> {
    /// The mapping itself, for errors about the whole.
    pub node: &'n Node,
    pairs: &'n [(Node, Node)],
}

impl<'n> Section<'n> {
    /// The value of a key.
    pub fn get(&self, name: &str) -> Option<&'n Node> {
        self.pairs.iter().find(|(key, _)| key.text().is_ok_and(|text| text == name)).map(|(_, value)| value)
    }

    /// What `read` makes of a key's value, when the key is there.
    pub fn read<T>(
        &self,
        name: &str,
        read: impl FnOnce(&'n Node) -> Result<T, ConfigError>,
    ) -> Result<Option<T>, ConfigError> {
        self.get(name).map(read).transpose()
    }
}

fn convert(file: &std::sync::Arc<str>, yaml: &MarkedYaml<'_>) -> Node {
    let kind = match &yaml.data {
        YamlData::Representation(text, style, _) => {
            let plain = matches!(style, ScalarStyle::Plain);
            if plain && matches!(&**text, "" | "~" | "null" | "Null" | "NULL") {
                Kind::Null
            } else {
                Kind::Scalar(text.to_string())
            }
        }
        YamlData::Sequence(items) => Kind::List(items.iter().map(|item| convert(file, item)).collect()),
        YamlData::Mapping(pairs) => {
            Kind::Map(pairs.iter().map(|(key, value)| (convert(file, key), convert(file, value))).collect())
        }
        YamlData::Tagged(_, inner) => return convert(file, inner),
        YamlData::Value(_) | YamlData::Alias(_) | YamlData::BadValue => Kind::Null,
    };
    Node { file: file.clone(), line: yaml.span.start.line(), column: yaml.span.start.col() + 1, kind }
}

#[cfg(test)]
mod tests {
    use super::Node;

    #[test]
    fn an_unknown_key_names_place_and_nearest_key() {
        let text = "global:\n  scrape_intervall: 5s\n";
        let root = Node::parse("scrape.yaml", text).unwrap();
        let global = &root.pairs().unwrap()[0].1;
        let error = global.section(&["scrape_interval"], &[]).err().unwrap();
        assert_eq!(
            error.to_string(),
            r#"scrape.yaml:2:3: unknown key "scrape_intervall", did you mean "scrape_interval"?"#
        );
    }

    #[test]
    fn a_section_that_comes_later_may_be_empty_but_not_used() {
        let read = |text: &str| {
            let root = Node::parse("a.yaml", text).unwrap();
            root.section(&[], &["rule_files"]).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(read("rule_files: []\n"), Ok(()));
        assert_eq!(read("rule_files:\n"), Ok(()));
        let error = "a.yaml:1:1: rule_files is not supported in this version; remove it";
        assert_eq!(read("rule_files: [x]\n"), Err(error.to_owned()));
    }

    #[test]
    fn syntax_errors_and_duplicate_keys_name_their_place() {
        let error = Node::parse("a.yaml", "a: [1, 2\nb: 3\n").err().unwrap();
        assert!(error.at.is_some(), "{error}");
        let error = Node::parse("a.yaml", "a: 1\na: 2\n").err().unwrap();
        assert_eq!(error.at.unwrap().0, 2, "{error}");
    }

    #[test]
    fn what_is_shown_reads_back_the_same_but_for_secrets() {
        let text = "global: {scrape_interval: 5s}\nscrape_configs:\n- job_name: 'a: b'\n  basic_auth: {username: u, password: p}\n  static_configs: [{targets: ['h:1', h2]}, {}]\n";
        let shown = Node::parse("a.yaml", text).unwrap().shown();
        let expected = "global:\n  scrape_interval: \"5s\"\nscrape_configs:\n  - job_name: \"a: b\"\n    basic_auth:\n      username: u\n      password: <secret>\n    static_configs:\n      - targets:\n          - \"h:1\"\n          - h2\n      - {}\n";
        assert_eq!(shown, expected);
        assert_eq!(Node::parse("b.yaml", &shown).unwrap().shown(), expected);
    }

    #[test]
    fn scalars_stay_as_written() {
        let root = Node::parse("a.yaml", "a: 08080\nb: 'null'\nc: ~\n").unwrap();
        let texts: Vec<_> = root.pairs().unwrap().iter().map(|(_, value)| value.text().unwrap()).collect();
        assert_eq!(texts, ["08080", "null", ""]);
        assert!(!root.pairs().unwrap()[1].1.is_empty());
    }
}
