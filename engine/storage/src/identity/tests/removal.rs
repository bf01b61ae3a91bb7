use metricsstore_budget::{Budget, Part};
use metricsstore_model::read::SeriesLabels as _;
use metricsstore_model::{LabelBuf, Matcher};
use roaring::RoaringBitmap;

use super::{Identity, Resolved, SeriesId, id_of, identity, labels, resolve};

fn population(from: u32, to: u32) -> Vec<LabelBuf> {
    (from..to)
        .map(|n| {
            let (metric, pod) = (format!("metric_{}", n % 20), format!("pod-{}", n / 20));
            labels([("__name__", &metric), ("job", "app"), ("pod", &pod), ("zone", "z")])
        })
        .collect()
}

#[test]
fn ended_series_leave_every_part_of_the_memory() {
    let budget = Budget::unlimited();
    let identity = Identity::new(budget.clone());
    let parts = [Part::Symbols, Part::Identity, Part::Postings, Part::RawCache];
    resolve(&identity, &population(0, 200));
    let small = parts.map(|part| budget.part(part));
    resolve(&identity, &population(200, 20_000));
    assert!(parts.iter().zip(small).all(|(&part, small)| budget.part(part) > small));
    let live: RoaringBitmap = (0..200).collect();
    identity.encode_definitions(identity.next_order() - 1, 1, &mut Vec::new());
    assert_eq!(identity.retain(&live, identity.next_order()), 19_800);
    identity.retain(&live, identity.next_order());
    for (part, small) in parts.into_iter().zip(small) {
        // Ids above the living ones are free: 12 bytes each until the next rebuild.
        let tables = if part == Part::Identity { 20_000 * 14 } else { 0 };
        assert!(budget.part(part) <= small * 5 / 4 + tables, "{}", part.name());
    }
    let values = identity.label_values("pod", &[], None, usize::MAX);
    assert_eq!(values.items.len(), 10);
}

#[test]
fn survivors_keep_ids_and_orders_and_freed_ids_rest_for_one_removal() {
    let identity = identity();
    resolve(&identity, &population(0, 100));
    let live: RoaringBitmap = (0..100).filter(|id| id % 2 == 0).collect();
    identity.retain(&live, identity.next_order());
    for id in 0..100 {
        let series = identity.series_ref(SeriesId(id));
        assert_eq!(series.map(|series| series.order), (id % 2 == 0).then_some(u64::from(id)));
    }
    let fresh = resolve(&identity, &population(100, 110));
    assert!(fresh.iter().all(|&got| id_of(got).0 >= 100), "a reader may still hold ids below");
    let live: RoaringBitmap = live.iter().chain(100..110).collect();
    assert_eq!(identity.retain(&live, identity.next_order()), 0);
    let reused = resolve(&identity, &population(110, 120));
    assert_eq!(
        reused.iter().map(|&got| id_of(got).0).collect::<Vec<_>>(),
        (1..20).step_by(2).collect::<Vec<_>>()
    );
    assert_eq!(identity.series_ref(SeriesId(1)).unwrap().order, 110);
    assert_eq!(identity.series_ref(SeriesId(2)).unwrap().order, 2);
}

#[test]
fn a_removed_series_comes_back_as_another_one() {
    let identity = identity();
    let series = population(0, 1);
    assert_eq!(resolve(&identity, &series), [Resolved::Created(SeriesId(0))]);
    identity.retain(&RoaringBitmap::new(), identity.next_order());
    assert_eq!(resolve(&identity, &series), [Resolved::Created(SeriesId(1))]);
}

#[test]
fn series_created_after_the_mark_are_kept() {
    let identity = identity();
    resolve(&identity, &population(0, 10));
    let mark = identity.next_order();
    resolve(&identity, &population(10, 20));
    assert_eq!(identity.retain(&RoaringBitmap::new(), mark), 10);
    assert_eq!(identity.len(), 10);
    assert!(identity.series_ref(SeriesId(10)).is_some());
}

