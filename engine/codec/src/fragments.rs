//! Payload of open columns: chains of 32-byte fragments in an arena that is freed whole.
//!
//! ```text
//! fragment   | next: u32 LE | 28 bytes of payload |
//! chain      tail -> … ; the tail's `next` is the chain's first fragment, so that one index finds both ends
//! ```
use crate::bits::{self, BitReader, BitSink};

/// Size of a fragment in bytes.
pub const FRAGMENT_BYTES: usize = 32;
const LINK_BYTES: usize = 4;
/// Payload of a fragment in bits.
const PAYLOAD_BITS: u32 = ((FRAGMENT_BYTES - LINK_BYTES) * 8) as u32;
/// Fragments in a page of 1 MiB. Miri's checks take time in proportion to the page on every access.
const PAGE_FRAGMENTS: usize = if cfg!(miri) { 16 } else { (1 << 20) / FRAGMENT_BYTES };

type Fragment = [u8; FRAGMENT_BYTES];

/// Fragments in pages of 1 MiB. Dropping it frees the payload of all its chains at once.
#[derive(Debug, Default)]
pub struct Arena {
    pages: Vec<Box<[Fragment]>>,
    fragments: u32,
}

impl Arena {
    /// An arena without pages.
    pub fn new() -> Arena {
        Arena::default()
    }

    /// Bytes of all fragments in use.
    pub fn used_bytes(&self) -> u64 {
        u64::from(self.fragments) * FRAGMENT_BYTES as u64
    }

    /// Bytes of all pages.
    pub fn allocated_bytes(&self) -> u64 {
        (self.pages.len() * PAGE_FRAGMENTS * FRAGMENT_BYTES) as u64
    }

    fn allocate(&mut self) -> u32 {
        let index = self.fragments;
        assert!(index < u32::MAX, "an arena holds at most 128 GiB: its owner must seal long before");
        if index as usize == self.pages.len() * PAGE_FRAGMENTS {
            self.pages.push(vec![[0; FRAGMENT_BYTES]; PAGE_FRAGMENTS].into_boxed_slice());
        }
        self.fragments += 1;
        index
    }

    fn fragment(&self, index: u32) -> &Fragment {
        let index = index as usize;
        &self.pages[index / PAGE_FRAGMENTS][index % PAGE_FRAGMENTS]
    }

    fn fragment_mut(&mut self, index: u32) -> &mut Fragment {
        let index = index as usize;
        &mut self.pages[index / PAGE_FRAGMENTS][index % PAGE_FRAGMENTS]
    }

    fn next_of(&self, index: u32) -> u32 {
        let fragment = self.fragment(index);
        u32::from_le_bytes([fragment[0], fragment[1], fragment[2], fragment[3]])
    }

    fn set_next(&mut self, index: u32, next: u32) {
        self.fragment_mut(index)[..LINK_BYTES].copy_from_slice(&next.to_le_bytes());
    }
}

/// The payload of one column: up to 512 MiB of bits in an [`Arena`]. Means something only with the arena it was
/// written to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chain {
    tail: u32,
    bits: u32,
}

const _: () = assert!(size_of::<Chain>() == 8);

impl Chain {
    /// An empty chain, which has no fragment.
    pub const EMPTY: Chain = Chain { tail: 0, bits: 0 };

    /// Length in bits.
    pub fn bits(self) -> u64 {
        u64::from(self.bits)
    }

    /// Length of the payload in bytes, the last one padded.
    pub fn payload_bytes(self) -> u64 {
        u64::from(self.bits.div_ceil(8))
    }

    /// Bytes of the fragments in use.
    pub fn fragment_bytes(self) -> u64 {
        u64::from(self.bits.div_ceil(PAYLOAD_BITS)) * FRAGMENT_BYTES as u64
    }

    /// Where bits are appended.
    pub fn sink<'a>(&'a mut self, arena: &'a mut Arena) -> ChainSink<'a> {
        ChainSink { chain: self, arena }
    }

