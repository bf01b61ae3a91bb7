//! Reads columns back, cell by cell.
use super::{Cell, ColumnState, Kind, LONGER_BY, STALE_NAN_BITS};
use crate::Damaged;
use crate::bits::BitReader;
use crate::varint::unzigzag;

const CUT_OFF: Damaged = Damaged::new("a symbol that is cut off");

/// What the reader is in the middle of.
#[derive(Debug, Clone, Copy)]
enum Pending {
    Nothing,
    /// This many values as predicted.
    Predicted(u32),
    /// This many absent cells.
    Absent(u32),
    /// One value, already in the state.
    Explicit,
    Stale,
}

/// Reads the cells of a column from its payload.
#[derive(Debug, Clone)]
pub struct ColumnReader<'b, C> {
    state: ColumnState,
    bits: BitReader<'b, C>,
    pending: Pending,
    rows: u32,
}

impl<'b, C: Iterator<Item = &'b [u8]>> ColumnReader<'b, C> {
    /// Reads `rows` rows; `constant` is [`ColumnState::constant`] of an open column, `None` for a finished one.
    pub fn new(constant: Option<f64>, bits: BitReader<'b, C>, rows: u32) -> Self {
        let mut state = ColumnState::EMPTY;
        if let Some(value) = constant {
            (state.kind, state.last) = Kind::shortest(value);
        }
        ColumnReader { state, bits, pending: Pending::Nothing, rows }
    }

    /// Rows that are still to come.
    pub fn rows_left(&self) -> u32 {
        self.rows
    }

    /// The next value, or the next run of absent cells; `None` after the last row.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "the end and an error are told apart better this way round"
    )]
    pub fn next(&mut self) -> Result<Option<Cell>, Damaged> {
        if self.rows == 0 {
            return Ok(None);
        }
        if matches!(self.pending, Pending::Nothing) {
            self.pending = self.read_symbol()?;
        }
        let (taken, left, cell) = match self.pending {
            Pending::Predicted(run) => {
                self.state.advance_predicted(1);
                (1, run_or_nothing(run - 1), Cell::Value(self.value()))
            }
            Pending::Absent(run) => {
                let cells = run.min(self.rows);
                (cells, Pending::Nothing, Cell::Absent(cells))
            }
            Pending::Explicit => (1, Pending::Nothing, Cell::Value(self.value())),
            _ => (1, Pending::Nothing, Cell::Value(f64::from_bits(STALE_NAN_BITS))),
        };
        self.pending = left;
        self.rows -= taken;
        Ok(Some(cell))
    }

    /// Passes over `rows` rows, or to the end when fewer are left; runs are passed over at once.
    pub fn skip(&mut self, rows: u32) -> Result<(), Damaged> {
        let mut left = rows.min(self.rows);
        self.rows -= left;
        while left > 0 {
            if matches!(self.pending, Pending::Nothing) {
                self.pending = self.read_symbol()?;
            }
            match self.pending {
                Pending::Predicted(run) => {
                    let skipped = run.min(left);
                    self.state.advance_predicted(skipped);
                    self.pending = run_or_nothing(run - skipped);
                    left -= skipped;
                }
                Pending::Absent(run) => {
                    let skipped = run.min(left);
                    self.pending =
                        if run > skipped { Pending::Absent(run - skipped) } else { Pending::Nothing };
                    left -= skipped;
                }
                _ => {
                    self.pending = Pending::Nothing;
                    left -= 1;
                }
            }
        }
        Ok(())
    }

    fn value(&self) -> f64 {
        self.state.kind.value(self.state.last)
    }

    /// Reads up to the next symbol that stands for cells. Each turn takes bits or ends.
    fn read_symbol(&mut self) -> Result<Pending, Damaged> {
        loop {
            let Some(ones) = self.bits.ones(4) else {
                if !self.bits.is_at_end() {
                    return Err(CUT_OFF);
                }
                return Ok(self.to_the_end());
            };
            match ones {
                0 => return self.read_run().map(Pending::Predicted),
                4 => match self.bits.read(2).ok_or(CUT_OFF)? {
                    0 => return Ok(Pending::Absent(read_gamma(&mut self.bits)?)),
                    1 => return Ok(Pending::Stale),
                    2 => {
                        let unit = self.bits.read(4).ok_or(CUT_OFF)? as u8;
                        let kind = Kind::units(unit).ok_or(Damaged::new("an unknown unit"))?;
                        if self.change_kind(kind)? {
                            return Ok(Pending::Explicit);
                        }
                    }
                    _ => {
                        let shift = self.bits.read(6).ok_or(CUT_OFF)? as u8;
                        if self.change_kind(Kind::pattern(shift))? {
                            return Ok(Pending::Explicit);
                        }
                    }
                },
                length => {
                    self.demand_value()?;
                    read_integer(&mut self.state, &mut self.bits, length)?;
                    return Ok(Pending::Explicit);
                }
            }
        }
    }

    /// Goes over to a kind; true when the column's first value came with it.
    fn change_kind(&mut self, kind: Kind) -> Result<bool, Damaged> {
        if self.state.kind != Kind::NONE {
            let carried = self.state.carry_over(kind);
            return if carried {
                Ok(false)
            } else {
                Err(Damaged::new("a kind that cannot hold the last value"))
            };
        }
        let len = read_gamma(&mut self.bits)? - 1;
        if len > 64 {
            return Err(Damaged::new("a first value of more than 64 bits"));
        }
        self.state.kind = kind;
        self.state.last = unzigzag(self.bits.read(len).ok_or(CUT_OFF)?);
        Ok(true)
    }

    fn read_run(&mut self) -> Result<u32, Damaged> {
        self.demand_value()?;
        read_gamma(&mut self.bits)
    }

    fn demand_value(&self) -> Result<(), Damaged> {
        if self.state.kind == Kind::NONE {
            Err(Damaged::new("a run or step before the first value"))
        } else {
            Ok(())
        }
    }

    fn to_the_end(&self) -> Pending {
        if self.state.kind == Kind::NONE { Pending::Absent(u32::MAX) } else { Pending::Predicted(u32::MAX) }
    }
}

