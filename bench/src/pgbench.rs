//! One run of pgbench with a script of ours.

use std::fs;

use outbox_e2e::cluster::DATABASE;
use outbox_e2e::{Cluster, run, shell};

/// What a run gave.
#[derive(Clone, Copy)]
pub struct Speed {
    /// Statements a second, over all connections.
    pub tps: f64,
    /// Mean time of a statement as its connection sees it.
    pub milliseconds: f64,
}

/// Runs one statement in autocommit on so many connections, prepared once and its values sent as parameters.
pub fn measure(cluster: &Cluster, name: &str, script: &str, payload: &str, connections: usize, seconds: u32) -> Speed {
    let file = run::folder().join(format!("{name}.sql"));
    fs::write(&file, script).expect("write the script");
    // Two threads at most: more than the cores would only be in the server's way.
    let threads = connections.min(2);
    let mut command = cluster.client("pgbench");
    command
        .args([
            "-n",
            "-M",
            "prepared",
            "-c",
            &connections.to_string(),
            "-j",
            &threads.to_string(),
        ])
        .args(["-T", &seconds.to_string(), "-D"])
        .arg(format!("payload={payload}"))
        .arg("-f")
        .arg(&file)
        .arg(DATABASE);
    let said = shell::stdout(&mut command);
    parse(&said).unwrap_or_else(|| panic!("pgbench said:\n{said}"))
}

fn parse(said: &str) -> Option<Speed> {
    let number_after = |words: &str| -> Option<f64> {
        let line = said.lines().find_map(|line| line.strip_prefix(words))?;
        line.split_whitespace().next()?.parse().ok()
    };
    if number_after("number of failed transactions: ")? > 0.0 {
        return None;
    }
    Some(Speed {
        tps: number_after("tps = ")?,
        milliseconds: number_after("latency average = ")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "number of transactions actually processed: 3186\nnumber of failed transactions: 0 (0.000%)\n\
        latency average = 0.313 ms\ninitial connection time = 2.070 ms\ntps = 3190.371932 (without initial connection time)\n";

    #[test]
    fn reads_what_pgbench_says() {
        let speed = parse(SAID).unwrap();
        assert_eq!((speed.tps, speed.milliseconds), (3190.371932, 0.313));
    }

    #[test]
    fn a_failed_statement_is_no_measurement() {
        assert!(parse(&SAID.replace("failed transactions: 0 (", "failed transactions: 1 (")).is_none());
    }
}
