//! Part two: what an event costs when things have piled up, relative to a server where they have not.
//!
//! What is compared is the relay's CPU time an event, either over drains of a small backlog or at 2,000 events a second. One drain may take a
//! quarter more than the next, by the machine's mood, which changes within minutes. So drains are compared in pairs: a second server
//! with the same settings, small and clean, and the one where something has piled up, in turn (`in_turn`); a large backlog is drained in
//! pieces for that (`piece`). Windows last a minute, and are compared on one server before and after (`windows`).

use std::time::{Duration, Instant};

use outbox_e2e::wait::try_wait;
use outbox_e2e::{Db, seconds};
use serde_json::{Value, json};

use crate::args::Scale;
use crate::backlog::{self, Size};
use crate::flatness_lines;
use crate::load::{self, Load};
use crate::plot::{Bar, Plot};
use crate::process;
use crate::report::{Figure, Grid, Section};
use crate::stand::{Stand, settle_disks};
use crate::stats::{over, percentile};
use crate::table::Table;

/// How many pairs of drains make a figure.
pub const DRAINS: usize = 5;
/// Events of each drain, and of each where what piles up shows only later: retention starts after a second, a large backlog outgrows the server's buffers.
const EVENTS: usize = 300_000;
pub const LARGE: usize = 1_000_000;
/// Events a second of a window.
const RATE: usize = 2_000;
const DEADLINE: Duration = Duration::from_secs(600);

/// One probe: a drain or a window.
#[derive(Clone, Copy)]
pub struct Probe {
    /// Of the relay, in microseconds an event.
    pub cpu: f64,
    /// Events a second.
    pub rate: f64,
    /// Commit to consumer, in milliseconds; nothing for a drain.
    pub p99: Option<f64>,
}

/// A line of the report.
pub struct Line {
    pub name: String,
    /// Most that the cost may grow; none for what is there to compare with.
    pub bar: Option<f64>,
    pub before: Vec<Probe>,
    pub after: Vec<Probe>,
    pub dead_rows: f64,
    pub private_bytes: f64,
    pub note: String,
}

impl Line {
    /// The mean: the machine's mood has two states, and a median would be one of them.
    fn cpu(&self) -> (f64, f64) {
        let mean = |probes: &[Probe]| probes.iter().map(|probe| probe.cpu).sum::<f64>() / probes.len() as f64;
        (mean(&self.before), mean(&self.after))
    }

    fn rate(&self) -> (f64, f64) {
        let rate = |probes: &[Probe]| over(probes, |probe| probe.rate);
        (rate(&self.before), rate(&self.after))
    }

    fn ratio(&self) -> f64 {
        let (before, after) = self.cpu();
        after / before
    }

    fn p99(&self) -> Option<(f64, f64)> {
        let p99 = |probes: &[Probe]| {
            let values: Vec<f64> = probes.iter().filter_map(|probe| probe.p99).collect();
            (!values.is_empty()).then(|| over(&values, |value| *value))
        };
        Some((p99(&self.before)?, p99(&self.after)?))
    }

    fn cells(&self) -> Vec<String> {
        let ((cpu_before, cpu_after), (rate_before, rate_after)) = (self.cpu(), self.rate());
        let p99 = self
            .p99()
            .map_or(String::new(), |(before, after)| format!("{before:.1} -> {after:.1}"));
        vec![
            self.name.clone(),
            format!("{cpu_before:.2} -> {cpu_after:.2}"),
            format!("{:.2}", self.ratio()),
            format!("{rate_before:.0} -> {rate_after:.0}"),
            p99,
            format!("{:.0}", self.dead_rows),
            format!("{:.0}", self.private_bytes / f64::from(1 << 20)),
            self.note.clone(),
        ]
    }

    fn json(&self) -> Value {
        let probes = |probes: &[Probe]| -> Vec<Value> {
            probes
                .iter()
                .map(|probe| json!({ "cpu_us_per_event": probe.cpu, "rate": probe.rate, "p99_ms": probe.p99 }))
                .collect()
        };
        json!({
            "name": self.name, "bar": self.bar, "ratio": self.ratio(), "before": probes(&self.before),
            "after": probes(&self.after), "dead_rows": self.dead_rows, "private_bytes": self.private_bytes,
            "note": self.note,
        })
    }
}

/// Events that wait on a stand, to be drained in as many pieces as there are pairs of drains.
pub struct Backlog {
    pub events: usize,
    topic: String,
    settled_before: i64,
}

/// A drain that is on its way.
struct Started {
    relay: i32,
    cpu: f64,
    settled: i64,
    rate: f64,
}

