//! What happens to the cluster when the command that brought it up ends, in whatever way.
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::down;
use crate::{Error, Result};

/// Takes the cluster down when dropped, and when the process is interrupted.
pub struct DownAtEnd(());

impl DownAtEnd {
    /// Arms it before anything is brought up.
    pub fn armed() -> Result<Self> {
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(Error::file("catch", "the interrupt signals"))?;
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                println!("\n==> interrupted");
                report(down());
                std::process::exit(128 + signal);
            }
        });
        Ok(Self(()))
    }
}

impl Drop for DownAtEnd {
    fn drop(&mut self) {
        report(down());
    }
}

/// Blocks for good; the interrupt of [`DownAtEnd`] ends the process.
pub fn until_interrupted() {
    loop {
        std::thread::park();
    }
}

fn report(result: Result<()>) {
    if let Err(error) = result {
        eprintln!("error: {error}");
    }
}
