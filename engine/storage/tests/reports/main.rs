//! What broke in public for others, each as a test here.
//!
//! | reports | what happened | test |
//! |---|---|---|
//! | prometheus/prometheus#6934, #16942, #13939; prometheus-operator/prometheus-operator#2670, #13884 | replay needs more memory than running did: killed, replayed, killed again | `start::a_start_takes_no_more_memory_than_it_is_given_and_a_kill_in_it_changes_nothing` |
//! | prometheus/prometheus#12882 | the log could not be truncated for days and nobody knew | `disk::a_log_that_cannot_be_cut_is_an_error_at_every_tick_until_it_can`, `disk::a_manifest_that_cannot_be_written_is_an_error_at_every_tick_and_costs_nothing` |
//! | prometheus/prometheus#18552 | damage that replay passed over stopped every later checkpoint | `start::damage_is_set_aside_once_and_what_was_read_is_read_again` |
//! | prometheus/prometheus#7409, #5867, #8236, #7835, #4705, #7506 | appended behind a bad record; one bad record blocks truncation | `start::nothing_is_appended_behind_a_torn_tail`, `start::a_bad_record_does_not_keep_the_log_from_being_cut` |
//! | prometheus/prometheus#7530 | the repair of one file deleted healthy ones | `start::damage_in_one_file_deletes_no_other` |
//! | prometheus/prometheus#3283 | space came back and writing did not; an empty file blocked the start | `disk::writing_goes_on_when_space_is_back`, `start::files_without_content_and_missing_files_do_not_stop_a_start` |
//! | prometheus/prometheus#7245 | a full disk cost history | `disk::a_full_disk_removes_nothing` |
//! | prometheus/prometheus#10890, #8884, #9744, #5771 | not everything on disk was counted; retention waited for a compaction that had no space | `disk::everything_in_the_directory_is_counted`, `disk::retention_frees_space_before_anything_is_written` |
//! | prometheus/prometheus#3487, #7299, #7627 | every failed compaction left files until the disk was full | `disk::work_that_fails_again_and_again_leaves_nothing_behind`, `a_full_disk_or_a_failure_at_any_call_leaves_everything_as_it_was_and_no_files` in `src/compaction/tests.rs` |
//! | prometheus/prometheus#4200, #3782 | cleaning tombstones ran out of space, left overlapping blocks, and the server did not start | `cleaning_without_space_changes_nothing_says_so_and_the_store_starts`, `late_blocks_are_merged_into_those_of_their_time` in `src/compaction/tests.rs` |
//! | prometheus/prometheus#17438, #5617 | one bad series stopped head compaction for months | `series::one_damaged_series_stops_no_merge_and_no_seal`, `a_damaged_series_is_left_out_counted_and_kept_aside_and_stops_nothing` in `src/compaction/tests.rs` |
//! | thanos-io/thanos#3753, #5497, #1044 | label sets out of order stopped the compactor | `a_bad_series_costs_only_itself_and_is_counted` in `src/compaction/merge/tests.rs` |
//! | prometheus/prometheus#15358, #15234, #15221, #15342 | counter resets of histograms from several sources were wrong | `hints_hold_only_where_the_histogram_before_is_the_one_they_were_made_against` in `src/compaction/merge/tests.rs` |
//! | prometheus/prometheus#10028, #8312, #6554 | one jump of the clock: everything out of bounds until it was caught up | `samples::a_clock_that_jumped_ahead_once_closes_the_window_to_nobody` |
//! | prometheus/prometheus#2893 | samples of the future moved retention | `samples::samples_of_the_future_move_no_retention` |
//! | prometheus/prometheus#9214 | one bad sample took the valid ones of its request with it | `samples::a_bad_sample_costs_its_neighbours_nothing` |
//! | prometheus/prometheus#9210 | a request sent again after a lost answer was refused | `samples::a_request_sent_again_is_accepted_and_changes_nothing` |
//! | prometheus/prometheus#13334 | samples too old were answered with an error that made the sender try for ever | `samples::no_sample_is_refused_with_an_error_that_is_worth_a_retry` (and `status_codes_of_remote_write_are_those_of_the_specification` in the server) |
//! | prometheus/prometheus#5105, #5686 | data that cross a cut | `samples::a_cut_through_a_column_is_not_seen` |
//! | prometheus/prometheus#9108, #19140 | deletes lost samples or brought them back after a restart | `deleted_samples_stay_away_and_nothing_else_goes` in `tests/kinds.rs`, `deleted_samples_stay_away_across_restarts_and_compactions_and_nothing_else_goes` in `src/compaction/tests.rs` |
//! | grafana/mimir#16273 (prometheus/prometheus#16894) | invalid spans of histograms grew through every rewrite | `spans_with_a_negative_offset_are_refused`, `a_histogram_beyond_the_bound_is_refused` in `codec`; `an_invalid_histogram_is_left_out_with_its_start_timestamp` in `src/compaction/merge/tests.rs` |
//! | cortexproject/cortex#7060, grafana/mimir#11976 | start timestamps out of order or in the future were errors | `a_start_that_is_not_before_its_sample_is_ignored_without_a_word` in `tests/kinds.rs` |
//! | prometheus/prometheus#13577, #9377 | old exemplars pushed fresh ones out | `exemplars_and_metadata_survive_crashes_and_the_removal_of_the_log` in `tests/kinds.rs` |
//! | prometheus/prometheus#18638 | errors of replay were swallowed | `a_flipped_byte_in_the_log_costs_its_record`, `damage_in_a_log_file_that_another_one_continues_is_always_counted` in `tests/damage.rs` |
//! | prometheus/prometheus#15317 | readers raced with the tail of a postings list | `series_that_end_leave_beside_readers…`, `two_writers_that_meet_a_new_series…` in `tests/races` |
//! | prometheus/prometheus#19013, #19016, #19202 | a query held compaction up for hours | `series::an_open_query_holds_nothing_up_and_sees_what_was_there`, `a_deletion_breaks_off_a_compaction_which_is_begun_again` in `src/compaction/tests.rs` |
//! | prometheus/prometheus#19289 | a mapped file on a full disk killed the process | `disk::no_file_is_mapped_into_memory` |
//! | VictoriaMetrics/VictoriaMetrics#5012, #63, #2616, #148, #2877 | files of no length and missing files after a power failure were fatal | `start::files_without_content_and_missing_files_do_not_stop_a_start` |
//! | VictoriaMetrics/VictoriaMetrics#11059, #8443 | nobody could see that the last shutdown was none | `start::a_start_says_whether_the_last_process_ended_in_order` |
//! | VictoriaMetrics/VictoriaMetrics#9074 | a damaged file of no importance stopped every start | `start::files_that_only_save_time_may_hold_anything` |
//! | VictoriaMetrics/VictoriaMetrics#2007, #7229, #6176, #4995, #4726 | churn made the index outgrow memory | `series::series_that_come_and_go_take_the_memory_of_those_that_are_there` |
//! | VictoriaMetrics/VictoriaMetrics#2762, #1727, #10057, #342 | hung once it was read-only; merges that free space were blocked too | `disk::read_only_ends_by_itself_and_what_frees_space_goes_on` |
//! | VictoriaMetrics/VictoriaMetrics#7674, #5587, #10274, #5806 | not-a-numbers were compared as numbers, so that order of arrival decided | `samples::values_are_compared_by_their_bits`; value before stale marker: `any_slices_of_any_inputs_merge_to_what_maps_say` in `src/compaction/merge/tests.rs` |
//! | VictoriaMetrics/VictoriaMetrics#213, #2662, #5752, #1114 | precision lost | `samples::every_bit_of_a_value_survives_seal_merge_and_restart` |
//! | deckhouse/prompp#212, #390, #122, #81 | memory errors across languages | one language; `unsafe` in `codec` and `vfs` only (`e2e/tests/house.rs`), both under Miri (`cargo xtask miri`) |
//! | prometheus/prometheus#8476, #8312 | a clock set back | `samples::a_clock_that_goes_back_loses_nothing_and_writing_goes_on` |
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may panic")]
#[path = "../common/mod.rs"]
mod common;
mod disk;
mod samples;
mod series;
mod start;