/// A stand on which lines are measured. Autovacuum is off: nothing sweeps up or gathers statistics unless a line says so.
pub struct Bench {
    pub stand: Stand,
    pub db: Db,
    pub scale: Scale,
    loads: u64,
}

impl Bench {
    pub fn new(scale: Scale, settings: &[(&str, &str)]) -> Bench {
        let mut all = vec![("autovacuum", "off")];
        all.extend(settings);
        let stand = Stand::new(&all);
        let db = stand.db();
        let mut bench = Bench {
            stand,
            db,
            scale,
            loads: 0,
        };
        // Files grown, the way known to all parts.
        bench.drain(50_000);
        bench.analyze();
        bench
    }

    pub fn analyze(&mut self) {
        self.db
            .run("ANALYZE outbox_log; ANALYZE outbox_batch; ANALYZE outbox_parked");
    }

    /// Drains of so many events on a clean server, and probes of another one, in turn: what the machine's mood does to one it does to the other.
    /// `probe` is told how many there were before.
    pub fn in_turn(
        clean: &mut Bench,
        events: usize,
        mut probe: impl FnMut(usize) -> Probe,
    ) -> (Vec<Probe>, Vec<Probe>) {
        (0..DRAINS).map(|turn| (clean.drain(events), probe(turn))).unzip()
    }

    /// Drains of small backlogs on both servers in turn.
    pub fn drains_in_turn(clean: &mut Bench, piled_up: &mut Bench) -> (Vec<Probe>, Vec<Probe>) {
        let events = clean.scale.events(EVENTS);
        Bench::in_turn(clean, events, |_| piled_up.drain(events))
    }

    /// Inserts so many events while publishing is off, then measures how they are published.
    pub fn drain(&mut self, events: usize) -> Probe {
        let backlog = self.backlog(events);
        self.drain_all(&backlog)
    }

    pub fn drain_all(&mut self, backlog: &Backlog) -> Probe {
        self.drain_rest(backlog, backlog.events)
    }

    /// Inserts so many events, publishing being off from now on.
    pub fn backlog(&mut self, events: usize) -> Backlog {
        self.stand.publish(&mut self.db, false);
        let (aggregate_type, topic) = self.stand.new_topic("flat");
        backlog::insert(&mut self.db, Table::Event, &aggregate_type, Size::Usual, events);
        settle_disks(&mut self.db);
        Backlog {
            events,
            topic,
            settled_before: settled(&mut self.db),
        }
    }

    /// Measures how the next piece of a backlog is published; publishing is off again afterwards, except after the last.
    pub fn piece(&mut self, backlog: &Backlog, turn: usize) -> Probe {
        let left = backlog.events - (settled(&mut self.db) - backlog.settled_before) as usize;
        if turn == DRAINS - 1 {
            return self.drain_rest(backlog, left);
        }
        let started = self.publish_until(left / (DRAINS - turn));
        // What was read is settled before the relay stops: its cost is of this piece, and so it counts in it.
        self.stand.publish(&mut self.db, false);
        self.probe(&started)
    }

    fn drain_rest(&mut self, backlog: &Backlog, left: usize) -> Probe {
        let started = self.publish_until(left);
        let probe = self.probe(&started);
        assert_eq!(
            self.stand.broker.count(&backlog.topic),
            backlog.events,
            "each event once"
        );
        probe
    }

    /// Switches publishing on and waits until so many events are settled.
    fn publish_until(&mut self, events: usize) -> Started {
        let relay = self.db.relay();
        let (settled_before, cpu) = (settled(&mut self.db), process::cpu_seconds(relay));
        let began = Instant::now();
        self.stand.cluster.configure(&[("outbox_ext.enabled", "on")]);
        self.db.run("SELECT pg_reload_conf()");
        let mut done = 0;
        let all = try_wait(DEADLINE, || {
            done = settled(&mut self.db) - settled_before;
            if done >= events as i64 {
                return Ok(());
            }
            outbox_e2e::wait::let_pass(Duration::from_millis(20));
            Err(format!("{done} of {events} settled, status {}", self.db.status()))
        });
        all.unwrap_or_else(|seen| panic!("not drained within {DEADLINE:?}: {seen}"));
        Started {
            relay,
            cpu,
            settled: settled_before,
            rate: done as f64 / began.elapsed().as_secs_f64(),
        }
    }

    fn probe(&mut self, started: &Started) -> Probe {
        assert_eq!(self.db.relay(), started.relay, "the same relay all the time");
        let cpu = process::cpu_seconds(started.relay) - started.cpu;
        Probe {
            cpu: cpu / (settled(&mut self.db) - started.settled) as f64 * 1e6,
            rate: started.rate,
            p99: None,
        }
    }