#[test]
fn labels_of_a_select_stay_valid_when_its_series_are_removed() {
    let identity = identity();
    let series = population(0, 40);
    resolve(&identity, &series);
    let selected = identity.select(&[Matcher::equal("pod", "pod-1")]);
    identity.retain(&RoaringBitmap::new(), identity.next_order());
    resolve(&identity, &population(100, 200));
    let mut found = LabelBuf::new();
    assert_eq!(selected.series.len(), 20);
    for (id, series_ref) in selected.series {
        selected.labels.labels(series_ref, &mut found);
        assert_eq!(found, series[id.0 as usize]);
    }
}

#[test]
fn series_found_created_and_revived_while_the_tables_are_rebuilt_are_all_there() {
    let identity = identity();
    resolve(&identity, &population(0, 5000));
    identity.retain(&(1000..5000).collect(), identity.next_order());
    identity.retain(&(1000..5000).collect(), identity.next_order());
    // Ids below 1000 are free, every second series from there on ends.
    let live: RoaringBitmap = (1000..5000).filter(|id| id % 2 == 0).collect();
    let before = identity.next_order();
    let removal = identity.prepare_removal(&live, before).unwrap();
    let created = resolve(&identity, &population(10_000, 13_000));
    assert_eq!(id_of(created[0]), SeriesId(0), "a free id goes to a series that is created meanwhile");
    assert_eq!(resolve(&identity, &population(1001, 1002)), [Resolved::Known(SeriesId(1001))]);
    let removed = identity.finish_removal(removal, |id| id == 1001 || id == 4999);
    assert_eq!(removed.series.len(), 1998);
    assert!(!removed.series.contains(1001) && !removed.series.contains(4999));
    let known = |from, to| {
        let known = |resolved| matches!(resolved, Resolved::Known(id) if identity.series_ref(id).is_some());
        resolve(&identity, &population(from, to)).into_iter().filter(|&resolved| known(resolved)).count()
    };
    assert_eq!(resolve(&identity, &population(10_000, 13_000)).len(), 3000);
    assert_eq!((known(10_000, 13_000), known(1001, 1002), known(4999, 5000)), (3000, 1, 1));
    assert_eq!(identity.len(), 2000 + 2 + 3000);
    assert_eq!(identity.select(&[]).series.len(), identity.len());
    // What was created meanwhile is still to be defined in the log, with its order.
    assert_eq!(identity.next_order(), before + 3000);
    assert_eq!(resolve(&identity, &population(1003, 1004)), [Resolved::Created(SeriesId(7000))]);
}

#[test]
fn a_removal_counts_its_copy_and_waits_when_there_is_no_room_for_it() {
    let budget = Budget::unlimited();
    let identity = Identity::new(budget.clone());
    resolve(&identity, &population(0, 20_000));
    let live: RoaringBitmap = (0..10_000).collect();
    let counted = budget.counted();
    let removal = identity.prepare_removal(&live, identity.next_order()).unwrap();
    assert!(budget.counted() > counted * 4 / 3, "{} {counted}", budget.counted());
    drop(removal);
    resolve(&identity, &population(0, 1));
    identity.footprint();
    budget.set_limit(counted);
    assert!(identity.prepare_removal(&live, identity.next_order()).is_none());
    assert_eq!(budget.part(Part::RawCache), 0, "raw keys are given up first");
    assert!(budget.counted() < counted);
    budget.set_limit(counted * 2);
    let removal = identity.prepare_removal(&live, identity.next_order()).unwrap();
    assert_eq!(identity.finish_removal(removal, |_| false).series.len(), 10_000);
    assert!(budget.counted() < counted * 2 / 3);
}

#[test]
#[ignore = "half a million series: run it optimised, with --nocapture for the figures"]
fn removing_from_half_a_million_series_holds_writers_up_for_the_swap_only() {
    let identity = identity();
    (0..500).for_each(|batch| drop(resolve(&identity, &population(batch * 1000, (batch + 1) * 1000))));
    let live: RoaringBitmap = (0..500_000).filter(|id| id % 10 != 0).collect();
    let began = std::time::Instant::now();
    let removal = identity.prepare_removal(&live, identity.next_order()).unwrap();
    let prepared = began.elapsed();
    resolve(&identity, &population(500_000, 501_000));
    let began = std::time::Instant::now();
    let removed = identity.finish_removal(removal, |id| id % 1000 == 0);
    println!("built beside in {prepared:?}, swapped in {:?}", began.elapsed());
    assert_eq!(removed.series.len(), 49_500);
}
