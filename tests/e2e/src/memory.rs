//! How much memory a process has for itself, now and at most over a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::wait::let_pass;

/// Between two looks. One costs the kernel about a millisecond.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Memory that is the process's own, in bytes. Shared mappings are left out: the kernel calls a page of PostgreSQL's
/// shared buffers private while only one process has touched it.
pub fn private_bytes(pid: i32) -> u64 {
    try_private_bytes(pid).unwrap_or_else(|| panic!("process {pid} is gone"))
}

/// None when the process is gone.
pub fn try_private_bytes(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?;
    let mut is_private = false;
    let mut kilobytes = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(first), Some(second)) = (words.next(), words.next()) else {
            continue;
        };
        if !first.ends_with(':') {
            is_private = second.ends_with('p');
        } else if is_private && matches!(first, "Private_Clean:" | "Private_Dirty:" | "Private_Hugetlb:") {
            kilobytes += second.parse::<u64>().ok()?;
        }
    }
    Some(kilobytes * 1024)
}

/// Looks at a process again and again.
pub struct MemoryWatch {
    stop: Arc<AtomicBool>,
    looking: JoinHandle<u64>,
}

impl MemoryWatch {
    pub fn start(pid: i32) -> MemoryWatch {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let looking = thread::spawn(move || {
            let mut most = 0;
            while !stopped.load(Ordering::Relaxed) {
                most = most.max(try_private_bytes(pid).unwrap_or(0));
                let_pass(LOOK_AGAIN);
            }
            most
        });
        MemoryWatch { stop, looking }
    }

    /// The most bytes that the process was seen to have.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.looking.join().expect("looking does not panic")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_takes_is_its_own() {
        let pid = std::process::id() as i32;
        let watch = MemoryWatch::start(pid);
        // Out of the optimizer's sight: a block that nobody reads would never be made.
        let block = std::hint::black_box(vec![1u8; 50 << 20]);
        assert!(private_bytes(pid) > 50 << 20);
        let_pass(3 * LOOK_AGAIN);
        drop(block);
        assert!(watch.stop() > 50 << 20);
    }
}
