//! Random bytes for the tests of this crate: the same ones on every run, so that a failure can be seen again.

/// A xorshift generator: good enough to reach odd corners, and without a dependency.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Noise {
        Noise(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 33).expect("31 bits fit") % limit
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.next().to_le_bytes()[3];
        }
    }
}

/// How many random inputs a decoder is shown: a million where the code is optimised, a taste under an interpreter.
pub(crate) fn rounds() -> usize {
    if cfg!(miri) {
        200
    } else if cfg!(debug_assertions) {
        50_000
    } else {
        1_000_000
    }
}
