//! What `strace -f -y` writes, as calls in the order in which they began and ended.
use std::collections::HashMap;

/// A call, with the lines at which it began and ended: what stands before something in the trace happened before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// Its arguments as they are printed; the file descriptor comes first: `7</data/wal/1>`.
    pub arguments: String,
    /// -1 where there is none.
    pub result: i64,
    pub began: usize,
    /// `usize::MAX` when the trace ended first.
    pub ended: usize,
}

impl Call {
    /// The descriptor and what it stands for.
    pub fn file(&self) -> &str {
        self.arguments.split([',', ')']).next().unwrap_or("").trim()
    }
}

/// Calls by their end, those that never ended last.
pub fn parse(text: &str) -> Vec<Call> {
    let mut open: HashMap<&str, (usize, String, String)> = HashMap::new();
    let mut calls = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        // A time may follow; calls begin with a letter or with `<...`.
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || ".: ".contains(c));
        let (began, name, head) = if let Some(resumed) = rest.strip_prefix("<... ") {
            let Some((_, tail)) = resumed.split_once(" resumed>") else { continue };
            let Some((began, name, head)) = open.remove(thread) else { continue };
            (began, name, head + tail)
        } else if let Some((name, arguments)) = rest.split_once('(') {
            (at, name.to_owned(), arguments.to_owned())
        } else {
            continue;
        };
        if let Some(head) = head.strip_suffix("<unfinished ...>") {
            open.insert(thread, (began, name, head.to_owned()));
            continue;
        }
        let Some((arguments, result)) = head.rsplit_once(" = ") else { continue };
        let result = result.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(-1);
        calls.push(Call { name, arguments: arguments.to_owned(), result, began, ended: at });
    }
    let cut = open.into_values().map(|(began, name, arguments)| Call {
        name,
        arguments,
        result: -1,
        began,
        ended: usize::MAX,
    });
    calls.extend(cut);
    calls
}

#[test]
fn interrupted_calls_are_joined_and_keep_both_of_their_places() {
    let text = "\
10 12:00:00.000001 write(7</d/wal/1>, \"ab\", 2) = 2
10 12:00:00.000002 fdatasync(7</d/wal/1> <unfinished ...>
11 12:00:00.000003 recvfrom(9<socket:[5]>,  <unfinished ...>
10 12:00:00.000004 <... fdatasync resumed>) = 0
11 12:00:00.000005 <... recvfrom resumed>\"POST /x\", 8192, 0, NULL, NULL) = 7
11 12:00:00.000006 --- SIGTERM {si_signo=SIGTERM} ---
11 12:00:00.000007 sendto(9<socket:[5]>, \"HTTP/1.1 204\", 12, MSG_NOSIGNAL, NULL, 0) = -1 EPIPE (Broken pipe)
12 12:00:00.000008 fdatasync(7</d/wal/1> <unfinished ...>
";
    let calls = parse(text);
    let seen: Vec<_> =
        calls.iter().map(|call| (&*call.name, call.file(), call.result, call.began, call.ended)).collect();
    assert_eq!(
        seen,
        [
            ("write", "7</d/wal/1>", 2, 0, 0),
            ("fdatasync", "7</d/wal/1>", 0, 1, 3),
            ("recvfrom", "9<socket:[5]>", 7, 2, 4),
            ("sendto", "9<socket:[5]>", -1, 6, 6),
            ("fdatasync", "7</d/wal/1>", -1, 7, usize::MAX),
        ]
    );
    assert!(calls[2].arguments.contains("POST /x"));
}
