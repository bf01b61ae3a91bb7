//! One column of a page.
use super::bins::take_byte;
use super::stream::{Decoder, Encoder};
use super::view::{View, moved, ulps};
use super::{Column, MAX_CHAIN, MAX_ROWS};
use crate::Damaged;
use crate::column::{Kind, trailing_zeros};
use crate::varint::{self, unzigzag, zigzag};

const NO_VALUE: u8 = 0;
const ONE_VALUE: u8 = 1;
const MANY_VALUES: u8 = 2;
const MODE: u8 = 3;
const OWN_ROWS: u8 = 4;
const ABSENT: u8 = 8;
const EXCEPTIONS: u8 = 16;
const AGAINST_NEIGHBOUR: u8 = 32;
/// The order of the prediction stands in the two highest bits.
const ORDER: u32 = 6;
const MAX_ORDER: usize = 2;
/// One in so many values may be an exception to a view.
const EXCEPTION_ONE_IN: usize = 16;
/// How many integers are looked at to choose how a column is coded.
const SAMPLE: usize = 1024;

/// The values of one column, as [`Column`] has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// The bits of the value at each row, 0 where there is none.
    pub values: Vec<u64>,
    /// One bit for each row, lowest first, set where there is no value; nothing, when all rows have one.
    pub absent: Vec<u8>,
}

/// Values as integers, and what is left over.
#[derive(Default)]
struct Seen {
    integers: Vec<i64>,
    /// Those of the column before, at the same places.
    neighbours: Vec<i64>,
    /// How many floats a value is away, when the view is [`View::Near`].
    distances: Vec<i64>,
    /// Which values the view does not hold.
    exceptions: Vec<usize>,
}

/// How a column is coded.
#[derive(Clone, Copy)]
struct Choice {
    view: View,
    order: usize,
    against_neighbour: bool,
    bits: f32,
}

/// Writes columns one after the other; keeps its memory.
pub(super) struct ColumnEncoder {
    page_rows: usize,
    stream: Encoder,
    /// Values at rows that have one: of this column and of the one before.
    present: Vec<u64>,
    before: Vec<u64>,
    rows: usize,
    absent: Vec<u8>,
    /// How many columns before this one in a row need the one before.
    chain: usize,
    seen: Seen,
    residuals: Vec<i64>,
}

impl ColumnEncoder {
    pub(super) fn new(page_rows: usize) -> ColumnEncoder {
        ColumnEncoder {
            page_rows,
            stream: Encoder::default(),
            present: Vec::new(),
            before: Vec::new(),
            rows: usize::MAX,
            absent: Vec::new(),
            chain: 0,
            seen: Seen::default(),
            residuals: Vec::new(),
        }
    }

    /// Appends a column.
    pub(super) fn put(&mut self, column: Column<'_>, out: &mut Vec<u8>) {
        let has_absent = column.absent.iter().any(|&byte| byte != 0);
        let is_like_before = column.values.len() == self.rows && column.absent == self.absent;
        std::mem::swap(&mut self.present, &mut self.before);
        self.present.clear();
        self.present.extend(present(column));
        self.rows = column.values.len();
        self.absent.clear();
        self.absent.extend(column.absent);
        let choice = self.choose(is_like_before && self.chain < MAX_CHAIN);
        out.push(self.head(choice, has_absent));
        if self.rows != self.page_rows {
            varint::put(out, self.rows as u64);
        }
        if has_absent {
            put_absent(column, out);
        }
        let needs_neighbour = choice.is_some_and(|choice| choice.against_neighbour);
        self.chain = if needs_neighbour { self.chain + 1 } else { 0 };
        match choice {
            Some(choice) => self.put_values(choice, out),
            None => put_one_value(self.present.first().copied(), out),
        }
    }

