//! `tsdb verify`.
use std::io::{self, Write};

use clap::ArgMatches;

use super::{ToolError, open};
use crate::number::binary_bytes;

pub fn run(matches: &ArgMatches, out: &mut dyn Write) -> Result<(), ToolError> {
    let dir = open(matches)?;
    let (mut parts, mut problems) = (0_u64, 0_u64);
    let mut failed: io::Result<()> = Ok(());
    dir.verify(|part| {
        parts += 1;
        problems += part.problem_count;
        let mut print = || {
            let verdict = if part.problem_count == 0 { "good" } else { "BAD " };
            let size = binary_bytes(part.bytes);
            let (name, series, samples) = (&part.name, part.series, part.samples);
            writeln!(out, "{verdict}  {name}: {series} series, {samples} samples, {size}")?;
            for problem in &part.problems {
                writeln!(out, "      {problem}")?;
            }
            let more = part.problem_count - part.problems.len() as u64;
            if more > 0 {
                writeln!(out, "      and {more} more")?;
            }
            out.flush()
        };
        if failed.is_ok() {
            failed = print();
        }
    })?;
    failed?;
    if problems == 0 {
        return Ok(());
    }
    Err(ToolError::Found(format!(
        "{problems} problems in {parts} parts of {}; what is damaged is left out of answers, set aside at the next start \
         and never deleted: restore it from a snapshot or from a replica",
        dir.path().display()
    )))
}
