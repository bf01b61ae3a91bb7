//! Bodies of responses: compression, limits, what kind of page it is.
use std::io::Read as _;

use bytes::Bytes;

use crate::room::Hold;
use crate::{MAX_BODY_BYTES, ScrapeConfig, ScrapeError, ScrapeProtocol};

/// How much longer than its compressed form a page usually is.
const USUAL_RATIO: usize = 8;
/// First room for a decompressed page, in bytes: at least, and at most.
const MIN_TEXT_BYTES: usize = 4 << 10;
const MAX_GUESS_BYTES: usize = 1 << 20;

/// A response as it came.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) bytes: Bytes,
    pub(crate) is_gzip: bool,
    pub(crate) content_type: String,
}

impl Body {
    /// The page, decompressed within the job's limit; `hold` counts what that takes.
    pub(crate) fn text(&self, body_size_limit: u64, hold: &mut Hold) -> Result<Bytes, ScrapeError> {
        let limit = effective_limit(body_size_limit);
        let text = if self.is_gzip { self.decompress(limit, hold)?.into() } else { self.bytes.clone() };
        if text.len() as u64 >= limit { Err(ScrapeError::BodySizeLimit) } else { Ok(text) }
    }

    fn decompress(&self, limit: u64, hold: &mut Hold) -> Result<Vec<u8>, ScrapeError> {
        let mut decoder = flate2::read::MultiGzDecoder::new(&*self.bytes).take(limit);
        let mut text = Vec::new();
        let mut wanted = self.bytes.len().saturating_mul(USUAL_RATIO).clamp(MIN_TEXT_BYTES, MAX_GUESS_BYTES);
        loop {
            hold.make_room(&mut text, wanted)?;
            let room = text.capacity() - text.len();
            let read = decoder
                .by_ref()
                .take(room as u64)
                .read_to_end(&mut text)
                .map_err(|error| ScrapeError::Encoding(error.to_string()))?;
            if read < room {
                return Ok(text);
            }
            wanted = 1;
        }
    }
}

/// The job's limit, or ours.
pub(crate) fn effective_limit(body_size_limit: u64) -> u64 {
    if body_size_limit == 0 { MAX_BODY_BYTES } else { body_size_limit.min(MAX_BODY_BYTES) }
}

/// A page kept until the next scrape, compressed.
#[derive(Debug, Clone)]
pub(crate) enum StoredPage {
    /// As it came.
    Gzip(Bytes),
    /// It came plain.
    Snappy(Vec<u8>),
}

impl StoredPage {
    /// Keeps the page of `body`, which decompressed to `text`; without room for that, nothing is kept.
    pub(crate) fn new(body: &Body, text: &[u8], hold: &mut Hold) -> Option<StoredPage> {
        if body.is_gzip {
            return Some(StoredPage::Gzip(body.bytes.clone()));
        }
        hold.grow(snap::raw::max_compress_len(text.len())).ok()?;
        let mut bytes = snap::raw::Encoder::new().compress_vec(text).ok()?;
        bytes.shrink_to_fit();
        Some(StoredPage::Snappy(bytes))
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            StoredPage::Gzip(bytes) => bytes.len(),
            StoredPage::Snappy(bytes) => bytes.capacity(),
        }
    }

    /// The page. It was read before, so damage is not expected; what cannot be read ends without markers.
    pub(crate) fn text(&self) -> Vec<u8> {
        match self {
            StoredPage::Gzip(bytes) => {
                let mut text = Vec::new();
                let decoder = flate2::read::MultiGzDecoder::new(&**bytes);
                // Whole or nothing: half a page would end the series of the other half.
                let read = decoder.take(MAX_BODY_BYTES).read_to_end(&mut text);
                read.map(|_| text).unwrap_or_default()
            }
            StoredPage::Snappy(bytes) => snap::raw::Decoder::new().decompress_vec(bytes).unwrap_or_default(),
        }
    }
}

/// Whether a page with this Content-Type is text that we read. A blank or unknown one is only read when the job
/// says what to take it for.
pub(crate) fn check_content_type(content_type: &str, config: &ScrapeConfig) -> Result<(), ScrapeError> {
    let media_type = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let fallback = config.fallback_scrape_protocol;
    match (media_type.as_str(), fallback) {
        ("text/plain", _) => Ok(()),
        ("application/openmetrics-text" | "application/vnd.google.protobuf", _) => Err(ScrapeError::ContentType(
            format!("received Content-Type {content_type:?}, a format that is not read yet; offer text/plain"),
        )),
        (_, Some(fallback)) => check_fallback(fallback),
        ("", None) => Err(ScrapeError::ContentType(
            "non-compliant scrape target sending blank Content-Type and no fallback_scrape_protocol specified for target".into(),
        )),
        (_, None) => Err(ScrapeError::ContentType(format!(
            "received unsupported Content-Type {content_type:?} and no fallback_scrape_protocol specified for target"
        ))),
    }
}