    fn head(&self, choice: Option<Choice>, has_absent: bool) -> u8 {
        let flag = |flag, is_set| if is_set { flag } else { 0 };
        let flags = flag(OWN_ROWS, self.rows != self.page_rows) | flag(ABSENT, has_absent);
        let Some(choice) = choice else {
            return flags | if self.present.is_empty() { NO_VALUE } else { ONE_VALUE };
        };
        MANY_VALUES
            | flags
            | flag(EXCEPTIONS, !self.seen.exceptions.is_empty())
            | flag(AGAINST_NEIGHBOUR, choice.against_neighbour)
            | (choice.order as u8) << ORDER
    }

    /// The shortest way; `None` for a column of at most one distinct value. What is seen of it then stays in `seen`.
    fn choose(&mut self, may_need_neighbour: bool) -> Option<Choice> {
        self.seen.exceptions.clear();
        let (first, rest) = self.present.split_first()?;
        if rest.iter().all(|value| value == first) {
            return None;
        }
        let mut best: Option<Choice> = None;
        for view in views(&self.present) {
            if !self.see(view, may_need_neighbour) {
                continue;
            }
            let choice = self.choose_predictor(view, may_need_neighbour);
            if best.is_none_or(|best| choice.bits < best.bits) {
                best = Some(choice);
            }
        }
        let best = best?;
        self.see(best.view, may_need_neighbour);
        Some(best)
    }

    /// Sees the values as integers; false when there are too many exceptions.
    fn see(&mut self, view: View, with_neighbours: bool) -> bool {
        let seen = &mut self.seen;
        seen.integers.clear();
        seen.distances.clear();
        seen.exceptions.clear();
        for (index, &bits) in self.present.iter().enumerate() {
            let Some(integer) = view.integer(bits) else {
                seen.exceptions.push(index);
                continue;
            };
            seen.integers.push(integer);
            if let View::Near(_) = view {
                seen.distances.push(ulps(f64::from_bits(view.value(integer)), f64::from_bits(bits)));
            }
        }
        seen.neighbours.clear();
        if with_neighbours {
            see_neighbours(view, &self.before, &seen.exceptions, &mut seen.neighbours);
        }
        seen.exceptions.len() <= self.present.len() / EXCEPTION_ONE_IN && !seen.integers.is_empty()
    }

    fn choose_predictor(&mut self, view: View, may_need_neighbour: bool) -> Choice {
        let common = self.seen.exceptions.len() as f32 * 80.0 + self.distance_bits().0;
        let mut best = Choice { view, order: 0, against_neighbour: false, bits: f32::INFINITY };
        for against_neighbour in [false, true] {
            if against_neighbour && !may_need_neighbour {
                break;
            }
            for order in 0..=MAX_ORDER {
                self.seen.predict(order, against_neighbour, &mut self.residuals);
                let residuals = self.residuals.get(order..).unwrap_or_default();
                if residuals.is_empty() {
                    continue;
                }
                let bits = common + self.stream.bits(residuals, SAMPLE) + order as f32 * 24.0;
                if bits < best.bits {
                    best = Choice { view, order, against_neighbour, bits };
                }
            }
        }
        best
    }

    fn put_values(&mut self, choice: Choice, out: &mut Vec<u8>) {
        out.push(choice.view.code());
        if !self.seen.exceptions.is_empty() {
            put_exceptions(&self.seen.exceptions, &self.present, out);
        }
        self.seen.predict(choice.order, choice.against_neighbour, &mut self.residuals);
        let (firsts, residuals) = self.residuals.split_at(choice.order);
        for &first in firsts {
            varint::put(out, zigzag(first));
        }
        if self.seen.distances.is_empty() {
            return self.stream.put(residuals, out);
        }
        let mut bytes = Vec::new();
        self.stream.put(residuals, &mut bytes);
        varint::put(out, bytes.len() as u64);
        out.extend(bytes);
        let (_, order) = self.distance_bits();
        out.push(order as u8);
        differ(order, &mut self.seen.distances);
        self.stream.put(&self.seen.distances, out);
    }

