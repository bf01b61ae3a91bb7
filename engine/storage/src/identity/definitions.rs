//! What the series are called, for the log and for files: records that each stand for themselves.
//!
//! ```text
//! version    u8         1
//! symbols    varint n, then n × { varint length, UTF-8 bytes }     each text once
//! rows       varint n, then n × { varint pairs, pairs × { varint name, varint value } }
//!                                 indices of symbols, names strictly ascending by index
//! series     varint n, then n × { zigzag id − (previous id + 1), zigzag order − (previous order + 1),
//!                                 varint group, varint residual }  indices of rows; "previous" is −1 at first
//! ```
//! Varints have 7 bits a byte, the lowest first, and at most 64 bits. The record ends with the last series. Framing
//! and checksums are the log's and the file's.
use hashbrown::{HashMap, HashSet};

use super::tables::{MAX_SERIES, Tables};
use super::tight::{push_varint, take_varint};
use super::{DefinitionError, MAX_LABEL_BYTES, MAX_LABELS};

const VERSION: u8 = 1;
/// Orders stay below this, so that arithmetic on them cannot overflow.
const MAX_ORDER: u64 = 1 << 62;

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Appends a record that defines `series` (id and order) to `out`.
pub(super) fn encode(tables: &Tables, series: &[(u32, u64)], out: &mut Vec<u8>) {
    let mut dictionary = Dictionary { tables, symbols: HashMap::new(), rows: HashMap::new() };
    let (mut texts, mut rows, mut body) = (Vec::new(), Vec::new(), Vec::new());
    let (mut next_id, mut next_order, mut count) = (0_i64, 0_i64, 0);
    for &(id, order) in series {
        // A series that was removed in the meantime needs no name any more.
        let Some(sides) = tables.series.get(id).filter(|_| tables.series.orders.get(id) == order) else {
            continue;
        };
        count += 1;
        let sides = sides.map(|row| dictionary.row(row, &mut rows, &mut texts));
        push_varint(&mut body, zigzag(i64::from(id) - next_id));
        push_varint(&mut body, zigzag(order as i64 - next_order));
        for row in sides {
            push_varint(&mut body, u64::from(row));
        }
        (next_id, next_order) = (i64::from(id) + 1, order as i64 + 1);
    }
    out.push(VERSION);
    push_varint(out, dictionary.symbols.len() as u64);
    out.append(&mut texts);
    push_varint(out, dictionary.rows.len() as u64);
    out.append(&mut rows);
    push_varint(out, count);
    out.append(&mut body);
}

/// Indices in the record of symbols and rows of the tables.
struct Dictionary<'t> {
    tables: &'t Tables,
    symbols: HashMap<u32, u32>,
    rows: HashMap<u32, u32>,
}

impl Dictionary<'_> {
    fn symbol(&mut self, symbol: u32, texts: &mut Vec<u8>) -> u32 {
        let next = self.symbols.len() as u32;
        *self.symbols.entry(symbol).or_insert_with(|| {
            let text = self.tables.symbols.get(symbol);
            push_varint(texts, text.len() as u64);
            texts.extend_from_slice(text.as_bytes());
            next
        })
    }

    fn row(&mut self, row: u32, rows: &mut Vec<u8>, texts: &mut Vec<u8>) -> u32 {
        if let Some(&known) = self.rows.get(&row) {
            return known;
        }
        let tables = self.tables;
        let mut pairs: Vec<(u32, u32)> = tables
            .rows
            .pairs(row)
            .map(|pair| tables.pairs.get(pair))
            .map(|(name, value)| (self.symbol(name, texts), self.symbol(value, texts)))
            .collect();
        pairs.sort_unstable();
        push_varint(rows, pairs.len() as u64);
        for (name, value) in pairs {
            push_varint(rows, u64::from(name));
            push_varint(rows, u64::from(value));
        }
        let index = self.rows.len() as u32;
        self.rows.insert(row, index);
        index
    }
}