fn check_fallback(fallback: ScrapeProtocol) -> Result<(), ScrapeError> {
    if fallback.is_read() {
        return Ok(());
    }
    let name = fallback.name();
    Err(ScrapeError::ContentType(format!("fallback_scrape_protocol {name} is a format that is not read yet")))
}

/// The `Accept` header: formats we read in the job's order, then anything.
pub(crate) fn accept(protocols: &[ScrapeProtocol]) -> String {
    let mut weight = ScrapeProtocol::ALL.len() + 1;
    let mut offers: Vec<String> = Vec::new();
    let read = protocols.iter().filter(|protocol| protocol.is_read());
    for protocol in read {
        let offer = match protocol {
            ScrapeProtocol::PrometheusText1_0_0 => "text/plain;version=1.0.0;escaping=allow-utf-8",
            _ => "text/plain;version=0.0.4",
        };
        offers.push(format!("{offer};q=0.{weight}"));
        weight -= 1;
    }
    if offers.is_empty() {
        offers.push(format!("text/plain;version=0.0.4;q=0.{weight}"));
        weight -= 1;
    }
    offers.push(format!("*/*;q=0.{weight}"));
    offers.join(",")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use metricsstore_budget::Budget;

    use super::{Body, StoredPage, accept, check_content_type};
    use crate::room::{Hold, Room};
    use crate::{ScrapeConfig, ScrapeError, ScrapeProtocol};

    fn hold(budget: u64) -> Hold {
        Room::new(Budget::new(budget)).hold()
    }

    fn gzip(text: &[u8]) -> Body {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        Body { bytes: encoder.finish().unwrap().into(), is_gzip: true, content_type: String::new() }
    }

    #[test]
    fn a_page_as_long_as_the_limit_is_too_long() {
        for body in [gzip(b"abc"), Body { bytes: "abc".into(), ..Body::default() }] {
            assert_eq!(body.text(0, &mut hold(u64::MAX)).unwrap(), "abc");
            assert_eq!(body.text(4, &mut hold(u64::MAX)).unwrap(), "abc");
            assert_eq!(body.text(3, &mut hold(u64::MAX)), Err(ScrapeError::BodySizeLimit));
        }
        let damaged = Body { bytes: "abc".into(), is_gzip: true, ..Body::default() };
        assert!(matches!(damaged.text(0, &mut hold(u64::MAX)), Err(ScrapeError::Encoding(_))));
    }

    #[test]
    fn a_page_is_decompressed_no_further_than_its_memory() {
        let body = gzip(&vec![b'#'; 10 << 20]);
        assert!(matches!(body.text(0, &mut hold(8 << 20)), Err(ScrapeError::Memory { .. })));
        assert_eq!(body.text(0, &mut hold(80 << 20)).unwrap().len(), 10 << 20);
    }

    #[test]
    fn a_kept_page_comes_back() {
        for body in [gzip(b"a 1\n"), Body { bytes: "a 1\n".into(), ..Body::default() }] {
            assert_eq!(StoredPage::new(&body, b"a 1\n", &mut hold(u64::MAX)).unwrap().text(), b"a 1\n");
        }
    }

    #[test]
    fn an_unknown_content_type_needs_a_fallback() {
        let strict = ScrapeConfig::new("j");
        let mut lenient = ScrapeConfig::new("j");
        lenient.fallback_scrape_protocol = Some(ScrapeProtocol::PrometheusText0_0_4);
        for good in ["text/plain", "text/plain; version=0.0.4; charset=utf-8", "Text/Plain"] {
            assert_eq!(check_content_type(good, &strict), Ok(()));
        }
        for unknown in ["", "text/html", "application/json"] {
            assert!(check_content_type(unknown, &strict).is_err(), "{unknown}");
            assert_eq!(check_content_type(unknown, &lenient), Ok(()), "{unknown}");
        }
        assert!(check_content_type("application/openmetrics-text; version=1.0.0", &lenient).is_err());
    }

    #[test]
    fn only_formats_that_are_read_are_asked_for() {
        assert_eq!(
            accept(&ScrapeProtocol::DEFAULT),
            "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.4"
        );
        assert_eq!(accept(&[ScrapeProtocol::PrometheusProto]), "text/plain;version=0.0.4;q=0.6,*/*;q=0.5");
    }
}
