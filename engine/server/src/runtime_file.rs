//! `engine.yaml`: what may change without a restart. The operator writes it; a newer operator may write keys that
//! are not known here, which is a warning.
use std::path::Path;

use metricsstore_contract::{ConfigVerdict, EngineConfig, content_hash};

use crate::config::load;

/// The file in force.
#[derive(Debug, Clone)]
pub struct RuntimeFile {
    /// What holds; decides nothing when there is no file.
    pub config: EngineConfig,
    /// Keys that are not known here, by path.
    pub unknown: Vec<String>,
    /// The verdict about the last contents; `None` without a file.
    pub verdict: Option<ConfigVerdict>,
}

impl RuntimeFile {
    /// Without a file.
    pub fn none() -> RuntimeFile {
        RuntimeFile { config: EngineConfig::empty(), unknown: Vec::new(), verdict: None }
    }

    /// Reads the file again; bad contents leave the last good ones in force. Says whether the contents are new.
    pub fn reload(&mut self, path: &Path) -> bool {
        let (hash, result) = match load::read(path) {
            Err(error) => (String::new(), Err(error.to_string())),
            Ok(text) => (content_hash(text.as_bytes()), parse(path, &text)),
        };
        let last = self.verdict.take().unwrap_or_default();
        let is_new = last.content_hash != hash || last.path.is_empty();
        let (in_force_hash, error) = match result {
            Ok((config, unknown)) => {
                (self.config, self.unknown) = (config, unknown);
                (Some(hash.clone()), None)
            }
            Err(error) => (last.in_force_hash, Some(error)),
        };
        let path = path.display().to_string();
        self.verdict = Some(ConfigVerdict { path, content_hash: hash, in_force_hash, error });
        is_new
    }
}

fn parse(path: &Path, text: &str) -> Result<(EngineConfig, Vec<String>), String> {
    EngineConfig::read(serde_yaml_ng::Deserializer::from_str(text))
        .map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::RuntimeFile;

    #[test]
    fn unknown_keys_are_listed_and_bad_contents_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("engine.yaml");
        std::fs::write(&path, "schema: 1\nretention: {time: 2d, burst: 1}\ncolour: red\n").unwrap();
        let mut file = RuntimeFile::none();
        assert!(file.reload(&path));
        assert_eq!(file.unknown, ["colour", "retention.burst"]);
        assert!(!file.reload(&path));
        std::fs::write(&path, "schema: [").unwrap();
        assert!(file.reload(&path));
        assert_eq!(file.config.retention.as_ref().unwrap().time.ms(), 2 * 86_400_000);
        assert!(file.verdict.unwrap().error.unwrap().contains("engine.yaml"));
    }
}
