//! Numbers from a seed, the same on every machine (splitmix64).

/// A stream of numbers.
pub struct Numbers(u64);

impl Numbers {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, from 0 to `bound` - 1; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).checked_rem(bound).unwrap_or(0)
    }
}

/// Puts a list in an order that follows from the seed.
pub fn shuffle<T>(list: &mut [T], seed: u64) {
    let mut numbers = Numbers::new(seed);
    for end in (1..list.len()).rev() {
        list.swap(end, numbers.below(end as u64 + 1) as usize);
    }
}
