//! The only source of random numbers: xoshiro256**, seeded by splitmix64; implemented here so that seeds
//! remain valid when dependencies change.

/// A stream of numbers that a seed determines.
#[derive(Clone, Debug)]
pub struct Prng {
    state: [u64; 4],
}

impl Prng {
    /// Returns the stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Self { state: [(); 4].map(|()| split_mix(&mut state)) }
    }

    /// Draws 64 bits.
    pub fn draw(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let [c2, d2] = [c ^ a, d ^ b];
        self.state = [a ^ d2, b ^ c2, c2 ^ (b << 17), d2.rotate_left(45)];
        b.wrapping_mul(5).rotate_left(7).wrapping_mul(9)
    }

    /// Draws a number below `bound`; 0 if `bound` is 0. (The bias is below `bound` / 2^64.)
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.draw()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the upper half of 128 bits")
    }

    /// Draws an index below `length`.
    ///
    /// # Panics
    /// Panics if `length` is 0.
    pub fn index(&mut self, length: usize) -> usize {
        assert!(length > 0, "there is nothing to choose from");
        usize::try_from(self.below(length as u64)).expect("below a usize")
    }

    /// Returns true with a probability of `per_mille` in a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) < u64::from(per_mille)
    }

    /// Shuffles `items`; all orders are equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let other = self.index(i + 1);
            items.swap(i, other);
        }
    }
}

/// Returns the next value of splitmix64.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

/// Maps a counter to 64 mixed bits, one to one.
pub(super) const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Old seeds must reproduce old bugs: these are the published first outputs of the algorithms.
    #[test]
    fn streams_never_change() {
        let mut state = 1_234_567;
        let splitmix = [split_mix(&mut state), split_mix(&mut state)];
        assert_eq!(splitmix, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        let mut prng = Prng { state: [1, 2, 3, 4] };
        assert_eq!([(); 4].map(|()| prng.draw()), [11_520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn chances_are_about_right() {
        let mut prng = Prng::new(7);
        let hits = (0..10_000).filter(|_| prng.chance(250)).count();
        assert!((2300..2700).contains(&hits), "{hits} of 10000 at 250 per mille");
        assert!((0..1000).all(|_| prng.below(7) < 7 && prng.index(3) < 3));
        assert!((0..100).all(|_| !prng.chance(0) && prng.chance(1000)));
    }
}