    /// What distances take, as they are (0) or as differences (1), whichever is shorter: what rounding leaves may add up.
    fn distance_bits(&mut self) -> (f32, usize) {
        if self.seen.distances.is_empty() {
            return (0.0, 0);
        }
        let plain = self.stream.bits(&self.seen.distances, SAMPLE);
        self.residuals.clear();
        self.residuals.extend(&self.seen.distances);
        differ(1, &mut self.residuals);
        let differences = self.stream.bits(&self.residuals, SAMPLE);
        if differences < plain { (differences, 1) } else { (plain, 0) }
    }
}

/// The values at rows that have one.
fn present(column: Column<'_>) -> impl Iterator<Item = u64> {
    let has_value = |row: usize| !is_absent(column.absent, row);
    column.values.iter().enumerate().filter(move |(row, _)| has_value(*row)).map(|(_, &bits)| bits)
}

fn is_absent(absent: &[u8], row: usize) -> bool {
    absent.get(row / 8).is_some_and(|byte| byte >> (row % 8) & 1 != 0)
}

/// Ways that hold nearly all of these values.
fn views(present: &[u64]) -> impl Iterator<Item = View> + use<> {
    let exact = finest_units(present, |kind, value| kind.integer(value).is_some());
    let (near, binary) = if exact.is_some() {
        (None, None)
    } else {
        let holds = |kind, value: f64| View::Near(kind).integer(value.to_bits()).is_some();
        (finest_units(present, holds).map(View::Near), finest_power(present))
    };
    let shift = present.iter().map(|&bits| trailing_zeros(f64::from_bits(bits))).min().unwrap_or_default();
    let patterns = View::Exact(Kind::pattern(shift));
    [exact.map(View::Exact), near, binary, Some(patterns)].into_iter().flatten()
}

/// The finest of the units that single values need, when there are few values that are in none.
fn finest_units(present: &[u64], holds: impl Fn(Kind, f64) -> bool) -> Option<Kind> {
    let mut exceptions = present.len() / EXCEPTION_ONE_IN;
    let mut finest = Kind::units(0)?;
    for &bits in present {
        let value = f64::from_bits(bits);
        match (finest.code()..).map_while(Kind::units).find(|&kind| holds(kind, value)) {
            Some(kind) => finest = kind,
            None => exceptions = exceptions.checked_sub(1)?,
        }
    }
    Some(finest)
}

/// The smallest power of two that all but a few values are multiples of.
fn finest_power(present: &[u64]) -> Option<View> {
    let mut exceptions = present.len() / EXCEPTION_ONE_IN;
    let mut finest = 1;
    for &bits in present {
        match View::power_of(f64::from_bits(bits)) {
            Some(power) => finest = finest.max(power),
            None => exceptions = exceptions.checked_sub(1)?,
        }
    }
    Some(View::Binary(finest))
}

fn see_neighbours(view: View, before: &[u64], exceptions: &[usize], neighbours: &mut Vec<i64>) {
    let mut exceptions = exceptions.iter().peekable();
    let mut last = 0;
    for (index, &bits) in before.iter().enumerate() {
        last = view.integer(bits).unwrap_or(last);
        if exceptions.next_if(|&&exception| exception == index).is_none() {
            neighbours.push(last);
        }
    }
}

impl Seen {
    /// Puts the first integers, as many as the order, and then what is left of the others after prediction into
    /// `residuals`.
    fn predict(&self, order: usize, against_neighbour: bool, residuals: &mut Vec<i64>) {
        residuals.clear();
        if against_neighbour {
            let pairs = self.integers.iter().zip(&self.neighbours);
            residuals.extend(pairs.map(|(integer, neighbour)| integer.wrapping_sub(*neighbour)));
        } else {
            residuals.extend(&self.integers);
        }
        differ(order, residuals);
    }
}

/// Takes each integer off the next, so many times; as many first integers stay.
fn differ(order: usize, integers: &mut [i64]) {
    for done in 0..order {
        for index in (done + 1..integers.len()).rev() {
            integers[index] = integers[index].wrapping_sub(integers[index - 1]);
        }
    }
}

/// The inverse of [`differ`].
fn add_up(order: usize, integers: &mut [i64]) {
    for order in (0..order).rev() {
        let Some((first, rest)) = integers.get_mut(order..).and_then(<[i64]>::split_first_mut) else {
            continue;
        };
        let mut last = *first;
        for integer in rest {
            last = last.wrapping_add(*integer);
            *integer = last;
        }
    }
}

