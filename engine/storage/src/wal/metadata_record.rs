//! Record kind 6: what metric families are. The latest statement on a family holds.
//!
//! ```text
//! check u64 LE, then entries:
//! type u8 (0 unknown, 1 counter, 2 gauge, 3 histogram, 4 gauge histogram, 5 summary, 6 info, 7 state set),
//! family, help, unit: each its length in bytes as a varint, then the bytes
//! ```
use metricsstore_codec::Damaged;
use metricsstore_model::{Metadata, MetricType};

use super::body::{BodyWriter, Check, read_entries, take_bytes, take_text};

pub(crate) fn push_metadata(body: &mut BodyWriter, metadata: &Metadata) {
    add_content(&mut body.check, metadata);
    body.frame.push(metadata.kind as u8);
    for text in [&metadata.family, &metadata.help, &metadata.unit] {
        body.put_text(text);
    }
    body.count_entry();
}

/// The statements of a record.
pub(crate) fn decode_metadata(body: &[u8]) -> Result<Vec<Metadata>, &'static str> {
    let mut all = Vec::new();
    read_entries(body, |bytes, check| {
        let [number] = take_bytes(bytes)?;
        let kind = MetricType::ALL.get(usize::from(number)).copied();
        let metadata = Metadata {
            kind: kind.ok_or(Damaged { what: "a metric type that does not exist" })?,
            family: take_text(bytes)?,
            help: take_text(bytes)?,
            unit: take_text(bytes)?,
        };
        add_content(check, &metadata);
        all.push(metadata);
        Ok(())
    })?;
    Ok(all)
}

fn add_content(check: &mut Check, metadata: &Metadata) {
    check.add(metadata.kind as u64);
    for text in [&metadata.family, &metadata.help, &metadata.unit] {
        check.add_text(text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::body::tests::assert_flips_are_found;
    use super::*;
    use crate::wal::FRAME_BYTES;

    fn all() -> Vec<Metadata> {
        let of = |kind, family: &str, help: &str, unit: &str| Metadata {
            kind,
            family: family.into(),
            help: help.into(),
            unit: unit.into(),
        };
        let types = MetricType::ALL.into_iter().map(|kind| of(kind, kind.name(), "Länge.\n", "s"));
        types.chain([of(MetricType::Unknown, "", "", "")]).collect()
    }

    fn body() -> Vec<u8> {
        let mut body = BodyWriter::default();
        for metadata in &all() {
            push_metadata(&mut body, metadata);
        }
        body.finish()[FRAME_BYTES..].to_vec()
    }

    #[test]
    fn every_type_and_text_comes_back() {
        assert_eq!(decode_metadata(&body()), Ok(all()));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        assert_flips_are_found(&body(), |body| decode_metadata(body).ok());
    }
}
