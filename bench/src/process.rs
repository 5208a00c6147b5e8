//! What the kernel says of processes and of the machine: CPU time, private memory, how busy the cores are.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

pub use outbox_e2e::memory::private_bytes;
use outbox_e2e::memory::try_private_bytes;
use outbox_e2e::shell::stdout;
use outbox_e2e::wait::let_pass;

/// CPU time of a process, its ended threads included, in seconds. Counted in clock ticks of (mostly) 10 ms.
pub fn cpu_seconds(pid: i32) -> f64 {
    try_cpu_seconds(pid).unwrap_or_else(|| panic!("process {pid} is gone"))
}

/// CPU time of each of the processes that are still there, in seconds.
pub fn cpu_of(pids: &[i32]) -> BTreeMap<i32, f64> {
    pids.iter()
        .filter_map(|pid| Some((*pid, try_cpu_seconds(*pid)?)))
        .collect()
}

/// CPU time of all of them together since it was `before`, in seconds. Of those that ended meanwhile it is not known.
pub fn cpu_since(before: &BTreeMap<i32, f64>, pids: &[i32]) -> f64 {
    let spent = |(pid, seconds): (&i32, &f64)| seconds - before.get(pid).copied().unwrap_or(0.0);
    cpu_of(pids).iter().map(spent).sum()
}

/// Private memory of those that are still there, in bytes.
pub fn private_of(pids: &[i32]) -> f64 {
    pids.iter().filter_map(|pid| try_private_bytes(*pid)).sum::<u64>() as f64
}

fn try_cpu_seconds(pid: i32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold blanks; utime and stime are fields 14 and 15.
    let (_, rest) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks: u64 = rest.split_whitespace().skip(11).take(2).map(number).sum();
    Some(ticks as f64 / ticks_per_second())
}

/// CPU time of the main thread and of all other threads that are alive, in seconds, exact to the nanosecond.
pub fn cpu_seconds_by_thread(pid: i32) -> (f64, f64) {
    let mut main = 0.0;
    let mut others = 0.0;
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap_or_else(|error| panic!("process {pid}: {error}"));
    for task in tasks.flatten() {
        // A thread may have ended since the folder was read.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else {
            continue;
        };
        let nanoseconds = text.split_whitespace().next().map_or(0, number);
        let is_main = task.file_name().to_str() == Some(&pid.to_string());
        *(if is_main { &mut main } else { &mut others }) += nanoseconds as f64 / 1e9;
    }
    (main, others)
}

/// How many cores are at work right now, over a second in which we do nothing.
pub fn busy_cores() -> f64 {
    let before = busy_seconds();
    let time = Duration::from_secs(1);
    let_pass(time);
    (busy_seconds() - before) / time.as_secs_f64()
}

/// Seconds that all cores together have worked since the machine started.
pub fn busy_seconds() -> f64 {
    let stat = read("/proc/stat");
    let first = stat.lines().next().expect("the line of all cores");
    let fields: Vec<u64> = first.split_whitespace().skip(1).map(number).collect();
    // user nice system idle iowait irq softirq steal: all but idle and iowait.
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|field| fields.get(*field)).sum();
    busy as f64 / ticks_per_second()
}

fn ticks_per_second() -> f64 {
    static TICKS: OnceLock<f64> = OnceLock::new();
    *TICKS.get_or_init(|| number(stdout(Command::new("getconf").arg("CLK_TCK")).trim()) as f64)
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("a number, not {word}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_time() {
        let pid = std::process::id() as i32;
        let block = vec![1u8; 50 << 20];
        let (before, others) = cpu_seconds_by_thread(pid);
        let sum: u64 = (0..50).flat_map(|_| &block).map(|byte| u64::from(*byte)).sum();
        assert_eq!(sum, 50 * (50 << 20));
        let after = cpu_seconds_by_thread(pid);
        assert!(after.0 + after.1 > before + others, "{after:?}");
        assert!(cpu_seconds(pid) <= busy_seconds());
    }
}
