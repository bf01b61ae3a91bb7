//! Runs the real binary on loopback and speaks HTTP to it.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::format_push_string,
    missing_docs,
    reason = "support of tests: each uses a part of it, and a failure is a failed test"
)]
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_mins(1);

pub struct Engine {
    pub child: Child,
    pub web: String,
    pub ops: Option<String>,
    lines: Receiver<String>,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

pub fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metricsstore"));
    command.arg("serve");
    if !args.iter().any(|arg| arg.starts_with("--web.listen-address")) {
        command.arg("--web.listen-address=127.0.0.1:0");
    }
    command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
    command.args(args).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Engine {
    /// Starts and waits until it is ready.
    pub fn start(dir: &Path, args: &[&str]) -> Engine {
        let engine = Engine::spawn(dir, args);
        wait_for("ready", || engine.get("/-/ready").status == 200);
        engine
    }

    pub fn spawn(dir: &Path, args: &[&str]) -> Engine {
        let mut child = command(dir, args).spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                // Nobody listens any more at the end.
                let _ = send.send(line);
            }
        });
        let wants_ops = args.iter().any(|arg| arg.starts_with("--ops.listen-address"));
        let mut addresses = Vec::new();
        let mut seen = String::new();
        while addresses.len() < 1 + usize::from(wants_ops) {
            let line = lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no address in: {seen}"));
            if let Some((_, address)) = line.split_once("msg=listening address=") {
                addresses.push(address.trim().to_owned());
            }
            seen.push_str(&line);
            seen.push('\n');
        }
        let mut addresses = addresses.into_iter();
        Engine { child, web: addresses.next().unwrap(), ops: addresses.next(), lines }
    }

    pub fn get(&self, path: &str) -> Answer {
        request(&self.web, "GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        request(&self.web, "POST", path, headers, body)
    }

    pub fn write(&self, body: &[u8]) -> Answer {
        let headers = [("Content-Type", "application/x-protobuf"), ("Content-Encoding", "snappy")];
        self.post("/api/v1/write", &headers, body)
    }

    /// The value of an instant query with one result.
    pub fn value(&self, query: &str, time: &str) -> Option<String> {
        let query: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
        let json = self.get(&format!("/api/v1/query?query={query}&time={time}")).json();
        json["data"]["result"][0]["value"][1].as_str().map(str::to_owned)
    }

    pub fn runtime_info(&self) -> serde_json::Value {
        self.get("/api/v1/status/runtimeinfo").json()["data"].clone()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come true");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn request(address: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "Host") {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    // An answer may come before the body was read.
    let _ = stream.write_all(body);
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body: bytes[end..].to_vec() }
}

/// Reads an answer and returns its head; the connection stays open.
pub fn answer_head(stream: &mut TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(reader.read_line(&mut head).unwrap(), 0, "the connection ended: {head}");
    }
    let length = head.to_ascii_lowercase();
    let length = length.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()).unwrap();
    std::io::copy(&mut reader.take(length.parse().unwrap()), &mut std::io::sink()).unwrap();
    head
}

/// Labels and samples of a series.
pub type Series<'s> = (&'s [(&'s str, &'s str)], &'s [(i64, f64)]);

/// A remote-write body.
pub fn write_request(series: &[Series<'_>]) -> Vec<u8> {
    let mut request = Vec::new();
    for (labels, samples) in series {
        let mut message = Vec::new();
        for (name, value) in *labels {
            let mut label = Vec::new();
            field(&mut label, 1, name.as_bytes());
            field(&mut label, 2, value.as_bytes());
            field(&mut message, 1, &label);
        }
        for (timestamp_ms, value) in *samples {
            let mut sample = vec![0x09];
            sample.extend_from_slice(&value.to_le_bytes());
            sample.push(0x10);
            varint(&mut sample, *timestamp_ms as u64);
            field(&mut message, 2, &sample);
        }
        field(&mut request, 1, &message);
    }
    snap::raw::Encoder::new().compress_vec(&request).unwrap()
}

fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes a file and gives its path.
pub fn file(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// What a start that fails prints.
pub fn failure(dir: &Path, args: &[&str]) -> String {
    let output = command(dir, args).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned()
}

pub fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