/// One series of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Definition {
    pub(super) id: u32,
    pub(super) order: u64,
    /// Group and residual, indices into [`Record::rows`].
    pub(super) rows: [u32; 2],
}

/// What is looked at of a row for each of its series.
#[derive(Debug)]
struct Sketch {
    text_bytes: usize,
    /// A bit for each name, by its index; names may share one.
    names: u64,
}

/// A record that holds together.
#[derive(Debug, Default)]
pub(super) struct Record<'b> {
    symbols: Vec<&'b str>,
    /// Symbols of names and values of all rows, and where each row ends.
    pairs: Vec<(u32, u32)>,
    row_ends: Vec<u32>,
    sketches: Vec<Sketch>,
    pub(super) series: Vec<Definition>,
}

impl<'b> Record<'b> {
    /// Checks and takes apart a record.
    pub(super) fn decode(bytes: &'b [u8]) -> Result<Record<'b>, DefinitionError> {
        let mut reader = Reader { whole: bytes.len(), rest: bytes };
        let version = reader.byte("a version")?;
        if version != VERSION {
            return Err(DefinitionError::Version(version));
        }
        let mut record = Record::default();
        record.read_symbols(&mut reader)?;
        record.read_rows(&mut reader)?;
        record.read_series(&mut reader)?;
        if !reader.rest.is_empty() {
            return Err(reader.corrupt("bytes after the last series"));
        }
        Ok(record)
    }

    fn read_symbols(&mut self, reader: &mut Reader<'b>) -> Result<(), DefinitionError> {
        let count = reader.count(1, "a number of symbols")?;
        let mut seen = HashSet::with_capacity(count);
        for _ in 0..count {
            let length = reader.count(1, "a length of a symbol")?;
            let (text, rest) = reader.rest.split_at(length);
            let text = std::str::from_utf8(text).map_err(|_| reader.corrupt("a symbol that is not UTF-8"))?;
            if !seen.insert(text) {
                return Err(reader.corrupt("a symbol that is there twice"));
            }
            reader.rest = rest;
            self.symbols.push(text);
        }
        Ok(())
    }

    fn read_rows(&mut self, reader: &mut Reader<'_>) -> Result<(), DefinitionError> {
        for _ in 0..reader.count(1, "a number of rows")? {
            let count = reader.count(2, "a number of pairs")?;
            let first = self.pairs.len();
            for _ in 0..count {
                let name = reader.index(self.symbols.len(), "the index of a symbol")?;
                let value = reader.index(self.symbols.len(), "the index of a symbol")?;
                if self.pairs[first..].last().is_some_and(|&(last, _)| last >= name) {
                    return Err(reader.corrupt("names out of order in a row"));
                }
                if self.symbols[name as usize].is_empty() || self.symbols[value as usize].is_empty() {
                    return Err(reader.corrupt("a label without a name or a value"));
                }
                self.pairs.push((name, value));
            }
            let mut sketch = Sketch { text_bytes: 0, names: 0 };
            for &(name, value) in &self.pairs[first..] {
                sketch.text_bytes += self.symbols[name as usize].len() + self.symbols[value as usize].len();
                sketch.names |= 1 << (name % 64);
            }
            self.sketches.push(sketch);
            self.row_ends.push(self.pairs.len() as u32);
        }
        Ok(())
    }

    fn read_series(&mut self, reader: &mut Reader<'_>) -> Result<(), DefinitionError> {
        let count = reader.count(4, "a number of series")?;
        self.series.reserve(count);
        let (mut next_id, mut next_order) = (0_i64, 0_i64);
        for _ in 0..count {
            let id = next_id.wrapping_add(unzigzag(reader.varint("an id")?));
            let order = next_order.wrapping_add(unzigzag(reader.varint("an order")?));
            if !(0..i64::from(MAX_SERIES)).contains(&id) || !(0..MAX_ORDER as i64).contains(&order) {
                return Err(reader.corrupt("an id or an order out of range"));
            }
            (next_id, next_order) = (id + 1, order + 1);
            let group = reader.index(self.row_count(), "the index of a row")?;
            let residual = reader.index(self.row_count(), "the index of a row")?;
            self.check_labels([group, residual]).map_err(|what| reader.corrupt(what))?;
            let definition = Definition { id: id as u32, order: order as u64, rows: [group, residual] };
            self.series.push(definition);
        }
        self.check_ids().map_err(|what| reader.corrupt(what))
    }

    fn check_ids(&self) -> Result<(), &'static str> {
        if self.series.is_sorted_by(|a, b| a.id < b.id) {
            return Ok(());
        }
        let mut ids = HashSet::with_capacity(self.series.len());
        let unique = self.series.iter().all(|definition| ids.insert(definition.id));
        unique.then_some(()).ok_or("an id that is there twice")
    }

