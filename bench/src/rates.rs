//! Row: from commit to consumer at 1, 100, 1,000 and 5,000 events a second, for outbox_ext, Debezium and the better polling relay.
//! Floor: the same commits, each event produced by its own writer as soon as it is committed. With it, at 1,000 a second, what
//! each of them costs in CPU and WAL.

use std::time::Duration;

use outbox_e2e::Db;
use serde_json::{Value, json};

use crate::args::Scale;
use crate::load::{self, Load, Times};
use crate::peers::{Kind, Peer, Tuning, Way};
use crate::plot::{Bar, Plot};
use crate::process;
use crate::report::{Figure, Grid, Section};
use crate::stand::{Stand, settle_disks};
use crate::stats::{over, percentile};
use crate::table::Table;
use crate::wal;

/// From the fastest to the slowest, so that the slower ones find everything warm.
const RATES: [usize; 4] = [5_000, 1_000, 100, 1];
/// The rate that the bars are for.
const BAR_RATE: usize = 1_000;
const WAL_BAR: f64 = 10.0;
/// Through each system before its first rate.
const WARM_UP: usize = 200_000;
/// Seconds at the highest rate, for the floor.
const FLOOR_WARM_UP: u64 = 10;
/// At one a second so few count that a percentile says nothing, and the events before them more than they in CPU and WAL.
const SELDOM: usize = 1;

const SYSTEMS: [System; 4] = [
    System::Floor,
    System::Peer(Kind::Outbox),
    System::Peer(Kind::Debezium(Tuning::Latency)),
    System::Peer(Kind::Polling(Way::Batch)),
];

#[derive(Clone, Copy, PartialEq)]
enum System {
    /// Commit plus bare produce: nobody stands between.
    Floor,
    Peer(Kind),
}

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Floor => "commit and bare produce",
            System::Peer(kind) => kind.name(),
        }
    }

    fn key(self) -> &'static str {
        match self {
            System::Floor => "floor",
            System::Peer(kind) => kind.key(),
        }
    }

    fn table(self) -> Table {
        match self {
            System::Floor => Table::Router,
            System::Peer(kind) => kind.table(),
        }
    }

    fn set_up(self) -> (Stand, Option<Box<dyn Peer>>) {
        match self {
            System::Floor => (Stand::for_others(self.table()), None),
            System::Peer(kind) => {
                let (stand, peer) = kind.set_up();
                (stand, Some(peer))
            }
        }
    }
}

struct Run {
    system: System,
    rate: usize,
    times: Times,
    /// Microseconds of CPU an event, of all processes of the peer.
    cpu_per_event: f64,
    /// Bytes an event, beyond what inserting it wrote.
    wal_per_event: f64,
    private_bytes: f64,
}

impl Run {
    fn at(&self, percent: f64) -> f64 {
        percentile(&self.times.after_commit, percent)
    }

    fn cells(&self) -> Vec<String> {
        let unless_seldom = |text: String| if self.rate > SELDOM { text } else { String::new() };
        vec![
            self.system.name().to_owned(),
            format!("{}", self.rate),
            format!("{:.0}", self.times.rate),
            format!("{:.2}", self.at(50.0)),
            format!("{:.2}", self.at(99.0)),
            unless_seldom(format!("{:.2}", self.at(99.9))),
            format!("{:.2}", percentile(&self.times.from_schedule, 50.0)),
            format!("{:.2}", percentile(&self.times.from_schedule, 99.0)),
            unless_seldom(format!("{:.1}", self.cpu_per_event)),
            unless_seldom(format!("{:.2}", self.wal_per_event)),
        ]
    }

    fn json(&self) -> Value {
        let percentiles = |values: &[f64]| -> Vec<(f64, f64)> {
            [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 100.0]
                .iter()
                .map(|percent| (*percent, percentile(values, *percent)))
                .collect()
        };
        json!({
            "system": self.system.key(), "rate": self.rate, "rate_written": self.times.rate,
            "events": self.times.after_commit.len(), "after_commit_ms": percentiles(&self.times.after_commit),
            "from_schedule_ms": percentiles(&self.times.from_schedule), "cpu_us_per_event": self.cpu_per_event,
            "wal_bytes_per_event": self.wal_per_event, "private_bytes": self.private_bytes,
        })
    }
}

