//! Vectors that grow by an eighth instead of doubling: their slack is memory that every store pays for.

/// Makes room for `more` items, leaving at most about an eighth of the vector unused.
pub(super) fn reserve_tight<T>(items: &mut Vec<T>, more: usize) {
    if items.capacity() - items.len() < more {
        items.reserve_exact(more.max(items.len() / 8).max(16));
    }
}

/// Pushes one item after [`reserve_tight`].
pub(super) fn push_tight<T>(items: &mut Vec<T>, item: T) {
    reserve_tight(items, 1);
    items.push(item);
}

/// Gives back what is unused beyond an eighth.
pub(super) fn fit<T>(items: &mut Vec<T>) {
    items.shrink_to(items.len() + items.len() / 8 + 16);
}

/// Bytes that a vector holds on to.
pub(super) fn bytes_of<T>(items: &Vec<T>) -> usize {
    items.capacity() * size_of::<T>()
}

/// Appends `value` in groups of seven bits, the lowest first, the top bit set on all bytes but the last.
pub(super) fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Takes one varint off the front; `None` when it is cut short or longer than 64 bits.
pub(super) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if shift == 63 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
