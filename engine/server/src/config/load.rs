//! What is in force: the main file and the files it names, each with a verdict. A reload that fails changes nothing;
//! a file of `scrape_config_files` that is bad keeps its last good jobs beside what is good in the others.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use metricsstore_contract::{ConfigVerdict, content_hash};
use metricsstore_scrape::ScrapeConfig;

use super::Config;
use super::yaml::{ConfigError, MAX_FILE_BYTES};

/// Most files that `scrape_config_files` may name.
const MAX_FILES: usize = 1000;

/// A file's contents that were good, with what they say.
#[derive(Debug, Clone)]
struct Good<T> {
    hash: String,
    parsed: T,
}

/// The configuration in force.
#[derive(Debug, Clone, Default)]
pub struct InForce {
    main: Option<Good<Config>>,
    files: BTreeMap<PathBuf, Good<Vec<ScrapeConfig>>>,
    verdicts: Vec<ConfigVerdict>,
}

impl InForce {
    /// Without a file.
    pub fn without_file(config: Config) -> InForce {
        let main = Good { hash: content_hash(b""), parsed: config };
        InForce { main: Some(main), ..InForce::default() }
    }

    /// The main file as it may be shown.
    pub fn shown(&self) -> String {
        self.config().map_or_else(String::new, |config| config.shown.clone())
    }

    /// Settings of the main file.
    pub fn config(&self) -> Option<&Config> {
        self.main.as_ref().map(|good| &good.parsed)
    }

    /// How far behind samples are accepted out of order; 0 without a file.
    pub fn out_of_order_window_ms(&self) -> i64 {
        self.config().map_or(0, |config| config.out_of_order_window.ms())
    }

    /// How many exemplars are kept where their storage is on, as Prometheus has it.
    pub fn max_exemplars(&self) -> usize {
        const DEFAULT: usize = 100_000;
        self.config().and_then(|config| config.max_exemplars).unwrap_or(DEFAULT)
    }

    /// All jobs, those of the main file first.
    pub fn jobs(&self) -> Vec<ScrapeConfig> {
        let main = self.main.iter().flat_map(|good| &good.parsed.jobs);
        main.chain(self.files.values().flat_map(|good| &good.parsed)).cloned().collect()
    }

    /// The verdict about each file, in the order in which they were read.
    pub fn verdicts(&self) -> &[ConfigVerdict] {
        &self.verdicts
    }

    /// All errors of the last load on one line; `None` when everything read is in force.
    pub fn error(&self) -> Option<String> {
        let errors: Vec<&str> = self.verdicts.iter().filter_map(|verdict| verdict.error.as_deref()).collect();
        (!errors.is_empty()).then(|| errors.join("; "))
    }

    /// Reads everything again. What is good comes into force; what is not leaves its last good state.
    pub fn reload(&mut self, path: &Path) {
        let mut verdicts = Vec::new();
        self.reload_main(path, &mut verdicts);
        if let Some(config) = self.main.as_ref().map(|good| good.parsed.clone()) {
            self.reload_files(&config, &mut verdicts);
        }
        self.verdicts = verdicts;
    }

    fn reload_main(&mut self, path: &Path, verdicts: &mut Vec<ConfigVerdict>) {
        let in_force = self.main.as_ref().map(|good| good.hash.clone());
        let (hash, result) = match read(path) {
            Err(error) => (String::new(), Err(error)),
            Ok(text) => {
                let hash = content_hash(text.as_bytes());
                let had_jobs = !self.jobs().is_empty();
                let parsed = not_emptied(path, &text, had_jobs).and_then(|()| Config::parse(path, &text));
                (hash.clone(), parsed.map(|parsed| Good { hash, parsed }))
            }
        };
        let error = match result {
            Ok(good) => {
                self.main = Some(good);
                None
            }
            Err(error) => Some(error.to_string()),
        };
        verdicts.push(verdict(path, hash, in_force, error));
    }

