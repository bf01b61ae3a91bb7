//! The one section of a block that is held in memory: what the block says of itself, and where everything is.
//!
//! ```text
//! start ms zigzag, end − start ms, oldest ms zigzag, newest ms zigzag, level, flags (1 late, 2 cold)
//! sources     count, then 16 bytes LE each
//! parents     count, then each: 16 bytes LE, start ms zigzag, end − start ms
//! rows, float samples, histogram samples, pages of values
//! parts       start ms zigzag, length ms, count
//! rows        pages, see `labels`
//! sets        count, pages of sets, pages of postings, see `sets` and `list`
//! dictionary  number of pairs, pages, offset and bytes of the page of names, length of the fst, fst, see `dictionary`
//! with        for histograms, then start timestamps: offset and bytes of a page that is a roaring bitmap of the rows that
//!             have some; 0, 0 where none has
//! streams     number of timestamp streams; table
//! tables      per part, of values; then per part, of histograms; then per part, of start timestamps; of exemplars; see
//!             `table`
//! ```
//! All numbers are varints. A list of pages is: count, then per page: first − first of the page before, offset − offset
//! before, bytes.
use super::dictionary::Dictionary;
use super::labels::{self, RowPage};
use super::list;
use super::page::PageRef;
use super::sets::Sets;
use super::table::{Entry, put_entries, take_entries};
use super::{MAX_PARTS, Parts};
use crate::block::{BlockMeta, Format, Parent, Ulid};
use crate::bytes::{Cursor, put_signed, put_varint};

const LATE: u64 = 1;
const COLD: u64 = 2;
const ULID_BYTES: usize = 16;

pub(super) struct Directory {
    /// Its `bytes` are not in the file.
    pub(super) meta: BlockMeta,
    pub(super) is_cold: bool,
    pub(super) parts: Parts,
    pub(super) rows: Vec<RowPage>,
    pub(super) sets: Sets,
    pub(super) dictionary: Dictionary,
    /// By [`crate::kinds::Kind`].
    pub(super) with: [Option<PageRef>; 2],
    pub(super) streams: u32,
    pub(super) times: Vec<Entry>,
    /// By part.
    pub(super) values: Vec<Vec<Entry>>,
    /// By kind and part.
    pub(super) kinds: [Vec<Vec<Entry>>; 2],
    pub(super) exemplars: Vec<Entry>,
}

impl Directory {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.put_meta(out);
        put_signed(out, self.parts.start_ms);
        put_varint(out, self.parts.part_ms as u64);
        put_varint(out, u64::from(self.parts.count));
        labels::put_pages(&self.rows, out);
        self.sets.put(out);
        put_varint(out, u64::from(self.dictionary.pairs));
        list::put_pages(&self.dictionary.pages, out);
        self.dictionary.names.put(out, PageRef::default());
        let fst = self.dictionary.fst.as_fst().as_bytes();
        put_varint(out, fst.len() as u64);
        out.extend_from_slice(fst);
        for with in self.with {
            with.unwrap_or_default().put(out, PageRef::default());
        }
        put_varint(out, u64::from(self.streams));
        put_entries(&self.times, out);
        let tables = self.values.iter().chain(self.kinds.iter().flatten());
        tables.chain([&self.exemplars]).for_each(|table| put_entries(table, out));
    }

    fn put_meta(&self, out: &mut Vec<u8>) {
        let meta = &self.meta;
        put_signed(out, meta.start_ms);
        put_varint(out, meta.end_ms.wrapping_sub(meta.start_ms) as u64);
        put_signed(out, meta.min_ms);
        put_signed(out, meta.max_ms);
        put_varint(out, u64::from(meta.level));
        put_varint(out, if meta.is_late { LATE } else { 0 } | if self.is_cold { COLD } else { 0 });
        put_varint(out, meta.sources.len() as u64);
        meta.sources.iter().for_each(|source| out.extend_from_slice(&source.0.to_le_bytes()));
        put_varint(out, meta.parents.len() as u64);
        for parent in &meta.parents {
            out.extend_from_slice(&parent.ulid.0.to_le_bytes());
            put_signed(out, parent.start_ms);
            put_varint(out, parent.end_ms.wrapping_sub(parent.start_ms) as u64);
        }
        for count in [meta.series, meta.float_samples, meta.histogram_samples, meta.chunks] {
            put_varint(out, count);
        }
    }

    /// The directory of a block whose pages end at `end`; `None` is damage.
    pub(super) fn take(bytes: &[u8], ulid: Ulid, end: u64) -> Option<Directory> {
        let mut cursor = Cursor::new(bytes);
        let (meta, is_cold) = take_meta(&mut cursor, ulid)?;
        let parts = take_parts(&mut cursor)?;
        let rows = labels::take_pages(&mut cursor, end, u32::try_from(meta.series).ok()?)?;
        let sets = Sets::take(&mut cursor, end)?;
        let dictionary = take_dictionary(&mut cursor, end)?;
        let mut with = [None; 2];
        for with in &mut with {
            *with = match (cursor.varint()?, cursor.varint_u32()?) {
                (0, 0) => None,
                (offset, bytes) => Some(PageRef::checked(offset, bytes, end)?),
            };
        }
        let streams = cursor.varint_u32()?;
        let times = take_entries(&mut cursor, end)?;
        let mut by_part =
            || (0..parts.count).map(|_| take_entries(&mut cursor, end)).collect::<Option<Vec<_>>>();
        let (values, kinds) = (by_part()?, [by_part()?, by_part()?]);
        let exemplars = take_entries(&mut cursor, end)?;
        let whole = cursor.is_at_end();
        whole.then_some(Directory {
            meta,
            is_cold,
            parts,
            rows,
            sets,
            dictionary,
            with,
            streams,
            times,
            values,
            kinds,
            exemplars,
        })
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        let tables = self.values.iter().chain(self.kinds.iter().flatten());
        let entries: usize = tables.chain([&self.times, &self.exemplars]).map(Vec::capacity).sum();
        let lists = [&self.sets.pages, &self.sets.postings, &self.dictionary.pages];
        entries * size_of::<Entry>()
            + lists.iter().map(|list| list.capacity() * size_of::<list::ListPage>()).sum::<usize>()
            + self.rows.capacity() * size_of::<RowPage>()
            + self.dictionary.fst.as_fst().size()
            + self.meta.sources.capacity() * size_of::<Ulid>()
            + self.meta.parents.capacity() * size_of::<Parent>()
            + size_of::<Directory>()
    }
}

