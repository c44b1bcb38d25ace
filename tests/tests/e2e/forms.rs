//! Short and long forms: continuous integration runs the short one, `make soak` the long one.

/// Whether the long forms were asked for.
pub fn soak() -> bool {
    std::env::var_os("LILBOX_SOAK").is_some()
}

/// A number of repetitions or bytes.
pub fn short_or_long(short: usize, long: usize) -> usize {
    if soak() { long } else { short }
}

/// Pseudo-random numbers (xorshift64*), so that a failing run can be repeated with its seed.
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// That many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            (0..count.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(count);
        bytes
    }
}