    fn check_labels(&self, rows: [u32; 2]) -> Result<(), &'static str> {
        let [group, residual] = rows.map(|row| self.pairs_of(row));
        let labels = group.len() + residual.len();
        if labels == 0 || labels > MAX_LABELS {
            return Err("a series without labels or with too many");
        }
        let [group_sketch, residual_sketch] = rows.map(|row| &self.sketches[row as usize]);
        if group_sketch.names & residual_sketch.names != 0 && have_common_name(group, residual) {
            return Err("a label in both group and residual");
        }
        if group_sketch.text_bytes + residual_sketch.text_bytes > MAX_LABEL_BYTES {
            return Err("a series with too much text");
        }
        Ok(())
    }

    fn pairs_of(&self, row: u32) -> &[(u32, u32)] {
        let row = row as usize;
        let start = row.checked_sub(1).map_or(0, |before| self.row_ends[before]);
        &self.pairs[start as usize..self.row_ends[row] as usize]
    }

    /// Number of rows.
    pub(super) fn row_count(&self) -> usize {
        self.row_ends.len()
    }

    /// Names and values of a row.
    pub(super) fn row(&self, row: u32) -> impl Iterator<Item = (&'b str, &'b str)> {
        let text = |&(name, value): &(u32, u32)| (self.symbols[name as usize], self.symbols[value as usize]);
        self.pairs_of(row).iter().map(text)
    }

    /// Bytes of text and number of pairs, an upper bound of what the record adds to the tables.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.symbols.iter().map(|text| text.len()).sum(), self.pairs.len())
    }
}

/// Whether two rows, each with its names ascending, name the same label.
fn have_common_name(group: &[(u32, u32)], residual: &[(u32, u32)]) -> bool {
    let mut others = residual.iter().map(|&(name, _)| name).peekable();
    group.iter().any(|&(name, _)| {
        while others.next_if(|&other| other < name).is_some() {}
        others.peek() == Some(&name)
    })
}

struct Reader<'b> {
    whole: usize,
    rest: &'b [u8],
}

impl Reader<'_> {
    fn corrupt(&self, what: &'static str) -> DefinitionError {
        DefinitionError::Corrupt { offset: (self.whole - self.rest.len()) as u64, what }
    }

    fn byte(&mut self, what: &'static str) -> Result<u8, DefinitionError> {
        let (&byte, rest) = self.rest.split_first().ok_or(self.corrupt(what))?;
        self.rest = rest;
        Ok(byte)
    }

    fn varint(&mut self, what: &'static str) -> Result<u64, DefinitionError> {
        let failed = self.corrupt(what);
        take_varint(&mut self.rest).ok_or(failed)
    }

    /// A number of things that take at least `least` bytes each: cannot be more than what is left has room for.
    fn count(&mut self, least: usize, what: &'static str) -> Result<usize, DefinitionError> {
        let count = self.varint(what)?;
        let fits = count <= (self.rest.len() / least) as u64;
        fits.then_some(count as usize).ok_or(self.corrupt(what))
    }

    fn index(&mut self, bound: usize, what: &'static str) -> Result<u32, DefinitionError> {
        let index = self.varint(what)?;
        (index < bound as u64).then_some(index as u32).ok_or(self.corrupt(what))
    }
}