fn run_or_nothing(run: u32) -> Pending {
    if run > 0 { Pending::Predicted(run) } else { Pending::Nothing }
}

/// A positive number in gamma code; "to the end" when only zeros are left.
fn read_gamma<'b, C: Iterator<Item = &'b [u8]>>(bits: &mut BitReader<'b, C>) -> Result<u32, Damaged> {
    let Some(zeros) = bits.zeros() else { return Ok(u32::MAX) };
    if zeros > 31 {
        return Err(Damaged::new("a run of more than 32 bits"));
    }
    let rest = bits.read(zeros as u32).ok_or(CUT_OFF)?;
    Ok((1_u64 << zeros | rest) as u32)
}

/// Reads a residual behind a prefix of one to three ones.
fn read_integer<'b, C: Iterator<Item = &'b [u8]>>(
    state: &mut ColumnState,
    bits: &mut BitReader<'b, C>,
    ones: u32,
) -> Result<(), Damaged> {
    let width = state.expected_width();
    let len = match ones {
        1 => width,
        2 if width + LONGER_BY <= 64 => width + LONGER_BY,
        2 => return Err(Damaged::new("a residual of more than 64 bits")),
        _ => bits.read(6).ok_or(CUT_OFF)? as u32 + 1,
    };
    let residual = unzigzag(bits.read(len).ok_or(CUT_OFF)?);
    state.observe(state.predicted().wrapping_add(residual));
    Ok(())
}

/// Reads a column of integers without kinds, behind its first; it goes on for ever.
#[derive(Debug, Clone)]
pub(crate) struct IntegerReader<'b, C> {
    state: ColumnState,
    bits: BitReader<'b, C>,
    run: u32,
}

impl<'b, C: Iterator<Item = &'b [u8]>> IntegerReader<'b, C> {
    pub(crate) fn new(first: i64, bits: BitReader<'b, C>) -> Self {
        IntegerReader { state: ColumnState::integers(first), bits, run: 0 }
    }

    pub(crate) fn next(&mut self) -> Result<i64, Damaged> {
        if self.run == 0 {
            match self.bits.ones(4) {
                None if self.bits.is_at_end() => self.run = u32::MAX,
                Some(0) => self.run = read_gamma(&mut self.bits)?,
                Some(ones @ 1..=3) => {
                    read_integer(&mut self.state, &mut self.bits, ones)?;
                    return Ok(self.state.last);
                }
                _ => return Err(Damaged::new("no symbol of a timestamp stream")),
            }
        }
        self.run -= 1;
        self.state.advance_predicted(1);
        Ok(self.state.last)
    }
}
