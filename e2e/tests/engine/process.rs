//! The engine as a child process: started as a test needs it, killed when dropped.
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use metricsstore_e2e::bench::wire::Connection;

/// Longest wait for anything that must come.
pub const PATIENCE: Duration = Duration::from_mins(2);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(2);
const SIGKILL: i32 = 9;

/// How an engine is started.
pub struct Start {
    /// Programs before the engine, such as `strace -f`; each replaces itself by, or runs, what follows.
    pub before: Vec<String>,
    pub dir: PathBuf,
    pub arguments: Vec<String>,
}

impl Start {
    /// Takes remote write, scrapes nothing; data below `dir`.
    pub fn new(dir: &Path, arguments: &[&str]) -> Start {
        std::fs::create_dir_all(dir).unwrap();
        let config = dir.join("prometheus.yml");
        if !config.exists() {
            std::fs::write(&config, "scrape_configs: []\n").unwrap();
        }
        let mut all = vec![
            "serve".to_owned(),
            "--web.listen-address=127.0.0.1:0".to_owned(),
            "--web.enable-remote-write-receiver".to_owned(),
            format!("--config.file={}", config.display()),
            format!("--storage.tsdb.path={}", dir.join("data").display()),
        ];
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        Start { before: Vec::new(), dir: dir.to_owned(), arguments: all }
    }

    pub fn after(mut self, before: &[&str]) -> Start {
        self.before = before.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// Starts it, up to where it listens.
    pub fn spawn(&self) -> Engine {
        let engine = std::env::var_os("METRICSSTORE_ENGINE")
            .expect("set METRICSSTORE_ENGINE to the engine's binary, as `cargo xtask test` does");
        // The child ends with the thread that made it, however that ends.
        let mut command = Command::new("setpriv");
        command.arg("--pdeathsig=KILL").args(&self.before).arg(engine).args(&self.arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let begun = Instant::now();
        let mut child = command.spawn().expect("util-linux and the engine must be there");
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let (mut seen, mut line) = (String::new(), String::new());
        let address = loop {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the engine ended: {seen}");
            seen.push_str(&line);
            if let Some((_, address)) = line.split_once("msg=listening address=") {
                break address.trim().parse().unwrap();
            }
        };
        let path = self.dir.join("engine.log");
        std::thread::spawn(move || keep_log(&path, &seen, log));
        Engine { child, address, begun }
    }

    /// Starts it and waits until it is ready.
    pub fn run(&self) -> Engine {
        let mut engine = self.spawn();
        engine.wait_ready();
        engine
    }
}

fn keep_log(path: &Path, seen: &str, log: impl BufRead) {
    use std::io::Write as _;
    let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path) else { return };
    // The log only helps whoever looks into a failure.
    let _ = file.write_all(seen.as_bytes());
    for line in log.lines().map_while(Result::ok) {
        let _ = writeln!(file, "{line}");
    }
}

/// A running engine.
pub struct Engine {
    child: Child,
    pub address: SocketAddr,
    begun: Instant,
}

impl Engine {
    /// Waits until it is ready; the time since its start.
    pub fn wait_ready(&mut self) -> Duration {
        wait_until("ready", || {
            let status = self.child.try_wait().unwrap();
            assert!(status.is_none(), "the engine ended before it was ready: {status:?}");
            let answer = Connection::open(self.address).and_then(|mut connection| connection.get("/-/ready"));
            answer.is_ok_and(|answer| answer.status == 200)
        });
        self.begun.elapsed()
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.address).unwrap()
    }

    pub fn get(&self, path_and_query: &str) -> (u16, String) {
        let answer = self.connect().get(path_and_query).unwrap();
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// `data` of an answer of the API.
    pub fn data(&self, path: &str) -> serde_json::Value {
        let (status, text) = self.get(path);
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["data"].clone()
    }

    /// The value of one line of `/metrics`, such as `metricsstore_seals_total`; 0 when it is not there.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, page) = self.get("/metrics");
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or(0.0)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// `kill -9`, of the programs around it too.
    pub fn kill(mut self) {
        self.signal("KILL");
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(SIGKILL), "the engine ended by itself: {status}");
    }

    /// Lets it end by itself.
    pub fn terminate(mut self) {
        self.signal("TERM");
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    fn signal(&self, name: &str) {
        let group = format!("-{}", self.child.id());
        Command::new("kill").args([&format!("-{name}"), "--", &group]).status().unwrap();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_alive() {
            self.signal("KILL");
        }
        let _ = self.child.wait();
    }
}

/// A folder that is removed when the test passes, and named when it fails.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let root = std::env::temp_dir().join(format!("metricsstore-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        Folder(root)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("kept for a look: {}", self.0.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Looks until it holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come true in {PATIENCE:?}");
        std::thread::sleep(LOOK);
    }
}

/// The wall clock.
pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// A setting from the environment.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// Percent-encodes what is not plain.
pub fn encoded(query: &str) -> String {
    let mut out = String::new();
    for byte in query.bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-".contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").unwrap();
        }
    }
    out
}

/// Numbers that follow from a seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