    fn reload_files(&mut self, config: &Config, verdicts: &mut Vec<ConfigVerdict>) {
        let mut names: BTreeSet<String> = config.jobs.iter().map(|job| job.job_name.clone()).collect();
        let mut kept = BTreeMap::new();
        for path in list_files(config) {
            let last = self.files.remove(&path);
            let in_force = last.as_ref().map(|good| good.hash.clone());
            let (hash, result) = match read(&path) {
                Err(error) => (String::new(), Err(error)),
                Ok(text) => {
                    let hash = content_hash(text.as_bytes());
                    let had_jobs = last.as_ref().is_some_and(|good| !good.parsed.is_empty());
                    let jobs = not_emptied(&path, &text, had_jobs)
                        .and_then(|()| config.parse_jobs(&path, &text))
                        .and_then(|jobs| unique(&path, jobs, &names));
                    (hash.clone(), jobs.map(|parsed| Good { hash, parsed }))
                }
            };
            let (good, error) = match result {
                Ok(good) => (Some(good), None),
                // The last good jobs hold on, unless another file took a name of theirs.
                Err(error) => (
                    last.filter(|good| good.parsed.iter().all(|job| !names.contains(&job.job_name))),
                    Some(error.to_string()),
                ),
            };
            verdicts.push(verdict(&path, hash, in_force.filter(|_| good.is_some()), error));
            if let Some(good) = good {
                names.extend(good.parsed.iter().map(|job| job.job_name.clone()));
                kept.insert(path, good);
            }
        }
        self.files = kept;
    }

    /// One number over the contents of all files as they are now on disk, to see whether a reload is due.
    pub fn fingerprint(&self, path: &Path) -> String {
        let mut all = content_of(path);
        if let Some(config) = self.config() {
            for file in list_files(config) {
                all.extend_from_slice(file.as_os_str().as_encoded_bytes());
                all.extend_from_slice(&content_of(&file));
            }
        }
        content_hash(&all)
    }
}

fn content_of(path: &Path) -> Vec<u8> {
    read(path).map_or_else(|error| error.to_string().into_bytes(), String::into_bytes)
}

fn verdict(path: &Path, hash: String, in_force: Option<String>, error: Option<String>) -> ConfigVerdict {
    let in_force_hash = if error.is_none() { Some(hash.clone()) } else { in_force };
    ConfigVerdict { path: path.display().to_string(), content_hash: hash, in_force_hash, error }
}

/// A file that had jobs and now says nothing at all was more likely cut short than meant: it must not end all scrapes.
fn not_emptied(path: &Path, text: &str, had_jobs: bool) -> Result<(), ConfigError> {
    let says_nothing = text
        .lines()
        .map(str::trim)
        .all(|line| line.is_empty() || line.starts_with('#') || matches!(line, "---" | "..."));
    if had_jobs && says_nothing {
        let message = "is empty; to end its scrapes write `scrape_configs: []`";
        return Err(whole(path, message.to_owned()));
    }
    Ok(())
}

fn unique(
    path: &Path,
    jobs: Vec<ScrapeConfig>,
    taken: &BTreeSet<String>,
) -> Result<Vec<ScrapeConfig>, ConfigError> {
    match jobs.iter().find(|job| taken.contains(&job.job_name)) {
        Some(job) => Err(whole(path, format!("the job name {:?} is taken by another file", job.job_name))),
        None => Ok(jobs),
    }
}

fn whole(path: &Path, message: String) -> ConfigError {
    ConfigError { file: path.display().to_string(), at: None, message }
}

/// Text of a file, within the bound.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    let error = |error: std::io::Error| whole(path, format!("cannot be read: {error}"));
    let length = std::fs::metadata(path).map_err(error)?.len();
    if length > MAX_FILE_BYTES {
        return Err(whole(path, format!("has {length} bytes, more than {MAX_FILE_BYTES}")));
    }
    std::fs::read_to_string(path).map_err(error)
}

/// The files that match the patterns, each once, in order. A pattern may hold `*` in its last part, as Prometheus'.
fn list_files(config: &Config) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for pattern in &config.scrape_config_files {
        let name = pattern.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.contains('*') {
            files.push(pattern.clone());
            continue;
        }
        let dir = pattern.parent().unwrap_or(Path::new("."));
        let Ok(entries) = std::fs::read_dir(dir) else { continue };
        let mut found: Vec<PathBuf> = entries
            .filter_map(Result::ok)
            .filter(|entry| matches_star(&name, &entry.file_name().to_string_lossy()))
            .map(|entry| entry.path())
            .collect();
        found.sort();
        files.extend(found);
    }
    let mut seen = BTreeSet::new();
    files.retain(|file| seen.insert(file.clone()));
    files.truncate(MAX_FILES);
    files
}

