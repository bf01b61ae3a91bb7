use metricsstore_model::LabelBuf;
use metricsstore_model::read::SeriesLabels as _;
use roaring::RoaringBitmap;

use super::super::DefinitionError;
use super::{Identity, Resolved, SeriesId, identity, labels, resolve};

fn encode(identity: &Identity, from: u64) -> Vec<u8> {
    let mut record = Vec::new();
    identity.encode_definitions(from, usize::MAX, &mut record);
    record
}

/// The label set, if any, of an id.
fn found(identity: &Identity, id: u32) -> Option<LabelBuf> {
    let mut labels = LabelBuf::new();
    let series = identity.series_ref(SeriesId(id))?;
    identity.select(&[]).labels.labels(series, &mut labels);
    Some(labels)
}

#[test]
fn version_one_is_written_byte_by_byte_as_described() {
    let identity = identity();
    resolve(&identity, &[labels([("a", "b"), ("job", "a")]), labels([("a", "job"), ("job", "a")])]);
    let want = [
        &[1][..],
        // a group {job="a"}; residuals {a="b"} and {a="job"}
        &[3, 3, b'j', b'o', b'b', 1, b'a', 1, b'b'],
        &[3, 1, 0, 1, 1, 1, 2, 1, 1, 0],
        &[2, 0, 0, 0, 1, 0, 0, 0, 2],
    ];
    assert_eq!(encode(&identity, 0), want.concat());
}

#[test]
fn a_mark_gives_what_came_after_it_in_pieces_of_the_wanted_size() {
    let identity = identity();
    let series: Vec<LabelBuf> = (0..10).map(|n| labels([("n", &n.to_string())])).collect();
    resolve(&identity, &series);
    let loaded = self::identity();
    let mut record = Vec::new();
    let mut mark = 4;
    for want in [7, 10, 10] {
        record.clear();
        mark = identity.encode_definitions(mark, 3, &mut record);
        assert_eq!(mark, want);
        if !record.is_empty() {
            loaded.load_definitions(&record).unwrap();
        }
    }
    assert!(record.is_empty());
    assert_eq!(loaded.len(), 6);
    // What lies before the mark can still be had.
    assert_eq!(loaded.load_definitions(&encode(&identity, 0)), Ok(4));
    assert!((0..10).all(|id| found(&loaded, id).as_ref() == Some(&series[id as usize])));
    assert_eq!(loaded.next_order(), 10);
}

#[test]
fn loading_a_record_twice_changes_nothing() {
    let identity = identity();
    resolve(&identity, &[labels([("a", "1")]), labels([("a", "2")])]);
    let record = encode(&identity, 0);
    assert_eq!(identity.load_definitions(&record), Ok(0));
    assert_eq!(identity.len(), 2);
}

#[test]
fn the_later_of_two_series_with_one_id_or_one_label_set_stays_in_whatever_order_they_come() {
    let identity = identity();
    let (one, two, three) = (labels([("a", "1")]), labels([("a", "2")]), labels([("a", "3")]));
    resolve(&identity, &[one.clone(), two.clone()]);
    let old = encode(&identity, 0);
    // Ids 0 and 1 end and, after resting, go to others: 0 to the third set, 1 to the first.
    for _ in 0..2 {
        identity.retain(&RoaringBitmap::new(), identity.next_order());
    }
    let again = resolve(&identity, &[three.clone(), one.clone()]);
    assert_eq!(again, [Resolved::Created(SeriesId(0)), Resolved::Created(SeriesId(1))]);
    let new = encode(&identity, 2);
    for records in [[&old, &new], [&new, &old]] {
        let loaded = self::identity();
        for record in records {
            loaded.load_definitions(record).unwrap();
        }
        assert_eq!(loaded.len(), 2);
        assert_eq!(found(&loaded, 0), Some(three.clone()));
        assert_eq!(found(&loaded, 1), Some(one.clone()));
        assert_eq!(loaded.label_values("a", &[], None, 9).items, ["1", "3"]);
        assert_eq!(resolve(&loaded, std::slice::from_ref(&one)), [Resolved::Known(SeriesId(1))]);
    }
}

#[test]
fn damaged_records_are_errors_and_apply_nothing() {
    let identity = identity();
    let series: Vec<LabelBuf> = (0..40)
        .map(|n| labels([("__name__", "up"), ("instance", &(n / 8).to_string()), ("n", &n.to_string())]))
        .collect();
    resolve(&identity, &series);
    let record = encode(&identity, 0);
    for length in 0..record.len() {
        let loaded = self::identity();
        assert!(loaded.load_definitions(&record[..length]).is_err(), "cut at {length}");
        assert!(loaded.len() == 0 && loaded.label_names(&[], None, 9).items.is_empty());
    }
    for position in 0..record.len() {
        for bit in 0..8 {
            let mut damaged = record.clone();
            damaged[position] ^= 1 << bit;
            let loaded = self::identity();
            // Without its checksum a flipped bit may give another valid record; it must never give half of one.
            match loaded.load_definitions(&damaged) {
                Ok(added) => assert_eq!(loaded.len(), added),
                Err(_) => assert!(loaded.len() == 0),
            }
        }
    }
}

#[test]
fn a_record_of_a_later_version_asks_for_an_upgrade() {
    assert_eq!(identity().load_definitions(&[2, 0, 0, 0]), Err(DefinitionError::Version(2)));
}

#[test]
fn a_record_that_contradicts_what_is_there_is_damaged() {
    let (one, other) = (identity(), identity());
    resolve(&one, &[labels([("a", "1")])]);
    resolve(&other, &[labels([("a", "2")])]);
    let loaded = one.load_definitions(&encode(&other, 0));
    assert!(matches!(loaded, Err(DefinitionError::Corrupt { .. })));
    assert_eq!(found(&one, 0), Some(labels([("a", "1")])));
}
