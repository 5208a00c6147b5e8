//! Waiting on a condition with a deadline. The only place of the harness that sleeps.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks. Short beside every bound that a scenario asserts, long enough not to load two cores.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// `seconds(10)`: a deadline that reads as one.
pub const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Looks until `look` returns `Ok`, and returns its value. `Err` says what was seen instead.
///
/// # Panics
/// At the deadline, with what was waited for and what was seen last.
#[track_caller]
pub fn wait<T>(what: &str, deadline: Duration, look: impl FnMut() -> Result<T, String>) -> T {
    match try_wait(deadline, look) {
        Ok(value) => value,
        Err(seen) => panic!("waited {deadline:?} for {what}; last seen: {seen}"),
    }
}

/// As `wait`, but leaves it to the caller what a missed deadline means.
pub fn try_wait<T>(deadline: Duration, mut look: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let began = Instant::now();
    loop {
        match look() {
            Ok(value) => return Ok(value),
            Err(seen) if began.elapsed() >= deadline => return Err(seen),
            Err(_) => sleep(LOOK_AGAIN),
        }
    }
}

/// Lets a load or an idle phase of the given length pass while something is measured. Not for synchronising.
pub fn let_pass(time: Duration) {
    sleep(time);
}

/// Turns a plain condition into what `wait` looks at.
pub fn check(holds: bool, seen: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(seen()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_the_value_once_the_condition_holds() {
        let mut looks = 0;
        let value = wait("three looks", seconds(5), || {
            looks += 1;
            if looks == 3 {
                Ok(looks)
            } else {
                Err(format!("{looks} looks"))
            }
        });
        assert_eq!(value, 3);
    }

    #[test]
    fn gives_up_at_the_deadline_with_what_it_saw_last() {
        let seen = try_wait::<()>(Duration::from_millis(20), || Err("nothing".to_owned()));
        assert_eq!(seen, Err("nothing".to_owned()));
    }
}
