//! The reader: for replay, and for whoever else must look into a log.
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use metricsstore_vfs::{File, Files};

use super::{FRAME_BYTES, HEADER_BYTES, MAGIC, MAX_BODY_BYTES, VERSION, frame_crc, segment_path};
use crate::StorageError;

const READ_AHEAD: usize = 256 << 10;
/// Bytes that are checksummed in the search for the next valid frame of a damaged file; what lies beyond is lost.
const SEARCH_BYTES: u64 = 256 << 20;

/// What the reading of one file found beside its frames.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct FileReport {
    /// Places at which something is wrong that a crash does not explain, and what.
    pub(crate) damages: Vec<(u64, &'static str)>,
    /// Where reading ended in the trace of a crash.
    pub(crate) torn_at: Option<u64>,
    /// Bytes that were read to some purpose; what lies behind is torn or lost.
    pub(crate) bytes: u64,
}

/// Reads the files of a log in ascending order.
pub(crate) struct Reader<'f> {
    files: &'f dyn Files,
    dir: PathBuf,
    /// The file before, and where it is torn.
    torn: Option<(u64, u64)>,
}

impl<'f> Reader<'f> {
    pub(crate) fn new(files: &'f dyn Files, dir: &Path) -> Reader<'f> {
        Reader { files, dir: dir.to_owned(), torn: None }
    }

    /// Hands `(offset, kind, body)` of every valid frame of a file to `record`, in order. Holds one frame in memory.
    pub(crate) fn read(
        &mut self,
        number: u64,
        mut record: impl FnMut(u64, u8, &[u8]) -> Result<(), StorageError>,
    ) -> Result<FileReport, StorageError> {
        let path = segment_path(&self.dir, number);
        let failed = || StorageError::io("read", &path);
        let torn_before = self.torn.take().filter(|&(before, _)| before + 1 == number);
        let mut window = Window::open(self.files, &path, number)?;
        let mut report = FileReport::default();
        let header = window.header().map_err(failed())?;
        if let Header::Version(found) = header {
            let file = path.display().to_string();
            return Err(StorageError::Version { file, found, supported: VERSION });
        }
        let continues_what_is_torn = match (header, torn_before) {
            (Header::Valid { bytes_before, .. }, Some((_, torn_at))) => bytes_before > torn_at,
            _ => false,
        };
        let durable = self.durable_bytes(number)?;
        let is_unheard_of = header == Header::Bad
            && durable == 0
            && !window.says_durable(HEADER_BYTES as u64, 0).map_err(failed())?;
        if continues_what_is_torn || is_unheard_of {
            report.torn_at = (window.length > 0).then_some(0);
            self.torn = Some((number, 0));
            return Ok(report);
        }
        if header == Header::Bad {
            report.damages.push((0, "the header is damaged"));
        }
        let mut offset = HEADER_BYTES as u64;
        report.bytes = offset.min(window.length);
        while offset < window.length {
            if let Some((kind, body_bytes)) = window.valid_frame(offset).map_err(failed())? {
                let body = window.at(offset + FRAME_BYTES as u64, body_bytes).map_err(failed())?;
                record(offset, kind, body)?;
                offset += (FRAME_BYTES + body_bytes) as u64;
                report.bytes = offset;
                continue;
            }
            let next = window.next_valid(offset).map_err(failed())?;
            let is_lost = durable > offset
                || match next {
                    Some(next) => window.says_durable(next, offset).map_err(failed())?,
                    None => false,
                };
            if !is_lost {
                report.torn_at = Some(offset);
                self.torn = Some((number, offset));
                return Ok(report);
            }
            report.damages.push((offset, "a record that was durable does not match its checksum"));
            report.bytes = report.bytes.max(durable.min(window.length));
            offset = next.unwrap_or(window.length);
        }
        if durable > window.length {
            report.damages.push((window.length, "the file is cut short"));
        }
        Ok(report)
    }

    /// Bytes of a file that were durable, as far as the next one tells.
    fn durable_bytes(&self, number: u64) -> Result<u64, StorageError> {
        let path = segment_path(&self.dir, number + 1);
        let mut next = match Window::open(self.files, &path, number + 1) {
            Ok(next) => next,
            Err(StorageError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        };
        let failed = || StorageError::io("read", &path);
        let Header::Valid { bytes_before, durable_before } = next.header().map_err(failed())? else {
            return Ok(0);
        };
        let is_whole =
            durable_before < bytes_before && next.says_durable(HEADER_BYTES as u64, 0).map_err(failed())?;
        Ok(if is_whole { bytes_before } else { durable_before })
    }
}

/// What stands at the beginning of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Header {
    Valid {
        bytes_before: u64,
        durable_before: u64,
    },
    /// A valid one of another format version.
    Version(u32),
    Bad,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// One file, and the piece of it that was read last.
struct Window {
    file: Arc<dyn File>,
    number: u64,
    length: u64,
    start: u64,
    bytes: Vec<u8>,
}

/// The fields before a frame's body.
#[derive(Clone, Copy)]
struct FrameHead {
    body_bytes: usize,
    crc: u32,
    durable: u64,
    kind: u8,
}

impl Window {
    fn open(files: &dyn Files, path: &Path, number: u64) -> Result<Window, StorageError> {
        let file = files.open(path).map_err(StorageError::io("open", path))?;
        let length = file.len().map_err(StorageError::io("read", path))?;
        Ok(Window { file, number, length, start: 0, bytes: Vec::new() })
    }

    fn at(&mut self, offset: u64, count: usize) -> io::Result<&[u8]> {
        let held = offset >= self.start && offset + count as u64 <= self.start + self.bytes.len() as u64;
        if !held {
            let wanted = count.max(READ_AHEAD).min((self.length - offset) as usize);
            self.bytes.resize(wanted, 0);
            self.start = offset;
            self.file.read_exact_at(&mut self.bytes, offset)?;
        }
        let from = (offset - self.start) as usize;
        Ok(&self.bytes[from..from + count])
    }

    fn header(&mut self) -> io::Result<Header> {
        if self.length < HEADER_BYTES as u64 {
            return Ok(Header::Bad);
        }
        let number = self.number;
        let bytes = self.at(0, HEADER_BYTES)?;
        let valid = &bytes[..4] == MAGIC
            && u64_at(bytes, 8) == number
            && crc32c::crc32c(&bytes[..HEADER_BYTES - 4]) == u32_at(bytes, HEADER_BYTES - 4);
        Ok(match (valid, u32_at(bytes, 4)) {
            (false, _) => Header::Bad,
            (true, VERSION) => {
                Header::Valid { bytes_before: u64_at(bytes, 16), durable_before: u64_at(bytes, 24) }
            }
            (true, other) => Header::Version(other),
        })
    }

    /// The head of a frame that may be one: it fits into the file, and no more is durable than stands before it.
    fn frame_head(&mut self, offset: u64) -> io::Result<Option<FrameHead>> {
        let left = self.length.saturating_sub(offset);
        if left < FRAME_BYTES as u64 {
            return Ok(None);
        }
        let bytes = self.at(offset, FRAME_BYTES)?;
        let head = FrameHead {
            body_bytes: u32_at(bytes, 0) as usize,
            crc: u32_at(bytes, 4),
            durable: u64_at(bytes, 8),
            kind: bytes[16],
        };
        let fits = head.body_bytes <= MAX_BODY_BYTES && (FRAME_BYTES + head.body_bytes) as u64 <= left;
        Ok((fits && head.durable <= offset).then_some(head))
    }

    fn is_valid(&mut self, offset: u64, head: FrameHead) -> io::Result<bool> {
        let number = self.number;
        let body = self.at(offset + FRAME_BYTES as u64, head.body_bytes)?;
        Ok(frame_crc(number, head.durable, head.kind, body) == head.crc)
    }

    /// Kind and length of the body of the frame at `offset`, if it is valid.
    fn valid_frame(&mut self, offset: u64) -> io::Result<Option<(u8, usize)>> {
        let Some(head) = self.frame_head(offset)? else { return Ok(None) };
        Ok(self.is_valid(offset, head)?.then_some((head.kind, head.body_bytes)))
    }

    /// Whether a valid frame from `from` on says that more than `bytes` of this file were durable.
    fn says_durable(&mut self, from: u64, bytes: u64) -> io::Result<bool> {
        let mut at = Some(from);
        while let Some(offset) = at.filter(|&offset| offset < self.length) {
            at = match self.frame_head(offset)? {
                Some(head) if self.is_valid(offset, head)? => {
                    if head.durable > bytes {
                        return Ok(true);
                    }
                    Some(offset + (FRAME_BYTES + head.body_bytes) as u64)
                }
                _ => self.next_valid(offset)?,
            };
        }
        Ok(false)
    }

    /// The next valid frame behind the bad one at `offset`: where its length says that it is, or else the first that is
    /// found by looking at every byte.
    fn next_valid(&mut self, offset: u64) -> io::Result<Option<u64>> {
        if let Some(head) = self.frame_head(offset)? {
            let next = offset + (FRAME_BYTES + head.body_bytes) as u64;
            if self.valid_frame(next)?.is_some() {
                return Ok(Some(next));
            }
        }
        let mut checksummed = 0;
        for at in offset + 1..self.length {
            let Some(head) = self.frame_head(at)? else { continue };
            checksummed += (FRAME_BYTES + head.body_bytes) as u64;
            if checksummed > SEARCH_BYTES {
                break;
            }
            if self.is_valid(at, head)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use metricsstore_vfs::Files;
    use metricsstore_vfs::sim::SimFiles;

    use super::super::{FRAME_BYTES, HEADER_BYTES, fill_frame, header, segment_path};
    use super::{FileReport, Reader};

    const DIR: &str = "/wal";
    const KIND: u8 = 2;

    /// A file with one frame for each `(body, durable bytes so far)`.
    fn file(number: u64, before: (u64, u64), frames: &[(&str, u64)]) -> Vec<u8> {
        let mut bytes = header(number, before.0, before.1).to_vec();
        for &(body, durable) in frames {
            let mut frame = vec![0; FRAME_BYTES];
            frame.extend_from_slice(body.as_bytes());
            fill_frame(number, durable, KIND, &mut frame);
            bytes.extend_from_slice(&frame);
        }
        bytes
    }

    /// Bodies read from files 1, 2 …, and the reports of each.
    fn read(contents: &[Vec<u8>]) -> (Vec<String>, Vec<FileReport>) {
        let files = SimFiles::new(1);
        files.create_dir_all(Path::new(DIR)).unwrap();
        for (number, bytes) in (1..).zip(contents) {
            files.create(&segment_path(Path::new(DIR), number)).unwrap().append(bytes).unwrap();
        }
        let mut reader = Reader::new(&files, Path::new(DIR));
        let mut bodies = Vec::new();
        let reports = (1..=contents.len() as u64)
            .map(|number| {
                let read = reader.read(number, |_, kind, body| {
                    assert_eq!(kind, KIND);
                    bodies.push(String::from_utf8(body.to_vec()).unwrap());
                    Ok(())
                });
                read.unwrap()
            })
            .collect();
        (bodies, reports)
    }

    const THREE: [(&str, u64); 3] = [("first", 0), ("second", 58), ("third", 81)];

    #[test]
    fn any_flipped_byte_costs_the_record_that_it_is_in_and_no_other() {
        let whole = file(1, (0, 0), &THREE);
        let second = HEADER_BYTES + FRAME_BYTES + "first".len();
        let third = second + FRAME_BYTES + "second".len();
        assert_eq!((second, third), (58, 81), "durable bytes of the frames above");
        // What follows says that all three were durable.
        let next = file(2, (whole.len() as u64, whole.len() as u64), &[("fourth", 0)]);
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                let (bodies, reports) = read(&[damaged, next.clone()]);
                let lost = match at {
                    _ if at < HEADER_BYTES => "",
                    _ if at < second => "first",
                    _ if at < third => "second",
                    _ => "third",
                };
                let expected: Vec<&str> =
                    ["first", "second", "third", "fourth"].into_iter().filter(|&body| body != lost).collect();
                assert_eq!(bodies, expected, "byte {at} bit {bit}");
                assert_eq!(reports[0].damages.len(), 1, "byte {at} bit {bit}");
                assert_eq!(reports[0].torn_at, None);
                assert_eq!(reports[1], FileReport { bytes: next.len() as u64, ..FileReport::default() });
            }
        }
    }

    #[test]
    fn a_cut_file_is_torn_unless_more_of_it_was_durable() {
        let whole = file(1, (0, 0), &THREE);
        for length in 0..whole.len() {
            let cut = whole[..length].to_vec();
            let (bodies, reports) = read(std::slice::from_ref(&cut));
            assert!(["first", "second", "third"].iter().zip(&bodies).all(|(a, b)| a == b));
            assert_eq!(reports[0].damages, [], "cut to {length}");
            let next = file(2, (whole.len() as u64, whole.len() as u64), &[("fourth", 0)]);
            let (bodies, reports) = read(&[cut, next]);
            assert_eq!(bodies.last().unwrap(), "fourth", "cut to {length}");
            assert!(!reports[0].damages.is_empty(), "cut to {length}");
        }
    }

    #[test]
    fn a_bad_record_that_a_later_one_calls_durable_is_damage_and_one_that_none_does_is_torn() {
        let bad = |mut bytes: Vec<u8>, at: usize| {
            bytes[at] ^= 1;
            bytes
        };
        // The third says that 81 bytes were durable: the first two records.
        let (bodies, reports) = read(&[bad(file(1, (0, 0), &THREE), 60)]);
        assert_eq!((bodies, reports[0].damages.len()), (vec!["first".into(), "third".into()], 1));
        let unsynced = [("first", 0), ("second", 0), ("third", 0)];
        let (bodies, reports) = read(&[bad(file(1, (0, 0), &unsynced), 60)]);
        assert_eq!((bodies, reports[0].torn_at), (vec!["first".into()], Some(58)));
    }

    #[test]
    fn what_continues_a_torn_file_is_torn_and_what_a_later_process_wrote_is_not() {
        let whole = file(1, (0, 0), &[("first", 0), ("second", 0)]);
        let length = whole.len() as u64;
        let torn = whole[..whole.len() - 2].to_vec();
        let next = file(2, (length, 58), &[("third", 0)]);
        let (bodies, reports) = read(&[torn.clone(), next.clone()]);
        assert_eq!(bodies, ["first"]);
        assert_eq!((reports[0].torn_at, reports[1].torn_at), (Some(58), Some(0)));
        // A later process read nothing of the second file and wrote a third.
        let later = file(3, (0, 0), &[("fourth", 0)]);
        assert_eq!(read(&[torn.clone(), next, later]).0, ["first", "fourth"]);
        // Once anything of the second file was durable, so was all of the first.
        let synced = file(2, (length, 58), &[("third", 0), ("fourth", 58)]);
        let (bodies, reports) = read(&[torn, synced]);
        assert_eq!(bodies, ["first", "third", "fourth"]);
        assert_eq!(reports[0].damages.len(), 2, "the record, and that the file is too short");
    }

    #[test]
    fn empty_and_short_files_are_valid_and_keep_nothing_from_being_read() {
        let last = file(3, (0, 0), &[("last", 0)]);
        for length in 0..=HEADER_BYTES {
            let short = file(2, (41, 41), &[])[..length].to_vec();
            let (bodies, reports) = read(&[file(1, (0, 0), &[]), short, last.clone()]);
            assert_eq!(bodies, ["last"], "{length} bytes");
            assert!(reports[1..].iter().all(|report| report.damages.is_empty()), "{length} bytes");
        }
    }

    #[test]
    fn another_version_is_an_error_only_where_the_header_is_whole() {
        let mut bytes = file(1, (0, 0), &THREE);
        bytes[4] = 9;
        assert_eq!(
            read(std::slice::from_ref(&bytes)).0.len(),
            3,
            "the header is damaged, the frames stand for themselves"
        );
        let crc = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        let files = SimFiles::new(1);
        files.create_dir_all(Path::new(DIR)).unwrap();
        files.create(&segment_path(Path::new(DIR), 1)).unwrap().append(&bytes).unwrap();
        let error = Reader::new(&files, Path::new(DIR)).read(1, |_, _, _| Ok(())).unwrap_err();
        assert!(matches!(error, crate::StorageError::Version { found: 9, .. }), "{error}");
    }
}
