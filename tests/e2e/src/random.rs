//! A small random generator. Schedules of real processes cannot be replayed, so its seed is not kept.

use std::time::{SystemTime, UNIX_EPOCH};

/// Xorshift64*. Good enough to mix schedules; never zero.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed | 1)
    }

    /// Seeded by the clock and the process.
    pub fn from_clock() -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("the clock is past 1970");
        Random::new(now.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32))
    }

    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// 6,400 letters and digits that compression hardly shortens: more than a topic for 2,000 bytes takes.
    pub fn noise(&mut self) -> String {
        (0..400).map(|_| format!("{:016x}", self.draw())).collect()
    }

    /// From 0 to `bound - 1`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.draw() >> 16) % bound
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