fn take_ulid(cursor: &mut Cursor<'_>) -> Option<Ulid> {
    cursor.take(ULID_BYTES)?.try_into().ok().map(|bytes| Ulid(u128::from_le_bytes(bytes)))
}

fn take_meta(cursor: &mut Cursor<'_>, ulid: Ulid) -> Option<(BlockMeta, bool)> {
    let start_ms = cursor.signed()?;
    let end_ms = start_ms.wrapping_add(cursor.varint()? as i64);
    let (min_ms, max_ms) = (cursor.signed()?, cursor.signed()?);
    let (level, flags) = (cursor.varint_u32()?, cursor.varint()?);
    let sources = (0..cursor.varint()?).map(|_| take_ulid(cursor)).collect::<Option<Vec<_>>>()?;
    let mut parents = Vec::new();
    for _ in 0..cursor.varint()? {
        let (ulid, start_ms) = (take_ulid(cursor)?, cursor.signed()?);
        parents.push(Parent { ulid, start_ms, end_ms: start_ms.wrapping_add(cursor.varint()? as i64) });
    }
    let meta = BlockMeta {
        ulid,
        format: Format::Native,
        start_ms,
        end_ms,
        min_ms,
        max_ms,
        level,
        sources,
        parents,
        is_late: flags & LATE != 0,
        series: cursor.varint()?,
        float_samples: cursor.varint()?,
        histogram_samples: cursor.varint()?,
        chunks: cursor.varint()?,
        bytes: 0,
    };
    (flags <= LATE | COLD).then_some((meta, flags & COLD != 0))
}

fn take_parts(cursor: &mut Cursor<'_>) -> Option<Parts> {
    let start_ms = cursor.signed()?;
    let part_ms = i64::try_from(cursor.varint()?).ok().filter(|&length| length > 0)?;
    let count = cursor.varint_u32().filter(|count| (1..=MAX_PARTS).contains(count))?;
    Some(Parts { start_ms, part_ms, count })
}

fn take_dictionary(cursor: &mut Cursor<'_>, end: u64) -> Option<Dictionary> {
    let pairs = cursor.varint_u32()?;
    let pages = list::take_pages(cursor, end)?;
    let names = PageRef::take(cursor, PageRef::default(), end)?;
    let length = usize::try_from(cursor.varint()?).ok()?;
    let fst = fst::Map::new(cursor.take(length)?.to_vec()).ok()?;
    // Its own checksum: what is not as it was built is never walked.
    fst.as_fst().verify().ok()?;
    Some(Dictionary { fst, pages, names, pairs })
}
