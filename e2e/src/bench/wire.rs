//! Remote write 1.0 requests, and a plain HTTP/1.1 connection to send them on.
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::population::{Population, SERIES_PER_TARGET};

/// The label fields of every series, encoded once: only the sample changes between scrapes.
pub struct EncodedLabels {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl EncodedLabels {
    /// Encodes the labels of targets `targets`.
    pub fn new(population: &Population, targets: std::ops::Range<usize>) -> EncodedLabels {
        let mut encoded = EncodedLabels { bytes: Vec::new(), ends: Vec::new() };
        let mut pair = Vec::new();
        for target in targets {
            for series in 0..SERIES_PER_TARGET {
                for (name, value) in population.labels(target, series) {
                    pair.clear();
                    put_bytes(&mut pair, 1, name.as_bytes());
                    put_bytes(&mut pair, 2, value.as_bytes());
                    put_bytes(&mut encoded.bytes, 1, &pair);
                }
                encoded.ends.push(encoded.bytes.len() as u32);
            }
        }
        encoded
    }

    /// Label fields of the `index`-th series.
    pub fn series(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.bytes[start..self.ends[index] as usize]
    }
}

/// Adds one series with one sample to a `WriteRequest`.
pub fn put_series(body: &mut Vec<u8>, scratch: &mut Vec<u8>, labels: &[u8], timestamp_ms: i64, value: f64) {
    let mut sample = [0u8; 32];
    let mut len = 0;
    if value.to_bits() != 0 {
        sample[0] = 1 << 3 | 1;
        sample[1..9].copy_from_slice(&value.to_le_bytes());
        len = 9;
    }
    sample[len] = 2 << 3;
    len += 1;
    let mut rest = timestamp_ms as u64;
    while rest >= 0x80 {
        sample[len] = rest as u8 | 0x80;
        len += 1;
        rest >>= 7;
    }
    sample[len] = rest as u8;
    len += 1;
    scratch.clear();
    scratch.extend_from_slice(labels);
    put_bytes(scratch, 2, &sample[..len]);
    put_bytes(body, 1, scratch);
}

fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    let mut len = bytes.len();
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(bytes);
}

/// One keep-alive connection.
pub struct Connection {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
}

/// Status code and body of an answer.
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Body, whole.
    pub body: Vec<u8>,
}

impl Connection {
    /// Connects, with a bound of a minute on every read.
    pub fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_mins(1)))?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::with_capacity(1 << 16, stream), address })
    }

    /// Sends one remote-write request.
    pub fn write(&mut self, path: &str, snappy_body: &[u8]) -> io::Result<Answer> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/x-protobuf\r\nContent-Encoding: snappy\r\n\
             X-Prometheus-Remote-Write-Version: 0.1.0\r\nContent-Length: {}\r\n\r\n",
            self.address,
            snappy_body.len()
        );
        let stream = self.stream.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(snappy_body)?;
        self.answer()
    }

    /// Gets a path, already encoded.
    pub fn get(&mut self, path_and_query: &str) -> io::Result<Answer> {
        let head = format!("GET {path_and_query} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address);
        self.stream.get_mut().write_all(head.as_bytes())?;
        self.answer()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.by_ref().take(16 << 10).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("bad HTTP answer: {what}"));
        let status_line = self.line()?;
        let status = status_line
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .ok_or_else(|| bad(&status_line))?;
        let mut length = None;
        let mut chunked = false;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse::<usize>().ok();
            }
            chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        let mut body = Vec::new();
        if chunked {
            loop {
                let size_line = self.line()?;
                let size = usize::from_str_radix(&size_line, 16).map_err(|_| bad(&size_line))?;
                let start = body.len();
                body.resize(start + size, 0);
                self.stream.read_exact(&mut body[start..])?;
                self.line()?;
                if size == 0 {
                    break;
                }
            }
        } else if status != 204 {
            body.resize(length.unwrap_or(0), 0);
            self.stream.read_exact(&mut body)?;
        }
        Ok(Answer { status, body })
    }
}
