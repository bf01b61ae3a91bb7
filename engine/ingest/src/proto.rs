//! A reader of protobuf fields that copies nothing and never panics.

/// The bytes are not a protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// Offset from the start of the outermost message.
    pub(crate) offset: usize,
    /// What was expected there.
    pub(crate) what: &'static str,
}

/// Wire types; 3 and 4 (groups) are skipped as one field.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const LENGTH_DELIMITED: u8 = 2;
const GROUP_START: u8 = 3;
const GROUP_END: u8 = 4;
const FIXED32: u8 = 5;

/// Groups inside groups that are followed when skipping.
const MAX_GROUP_DEPTH: u32 = 16;

/// A field's tag; its value follows at the reader's position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    /// Field number.
    pub(crate) number: u32,
    wire_type: u8,
    /// Offset of the tag.
    pub(crate) start: usize,
}

impl Field {
    /// Whether the value is bytes: a message, a text or packed numbers.
    pub(crate) fn is_length_delimited(self) -> bool {
        self.wire_type == LENGTH_DELIMITED
    }

    #[inline]
    fn expect(self, wire_type: u8, what: &'static str) -> Result<(), Malformed> {
        if self.wire_type == wire_type { Ok(()) } else { Err(Malformed { offset: self.start, what }) }
    }
}

/// A position in a message that lies in `bytes` and ends before `end`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'b> {
    bytes: &'b [u8],
    position: usize,
}

impl<'b> Reader<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { bytes, position: 0 }
    }

    /// Offset from the start of the outermost message.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    fn malformed<T>(&self, what: &'static str) -> Result<T, Malformed> {
        Err(Malformed { offset: self.position, what })
    }

    /// The next tag; `None` at the end of the message.
    #[inline]
    pub(crate) fn field(&mut self) -> Result<Option<Field>, Malformed> {
        if self.position == self.bytes.len() {
            return Ok(None);
        }
        let start = self.position;
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 || number > u64::from(u32::MAX >> 3) {
            return Err(Malformed { offset: start, what: "a field number" });
        }
        Ok(Some(Field { number: number as u32, wire_type: tag as u8 & 7, start }))
    }

    /// Whether nothing is left.
    pub(crate) fn is_at_end(&self) -> bool {
        self.position == self.bytes.len()
    }

    /// A number without a tag.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        match self.bytes.get(self.position) {
            Some(&byte) if byte < 0x80 => {
                self.position += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for (index, &byte) in self.bytes[self.position..].iter().take(10).enumerate() {
            if index == 9 && byte > 1 {
                return self.malformed("a varint of at most 64 bits");
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.position += index + 1;
                return Ok(value);
            }
        }
        self.malformed("the end of a varint")
    }

    /// The value of a varint field.
    #[inline]
    pub(crate) fn varint_field(&mut self, field: Field) -> Result<u64, Malformed> {
        field.expect(VARINT, "a varint field")?;
        self.varint()
    }

    /// The value of a fixed 64-bit field.
    #[inline]
    pub(crate) fn fixed64(&mut self, field: Field) -> Result<u64, Malformed> {
        field.expect(FIXED64, "a 64-bit field")?;
        self.eight_bytes()
    }

    /// Eight bytes without a tag.
    #[inline]
    pub(crate) fn eight_bytes(&mut self) -> Result<u64, Malformed> {
        match self.bytes[self.position..].first_chunk::<8>() {
            Some(bytes) => {
                self.position += 8;
                Ok(u64::from_le_bytes(*bytes))
            }
            None => self.malformed("eight bytes"),
        }
    }

    /// A reader of an embedded message, with offsets of the outermost one.
    #[inline]
    pub(crate) fn message(&mut self, field: Field) -> Result<Reader<'b>, Malformed> {
        field.expect(LENGTH_DELIMITED, "a length-delimited field")?;
        let length = self.varint()?;
        let left = self.bytes.len() - self.position;
        if length > left as u64 {
            return self.malformed("as many bytes as the length says");
        }
        let end = self.position + length as usize;
        let inner = Reader { bytes: &self.bytes[..end], position: self.position };
        self.position = end;
        Ok(inner)
    }

    /// Everything that is left.
    pub(crate) fn rest(&self) -> &'b [u8] {
        &self.bytes[self.position..]
    }

    /// The value of a string or bytes field.
    #[inline]
    pub(crate) fn bytes(&mut self, field: Field) -> Result<&'b [u8], Malformed> {
        let inner = self.message(field)?;
        Ok(inner.rest())
    }

    /// Passes over a field's value.
    pub(crate) fn skip(&mut self, field: Field) -> Result<(), Malformed> {
        self.skip_nested(field, MAX_GROUP_DEPTH)
    }

    fn skip_nested(&mut self, field: Field, depth: u32) -> Result<(), Malformed> {
        match field.wire_type {
            VARINT => self.varint().map(drop),
            FIXED64 => self.advance(8),
            LENGTH_DELIMITED => self.message(field).map(drop),
            FIXED32 => self.advance(4),
            GROUP_START if depth > 0 => loop {
                match self.field()? {
                    Some(end) if end.wire_type == GROUP_END && end.number == field.number => return Ok(()),
                    Some(inner) => self.skip_nested(inner, depth - 1)?,
                    None => return self.malformed("the end of a group"),
                }
            },
            _ => Err(Malformed { offset: field.start, what: "a known wire type" }),
        }
    }

    fn advance(&mut self, bytes: usize) -> Result<(), Malformed> {
        if self.bytes.len() - self.position < bytes {
            return self.malformed("more bytes");
        }
        self.position += bytes;
        Ok(())
    }
}
