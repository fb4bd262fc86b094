//! From names to places in an array, by a hash table that is never iterated.

use std::hash::{BuildHasher, Hash};

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

/// An array whose places are used again, so that a steady state allocates nothing.
#[derive(Clone, Debug)]
pub(crate) struct Slots<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T: Default> Slots<T> {
    /// A free place. Its item is as its last user left it.
    pub(crate) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.items.push(T::default());
            (self.items.len() - 1) as u32
        })
    }

    pub(crate) fn give_back(&mut self, place: u32) {
        self.free.push(place);
    }

    pub(crate) fn items(&self) -> &[T] {
        &self.items
    }
}

impl<T> std::ops::Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, place: u32) -> &T {
        &self.items[place as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut self.items[place as usize]
    }
}
