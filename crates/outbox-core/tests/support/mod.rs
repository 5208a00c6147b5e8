//! Random schedules that can be replayed: a failure names its seed, and
//! `OUTBOX_SEED=<seed> cargo test -p outbox-core <test>` runs that schedule alone.
//! `OUTBOX_SCHEDULES=<n>` runs n of them instead of the usual number.

use std::time::{SystemTime, UNIX_EPOCH};

/// Splitmix64: small, and every seed is a good one.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `bound`, exclusive.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn number_from_env(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
    )
}

/// Runs `schedules` random schedules, a tenth of them in a debug build.
pub fn run_schedules(schedules: u64, schedule: impl Fn(&mut Rng) -> Result<(), String>) {
    if let Some(seed) = number_from_env("OUTBOX_SEED") {
        return schedule(&mut Rng::new(seed)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let usual = if cfg!(debug_assertions) {
        schedules / 10
    } else {
        schedules
    };
    let schedules = number_from_env("OUTBOX_SCHEDULES").unwrap_or(usual);
    let first = random_seed();
    println!("{schedules} schedules from seed {first}");
    for seed in (0..schedules).map(|n| first.wrapping_add(n)) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| schedule(&mut Rng::new(seed))));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => panic!("OUTBOX_SEED={seed}: {error}"),
            Err(_) => panic!("OUTBOX_SEED={seed}: panicked, see above"),
        }
    }
}

/// Another one in each run.
pub fn random_seed() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    Rng::new(now.as_nanos() as u64).next() >> 16
}
