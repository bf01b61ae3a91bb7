//! A file system that is full: writes are refused whole, everything else goes on, and space that comes back is used
//! without a restart.
use std::io::BufRead as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::ledger::{Plan, Writer, check_strangers};
use super::process::{Engine, Folder, Start, now_ms, setting, wait_until};

const DISK_BYTES: u64 = 40 << 20;
const BALLAST_BYTES: u64 = 20 << 20;
/// What is filled after that.
const SECOND_FILL_BYTES: u64 = 4 << 20;
/// Far more requests than fill the disk.
const MAX_REQUESTS: usize = 20_000;

/// The file system, mounted where only its holder and the engines see it; both go with the thread that made them.
struct Disk {
    holder: Child,
    /// The mount as this process reaches it.
    path: PathBuf,
    /// The mount as the engines see it.
    inside: PathBuf,
}

impl Disk {
    fn new(folder: &Path) -> Disk {
        let (image, inside) = (folder.join("disk.img"), folder.join("disk"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        let mut make = Command::new("mkfs.ext4");
        let made = make.args(["-q", "-m", "0"]).arg(&image).status().expect("e2fsprogs must be there");
        assert!(made.success());
        let mut holder = Command::new("setpriv");
        holder.args(["--pdeathsig=KILL", "unshare", "--mount", "sh", "-c"]);
        holder.arg("mount -o loop \"$0\" \"$1\" && echo mounted && exec sleep infinity");
        holder.arg(&image).arg(&inside).process_group(0).stdout(Stdio::piped());
        let mut holder = holder.spawn().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "mounted", "a loop device must be free, and this must run as root");
        let path = PathBuf::from(format!("/proc/{}/root{}", holder.id(), inside.display()));
        Disk { holder, path, inside }
    }

    /// An engine with its data on the disk and all else beside it.
    fn start(&self, folder: &Path) -> Start {
        let data = format!("--storage.tsdb.path={}", self.inside.join("data").display());
        let namespace = format!("--mount=/proc/{}/ns/mnt", self.holder.id());
        Start::new(folder, &[&data]).after(&["nsenter", &namespace])
    }

    /// Takes so many bytes more away, or as many as there are.
    fn load(&self, bytes: u64) {
        let mut options = std::fs::OpenOptions::new();
        let mut ballast = options.create(true).append(true).open(self.path.join("ballast")).unwrap();
        let zeros = vec![0u8; 1 << 16];
        for _ in 0..bytes / zeros.len() as u64 {
            if std::io::Write::write_all(&mut ballast, &zeros).is_err() {
                break;
            }
        }
        // A full disk is what is wanted here.
        let _ = ballast.sync_all();
    }

    fn unload(&self) {
        std::fs::remove_file(self.path.join("ballast")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

#[test]
fn a_full_disk_refuses_writes_whole_and_recovers_without_a_restart() {
    let folder = Folder::new("full-disk");
    let disk = Disk::new(folder.path());
    disk.load(BALLAST_BYTES);
    let start = disk.start(folder.path());
    let mut engine = start.run();
    let plan =
        Plan { series: 400, start_ms: now_ms() - 3_000_000, step_ms: 100, late: false, incompressible: true };
    let mut writer = Writer::new(0, setting("ENGINE_SEED", 7), plan);

    write_until_refused(&engine, &mut writer);
    read_back(&engine, &writer, "full");
    disk.unload();
    write_until_taken(&engine, &mut writer);
    read_back(&engine, &writer, "space again");

    disk.load(BALLAST_BYTES - SECOND_FILL_BYTES);
    write_until_refused(&engine, &mut writer);
    engine.kill();
    engine = start.run();
    read_back(&engine, &writer, "killed while full");

    // Not a byte is left.
    disk.load(DISK_BYTES);
    wait_until("a refusal", || writer.send(engine.address).is_none_or(|answer| answer.status == 503));
    read_back(&engine, &writer, "no byte left");
    engine.kill();
    engine = start.run();
    read_back(&engine, &writer, "started without a byte");
    // What it keeps back for a seal may already have made room.
    let answer = writer.send(engine.address).unwrap();
    assert!(matches!(answer.status, 204 | 503), "{}", answer.status);
    disk.unload();
    write_until_taken(&engine, &mut writer);
    read_back(&engine, &writer, "the end");
    println!("answers by status: {:?}", writer.answers);
    engine.kill();
}

/// Writes until the disk's ladder refuses; the refusal says when to come back, and it goes on.
fn write_until_refused(engine: &Engine, writer: &mut Writer) {
    for _ in 0..MAX_REQUESTS {
        let answer = writer.send(engine.address).unwrap();
        let text = String::from_utf8_lossy(&answer.body);
        match answer.status {
            204 => {}
            503 => {
                assert!(answer.retry_after_seconds.is_some(), "{text}");
                println!("refused: {}", text.trim());
                return;
            }
            status => panic!("{status}: {text}"),
        }
    }
    panic!("the disk never became full");
}

fn write_until_taken(engine: &Engine, writer: &mut Writer) {
    wait_until("a write that is taken again", || {
        let answer = writer.send(engine.address).unwrap();
        if answer.status != 204 {
            std::thread::sleep(Duration::from_millis(50));
        }
        answer.status == 204
    });
}

fn read_back(engine: &Engine, writer: &Writer, when: &str) {
    check_strangers(engine);
    println!("{when}: {} acknowledged samples found", writer.check(engine));
}
