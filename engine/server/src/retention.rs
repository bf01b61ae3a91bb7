//! What is kept: by time, by bytes, by share of the volume; from flags, the configuration file and `engine.yaml`.
use std::fmt;

use metricsstore_contract::{EngineConfig, PromDuration, RetentionSize};
use metricsstore_storage::Store;

use crate::app::App;
use crate::config::load::InForce;
use crate::number::binary_bytes;

/// What holds where nothing is said, in milliseconds: 15 days.
pub const DEFAULT_RETENTION: i64 = 15 * 86_400_000;

/// What is kept. A percentage takes the place of bytes, as in Prometheus.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Retention {
    /// In milliseconds; `None` keeps everything.
    pub time_ms: Option<i64>,
    /// Bytes that everything on disk may take.
    pub bytes: Option<u64>,
    /// The same in hundredths of the volume, above 0 and at most 100.
    pub percentage: Option<f64>,
    /// Size of the volume as whoever made it knows it: a share is one of this where the file system is larger.
    pub volume_bytes: Option<u64>,
}

impl Retention {
    /// What `engine.yaml` says, else the configuration file, else the flags.
    pub fn in_force(flags: Retention, config: Option<Retention>, runtime: &EngineConfig) -> Retention {
        let Some(runtime) = &runtime.retention else { return config.unwrap_or(flags) };
        let (bytes, percentage) = match runtime.size {
            None => (None, None),
            Some(RetentionSize::Bytes(bytes)) => (Some(bytes), None),
            Some(RetentionSize::Share(share)) => (None, Some(f64::from(share) / 100.0)),
        };
        Retention {
            time_ms: Some(runtime.time.ms()).filter(|ms| *ms > 0),
            bytes,
            percentage,
            volume_bytes: runtime.volume_bytes,
        }
    }

    /// What the store is told: bytes, and a share of the volume from 0 to 1.
    pub fn size(&self) -> (Option<u64>, Option<f64>) {
        let share = self.percentage.map(|percentage| percentage / 100.0);
        match share {
            None => (self.bytes, None),
            Some(share) => (self.volume_bytes.map(|bytes| (bytes as f64 * share) as u64), Some(share)),
        }
    }

    /// Tells the store what to keep.
    pub fn apply(&self, store: &Store) {
        let (bytes, share) = self.size();
        store.set_retention_ms(self.time_ms);
        store.set_retention_size(bytes, share);
    }
}

/// As Prometheus prints it: `15d or 512MiB`.
impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = self.time_ms.map(|ms| PromDuration::from_ms(ms).to_string());
        let bytes = self.bytes.map(binary_bytes);
        let percentage = self.percentage.map(|percentage| format!("{percentage}%"));
        let all: Vec<String> = [time, bytes, percentage].into_iter().flatten().collect();
        f.write_str(&all.join(" or "))
    }
}

/// A size as Prometheus writes it, with binary units: `512MB` is 512 · 2²⁰ bytes. 0 and nothing set no bound.
pub fn parse_size(text: &str) -> Result<Option<u64>, &'static str> {
    if text == "0" {
        return Ok(None);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase().replace("IB", "B");
    let power = ["B", "KB", "MB", "GB", "TB", "PB", "EB"].iter().position(|known| *known == unit);
    let bytes = digits
        .parse::<u64>()
        .ok()
        .zip(power)
        .and_then(|(number, power)| number.checked_mul(1 << (10 * power)));
    match bytes {
        Some(bytes) => Ok(Some(bytes).filter(|bytes| *bytes > 0)),
        None => Err("write a whole number with a unit, for example 512MB or 50GB"),
    }
}

/// Hundredths of the volume. 0 sets no bound.
pub fn parse_percentage(text: &str) -> Result<Option<f64>, &'static str> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percentage) if (0.0..=100.0).contains(&percentage) => {
            Ok(Some(percentage).filter(|percentage| *percentage > 0.0))
        }
        _ => Err("write a number from 0 to 100, for example 80"),
    }
}

impl App {
    /// What is kept at present.
    pub fn retention(&self, config: &InForce, runtime: &EngineConfig) -> Retention {
        let of_config = config.config().and_then(|config| config.retention);
        Retention::in_force(self.options.retention, of_config, runtime)
    }
}

#[cfg(test)]
mod tests {
    use super::{Retention, parse_percentage, parse_size};
    use metricsstore_contract::EngineConfig;

    fn runtime(retention: &str) -> EngineConfig {
        let text = format!("schema: 1\nretention: {retention}\n");
        EngineConfig::read(serde_yaml_ng::Deserializer::from_str(&text)).unwrap().0
    }

    #[test]
    fn engine_yaml_holds_before_the_configuration_file_and_that_before_flags() {
        let flags = Retention { time_ms: Some(1), ..Retention::default() };
        let config = Retention { bytes: Some(2), ..Retention::default() };
        let none = EngineConfig::empty();
        assert_eq!(Retention::in_force(flags, None, &none), flags);
        assert_eq!(Retention::in_force(flags, Some(config), &none), config);
        let in_force = Retention::in_force(flags, Some(config), &runtime("{time: 2d, size: 50%}"));
        assert_eq!(in_force.to_string(), "2d or 50%");
    }

    #[test]
    fn a_share_is_one_of_the_claim_where_the_file_system_is_larger() {
        let retention = runtime("{time: 2d, size: 80%, volumeBytes: 1000}");
        let in_force = Retention::in_force(Retention::default(), None, &retention);
        assert_eq!(in_force.size(), (Some(800), Some(0.8)));
        let in_force = Retention::in_force(Retention::default(), None, &runtime("{time: 2d, size: 40Gi}"));
        assert_eq!(in_force.size(), (Some(40 << 30), None));
        assert_eq!(in_force.to_string(), "2d or 40GiB");
    }

    #[test]
    fn sizes_have_binary_units_and_shares_go_to_100() {
        assert_eq!(parse_size("512MB"), Ok(Some(512 << 20)));
        assert_eq!(parse_size("2GiB"), Ok(Some(2 << 30)));
        assert_eq!((parse_size("0"), parse_size("0B")), (Ok(None), Ok(None)));
        assert!(
            parse_size("12").is_err() && parse_size("1.5GB").is_err() && parse_size("99999999EB").is_err()
        );
        assert_eq!((parse_percentage("12.5"), parse_percentage("0")), (Ok(Some(12.5)), Ok(None)));
        assert!(parse_percentage("-1").is_err() && parse_percentage("NaN").is_err());
    }
}
