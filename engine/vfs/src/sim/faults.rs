//! Which call fails, and how.
use std::io::{self, ErrorKind};
use std::path::Path;

use super::random::Random;

/// The kinds of calls that touch the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "named as the methods of `Files` and `File` are")]
pub enum Call {
    Create,
    Open,
    Read,
    List,
    Rename,
    Remove,
    RemoveDirAll,
    CreateDirAll,
    HardLink,
    SyncDir,
    Allocate,
    Space,
    Lock,
    Exists,
    Append,
    ReadAt,
    Len,
    Sync,
}

/// What a failing call says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `EIO`: the medium failed.
    Io,
    /// `ENOSPC`: no space is left.
    NoSpace,
    /// `EIO`, although the call took effect.
    LostAnswer,
}

impl Fault {
    pub(super) fn error(self, path: &Path) -> io::Error {
        match self {
            Fault::Io | Fault::LostAnswer => {
                io::Error::other(format!("{}: input/output error (simulated)", path.display()))
            }
            Fault::NoSpace => io::Error::new(
                ErrorKind::StorageFull,
                format!("{}: no space left on device (simulated)", path.display()),
            ),
        }
    }
}

/// What a call that was let through does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Normal,
    /// It takes effect and fails.
    LostAnswer,
    /// The power failed after the call took effect and before it answered.
    PowerOff,
}

impl Outcome {
    pub(super) fn answer<T>(self, path: &Path, value: T) -> io::Result<T> {
        match self {
            Outcome::Normal => Ok(value),
            Outcome::LostAnswer => Err(Fault::LostAnswer.error(path)),
            Outcome::PowerOff => Err(power_is_off()),
        }
    }
}

/// When the power fails, seen from a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerOff {
    /// Before it takes effect.
    Before,
    /// After it took effect, of which the caller does not learn. An append may have been torn.
    After,
    /// Either, by chance.
    Either,
}

fn power_is_off() -> io::Error {
    io::Error::new(ErrorKind::NotConnected, "the simulated machine is off")
}

type Predicate = Box<dyn FnMut(Call, &Path) -> bool + Send>;

#[derive(Default)]
pub(super) struct Faults {
    calls: u64,
    off: bool,
    power_off_at: Option<(u64, PowerOff)>,
    nth: Vec<(u64, Fault)>,
    rules: Vec<(Fault, Predicate)>,
}

impl Faults {
    pub(super) fn on_call(&mut self, call: Call, path: &Path, random: &mut Random) -> io::Result<Outcome> {
        if self.off {
            return Err(power_is_off());
        }
        let number = self.calls;
        self.calls += 1;
        if let Some((_, when)) = self.power_off_at.filter(|&(at, _)| at == number) {
            self.off = true;
            let takes_effect = when == PowerOff::After || (when == PowerOff::Either && random.coin());
            return if takes_effect { Ok(Outcome::PowerOff) } else { Err(power_is_off()) };
        }
        let nth = self.nth.iter().position(|(at, _)| *at == number);
        let nth = nth.map(|position| self.nth.swap_remove(position).1);
        let rules = &mut self.rules;
        let by_rule = || rules.iter_mut().find_map(|(fault, rule)| rule(call, path).then_some(*fault));
        match nth.or_else(by_rule) {
            Some(Fault::LostAnswer) => Ok(Outcome::LostAnswer),
            Some(fault) => Err(fault.error(path)),
            None => Ok(Outcome::Normal),
        }
    }

    pub(super) fn fail_nth(&mut self, n: u64, fault: Fault) {
        self.nth.push((self.calls + n, fault));
    }

    pub(super) fn fail_when(&mut self, fault: Fault, predicate: Predicate) {
        self.rules.push((fault, predicate));
    }

    pub(super) fn power_off_at(&mut self, n: u64, when: PowerOff) {
        self.power_off_at = Some((self.calls + n, when));
    }

    pub(super) fn power_off(&mut self) {
        self.off = true;
    }

    pub(super) fn is_off(&self) -> bool {
        self.off
    }

    pub(super) fn heal(&mut self) {
        self.nth.clear();
        self.rules.clear();
        self.power_off_at = None;
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls
    }
}
