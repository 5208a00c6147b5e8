//! Where the figures come from: machine, versions, and whether the machine was quiet.

use std::fs;
use std::process::Command;

use outbox_e2e::broker;
use outbox_e2e::shell::{pg_program, repository, stdout, target, try_run};
use serde_json::{Value, json};

/// Cores at work before a row is measured; above it the figures are called provisional.
const BUSY_CORES_MAX: f64 = 0.1;

pub struct Machine {
    /// Names and values, in the order of the report.
    facts: Vec<(&'static str, String)>,
    /// The most that was at work before any of the rows.
    busy_cores: f64,
}

impl Machine {
    pub fn look() -> Machine {
        let facts = vec![
            ("date", said("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
            ("commit", commit()),
            ("processor", processor()),
            (
                "memory",
                format!("{} GiB", in_file("/proc/meminfo", "MemTotal:").map_or(0, |kb| kb >> 20)),
            ),
            ("kernel", said("uname", &["-sr"])),
            ("system", system()),
            ("PostgreSQL", said(pg_program("postgres"), &["--version"])),
            ("Apache Kafka", kafka()),
            ("librdkafka", rdkafka::util::get_rdkafka_version().1),
            ("Debezium", debezium()),
            ("rustc", said("rustc", &["--version"])),
        ];
        Machine { facts, busy_cores: 0.0 }
    }

    /// The most that was at work before any of the rows.
    pub fn was_busy(mut self, cores: f64) -> Machine {
        self.busy_cores = cores;
        self
    }

    pub fn facts(&self) -> &[(&'static str, String)] {
        &self.facts
    }

    /// A sentence when others were at work.
    pub fn warning(&self) -> Option<String> {
        (self.busy_cores > BUSY_CORES_MAX).then(|| {
            format!(
                "The machine was not quiet: up to {:.1} cores were at work before a row began. The figures are \
                 provisional.",
                self.busy_cores
            )
        })
    }

    pub fn json(&self) -> Value {
        let facts: serde_json::Map<String, Value> = self
            .facts
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        json!({ "facts": facts, "busy_cores_before": self.busy_cores, "quiet": self.warning().is_none() })
    }
}

fn said(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> String {
    stdout(Command::new(program).args(arguments)).trim().to_owned()
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = try_run(Command::new("git").arg("-C").arg(repository()).args(arguments));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    let changed = if git(&["status", "--porcelain", "--", ":!bench/report"]).is_empty() {
        ""
    } else {
        " with uncommitted changes"
    };
    match git(&["rev-parse", "--short", "HEAD"]) {
        none if none.is_empty() => "unknown".to_owned(),
        commit => format!("{commit}{changed}"),
    }
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|rest| rest.split_once(':'))
        .map_or("unknown", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{model}, {cores} cores")
}

fn in_file(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn system() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("unknown").trim_matches('"').to_owned()
}

/// As the project file of its jars names them.
fn debezium() -> String {
    let project = fs::read_to_string(repository().join("bench/debezium/pom.xml")).unwrap_or_default();
    let version = |of: &str| {
        let (_, rest) = project.split_once(&format!("<{of}.version>"))?;
        Some(rest.split_once('<')?.0.to_owned())
    };
    match (version("debezium"), version("kafka")) {
        (Some(debezium), Some(connect)) => format!("{debezium} in Kafka Connect {connect}"),
        _ => "unknown".to_owned(),
    }
}

fn kafka() -> String {
    if let Some(brokers) = broker::external() {
        return format!("not ours: {brokers}");
    }
    let jars = fs::read_dir(target().join("kafka-jars"));
    let version = jars.into_iter().flatten().flatten().find_map(|jar| {
        let name = jar.file_name().into_string().ok()?;
        Some(name.strip_prefix("kafka_2.13-")?.strip_suffix(".jar")?.to_owned())
    });
    let java = try_run(Command::new("java").arg("-version"));
    let java = String::from_utf8_lossy(&java.stderr)
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned();
    format!("{}, one node, {java}", version.unwrap_or_default())
}
