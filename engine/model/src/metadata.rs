//! What a metric family is.

/// The type of a metric family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MetricType {
    /// Not said.
    #[default]
    Unknown = 0,
    /// Only grows, but for resets.
    Counter = 1,
    /// Goes up and down.
    Gauge = 2,
    /// Counts observations in buckets.
    Histogram = 3,
    /// A histogram of present things.
    GaugeHistogram = 4,
    /// Quantiles of observations.
    Summary = 5,
    /// Labels that describe something.
    Info = 6,
    /// One of several states.
    StateSet = 7,
}

impl MetricType {
    /// Every type, in the order of the numbers that the wire formats have for them.
    pub const ALL: [MetricType; 8] = [
        MetricType::Unknown,
        MetricType::Counter,
        MetricType::Gauge,
        MetricType::Histogram,
        MetricType::GaugeHistogram,
        MetricType::Summary,
        MetricType::Info,
        MetricType::StateSet,
    ];

    /// The type of a number; one that does not exist is unknown, as for Prometheus.
    pub fn from_number(number: u64) -> MetricType {
        usize::try_from(number).ok().and_then(|at| MetricType::ALL.get(at)).copied().unwrap_or_default()
    }

    /// The name in Prometheus' metadata API.
    pub const fn name(self) -> &'static str {
        match self {
            MetricType::Unknown => "unknown",
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::GaugeHistogram => "gaugehistogram",
            MetricType::Summary => "summary",
            MetricType::Info => "info",
            MetricType::StateSet => "stateset",
        }
    }
}

/// What a sender says of a metric family.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Metadata {
    /// Name of the family: of a histogram without `_bucket` and the like.
    pub family: String,
    /// What kind of metric it is.
    pub kind: MetricType,
    /// What it means.
    pub help: String,
    /// What it is measured in; mostly empty.
    pub unit: String,
}
