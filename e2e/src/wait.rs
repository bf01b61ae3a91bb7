//! Waiting for a condition with a deadline.
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Pause between two looks: short enough not to be felt, long enough not to be the load itself.
const PACE: Duration = Duration::from_millis(250);

/// What a look at the world found.
pub enum Look<T> {
    /// The condition holds.
    Done(T),
    /// It does not hold yet; the text says what was seen.
    NotYet(String),
}

/// Looks again and again until the condition holds or the deadline passes.
pub fn until<T>(
    what: &str,
    deadline: Duration,
    cure: &str,
    mut look: impl FnMut() -> Result<Look<T>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let last = match look()? {
            Look::Done(value) => return Ok(value),
            Look::NotYet(seen) => seen,
        };
        if start.elapsed() >= deadline {
            return Err(Error::Deadline {
                what: what.to_owned(),
                seconds: deadline.as_secs(),
                last,
                cure: cure.to_owned(),
            });
        }
        std::thread::sleep(PACE);
    }
}

/// [`until`] for a plain yes or no.
pub fn until_true(what: &str, deadline: Duration, cure: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    until(what, deadline, cure, || Ok(if holds() { Look::Done(()) } else { Look::NotYet("not yet".into()) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_never_holds_is_reported_with_what_was_last_seen() {
        let error =
            until::<()>("the moon", Duration::ZERO, "wait for night", || Ok(Look::NotYet("the sun".into())))
                .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the moon did not happen within 0 s; last seen: the sun\n  next: wait for night"
        );
    }
}
