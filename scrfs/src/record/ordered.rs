//! Maps that keep the order of the file they were read from.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;

/// A map with an order of its own: new entries go to the head, as SCR puts them, or to the end. All
/// operations are logarithmic or better, so a filemap of 10,000 files is no burden.
#[derive(Clone)]
pub struct Ordered<K, V> {
    /// Each key's place in the order.
    places: HashMap<K, i64>,
    entries: BTreeMap<i64, (K, V)>,
}

/// Bare words below a key, such as locations or time stamps.
pub type Words = Ordered<crate::hash::Text, ()>;

impl<K: Clone + Eq + Hash, V> Ordered<K, V> {
    /// Without entries.
    pub fn new() -> Self {
        Self { places: HashMap::new(), entries: BTreeMap::new() }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.places.get(key).and_then(|place| self.entries.get(place)).map(|(_, value)| value)
    }

    /// The value of `key`, to change it in its place.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.places.get(key).and_then(|place| self.entries.get_mut(place)).map(|(_, value)| value)
    }

    /// Whether `key` is there.
    pub fn contains(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    /// Sets `key` at the head; returns what it was before.
    pub fn set_first(&mut self, key: K, value: V) -> Option<V> {
        let before = self.remove(&key);
        let place = self.entries.first_key_value().map_or(0, |(first, _)| first - 1);
        self.put(place, key, value);
        before
    }

    /// Sets `key` at the end; returns what it was before.
    pub fn set_last(&mut self, key: K, value: V) -> Option<V> {
        let before = self.remove(&key);
        let place = self.entries.last_key_value().map_or(0, |(last, _)| last + 1);
        self.put(place, key, value);
        before
    }

    /// Removes `key`; returns what it was.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let place = self.places.remove(key)?;
        self.entries.remove(&place).map(|(_, value)| value)
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + ExactSizeIterator {
        self.entries.values().map(|(key, value)| (key, value))
    }

    /// The entries, in order, to change values.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.entries.values_mut().map(|(key, value)| (&*key, value))
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + ExactSizeIterator {
        self.entries.values().map(|(key, _)| key)
    }

    fn put(&mut self, place: i64, key: K, value: V) {
        self.places.insert(key.clone(), place);
        self.entries.insert(place, (key, value));
    }
}

impl<K: Clone + Eq + Hash, V> Default for Ordered<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Clone + Eq + Hash, V> FromIterator<(K, V)> for Ordered<K, V> {
    /// In the order of the iterator; of equal keys the last stays.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        for (key, value) in entries {
            map.set_last(key, value);
        }
        map
    }
}

impl<K: Eq, V: PartialEq> PartialEq for Ordered<K, V> {
    /// The same entries in the same order.
    fn eq(&self, other: &Self) -> bool {
        self.entries.values().eq(other.entries.values())
    }
}

impl<K: Eq, V: Eq> Eq for Ordered<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Ordered<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.entries.values().map(|(key, value)| (key, value))).finish()
    }
}
