//! Whoever reads a 204 may forget the samples: a trace of the system calls shows that a sync of the log, begun after the
//! record was written, had ended before the answer went out.
use std::collections::HashMap;
use std::process::Command;

use metricsstore_e2e::bench::request::Request;
use metricsstore_e2e::bench::wire::Connection;

use super::process::{Engine, Folder, Start, now_ms};
use super::trace::{Call, parse};

const ALONE: u32 = 40;
const SENDERS: u32 = 8;
const EACH: u32 = 30;

#[test]
fn every_204_leaves_after_a_sync_of_its_record() {
    let (answered, late) = traced("commit");
    assert_eq!(answered, ALONE + SENDERS * EACH);
    assert_eq!(late, [] as [String; 0]);
}

#[test]
fn the_trace_finds_answers_before_their_sync() {
    let (answered, late) = traced("interval");
    assert_eq!(answered, ALONE + SENDERS * EACH);
    assert!(late.len() as u32 > answered / 2, "only {} of {answered} answers came before a sync", late.len());
}

/// Writes alone and side by side under strace; the number of requests that were answered 204, and what is wrong with
/// some of them.
fn traced(wal_sync: &str) -> (u32, Vec<String>) {
    let folder = Folder::new(&format!("trace-{wal_sync}"));
    let trace = folder.path().join("trace");
    let sync = format!("--storage.wal-sync={wal_sync}");
    let engine = Start::new(folder.path(), &[&sync]).after(&[
        "strace",
        "-f",
        "-tt",
        "-y",
        "-s",
        "2048",
        "-o",
        trace.to_str().unwrap(),
        "-e",
        "trace=fdatasync,fsync,sync_file_range,write,writev,pwrite64,sendto,sendmsg,recvfrom,read,recvmsg",
    ]);
    let mut engine = engine.spawn();
    engine.wait_ready();
    send(&engine, 0..ALONE);
    std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let engine = &engine;
            let first = ALONE + sender * EACH;
            scope.spawn(move || send(engine, first..first + EACH));
        }
    });
    // strace itself writes the file; it is whole once the engine and strace have ended.
    let strace = engine.pid();
    let children = std::fs::read_to_string(format!("/proc/{strace}/task/{strace}/children")).unwrap();
    Command::new("kill").args(["-KILL", children.trim()]).status().unwrap();
    super::process::wait_until("the end of strace", || !engine.is_alive());
    judge(&std::fs::read_to_string(&trace).unwrap())
}

/// Sends requests one after the other on one connection; each must be answered 204.
fn send(engine: &Engine, numbers: std::ops::Range<u32>) {
    let mut connection: Connection = engine.connect();
    let labels = vec![("__name__", "traced".to_owned()), ("sender", numbers.start.to_string())];
    let mut request = Request::new(std::iter::once(labels));
    for number in numbers {
        let value = f64::from_le_bytes(marker(number).as_bytes().try_into().unwrap());
        request.set(0, now_ms() + i64::from(number), value);
        let answer = connection.write(&format!("/api/v1/write?n={number:06}"), request.packed()).unwrap();
        assert_eq!(answer.status, 204, "{}", String::from_utf8_lossy(&answer.body));
    }
}

/// The bytes of a request's only value: doubles stand in the log as they are, so that its record can be told.
fn marker(number: u32) -> String {
    format!("#{number:06}#")
}

fn judge(text: &str) -> (u32, Vec<String>) {
    let calls = parse(text);
    let of_log = |names: &[&str]| -> Vec<&Call> {
        let wanted = |call: &&Call| names.contains(&&*call.name) && call.file().contains("/wal/");
        calls.iter().filter(wanted).collect()
    };
    let writes = of_log(&["write", "writev", "pwrite64"]);
    let syncs = of_log(&["fdatasync", "fsync"]);
    let (mut answered, mut wrong) = (0, Vec::new());
    // The request that each socket carries at the moment.
    let mut requests: HashMap<&str, u32> = HashMap::new();
    for call in &calls {
        if let Some((_, rest)) = call.arguments.split_once("POST /api/v1/write?n=") {
            requests.insert(call.file(), rest[..6].parse().unwrap());
        }
        let is_send = ["write", "writev", "sendto", "sendmsg"].contains(&&*call.name);
        if !is_send || !call.arguments.contains("HTTP/1.1 204") {
            continue;
        }
        let Some(number) = requests.remove(call.file()) else { continue };
        answered += 1;
        let Some(record) = writes.iter().find(|write| write.arguments.contains(&marker(number))) else {
            wrong.push(format!("request {number} was answered without a record in the log"));
            continue;
        };
        let covered = syncs.iter().any(|sync| {
            sync.file() == record.file()
                && sync.result == 0
                && sync.began > record.ended
                && sync.ended < call.began
        });
        if !covered {
            wrong.push(format!("request {number} was answered before a sync of its record"));
        }
    }
    println!("{answered} requests answered 204, {} syncs of the log, {} too late", syncs.len(), wrong.len());
    (answered, wrong)
}

/// Each line is one call that was not interrupted, but for the last sync.
#[test]
fn a_sync_that_began_before_the_record_or_ended_after_the_answer_does_not_count() {
    let request = "1 0 recvfrom(9<s>, \"POST /api/v1/write?n=000007 \", 99, 0) = 9\n";
    let record = "2 0 write(7</d/wal/1>, \"\\1#000007#\", 9) = 9\n";
    let sync = "2 0 fdatasync(7</d/wal/1>) = 0\n";
    let answer = "1 0 sendto(9<s>, \"HTTP/1.1 204 No\", 20, 0) = 20\n";
    let late = |lines: &[&str]| judge(&lines.concat()).1.len();
    assert_eq!(late(&[request, record, sync, answer]), 0);
    assert_eq!(late(&[request, record, answer, sync]), 1);
    assert_eq!(late(&[request, sync, record, answer]), 1);
    assert_eq!(late(&[request, sync, answer]), 1);
    let (begin, end) = ("3 0 fdatasync(7</d/wal/1> <unfinished ...>\n", "3 0 <... fdatasync resumed>) = 0\n");
    assert_eq!(late(&[request, begin, record, end, answer]), 1);
    assert_eq!(late(&[request, record, begin, answer, end]), 1);
    let failed = "2 0 fdatasync(7</d/wal/1>) = -1 EIO (Input/output error)\n";
    assert_eq!(late(&[request, record, failed, answer]), 1);
    let other = "2 0 fdatasync(8</d/wal/2>) = 0\n";
    assert_eq!(late(&[request, record, other, answer]), 1);
}
