//! Running other programs: quietly with their output kept for the error, or in the reader's view.
use std::io::Write;
use std::process::{Command, ExitStatus, Output, Stdio};

use crate::{Error, Result};

/// Lines of output that an error repeats.
const SHOWN_LINES: usize = 25;

/// Runs to the end with the output in view.
pub fn shown(what: &str, command: &mut Command, cure: &str) -> Result<()> {
    let status = command.status().map_err(|source| start_error(what, command, source, cure))?;
    if status.success() { Ok(()) } else { Err(program_error(what, status, String::new(), cure)) }
}

/// Runs to the end and returns standard output; what it printed appears only in an error.
pub fn quiet(what: &str, command: &mut Command, cure: &str) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| start_error(what, command, source, cure))?;
    text_or_error(what, &output, cure)
}

/// As [`quiet`], with `input` on standard input.
pub fn quiet_with_input(what: &str, command: &mut Command, input: &str, cure: &str) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|source| start_error(what, command, source, cure))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that fails early closes its input; its own message then tells more than the broken pipe.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|source| start_error(what, command, source, cure))?;
    text_or_error(what, &output, cure)
}

/// True when the program ran and succeeded; for conditions that are polled.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The last lines of a longer text.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

fn text_or_error(what: &str, output: &Output, cure: &str) -> Result<String> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let printed = stdout + &String::from_utf8_lossy(&output.stderr);
    Err(program_error(what, output.status, tail(&printed, SHOWN_LINES), cure))
}

fn program_error(what: &str, status: ExitStatus, output: String, cure: &str) -> Error {
    Error::Program { what: what.to_owned(), status: status.to_string(), output, cure: cure.to_owned() }
}

fn start_error(what: &str, command: &Command, source: std::io::Error, cure: &str) -> Error {
    let program = command.get_program().to_string_lossy().into_owned();
    Error::Start { program, what: what.to_owned(), source, cure: cure.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_program_is_quoted_with_its_status_and_the_cure() {
        let error = quiet("the check", Command::new("sh").args(["-c", "echo because; exit 3"]), "do that")
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("the check failed (exit status: 3)"), "{text}");
        assert!(text.contains("| because"), "{text}");
        assert!(text.contains("next: do that"), "{text}");
    }

    #[test]
    fn input_reaches_the_program() {
        let text = quiet_with_input("cat", &mut Command::new("cat"), "hello", "").unwrap();
        assert_eq!(text, "hello");
    }
}