use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{Contents, DIR, Machine, NOW_MS, append};
use metricsstore_model::Acknowledge;
use metricsstore_storage::Store;
use metricsstore_vfs::Files;

const DURABLE: Acknowledge = Acknowledge::Durable;
const SEAL_AFTER: Duration = Duration::from_mins(30);
const STEP_MS: i64 = 15_000;

/// Lets half an hour pass and seals.
fn seal(machine: &Machine, store: &Store) {
    machine.clock.advance(SEAL_AFTER);
    assert!(store.maintain().unwrap().sealed);
}

/// Appends a sample each for a number of series, every 15 s, and notes them.
fn fill(store: &Store, expected: &mut Contents, from_ms: i64, steps: i64, series: u32) {
    for step in 0..steps {
        let time = from_ms + step * STEP_MS;
        let rows: Vec<(u32, i64, f64)> = (0..series).map(|n| (n, time, f64::from(n) + step as f64)).collect();
        assert_eq!(append(store, &rows, DURABLE).unwrap().refused, []);
        for (number, time, value) in rows {
            expected.entry(number).or_default().insert(time, value.to_bits());
        }
    }
}

/// A machine whose last process was killed with a segment, definitions and a log on disk.
fn killed_machine() -> (Machine, Contents) {
    let mut machine = Machine::new(1);
    let store = machine.open();
    let mut expected = Contents::new();
    fill(&store, &mut expected, NOW_MS, 8, 5);
    seal(&machine, &store);
    fill(&store, &mut expected, NOW_MS + 8 * STEP_MS, 8, 5);
    drop(store);
    machine.files = machine.files.kill();
    (machine, expected)
}

/// All files below a directory with their lengths.
fn all_files(machine: &Machine) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::from(DIR)];
    while let Some(dir) = pending.pop() {
        for entry in machine.files.list(&dir).unwrap() {
            let path = dir.join(&entry.name);
            if entry.is_dir { pending.push(path) } else { found.push((path, entry.len)) }
        }
    }
    found
}

/// Replaces the content of a file, durably.
fn overwrite(machine: &Machine, path: &Path, bytes: &[u8]) {
    if machine.files.exists(path).unwrap() {
        machine.files.remove(path).unwrap();
    }
    let file = machine.files.create(path).unwrap();
    file.append(bytes).unwrap();
    file.sync().unwrap();
    machine.files.sync_dir(path.parent().unwrap()).unwrap();
}

/// The only file in a directory below the data directory.
fn only_file(machine: &Machine, below: &str) -> PathBuf {
    let names = machine.names(below);
    assert_eq!(names.len(), 1, "{below}: {names:?}");
    Path::new(DIR).join(below).join(&names[0])
}

fn content_of(machine: &Machine, path: &Path) -> Vec<u8> {
    machine.files.read(path, 1 << 30).unwrap()
}

fn is_part_of(part: &Contents, whole: &Contents) -> bool {
    part.iter().all(|(number, samples)| {
        samples.iter().all(|(time, bits)| whole.get(number).and_then(|all| all.get(time)) == Some(bits))
    })
}
