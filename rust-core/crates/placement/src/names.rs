//! From names to places in an array, by a hash table that is never iterated.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

/// Finds the place of a key. The keys themselves stay where they are; `key_at` reads them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlaceByKey {
    table: HashTable<u32>,
}

fn hash(key: impl Hash) -> u64 {
    FxBuildHasher.hash_one(key)
}

impl PlaceByKey {
    pub(crate) fn find<K: Hash + Eq + Copy>(&self, key: K, key_at: impl Fn(u32) -> K) -> Option<u32> {
        let hashed = hash(key);
        self.table.find(hashed, |place| key_at(*place) == key).copied()
    }

    /// Adds a key that is not there yet.
    pub(crate) fn insert<K: Hash + Eq>(&mut self, place: u32, key_at: impl Fn(u32) -> K) {
        self.table.insert_unique(hash(key_at(place)), place, |other| hash(key_at(*other)));
    }

    pub(crate) fn remove<K: Hash + Eq>(&mut self, place: u32, key_at: impl Fn(u32) -> K) {
        if let Ok(entry) = self.table.find_entry(hash(key_at(place)), |other| *other == place) {
            entry.remove();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }
}

/// Names by place. Their texts lie one behind the other, so that looking up a whole list, in whatever order, stays
/// within the processor's caches.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameIndex {
    table: HashTable<u32>,
    text: String,
    /// By place: where its name lies; an empty range for a place without a name.
    spans: Vec<(u32, u32)>,
    /// Bytes of names that are no more.
    unused: usize,
}

impl NameIndex {
    /// The name of a place; empty when it has none.
    #[inline]
    pub(crate) fn name(&self, place: u32) -> &str {
        let (from, to) = self.spans[place as usize];
        &self.text[from as usize..to as usize]
    }

    #[inline]
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.table.find(hash(name), |place| self.name(*place) == name).copied()
    }

    /// Names a place that has no name, with a name that is not there yet.
    pub(crate) fn insert(&mut self, place: u32, name: &str) {
        self.spans.resize(self.spans.len().max(place as usize + 1), (0, 0));
        let from = self.text.len() as u32;
        self.text.push_str(name);
        self.spans[place as usize] = (from, self.text.len() as u32);
        let Self { table, text, spans, .. } = self;
        table.insert_unique(hash(name), place, |other| {
            let (from, to) = spans[*other as usize];
            hash(&text[from as usize..to as usize])
        });
    }

    pub(crate) fn remove(&mut self, place: u32) {
        if let Ok(entry) = self.table.find_entry(hash(self.name(place)), |other| *other == place) {
            entry.remove();
        }
        self.unused += self.name(place).len();
        self.spans[place as usize] = (0, 0);
        if self.unused > self.text.len() / 2 {
            self.close_gaps();
        }
    }

    fn close_gaps(&mut self) {
        let mut text = String::with_capacity(self.text.len() - self.unused);
        for (from, to) in &mut self.spans {
            let begin = text.len() as u32;
            text.push_str(&self.text[*from as usize..*to as usize]);
            (*from, *to) = (begin, text.len() as u32);
        }
        self.text = text;
        self.unused = 0;
    }
}

/// How many items lie in one piece of an array.
const PIECE: usize = 32;

/// An array whose places are used again, so that a steady state allocates nothing.
///
/// Its items lie in pieces that a copy shares until one of both writes to them: a copy costs a count a piece, and a
/// write while a copy exists costs one piece once.
#[derive(Clone, Debug)]
pub(crate) struct Slots<T> {
    pieces: Vec<Arc<[T]>>,
    len: usize,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), len: 0, free: Vec::new() }
    }
}

impl<T: Default> Slots<T> {
    /// A free place. Its item is as its last user left it.
    pub(crate) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            if self.len == self.pieces.len() * PIECE {
                self.pieces.push((0..PIECE).map(|_| T::default()).collect());
            }
            self.len += 1;
            (self.len - 1) as u32
        })
    }

    pub(crate) fn give_back(&mut self, place: u32) {
        self.free.push(place);
    }

    /// How many places there are, free ones too.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Every item in the order of places, those of free places too.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flat_map(|piece| piece.iter()).take(self.len)
    }
}

impl<T> std::ops::Index<u32> for Slots<T> {
    type Output = T;

    #[inline]
    fn index(&self, place: u32) -> &T {
        &self.pieces[place as usize / PIECE][place as usize % PIECE]
    }
}

impl<T: Clone> std::ops::IndexMut<u32> for Slots<T> {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut Arc::make_mut(&mut self.pieces[place as usize / PIECE])[place as usize % PIECE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_while_they_are_there() {
        let mut index = NameIndex::default();
        let name = |place: u32| format!("node-{place}");
        for place in 0..100 {
            assert_eq!(index.find(&name(place)), None);
            index.insert(place, &name(place));
        }
        for place in (0..100).filter(|place| place % 3 > 0) {
            index.remove(place);
        }
        assert!(index.unused <= index.text.len() / 2, "gaps are closed");
        for place in 0..100 {
            let there = place % 3 == 0;
            assert_eq!(index.find(&name(place)), there.then_some(place));
            assert_eq!(index.name(place), if there { name(place) } else { String::new() });
        }
        index.insert(1, "other");
        assert_eq!((index.find("other"), index.find("")), (Some(1), None));
    }

    #[test]
    fn a_copy_shares_pieces_until_one_of_both_writes() {
        let mut slots: Slots<String> = Slots::default();
        for number in 0..3 * PIECE as u32 {
            let place = slots.take();
            assert_eq!(place, number);
            slots[place] = number.to_string();
        }
        let mut copy = slots.clone();
        copy[40] = "theirs".into();
        slots[70] = "ours".into();
        assert_eq!((slots[40].as_str(), slots[70].as_str()), ("40", "ours"));
        assert_eq!((copy[40].as_str(), copy[70].as_str()), ("theirs", "70"));
        let shared = |piece: usize| Arc::ptr_eq(&slots.pieces[piece], &copy.pieces[piece]);
        assert_eq!([shared(0), shared(1), shared(2)], [true, false, false]);
        slots.give_back(5);
        assert_eq!((slots.take(), slots.len(), slots.iter().count()), (5, 3 * PIECE, 3 * PIECE));
    }
}