fn put_absent(column: Column<'_>, out: &mut Vec<u8>) {
    let rows: Vec<bool> = (0..column.values.len()).map(|row| is_absent(column.absent, row)).collect();
    let starts_absent = rows.first() == Some(&true);
    let runs = rows.chunk_by(|a, b| a == b).count() + usize::from(starts_absent);
    varint::put(out, runs as u64);
    if starts_absent {
        varint::put(out, 0);
    }
    for run in rows.chunk_by(|a, b| a == b) {
        varint::put(out, run.len() as u64);
    }
}

fn put_one_value(value: Option<u64>, out: &mut Vec<u8>) {
    if let Some(bits) = value {
        let (kind, integer) = Kind::shortest(f64::from_bits(bits));
        out.push(View::Exact(kind).code());
        varint::put(out, zigzag(integer));
    }
}

fn put_exceptions(exceptions: &[usize], present: &[u64], out: &mut Vec<u8>) {
    varint::put(out, exceptions.len() as u64);
    let mut next = 0;
    for &exception in exceptions {
        varint::put(out, (exception - next) as u64);
        out.extend(present[exception].to_le_bytes());
        next = exception + 1;
    }
}

/// Whether a column is coded against the one before.
pub(super) fn needs_neighbour(body: &[u8]) -> bool {
    body.first().is_some_and(|head| head & AGAINST_NEIGHBOUR != 0)
}

/// Reads columns one after the other; keeps its memory.
#[derive(Default)]
pub(super) struct ColumnDecoder {
    stream: Decoder,
    present: Vec<u64>,
    before: Vec<u64>,
    absent: Vec<u8>,
    rows: usize,
    seen: Seen,
    exception_bits: Vec<u64>,
}

impl ColumnDecoder {
    /// Reads a column that is all of `body`, and holds it.
    pub(super) fn take(&mut self, mut body: &[u8], page_rows: usize) -> Result<(), Damaged> {
        let head = take_byte(&mut body)?;
        std::mem::swap(&mut self.present, &mut self.before);
        self.present.clear();
        self.rows = if head & OWN_ROWS == 0 { page_rows } else { take_number(&mut body, MAX_ROWS)? };
        let absent = if head & ABSENT == 0 { self.clear_absent() } else { self.take_absent(&mut body)? };
        let values = self.rows - absent;
        match head & MODE {
            NO_VALUE if values == 0 => {}
            ONE_VALUE => {
                let value = take_one_value(&mut body)?;
                self.present.resize(values, value);
            }
            MANY_VALUES => return self.take_values(head, body, values),
            _ => return Err(Damaged::new("a column of values of an unknown mode")),
        }
        if body.is_empty() { Ok(()) } else { Err(Damaged::new("a column that goes on behind its end")) }
    }

    /// Copies the column that was read last.
    pub(super) fn spread(&self, to: &mut Values) {
        to.values.clear();
        to.absent.clear();
        if self.absent.is_empty() {
            return to.values.extend(&self.present);
        }
        to.absent.extend(&self.absent);
        let mut present = self.present.iter();
        let values = (0..self.rows).map(|row| {
            if is_absent(&self.absent, row) { 0 } else { present.next().copied().unwrap_or_default() }
        });
        to.values.extend(values);
    }

    fn clear_absent(&mut self) -> usize {
        self.absent.clear();
        0
    }

    fn take_absent(&mut self, body: &mut &[u8]) -> Result<usize, Damaged> {
        self.absent.clear();
        self.absent.resize(self.rows.div_ceil(8), 0);
        let runs = take_number(body, self.rows + 1)?;
        let (mut row, mut absent) = (0, 0);
        for run in 0..runs {
            let length = take_number(body, self.rows - row)?;
            if run % 2 == 1 {
                (row..row + length).for_each(|row| self.absent[row / 8] |= 1 << (row % 8));
                absent += length;
            }
            row += length;
        }
        if row == self.rows { Ok(absent) } else { Err(Damaged::new("runs of rows that are not all rows")) }
    }

