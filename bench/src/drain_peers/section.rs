//! What the report says of the peers' drains: each beside ours of the same round.

use serde_json::json;

use super::{Drained, EVERY_ROUND, Start, WARM_UP};
use crate::backlog::Size;
use crate::peers::{Kind, Tuning, Way};
use crate::plot::{Bar, Plot};
use crate::report::{Figure, Grid, Section};
use crate::stats::over;

/// What one drain of ours is compared with.
pub struct Ours {
    pub rate: f64,
    pub rate_large: f64,
    pub cpu_per_event: f64,
}

pub fn section(rounds: &[(Ours, Vec<Drained>)]) -> Section {
    let settings = |tuning: Tuning| {
        let pairs: Vec<String> = tuning
            .settings()
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        pairs.join(", ")
    };
    let drains = rounds.iter().flat_map(|(_, peers)| peers);
    Section {
        name: "peers",
        title: "The same drain by others",
        method: format!(
            "Each peer on the same server settings (wal_level logical; autovacuum off for us and for Debezium, which leave nothing to sweep up, and on for the polling relays), broker and machine, in turn, with the same kind \
             of events (their number below) in the table that it is documented with, inserted in transactions of 1,000 while it was stopped; ANALYZE before it \
             goes on. The rate counts from its first record on the topic to the last, so that what it needs in order to begin does not \
             count against it; ours, in the ratios, counts from the switch to the last settle of the same round. CPU is that of all \
             its processes, PostgreSQL's walsender and backends included. Each event is counted once on the topic. Debezium: Kafka Connect's standalone worker with \
             Kafka's own JVM settings, pgoutput, the outbox event router; warm after {WARM_UP} events, its connector stopped and \
             resumed; cold: the worker's start counts. Tuned for throughput: {}. The relay with SKIP LOCKED reads and locks 1,000 rows, sends \
             them all, awaits all, marks them with one UPDATE and commits; the one by one awaits and marks each row. Cold, defaults and 4 kB: once, beside ours of that round.",
            settings(Tuning::Throughput)
        ),
        figures: figures(rounds),
        grid: Grid {
            head: HEAD.to_vec(),
            lines: drains.clone().map(Drained::cells).collect(),
        },
        notes: Vec::new(),
        plots: plots(rounds),
        raw: json!({ "drains": drains.map(Drained::json).collect::<Vec<_>>() }),
    }
}

/// Rate and CPU of us and of all that were measured every round.
fn plots(rounds: &[(Ours, Vec<Drained>)]) -> Vec<Plot> {
    let bars = |ours: fn(&Ours) -> f64, theirs: fn(&Drained) -> f64| {
        let own = Bar {
            label: Kind::Outbox.name().to_owned(),
            value: over(rounds, |(own, _)| ours(own)),
            is_ours: true,
        };
        let others = EVERY_ROUND.iter().enumerate().map(|(place, case)| Bar {
            label: case.kind.name().to_owned(),
            value: over(rounds, |(_, peers)| theirs(&peers[place])),
            is_ours: false,
        });
        std::iter::once(own).chain(others).collect()
    };
    vec![
        Plot {
            name: "drain",
            title: "Drain of a backlog".to_owned(),
            unit: "events/s",
            bars: bars(|own| own.rate, |peer| peer.rate),
        },
        Plot {
            name: "cpu",
            title: "CPU time of the relay side while draining".to_owned(),
            unit: "us an event",
            bars: bars(|own| own.cpu_per_event, |peer| peer.cpu_per_event),
        },
    ]
}

/// Medians, and ratios to each of the peers: the median of the rounds' ratios.
fn figures(rounds: &[(Ours, Vec<Drained>)]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (place, case) in EVERY_ROUND.iter().enumerate() {
        let name = case.kind.name();
        let (times, rate_bar) = match case.kind {
            Kind::Polling(Way::OneByOne) => ("times", 100.0),
            Kind::Polling(Way::Batch) => ("times", 5.0),
            _ => ("times", 4.0),
        };
        let each = |of: &dyn Fn(&Ours, &Drained) -> f64| over(rounds, |(ours, peers)| of(ours, &peers[place]));
        figures.extend([
            Figure::at_least(
                format!("rate / {name}"),
                each(&|ours, peer| ours.rate / peer.rate),
                times,
                rate_bar,
            ),
            Figure::plain(format!("  {name}"), each(&|_, peer| peer.rate), "events/s"),
        ]);
        let share = each(&|ours, peer| ours.cpu_per_event / peer.cpu_per_event);
        figures.push(if matches!(case.kind, Kind::Debezium(_)) {
            Figure::at_most(format!("CPU per event / {name}"), share, "times", 1.0 / 8.0)
        } else {
            Figure::plain(format!("CPU per event / {name}"), share, "times")
        });
        figures.extend([
            Figure::plain(
                format!("  CPU, {name}"),
                each(&|_, peer| peer.cpu_per_event),
                "us an event",
            ),
            Figure::plain(
                format!("  WAL, {name}"),
                each(&|_, peer| peer.wal_per_event),
                "bytes an event",
            ),
            Figure::plain(format!("  dead rows, {name}"), each(&|_, peer| peer.dead_rows), ""),
            Figure::plain(
                format!("  private memory, {name}"),
                each(&|_, peer| peer.private_peak) / f64::from(1 << 20),
                "MiB",
            ),
        ]);
    }
    for (ours, peers) in rounds {
        for drained in &peers[EVERY_ROUND.len()..] {
            let (rate, from_start) = match drained.case.start {
                Start::Warm => (drained.rate, ""),
                Start::Cold => (drained.rate_from_go, ", its start included"),
            };
            let name = drained.case.name();
            let of_ours = match drained.case.size {
                Size::Usual => ours.rate,
                Size::Large => ours.rate_large,
            };
            figures.push(Figure::plain(
                format!("rate / {name}{from_start}"),
                of_ours / rate,
                "times",
            ));
            figures.push(Figure::plain(format!("  {name}"), rate, "events/s"));
        }
    }
    figures
}

const HEAD: [&str; 9] = [
    "peer",
    "events",
    "events/s",
    "from the start",
    "CPU us/event",
    "WAL bytes/event",
    "dead rows",
    "private MiB",
    "cores busy",
];