pub fn measure(rounds: usize, scale: Scale) -> Section {
    eprintln!(
        "rates: {rounds} rounds of {} systems at {RATES:?} events/s",
        SYSTEMS.len()
    );
    let mut runs = Vec::new();
    for number in 0..rounds {
        // None always first.
        for turn in 0..SYSTEMS.len() {
            let system = SYSTEMS[(number + turn) % SYSTEMS.len()];
            runs.extend(measure_system(system, number, scale));
        }
    }
    section(&runs)
}

fn measure_system(system: System, round: usize, scale: Scale) -> Vec<Run> {
    let (stand, mut peer) = system.set_up();
    let mut db = stand.db();
    if peer.is_some() {
        load::warm_up(&stand, system.table(), scale.events(WARM_UP));
    } else {
        // Nobody would take up a backlog; the broker has work to do for the first time, and the writers too.
        let (aggregate_type, topic) = stand.new_topic("warm");
        let load = Load {
            stand: &stand,
            table: system.table(),
            aggregate_type: &aggregate_type,
            topic: &topic,
            number: 0,
            bare_produce: true,
        };
        load.run(RATES[0], Duration::from_secs(scale.seconds(FLOOR_WARM_UP)));
    }
    let runs = RATES
        .iter()
        // One event a second says little in a short time: one long run instead of several.
        .filter(|rate| **rate > SELDOM || (round == 0 && scale.is_full()))
        .map(|rate| {
            let run = measure_rate(&stand, &mut db, peer.as_deref(), system, *rate, scale);
            eprintln!(
                "  round {}: {} at {rate}/s: p50 {:.2} ms, p99 {:.2} ms, {:.1} us of CPU and {:.1} bytes of WAL an event",
                round + 1,
                system.name(),
                run.at(50.0),
                run.at(99.0),
                run.cpu_per_event,
                run.wal_per_event
            );
            run
        })
        .collect();
    if let Some(peer) = &mut peer {
        peer.end(&stand);
    }
    stand.end();
    runs
}

fn measure_rate(stand: &Stand, db: &mut Db, peer: Option<&dyn Peer>, system: System, rate: usize, scale: Scale) -> Run {
    let time = Duration::from_secs(match rate {
        1 => 25,
        100 => scale.seconds(10),
        1_000 => scale.seconds(15),
        _ => scale.seconds(10),
    });
    let (aggregate_type, topic) = stand.new_topic("rate");
    settle_disks(db);
    let processes = |db: &mut Db| peer.map_or(Vec::new(), |peer| peer.processes(db));
    let (cpu_before, position) = (process::cpu_of(&processes(db)), wal::position(db));
    let load = Load {
        stand,
        table: system.table(),
        aggregate_type: &aggregate_type,
        topic: &topic,
        number: rate as u64,
        bare_produce: system == System::Floor,
    };
    let times = load.run(rate, time);
    // Those at the beginning too: nothing is left out here.
    let events = load::events(rate, time) as f64;
    let cpu = process::cpu_since(&cpu_before, &processes(db));
    let private = process::private_of(&processes(db));
    Run {
        system,
        rate,
        times,
        cpu_per_event: cpu / events * 1e6,
        wal_per_event: wal::beyond_inserts(db, &position, system.table()) / events,
        private_bytes: private,
    }
}

