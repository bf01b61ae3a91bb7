//! Progress lines: what is being done, and how long it took.
use std::time::{Duration, Instant};

use crate::Result;

/// Runs one step between a line that names it and a line with its duration.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("==> {name}");
    let start = Instant::now();
    let result = work();
    let took = seconds(start.elapsed());
    match &result {
        Ok(_) => println!("    {name}: done in {took}"),
        Err(_) => println!("    {name}: FAILED after {took}"),
    }
    result
}

/// A line below the current step.
pub fn note(text: impl AsRef<str>) {
    println!("    {}", text.as_ref());
}

/// `8.3 s` below two minutes, `9 min 12 s` above.
pub fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    if whole < 120 {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} min {} s", whole / 60, whole % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_durations_show_tenths_and_long_ones_minutes() {
        assert_eq!(seconds(Duration::from_millis(8_340)), "8.3 s");
        assert_eq!(seconds(Duration::from_secs(552)), "9 min 12 s");
    }
}
