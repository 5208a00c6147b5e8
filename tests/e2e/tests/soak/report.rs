//! The figures of a run, as a table to print and to keep.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use outbox_e2e::audit::Repeats;

use super::acts::Done;

/// One kind of fault.
#[derive(Default)]
struct Row {
    times: usize,
    repeated: usize,
    /// The most that were repeated by one, and what was not settled then.
    worst: (usize, usize),
    first_ms: Option<i64>,
    caught_up_ms: Option<i64>,
}

pub struct Figures<'a> {
    pub seed: u64,
    pub seconds: u64,
    pub lines: Vec<(&'static str, String)>,
    pub done: &'a [Done],
    pub repeats: &'a Repeats,
    /// From the end of each fault to the first record after it.
    pub first_after_ms: Vec<Option<i64>>,
}

impl Figures<'_> {
    pub fn markdown(&self) -> String {
        let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
        for (at, done) in self.done.iter().enumerate() {
            let row = rows.entry(done.kind.name()).or_default();
            let repeated = self.repeats.of_fault[at];
            row.times += 1;
            row.repeated += repeated;
            row.worst = row.worst.max((repeated, self.repeats.allowed[at]));
            row.first_ms = row.first_ms.max(self.first_after_ms[at]);
            row.caught_up_ms = row.caught_up_ms.max(done.caught_up_ms.map(|at| at - done.over_ms));
        }
        let mut text = format!(
            "# A run of {} seconds with faults, seed {}\n\n| what | figure |\n|---|---|\n",
            self.seconds, self.seed
        );
        for (what, figure) in &self.lines {
            let _ = writeln!(text, "| {what} | {figure} |");
        }
        text.push_str(
            "\n| fault | times | delivered again | most by one (not settled then) | first record after it, worst | backlog gone after it, worst |\n\
             |---|---|---|---|---|---|\n",
        );
        for (kind, row) in rows {
            let (worst, allowed) = row.worst;
            let most = if worst > 0 {
                format!("{worst} ({allowed})")
            } else {
                "-".to_owned()
            };
            let _ = writeln!(
                text,
                "| {kind} | {} | {} | {most} | {} | {} |",
                row.times,
                row.repeated,
                shown(row.first_ms),
                shown(row.caught_up_ms)
            );
        }
        text
    }
}

fn shown(ms: Option<i64>) -> String {
    ms.map_or("-".to_owned(), |ms| format!("{:.1} s", ms as f64 / 1000.0))
}
