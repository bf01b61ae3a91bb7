//! What a shipper says that it has uploaded: `thanos.shipper.json`, `{"version":1,"uploaded":["<ULID>", …]}`.
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use metricsstore_vfs::Files;

use crate::block::{BlockMeta, Format, Ulid};

/// The largest list that is read.
const MAX_BYTES: u64 = 64 << 20;

/// The list of a shipper, or that there is no shipper.
pub(crate) enum Shipped {
    /// Nobody waits for blocks.
    NoShipper,
    Listed(BTreeSet<Ulid>),
}

impl Shipped {
    /// Reads the list. While it is not there or cannot be understood, nothing was uploaded.
    pub(crate) fn read(files: &dyn Files, path: Option<&Path>) -> Shipped {
        let Some(path) = path else { return Shipped::NoShipper };
        let listed = match files.read(path, MAX_BYTES) {
            Ok(bytes) => parse(&bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => Some(BTreeSet::new()),
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "the list of uploaded blocks cannot be read");
                return Shipped::Listed(BTreeSet::new());
            }
        };
        let listed = listed.unwrap_or_else(|| {
            tracing::warn!(file = %path.display(), "this is no list of uploaded blocks: none is compacted");
            BTreeSet::new()
        });
        Shipped::Listed(listed)
    }

    /// Whether a block must stay as it is: one that a shipper takes and has not listed yet.
    pub(crate) fn holds(&self, meta: &BlockMeta) -> bool {
        match self {
            Shipped::NoShipper => false,
            Shipped::Listed(listed) => {
                meta.format == Format::Prometheus && meta.level == 1 && !listed.contains(&meta.ulid)
            }
        }
    }
}

fn parse(bytes: &[u8]) -> Option<BTreeSet<Ulid>> {
    let list: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    if list.get("version")?.as_u64()? != 1 {
        return None;
    }
    match list.get("uploaded")? {
        serde_json::Value::Null => Some(BTreeSet::new()),
        uploaded => uploaded.as_array()?.iter().map(|ulid| ulid.as_str()?.parse().ok()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_a_shipper_is_read_and_anything_else_is_none() {
        let ulid: Ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV".parse().unwrap();
        let parsed = |text: &str| parse(text.as_bytes());
        assert_eq!(parsed(r#"{"version":1,"uploaded":["01ARZ3NDEKTSV4RRFFQ69G5FAV"]}"#), Some([ulid].into()));
        assert_eq!(parsed(r#"{"version":1,"uploaded":[]}"#), Some(BTreeSet::new()));
        assert_eq!(parsed(r#"{"version":1,"uploaded":null}"#), Some(BTreeSet::new()));
        for wrong in ["", "{}", r#"{"version":2,"uploaded":[]}"#, r#"{"version":1,"uploaded":["x"]}"#, "[1]"]
        {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