    /// So many stretches of so many seconds at 2,000 events a second.
    pub fn windows(&mut self, windows: usize, seconds: u64) -> Vec<Probe> {
        (0..windows).map(|_| self.window(seconds)).collect()
    }

    fn window(&mut self, seconds: u64) -> Probe {
        let (aggregate_type, topic) = self.stand.new_topic("flat");
        self.loads += 1;
        let relay = self.db.relay();
        let cpu = process::cpu_seconds(relay);
        let load = Load {
            stand: &self.stand,
            table: Table::Event,
            aggregate_type: &aggregate_type,
            topic: &topic,
            number: self.loads,
            bare_produce: false,
        };
        let time = Duration::from_secs(seconds);
        let times = load.run(RATE, time);
        let events = load::events(RATE, time) as f64;
        assert_eq!(self.db.relay(), relay, "the same relay all the time");
        Probe {
            cpu: (process::cpu_seconds(relay) - cpu) / events * 1e6,
            rate: times.rate,
            p99: Some(percentile(&times.after_commit, 99.0)),
        }
    }

    /// A line of what was measured, with what the tables and the relay look like now.
    pub fn line(
        &mut self,
        name: &str,
        bar: impl Into<Option<f64>>,
        before: Vec<Probe>,
        after: Vec<Probe>,
        note: String,
    ) -> Line {
        let dead: i64 = self.db.one(
            "SELECT (SELECT dead_tuple_count FROM pgstattuple('outbox_log'))
                  + (SELECT dead_tuple_count FROM pgstattuple('outbox_batch'))",
        );
        let line = Line {
            name: name.to_owned(),
            bar: bar.into(),
            before,
            after,
            dead_rows: dead as f64,
            private_bytes: process::private_bytes(self.db.relay()) as f64,
            note,
        };
        let (before, after) = line.cpu();
        eprintln!(
            "  {name}: {before:.2} -> {after:.2} us an event, {:.2} times",
            line.ratio()
        );
        line
    }

    pub fn end(self) {
        drop(self.db);
        self.stand.end();
    }
}

/// Events that this relay has settled. Not from the ledger: retention shortens it.
fn settled(db: &mut Db) -> i64 {
    db.one("SELECT published::bigint FROM outbox_relay()")
}

/// Every condition, or the one of this name.
pub fn measure(scale: Scale, only: Option<&str>) -> Section {
    eprintln!("flatness: {}", only.unwrap_or("every condition"));
    let chosen = flatness_lines::ALL
        .iter()
        .filter(|(name, _)| only.is_none_or(|only| only == *name));
    let lines: Vec<Line> = chosen.flat_map(|(_, measure)| measure(scale)).collect();
    let figures = lines.iter().map(|line| {
        let (what, ratio) = (format!("CPU an event: {}", line.name), line.ratio());
        match line.bar {
            Some(bar) => Figure::at_most(what, ratio, "times", bar),
            None => Figure::plain(what, ratio, "times"),
        }
    });
    let dead = lines.iter().map(|line| line.dead_rows).fold(0.0, f64::max);
    Section {
        name: "flatness",
        title: "What piles up must not cost",
        method: format!(
            "CPU time of the relay an event, relative to a server without it: the mean of {DRAINS} pairs of drains of {} events each, on the one and the other in turn (the backlog of 10 M in \
             {DRAINS} pieces, and beside retention {large} events, each beside drains of {large}), or a minute at {RATE} events/s, before and after on the same server. Autovacuum off, statistics gathered, unless the line says otherwise; settings at their defaults.",
            scale.events(EVENTS),
            large = scale.events(LARGE),
        ),
        figures: figures
            .chain([Figure::at_most(
                "dead rows in outbox_log and outbox_batch, most of all lines without retention",
                dead,
                "",
                0.0,
            )])
            .collect(),
        grid: Grid {
            head: vec![
                "condition",
                "CPU us/event",
                "times",
                "events/s",
                "p99 ms",
                "dead rows",
                "private MiB",
                "",
            ],
            lines: lines.iter().map(Line::cells).collect(),
        },
        notes: Vec::new(),
        plots: vec![Plot {
            name: "flatness",
            title: "CPU an event, times that of a small clean table".to_owned(),
            unit: "times",
            bars: lines
                .iter()
                .map(|line| Bar {
                    label: line.name.clone(),
                    value: line.ratio(),
                    is_ours: true,
                })
                .collect(),
        }],
        raw: json!({ "lines": lines.iter().map(Line::json).collect::<Vec<_>>() }),
    }
}

/// For what must be settled before a line goes on.
pub fn wait_parked(db: &mut Db, reason: &str, events: usize) {
    db.wait_true(
        &format!("SELECT count(*) >= {events} FROM outbox_parked WHERE reason = '{reason}'"),
        seconds(600),
    );
}
