//! Row: what arrives while writers write as fast as they can, on the same cores. Each system has its share of the machine taken away
//! by its own relay: one that needs less leaves more to the writers.

use std::time::Duration;

use serde_json::json;

use crate::args::Scale;
use crate::backlog::Size;
use crate::load;
use crate::peers::{Kind, Tuning, Way};
use crate::pgbench;
use crate::report::{Figure, Grid, Section};
use crate::stand::settle_disks;
use crate::stats::over;

const WRITERS: usize = 4;
/// Events of one transaction: the commits are not what holds the writers up.
const EVENTS: usize = 20;
const SECONDS: u64 = 15;
const WARM_UP: usize = 200_000;
const DEADLINE: Duration = Duration::from_secs(300);
const PEERS: [Kind; 3] = [
    Kind::Outbox,
    Kind::Debezium(Tuning::Throughput),
    Kind::Polling(Way::Batch),
];

struct Run {
    kind: Kind,
    written: f64,
    published: f64,
    behind: f64,
}

pub fn measure(rounds: usize, scale: Scale) -> Section {
    eprintln!("sustained: {rounds} rounds of {} systems", PEERS.len());
    let mut runs = Vec::new();
    for number in 0..rounds {
        for turn in 0..PEERS.len() {
            let run = measure_peer(PEERS[(number + turn) % PEERS.len()], scale);
            eprintln!(
                "  round {}: {}: {:.0}/s written, {:.0}/s published meanwhile, {:.0} behind at the end",
                number + 1,
                run.kind.name(),
                run.written,
                run.published,
                run.behind
            );
            runs.push(run);
        }
    }
    section(&runs)
}

fn measure_peer(kind: Kind, scale: Scale) -> Run {
    let (stand, mut peer) = kind.set_up();
    let mut db = stand.db();
    load::warm_up(&stand, kind.table(), scale.events(WARM_UP));
    let (aggregate_type, topic) = stand.new_topic("sustained");
    settle_disks(&mut db);
    let set = format!("generate_series(:n, :n + {EVENTS} - 1) n");
    let insert = kind
        .table()
        .insert_select(&aggregate_type, Size::Usual, &set)
        .replace('\n', " ");
    let script = format!("\\set n random(1, 1000000)\n{insert};\n");
    let seconds = scale.seconds(SECONDS);
    let speed = pgbench::measure(&stand.cluster, "sustained", &script, "none", WRITERS, seconds as u32);
    let published = stand.broker.count(&topic) as f64;
    // All of them arrive, and each once.
    let inserted: i64 = db.one(&format!(
        "SELECT count(*) FROM {} WHERE {} = '{aggregate_type}'",
        kind.table().relation(),
        kind.table().aggregate_type()
    ));
    let all = stand.broker.wait_count(&topic, inserted as usize, DEADLINE);
    assert_eq!(all as i64, inserted, "{}: each event once", kind.name());
    peer.end(&stand);
    stand.end();
    let written = speed.tps * EVENTS as f64;
    Run {
        kind,
        written,
        published: written * published / inserted as f64,
        behind: inserted as f64 - published,
    }
}

fn section(runs: &[Run]) -> Section {
    let of = |kind: Kind, figure: fn(&Run) -> f64| {
        let chosen: Vec<&Run> = runs.iter().filter(|run| run.kind == kind).collect();
        over(&chosen, |run| figure(run))
    };
    let mut figures = Vec::new();
    for kind in PEERS {
        let name = kind.name();
        if kind != Kind::Outbox {
            let ratio = of(Kind::Outbox, |run| run.published) / of(kind, |run| run.published);
            figures.push(Figure::plain(
                format!("published while written / {name}"),
                ratio,
                "times",
            ));
        }
        figures.extend([
            Figure::plain(
                format!("{name}: published while written"),
                of(kind, |run| run.published),
                "events/s",
            ),
            Figure::plain("  written", of(kind, |run| run.written), "events/s"),
            Figure::plain("  behind at the end", of(kind, |run| run.behind), "events"),
        ]);
    }
    Section {
        name: "sustained",
        title: "With writers at full speed",
        method: format!(
            "{WRITERS} connections of pgbench write transactions of {EVENTS} events as fast as they can for {SECONDS} s, on the cores that relay and \
             broker run on too; counted on the topic when the last one ended. Each then delivers the rest; every event is counted."
        ),
        figures,
        grid: Grid {
            head: vec!["system", "written/s", "published/s", "behind"],
            lines: runs
                .iter()
                .map(|run| {
                    vec![
                        run.kind.name().to_owned(),
                        format!("{:.0}", run.written),
                        format!("{:.0}", run.published),
                        format!("{:.0}", run.behind),
                    ]
                })
                .collect(),
        },
        notes: Vec::new(),
        plots: Vec::new(),
        raw: json!({ "runs": runs.iter().map(|run| json!({
            "system": run.kind.key(), "written": run.written, "published": run.published, "behind": run.behind,
        })).collect::<Vec<_>>() }),
    }
}