fn matches_star(pattern: &str, name: &str) -> bool {
    let parts: Vec<&str> = pattern.split('*').collect();
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return false };
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    if name.len() < first.len() + last.len() || !rest.ends_with(last) {
        return false;
    }
    rest = &rest[..rest.len() - last.len()];
    for part in &parts[1..parts.len() - 1] {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{InForce, matches_star};

    const GOOD: &str = "scrape_configs: [{job_name: a, static_configs: [{targets: ['h:1']}]}]\n";

    #[test]
    fn a_bad_reload_keeps_the_last_good_configuration_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scrape.yaml");
        std::fs::write(&path, GOOD).unwrap();
        let mut in_force = InForce::default();
        in_force.reload(&path);
        assert_eq!((in_force.error(), in_force.jobs().len()), (None, 1));
        std::fs::write(&path, "global:\n  scrape_intervall: 5s\n").unwrap();
        in_force.reload(&path);
        let error = in_force.error().unwrap();
        let expected = r#"scrape.yaml:2:3: unknown key "scrape_intervall", did you mean "scrape_interval"?"#;
        assert!(error.ends_with(expected), "{error}");
        assert_eq!(in_force.jobs()[0].job_name, "a");
        let verdict = &in_force.verdicts()[0];
        assert!(
            verdict.in_force_hash.is_some() && verdict.in_force_hash.as_ref() != Some(&verdict.content_hash)
        );
    }

    #[test]
    fn the_out_of_order_window_is_read_and_stays_when_a_reload_fails() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("scrape.yaml");
        let mut in_force = InForce::default();
        assert_eq!(in_force.out_of_order_window_ms(), 0);
        let cases =
            [("30m", 1_800_000), ("0", 0), ("1h30m", 5_400_000), ("-5m", 5_400_000), ("soon", 5_400_000)];
        for (text, window_ms) in cases {
            std::fs::write(&path, format!("storage: {{tsdb: {{out_of_order_time_window: {text}}}}}\n"))
                .unwrap();
            in_force.reload(&path);
            assert_eq!(in_force.out_of_order_window_ms(), window_ms, "{text}: {:?}", in_force.error());
        }
    }

    #[test]
    fn a_file_that_was_emptied_ends_no_scrapes_but_an_empty_list_does() {
        let dir = tempfile::tempdir().unwrap();
        let (main, jobs) = (dir.path().join("main.yaml"), dir.path().join("jobs.yaml"));
        std::fs::write(&main, "scrape_config_files: [jobs.yaml]\n").unwrap();
        std::fs::write(&jobs, GOOD).unwrap();
        let mut in_force = InForce::default();
        in_force.reload(&main);
        for emptied in [&jobs, &main] {
            let before = std::fs::read(emptied).unwrap();
            std::fs::write(emptied, "---\n# nothing\n\n").unwrap();
            in_force.reload(&main);
            assert_eq!(in_force.jobs().len(), 1);
            let error = in_force.error().unwrap();
            assert!(error.ends_with("is empty; to end its scrapes write `scrape_configs: []`"), "{error}");
            std::fs::write(emptied, before).unwrap();
        }
        std::fs::write(&jobs, "scrape_configs: []\n").unwrap();
        in_force.reload(&main);
        assert_eq!((in_force.error(), in_force.jobs().len()), (None, 0));
    }

    #[test]
    fn a_start_with_an_empty_file_scrapes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty.yaml");
        std::fs::write(&path, "").unwrap();
        let mut in_force = InForce::default();
        in_force.reload(&path);
        assert_eq!((in_force.error(), in_force.jobs().len()), (None, 0));
    }

    #[test]
    fn a_bad_included_file_leaves_the_others_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("main.yaml");
        std::fs::write(&path, "scrape_config_files: ['jobs-*.yaml']\n").unwrap();
        std::fs::write(dir.path().join("jobs-1.yaml"), "- job_nam: x\n").unwrap();
        std::fs::write(dir.path().join("jobs-2.yaml"), GOOD).unwrap();
        let mut in_force = InForce::default();
        in_force.reload(&path);
        assert_eq!(in_force.jobs().len(), 1);
        let errors: Vec<bool> = in_force.verdicts().iter().map(|verdict| verdict.error.is_some()).collect();
        assert_eq!(errors, [false, true, false]);
        assert!(in_force.error().unwrap().contains("jobs-1.yaml:1:3: unknown key \"job_nam\""));
    }

    #[test]
    fn a_job_name_may_stand_in_one_file_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("main.yaml");
        std::fs::write(&path, format!("scrape_config_files: [b.yaml]\n{GOOD}")).unwrap();
        std::fs::write(dir.path().join("b.yaml"), GOOD).unwrap();
        let mut in_force = InForce::default();
        in_force.reload(&path);
        assert!(in_force.error().unwrap().contains("the job name \"a\" is taken"));
    }

    #[test]
    fn stars_match_any_run_of_characters() {
        assert!(matches_star("jobs-*.yaml", "jobs-1.yaml") && matches_star("*", "x"));
        assert!(
            !matches_star("a*a", "a") && matches_star("a*b*c", "a1b2c") && !matches_star("*.yml", "x.yaml")
        );
    }
}