    fn take_values(&mut self, head: u8, mut body: &[u8], values: usize) -> Result<(), Damaged> {
        let view = take_view(&mut body)?;
        let seen = &mut self.seen;
        seen.exceptions.clear();
        self.exception_bits.clear();
        if head & EXCEPTIONS != 0 {
            take_exceptions(&mut body, values, &mut seen.exceptions, &mut self.exception_bits)?;
        }
        let count = values - seen.exceptions.len();
        let order = usize::from(head >> ORDER);
        if order > MAX_ORDER || count <= order {
            return Err(Damaged::new("a column of too few values for its order"));
        }
        seen.integers.clear();
        for _ in 0..order {
            seen.integers.push(unzigzag(varint::take(&mut body)?));
        }
        seen.neighbours.clear();
        if head & AGAINST_NEIGHBOUR != 0 {
            if self.before.len() != values {
                return Err(Damaged::new("a column against one of other rows"));
            }
            see_neighbours(view, &self.before, &seen.exceptions, &mut seen.neighbours);
        }
        let (residuals, distances) = match view {
            View::Near(_) => {
                let most = body.len();
                let length = take_number(&mut body, most)?;
                body.split_at_checked(length).ok_or(Damaged::new("a stream that is cut off"))?
            }
            _ => (body, &[][..]),
        };
        self.stream.take(residuals, count - order, &mut seen.integers)?;
        add_up(order, &mut seen.integers);
        for (integer, neighbour) in seen.integers.iter_mut().zip(&seen.neighbours) {
            *integer = integer.wrapping_add(*neighbour);
        }
        view.values(&seen.integers, &mut self.present);
        if let View::Near(_) = view {
            seen.distances.clear();
            let mut distances = distances;
            let order = usize::from(take_byte(&mut distances)? & 1);
            self.stream.take(distances, count, &mut seen.distances)?;
            add_up(order, &mut seen.distances);
            for (value, &distance) in self.present.iter_mut().zip(&seen.distances) {
                *value = moved(*value, distance);
            }
        }
        insert_exceptions(&seen.exceptions, &self.exception_bits, &mut self.present);
        Ok(())
    }
}

fn take_number(body: &mut &[u8], most: usize) -> Result<usize, Damaged> {
    match varint::take(body)? {
        number if number <= most as u64 => Ok(number as usize),
        _ => Err(Damaged::new("a number that is larger than it may be")),
    }
}

fn take_view(body: &mut &[u8]) -> Result<View, Damaged> {
    View::of_code(take_byte(body)?).ok_or(Damaged::new("an unknown view of values"))
}

fn take_one_value(body: &mut &[u8]) -> Result<u64, Damaged> {
    let view = take_view(body)?;
    Ok(view.value(unzigzag(varint::take(body)?)))
}

fn take_exceptions(
    body: &mut &[u8],
    values: usize,
    exceptions: &mut Vec<usize>,
    bits: &mut Vec<u64>,
) -> Result<(), Damaged> {
    let mut next = 0;
    for _ in 0..take_number(body, values)? {
        let exception = next + take_number(body, values)?;
        let (value, rest) = body.split_first_chunk().ok_or(Damaged::new("exceptions that are cut off"))?;
        if exception >= values {
            return Err(Damaged::new("an exception behind the last value"));
        }
        *body = rest;
        exceptions.push(exception);
        bits.push(u64::from_le_bytes(*value));
        next = exception + 1;
    }
    Ok(())
}

/// Puts exceptions in their places among the others.
fn insert_exceptions(exceptions: &[usize], bits: &[u64], present: &mut Vec<u64>) {
    let mut from = present.len();
    present.resize(from + exceptions.len(), 0);
    let mut to = present.len();
    for (&exception, &bits) in exceptions.iter().zip(bits).rev() {
        let others = to - exception - 1;
        present.copy_within(from - others..from, exception + 1);
        from -= others;
        present[exception] = bits;
        to = exception;
    }
}
