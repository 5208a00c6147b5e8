//! Reads a server log and finds what should not be there.
//!
//! A line of level WARNING or above, a Rust panic, or a process ended by a signal is unexpected unless the scenario has
//! allowed it, with a reason. The prefix of the lines is the one that `cluster` sets: `%m [%p] %b `.

/// A part of a log line that a scenario expects, and why.
pub struct Allowed {
    pub pattern: String,
    pub reason: String,
}

const ALARMING: [&str; 7] = [
    " WARNING:  ",
    " ERROR:  ",
    " FATAL:  ",
    " PANIC:  ",
    "panicked at",
    "was terminated by signal",
    "terminating any other active server processes",
];

/// What happens to a client, or to a worker of PostgreSQL's own, when the harness stops a server under it: its fate, not a fault.
const OF_STOPPING: [&str; 8] = [
    "client backend FATAL:  terminating connection due to administrator command",
    "parallel worker FATAL:  terminating connection due to administrator command",
    "autovacuum worker FATAL:  terminating autovacuum process due to administrator command",
    "FATAL:  the database system is shutting down",
    // What a session says that was told to end while it began (ProcessInterrupts in postgres.c), whatever the time.
    "client backend FATAL:  canceling authentication due to timeout",
    "FATAL:  the database system is starting up",
    "FATAL:  the database system is not yet accepting connections",
    "FATAL:  the database system is in recovery mode",
];

/// The lines that are alarming and not allowed.
pub fn unexpected<'a>(log: &'a str, allowed: &[Allowed]) -> Vec<&'a str> {
    log.lines()
        .filter(|line| ALARMING.iter().any(|alarm| line.contains(alarm)))
        .filter(|line| !OF_STOPPING.iter().any(|known| line.contains(known)))
        .filter(|line| !allowed.iter().any(|allowed| line.contains(&allowed.pattern)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2026-01-01 00:00:00.000 UTC [7] postmaster LOG:  database system is ready to accept connections
2026-01-01 00:00:01.000 UTC [8] client backend ERROR:  division by zero
2026-01-01 00:00:02.000 UTC [9] client backend FATAL:  terminating connection due to administrator command
thread '<unnamed>' panicked at src/relay.rs:1:1
2026-01-01 00:00:03.000 UTC [7] postmaster LOG:  server process (PID 9) was terminated by signal 11: Segmentation fault
";

    #[test]
    fn finds_errors_panics_and_signals() {
        let found = unexpected(LOG, &[]);
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(found[0].contains("division by zero"));
        assert!(found[1].contains("panicked"));
        assert!(found[2].contains("signal 11"));
    }

    #[test]
    fn leaves_out_what_is_allowed() {
        let allowed = [Allowed {
            pattern: "division by zero".into(),
            reason: "asked for".into(),
        }];
        assert_eq!(unexpected(LOG, &allowed).len(), 2);
    }
}
