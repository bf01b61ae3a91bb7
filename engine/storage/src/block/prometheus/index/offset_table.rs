//! Where the postings of each label pair stand: of the values of a name one in [`SPARSE`] is kept in memory with its
//! place in the table on disk, the others are found there.
use super::SPARSE;
use super::source::{Pages, Scan, Source};
use crate::StorageError;
use crate::bytes::Cursor;

/// Names, ascending, that of all series (the empty one) among them.
pub(super) struct OffsetTable {
    names: Vec<Name>,
    pages: Pages,
}

struct Name {
    text: Box<str>,
    count: u32,
    values: Values,
}

enum Values {
    /// Values with the offsets of their entries, one in [`SPARSE`], and where the last entry ends.
    Sparse { marks: Vec<(Box<str>, u64)>, end: u64 },
    /// Offsets of the postings of every value: where the table is not sorted.
    All(Vec<(Box<str>, u64)>),
}

impl OffsetTable {
    pub(super) fn read(source: &Source, version: u8, offset: u64) -> Result<OffsetTable, StorageError> {
        if offset == 0 {
            return Ok(OffsetTable { names: Vec::new(), pages: Pages::default() });
        }
        let mut scan = source.section(offset)?;
        let count = scan.u32()?;
        let names =
            if version == 1 { read_unsorted(&mut scan, count) } else { read_sorted(&mut scan, count) }?;
        if scan.left() > 0 {
            return Err(scan.damaged("there are more bytes than entries"));
        }
        Ok(OffsetTable { names, pages: scan.verify()? })
    }

    /// All names of labels.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &*name.text).filter(|name| !name.is_empty())
    }

    fn name(&self, name: &str) -> Option<&Name> {
        let place = self.names.binary_search_by(|known| (*known.text).cmp(name)).ok()?;
        self.names.get(place)
    }

    /// Values of a name.
    pub(super) fn count(&self, name: &str) -> u32 {
        self.name(name).map_or(0, |name| name.count)
    }

    /// Offset of the postings of a pair.
    pub(super) fn find(&self, source: &Source, name: &str, value: &str) -> Result<Option<u64>, StorageError> {
        let Some(known) = self.name(name) else { return Ok(None) };
        match &known.values {
            Values::All(all) => {
                let place = all.binary_search_by(|(known, _)| (**known).cmp(value));
                Ok(place.ok().map(|place| all[place].1))
            }
            Values::Sparse { marks, end } => {
                let after = marks.partition_point(|(mark, _)| **mark <= *value);
                let Some(place) = after.checked_sub(1) else { return Ok(None) };
                let end = marks.get(after).map_or(*end, |&(_, offset)| offset);
                let mut found = None;
                self.visit_run(source, marks[place].1, end, |known, postings| {
                    if known == value {
                        found = Some(postings);
                    }
                    Ok(())
                })?;
                Ok(found)
            }
        }
    }

    /// Hands every value of a name, ascending, and the offset of its postings to `visit`.
    pub(super) fn visit(
        &self,
        source: &Source,
        name: &str,
        mut visit: impl FnMut(&str, u64) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let Some(known) = self.name(name) else { return Ok(()) };
        match &known.values {
            Values::All(all) => all.iter().try_for_each(|(value, postings)| visit(value, *postings)),
            Values::Sparse { marks, end } => {
                for (place, &(_, offset)) in marks.iter().enumerate() {
                    let end = marks.get(place + 1).map_or(*end, |&(_, offset)| offset);
                    self.visit_run(source, offset, end, &mut visit)?;
                }
                Ok(())
            }
        }
    }

    fn visit_run(
        &self,
        source: &Source,
        offset: u64,
        end: u64,
        mut visit: impl FnMut(&str, u64) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let bytes = self.pages.read(source, offset, end)?;
        let mut cursor = Cursor::new(&bytes);
        while !cursor.is_at_end() {
            let (value, postings) =
                entry(&mut cursor).ok_or_else(|| source.damaged(offset, "an entry is malformed"))?;
            visit(value, postings)?;
        }
        Ok(())
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        let of = |list: &Vec<(Box<str>, u64)>| -> usize {
            list.capacity() * size_of::<(Box<str>, u64)>()
                + list.iter().map(|(text, _)| text.len()).sum::<usize>()
        };
        let values = |name: &Name| match &name.values {
            Values::Sparse { marks, .. } => of(marks),
            Values::All(all) => of(all),
        };
        let names: usize = self.names.iter().map(|name| name.text.len() + values(name)).sum();
        names + self.names.capacity() * size_of::<Name>() + self.pages.bytes()
    }
}

/// Value and offset of the postings of an entry.
fn entry<'b>(cursor: &mut Cursor<'b>) -> Option<(&'b str, u64)> {
    let _keys = cursor.varint()?;
    let length = usize::try_from(cursor.varint()?).ok()?;
    cursor.take(length)?;
    let length = usize::try_from(cursor.varint()?).ok()?;
    let value = std::str::from_utf8(cursor.take(length)?).ok()?;
    Some((value, cursor.varint()?))
}

fn read_sorted(scan: &mut Scan<'_>, count: u32) -> Result<Vec<Name>, StorageError> {
    let mut names: Vec<Name> = Vec::new();
    let (mut name, mut value, mut last_value) = (String::new(), String::new(), String::new());
    for _ in 0..count {
        let start = scan.offset();
        read_entry(scan, &mut name, &mut value)?;
        let last = names.last();
        let is_next = last.is_none_or(|last| *last.text < *name);
        if !is_next && (last.is_some_and(|last| *last.text != *name) || last_value >= value) {
            return Err(scan.damaged("label pairs are not sorted"));
        }
        if is_next {
            let values = Values::Sparse { marks: Vec::new(), end: start };
            names.push(Name { text: name.as_str().into(), count: 0, values });
        }
        if let Some(Name { count, values: Values::Sparse { marks, end }, .. }) = names.last_mut() {
            if (*count as usize).is_multiple_of(SPARSE) {
                marks.push((value.as_str().into(), start));
            }
            *count += 1;
            *end = scan.offset();
        }
        std::mem::swap(&mut last_value, &mut value);
    }
    for name in &mut names {
        if let Values::Sparse { marks, .. } = &mut name.values {
            marks.shrink_to_fit();
        }
    }
    Ok(names)
}

fn read_unsorted(scan: &mut Scan<'_>, count: u32) -> Result<Vec<Name>, StorageError> {
    let (mut name, mut value) = (String::new(), String::new());
    let mut entries: Vec<(Box<str>, Box<str>, u64)> = Vec::new();
    for _ in 0..count {
        let postings = read_entry(scan, &mut name, &mut value)?;
        entries.push((name.as_str().into(), value.as_str().into(), postings));
    }
    entries.sort_unstable();
    let mut names: Vec<Name> = Vec::new();
    for (name, value, postings) in entries {
        if names.last().is_none_or(|last| last.text != name) {
            names.push(Name { text: name, count: 0, values: Values::All(Vec::new()) });
        }
        if let Some(Name { count, values: Values::All(all), .. }) = names.last_mut() {
            *count += 1;
            all.push((value, postings));
        }
    }
    Ok(names)
}

/// Puts the pair of the next entry into `name` and `value`; gives the offset of its postings.
fn read_entry(scan: &mut Scan<'_>, name: &mut String, value: &mut String) -> Result<u64, StorageError> {
    if scan.varint()? != 2 {
        return Err(scan.damaged("an entry is not of a name and a value"));
    }
    for text in [&mut *name, &mut *value] {
        text.clear();
        text.push_str(scan.text()?);
    }
    scan.varint()
}
