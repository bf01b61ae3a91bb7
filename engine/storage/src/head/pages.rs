//! A sparse array over series, in pages that exist only where something was written.
use super::PAGE_SERIES;

pub(super) struct Pages<T> {
    pages: Vec<Option<Box<[T]>>>,
}

impl<T> Default for Pages<T> {
    fn default() -> Pages<T> {
        Pages { pages: Vec::new() }
    }
}

impl<T: Default> Pages<T> {
    pub(super) fn get(&self, local: u32) -> Option<&T> {
        let page = self.pages.get((local / PAGE_SERIES) as usize)?.as_ref()?;
        Some(&page[(local % PAGE_SERIES) as usize])
    }

    #[inline]
    pub(super) fn get_mut(&mut self, local: u32) -> &mut T {
        let number = (local / PAGE_SERIES) as usize;
        if self.pages.len() <= number {
            self.pages.resize_with(number + 1, || None);
        }
        let page = self.pages[number].get_or_insert_with(|| (0..PAGE_SERIES).map(|_| T::default()).collect());
        &mut page[(local % PAGE_SERIES) as usize]
    }

    /// Pages, those that do not exist included.
    pub(super) fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Every place of the pages that exist.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let pages = self.pages.iter().enumerate().filter_map(|(number, page)| Some((number, page.as_ref()?)));
        pages.flat_map(|(number, page)| (number as u32 * PAGE_SERIES..).zip(page.iter()))
    }

    /// Calls `keep` for every place of the pages that exist; a page of which nothing is kept goes.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(u32, &mut T) -> bool) {
        for (number, slot) in self.pages.iter_mut().enumerate() {
            let Some(page) = slot else { continue };
            let mut kept = false;
            for (local, item) in (number as u32 * PAGE_SERIES..).zip(page.iter_mut()) {
                kept |= keep(local, item);
            }
            if !kept {
                *slot = None;
            }
        }
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> u64 {
        (self.pages.iter().flatten().count() * PAGE_SERIES as usize * size_of::<T>()) as u64
    }
}
