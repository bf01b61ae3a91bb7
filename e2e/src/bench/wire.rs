//! A plain HTTP/1.1 connection.
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// One keep-alive connection.
pub struct Connection {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
    head: Vec<u8>,
}

/// An answer.
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `Retry-After` in seconds.
    pub retry_after_seconds: Option<u64>,
    /// Body, whole.
    pub body: Vec<u8>,
}

impl Answer {
    /// An error that quotes the status and the body.
    pub fn error(&self, what: &str) -> io::Error {
        io::Error::other(format!("{what}: status {}: {}", self.status, String::from_utf8_lossy(&self.body)))
    }
}

impl Connection {
    /// Connects, with a bound of two minutes on every read.
    pub fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_mins(2)))?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::with_capacity(1 << 16, stream), address, head: Vec::new() })
    }

    /// Whom it is connected to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends one remote-write request.
    pub fn write(&mut self, path: &str, snappy_body: &[u8]) -> io::Result<Answer> {
        self.head.clear();
        write!(
            self.head,
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/x-protobuf\r\nContent-Encoding: snappy\r\n\
             X-Prometheus-Remote-Write-Version: 0.1.0\r\nContent-Length: {}\r\n\r\n",
            self.address,
            snappy_body.len()
        )?;
        let stream = self.stream.get_mut();
        stream.write_all(&self.head)?;
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
        let mut retry_after_seconds = None;
        let mut chunked = false;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse::<usize>().ok();
            }
            if let Some(value) = line.strip_prefix("retry-after:") {
                retry_after_seconds = value.trim().parse().ok();
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
        Ok(Answer { status, retry_after_seconds, body })
    }
}