fn section(runs: &[Run]) -> Section {
    let of = |system: System, rate: usize, figure: &dyn Fn(&Run) -> f64| {
        let chosen: Vec<&Run> = runs
            .iter()
            .filter(|run| run.system == system && run.rate == rate)
            .collect();
        (!chosen.is_empty()).then(|| over(&chosen, |run| figure(run)))
    };
    // Rare ones: of all rounds' events together.
    let rare = |system: System, rate: usize| {
        let chosen = runs.iter().filter(|run| run.system == system && run.rate == rate);
        let values: Vec<f64> = chosen.flat_map(|run| run.times.after_commit.iter().copied()).collect();
        percentile(&values, 99.9)
    };
    let ours = System::Peer(Kind::Outbox);
    let debezium = System::Peer(Kind::Debezium(Tuning::Latency));
    let mut figures = Vec::new();
    for (what, percent) in [("p50", 50.0), ("p99", 99.0)] {
        let at = |system| of(system, BAR_RATE, &|run| run.at(percent)).expect("every system was measured");
        let bar = (at(debezium) / 4.0).max(at(System::Floor) + 1.0);
        figures.push(Figure::at_most(
            format!("commit to consumer at {BAR_RATE}/s, {what} (a quarter of Debezium's, or 1 ms above the floor)"),
            at(ours),
            "ms",
            bar,
        ));
    }
    let wal = of(ours, BAR_RATE, &|run| run.wal_per_event).expect("it was measured");
    figures.push(Figure::below(
        format!("WAL beyond the insert at {BAR_RATE}/s"),
        wal,
        "bytes an event",
        WAL_BAR,
    ));
    for rate in RATES.iter().rev() {
        for system in SYSTEMS {
            let Some(p50) = of(system, *rate, &|run| run.at(50.0)) else {
                continue;
            };
            if *rate <= SELDOM {
                let most = of(system, *rate, &|run| run.at(100.0)).expect("as p50");
                let count = of(system, *rate, &|run| run.times.after_commit.len() as f64).expect("as p50");
                figures.extend([
                    Figure::plain(format!("{rate}/s, {}, p50", system.name()), p50, "ms"),
                    Figure::plain(format!("  most of {count:.0}"), most, "ms"),
                ]);
                continue;
            }
            let p99 = of(system, *rate, &|run| run.at(99.0)).expect("as p50");
            figures.extend([
                Figure::plain(format!("{rate}/s, {}, p50", system.name()), p50, "ms"),
                Figure::plain("  p99", p99, "ms"),
                Figure::plain("  p99.9", rare(system, *rate), "ms"),
            ]);
            if let System::Peer(_) = system {
                let cpu = of(system, *rate, &|run| run.cpu_per_event).expect("as p50");
                let wal = of(system, *rate, &|run| run.wal_per_event).expect("as p50");
                figures.push(Figure::plain("  CPU", cpu, "us an event"));
                figures.push(Figure::plain("  WAL beyond the insert", wal, "bytes an event"));
            }
        }
    }
    let bars = [("p50", 50.0), ("p99", 99.0)].iter().flat_map(|(what, percent)| {
        SYSTEMS.map(|system| Bar {
            label: format!("{}, {what}", system.name()),
            value: of(system, BAR_RATE, &|run| run.at(*percent)).expect("every system was measured"),
            is_ours: system == ours,
        })
    });
    let bars = bars.collect();
    Section {
        name: "rates",
        title: "Commit to consumer at given rates",
        method: format!(
            "An open loop: each event has its time and is a transaction of its own, over 1 to 16 connections, whether or not the one before is \
             through; a consumer waits. From the return of the commit to the record in the consumer's hands (each round also has it from \
             the time that the event was due). The first 60 events and then one second are left out; before the first rate {WARM_UP} events went through each system, through the floor a \
             run of {FLOOR_WARM_UP} s at {} a second. linger 0 everywhere. \
             Debezium tuned: {:?}. The polling relay looks every 10 ms. Floor: each writer hands its event to librdkafka itself when it \
             is committed. Medians of the rounds; p99.9 of all rounds' events together. CPU of all processes of the relay side. WAL of all \
             transactions that inserted no event (pg_walinspect), full-page images after the checkpoint before each run included; without the \
             server's own records and what autovacuum writes of visibility, freezing and statistics.",
            RATES[0],
            Tuning::Latency.settings()
        ),
        figures,
        grid: Grid {
            head: vec![
                "system",
                "events/s",
                "written/s",
                "p50 ms",
                "p99 ms",
                "p99.9 ms",
                "p50 from schedule",
                "p99 from schedule",
                "CPU us/event",
                "WAL bytes/event",
            ],
            lines: runs.iter().map(Run::cells).collect(),
        },
        notes: Vec::new(),
        plots: vec![Plot {
            name: "latency",
            title: format!("Commit to consumer at {BAR_RATE} events/s"),
            unit: "ms",
            bars,
        }],
        raw: json!({ "runs": runs.iter().map(Run::json).collect::<Vec<_>>() }),
    }
}