    /// The payload's bytes, fragment by fragment, the last one with its padding.
    pub fn chunks(self, arena: &Arena) -> ChainChunks<'_> {
        let left = self.bits.div_ceil(PAYLOAD_BITS);
        let next = if left == 0 { 0 } else { arena.next_of(self.tail) };
        ChainChunks { arena, next, left }
    }

    /// Reads the payload.
    pub fn reader(self, arena: &Arena) -> BitReader<'_, ChainChunks<'_>> {
        BitReader::new(self.chunks(arena), self.bits())
    }

    /// Appends the payload, padded with zeros to whole bytes, to `out`.
    pub fn copy_to(self, arena: &Arena, out: &mut Vec<u8>) {
        let end = out.len() + self.payload_bytes() as usize;
        self.chunks(arena).for_each(|chunk| out.extend_from_slice(chunk));
        out.truncate(end);
    }
}

/// Appends bits to a chain.
#[derive(Debug)]
pub struct ChainSink<'a> {
    chain: &'a mut Chain,
    arena: &'a mut Arena,
}

impl ChainSink<'_> {
    fn grow(&mut self) {
        let new = self.arena.allocate();
        if self.chain.bits == 0 {
            self.arena.set_next(new, new);
        } else {
            let head = self.arena.next_of(self.chain.tail);
            self.arena.set_next(self.chain.tail, new);
            self.arena.set_next(new, head);
        }
        self.chain.tail = new;
    }
}

impl BitSink for ChainSink<'_> {
    fn write(&mut self, value: u64, count: u32) {
        let mut left = count;
        while left > 0 {
            let at = self.chain.bits % PAYLOAD_BITS;
            if at == 0 {
                self.grow();
            }
            let take = left.min(PAYLOAD_BITS - at);
            let part = value >> (left - take) & (u64::MAX >> (64 - take));
            let payload = &mut self.arena.fragment_mut(self.chain.tail)[LINK_BYTES..];
            bits::put(payload, at as usize, part, take);
            self.chain.bits += take;
            left -= take;
        }
    }
}

/// The bytes of a chain, fragment by fragment.
#[derive(Debug, Clone)]
pub struct ChainChunks<'a> {
    arena: &'a Arena,
    next: u32,
    left: u32,
}

impl<'a> Iterator for ChainChunks<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let payload = &self.arena.fragment(self.next)[LINK_BYTES..];
        self.next = self.arena.next_of(self.next);
        Some(payload)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::bits::BitWriter;

    #[test]
    fn an_empty_chain_costs_nothing() {
        let arena = Arena::new();
        assert_eq!((Chain::EMPTY.fragment_bytes(), arena.used_bytes(), arena.allocated_bytes()), (0, 0, 0));
        assert_eq!(Chain::EMPTY.chunks(&arena).count(), 0);
    }

    #[test]
    fn bytes_are_counted_exactly_across_pages() {
        let page = (PAGE_FRAGMENTS * FRAGMENT_BYTES) as u64;
        let mut arena = Arena::new();
        let mut chain = Chain::EMPTY;
        for _ in 0..PAGE_FRAGMENTS {
            for _ in 0..PAYLOAD_BITS / 56 {
                chain.sink(&mut arena).write(1, 56);
            }
        }
        assert_eq!((arena.used_bytes(), arena.allocated_bytes()), (page, page));
        chain.sink(&mut arena).write(1, 1);
        assert_eq!((arena.used_bytes(), arena.allocated_bytes()), (page + 32, 2 * page));
        assert_eq!(chain.fragment_bytes(), arena.used_bytes());
        assert_eq!(chain.payload_bytes(), 28 * PAGE_FRAGMENTS as u64 + 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

        #[test]
        fn chains_in_one_arena_hold_what_a_vector_holds(
            writes in prop::collection::vec((0..5_usize, any::<u64>(), 1..=64_u32), 0..200),
        ) {
            let mut arena = Arena::new();
            let mut chains = [Chain::EMPTY; 5];
            let mut model: [BitWriter; 5] = Default::default();
            for (series, value, count) in writes {
                let value = value >> (64 - count);
                chains[series].sink(&mut arena).write(value, count);
                model[series].write(value, count);
            }
            let used: u64 = chains.iter().map(|chain| chain.fragment_bytes()).sum();
            prop_assert_eq!(arena.used_bytes(), used);
            for (chain, model) in chains.into_iter().zip(model) {
                prop_assert_eq!(chain.bits(), model.bits());
                let mut copied = vec![7];
                chain.copy_to(&arena, &mut copied);
                prop_assert_eq!(&copied[1..], model.into_bytes());
                let mut reader = chain.reader(&arena);
                let mut bits = 0;
                while reader.read(1).is_some() {
                    bits += 1;
                }
                prop_assert_eq!(bits, chain.bits());
            }
        }
    }
}
