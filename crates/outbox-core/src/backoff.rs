//! Exponential back-off with jitter. It knows no clock: it only says how long to wait.

/// Delays that double from `initial_ms` to `max_ms`, each shortened by chance to between a half and
/// the whole of it, so that many who failed together do not return together.
#[derive(Clone, Debug)]
pub struct Backoff {
    initial_ms: u64,
    max_ms: u64,
    current_ms: u64,
    random: u64,
}

impl Backoff {
    /// `seed` makes the jitter; the same seed gives the same delays.
    pub fn new(initial_ms: u64, max_ms: u64, seed: u64) -> Backoff {
        let initial_ms = initial_ms.max(1);
        let max_ms = max_ms.max(initial_ms);
        // Xorshift stands still at 0, and near seeds should not start alike.
        let random = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1;
        Backoff {
            initial_ms,
            max_ms,
            current_ms: initial_ms,
            random,
        }
    }

    /// The next delay, at least 1 ms.
    pub fn next_delay_ms(&mut self) -> u64 {
        let whole = self.current_ms;
        self.current_ms = whole.saturating_mul(2).min(self.max_ms);
        let shortest = whole.div_ceil(2);
        shortest + self.next_random() % (whole - shortest + 1)
    }

    /// The delay after `attempts` failures in a row, whatever was asked for before.
    pub fn delay_after_ms(&mut self, attempts: u32) -> u64 {
        let doublings = attempts.saturating_sub(1).min(63);
        self.current_ms = self.initial_ms.saturating_mul(1 << doublings).min(self.max_ms);
        self.next_delay_ms()
    }

    /// Back to the first delay: something went well.
    pub fn reset(&mut self) {
        self.current_ms = self.initial_ms;
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit_and_start_over() {
        let mut backoff = Backoff::new(100, 1_000, 7);
        for whole in [100, 200, 400, 800, 1_000, 1_000] {
            let delay = backoff.next_delay_ms();
            assert!((whole / 2..=whole).contains(&delay), "{delay} of {whole}");
        }
        backoff.reset();
        assert!(backoff.next_delay_ms() <= 100);
    }

    #[test]
    fn a_delay_can_be_asked_for_by_the_number_of_failures() {
        let mut backoff = Backoff::new(100, 1_000, 7);
        for (attempts, whole) in [(3, 400), (1, 100), (4, 800), (5, 1_000), (u32::MAX, 1_000)] {
            let delay = backoff.delay_after_ms(attempts);
            assert!((whole / 2..=whole).contains(&delay), "{delay} of {whole}");
        }
    }

    #[test]
    fn extremes_neither_overflow_nor_give_zero() {
        let mut backoff = Backoff::new(0, 0, 0);
        assert_eq!((backoff.next_delay_ms(), backoff.next_delay_ms()), (1, 1));
        let mut backoff = Backoff::new(u64::MAX, 5, u64::MAX);
        assert!(backoff.next_delay_ms() >= u64::MAX / 2);
        assert!(backoff.next_delay_ms() >= u64::MAX / 2);
    }

    #[test]
    fn the_seed_makes_the_jitter() {
        let delays = |seed| {
            let mut backoff = Backoff::new(1_000, 60_000, seed);
            (0..6).map(|_| backoff.next_delay_ms()).collect::<Vec<_>>()
        };
        assert_eq!(delays(1), delays(1));
        assert_ne!(delays(1), delays(2));
    }
}
