//! The drain of the peers: each a backlog that takes it long enough to measure, counted on the topic. What the report says of it
//! is in [`section`].

mod section;

use std::time::{Duration, Instant};

use outbox_e2e::wait::{let_pass, try_wait};
use outbox_e2e::{Db, seconds};
use serde_json::{Value, json};

use crate::args::Scale;
use crate::backlog::{self, Size};
use crate::peers::{Kind, Peer, Tuning, Way};
use crate::process;
use crate::stand::{Stand, settle_disks};
use crate::wal;

pub use section::{Ours, section};

/// Whether the peer was at work before its backlog came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// Debezium: it has moved events, so that its code is compiled and its connections stand. The polling relays begin at once.
    Warm,
    /// Its processes start with the clock.
    Cold,
}

/// One drain: who, how, and with how many events.
#[derive(Clone, Copy)]
struct Case {
    kind: Kind,
    start: Start,
    size: Size,
    events: usize,
}

impl Case {
    const fn usual(kind: Kind, start: Start, events: usize) -> Case {
        Case {
            kind,
            start,
            size: Size::Usual,
            events,
        }
    }

    const fn large(kind: Kind, events: usize) -> Case {
        Case {
            kind,
            start: Start::Warm,
            size: Size::Large,
            events,
        }
    }

    fn name(&self) -> String {
        let start = match (self.kind, self.start) {
            (Kind::Polling(_), Start::Warm) => "",
            (_, Start::Warm) => ", warm",
            (_, Start::Cold) => ", cold",
        };
        let size = match self.size {
            Size::Usual => "",
            Size::Large => ", 4 kB",
        };
        format!("{}{start}{size}", self.kind.name())
    }
}

/// What the bars compare with.
const EVERY_ROUND: [Case; 3] = [
    Case::usual(Kind::Debezium(Tuning::Throughput), Start::Warm, 1_000_000),
    Case::usual(Kind::Polling(Way::Batch), Start::Warm, 500_000),
    Case::usual(Kind::Polling(Way::OneByOne), Start::Warm, 20_000),
];
/// What is worth knowing beside it: measured once, and only in a full run.
const ONCE: [Case; 5] = [
    Case::usual(Kind::Debezium(Tuning::Throughput), Start::Cold, 500_000),
    Case::usual(Kind::Debezium(Tuning::Defaults), Start::Warm, 500_000),
    Case::usual(Kind::Debezium(Tuning::Defaults), Start::Cold, 500_000),
    Case::large(Kind::Debezium(Tuning::Throughput), 200_000),
    Case::large(Kind::Polling(Way::Batch), 100_000),
];
/// Enough for a JVM to have compiled what it will run.
const WARM_UP: usize = 200_000;
const DEADLINE: Duration = Duration::from_secs(300);
/// Between two looks at the topic.
const LOOK: Duration = Duration::from_millis(25);
/// Between two looks at the memory of the processes.
const LOOK_AT_MEMORY: Duration = Duration::from_millis(500);

pub struct Drained {
    case: Case,
    /// Events a second from the first record on the topic to the last.
    pub rate: f64,
    /// The same from the start of the clock: with what the peer needs in order to begin.
    pub rate_from_go: f64,
    /// Of all its processes, in microseconds.
    pub cpu_per_event: f64,
    pub wal_per_event: f64,
    /// Row versions that it made obsolete, whether or not something has swept them up since.
    pub dead_rows: f64,
    pub private_peak: f64,
    pub busy_cores: f64,
}

impl Drained {
    pub fn json(&self) -> Value {
        json!({
            "peer": self.case.kind.key(), "start": format!("{:?}", self.case.start).to_lowercase(),
            "size": format!("{:?}", self.case.size).to_lowercase(),
            "events": self.case.events, "rate": self.rate, "rate_from_go": self.rate_from_go,
            "cpu_us_per_event": self.cpu_per_event, "wal_bytes_per_event": self.wal_per_event,
            "dead_rows": self.dead_rows, "private_peak_bytes": self.private_peak, "busy_cores": self.busy_cores,
        })
    }

    pub fn cells(&self) -> Vec<String> {
        vec![
            self.case.name(),
            format!("{}", self.case.events),
            format!("{:.0}", self.rate),
            format!("{:.0}", self.rate_from_go),
            format!("{:.1}", self.cpu_per_event),
            format!("{:.2}", self.wal_per_event),
            format!("{:.0}", self.dead_rows),
            format!("{:.0}", self.private_peak / f64::from(1 << 20)),
            format!("{:.2}", self.busy_cores),
        ]
    }
}

/// Every peer once.
pub fn measure_round(number: usize, scale: Scale) -> Vec<Drained> {
    let once = if number == 0 && scale.is_full() { &ONCE[..] } else { &[] };
    EVERY_ROUND
        .iter()
        .chain(once)
        .map(|case| {
            let drained = drain(&Case {
                events: scale.events(case.events),
                ..*case
            });
            eprintln!(
                "  round {}: {}: {:.0}/s, {:.1} us of CPU an event",
                number + 1,
                case.name(),
                drained.rate,
                drained.cpu_per_event
            );
            drained
        })
        .collect()
}

fn drain(case: &Case) -> Drained {
    let (stand, mut peer) = case.kind.set_up();
    let mut db = stand.db();
    let is_debezium = matches!(case.kind, Kind::Debezium(_));
    if is_debezium {
        // Nothing to sweep up, as for us. The polling relays live by it.
        stand.cluster.configure(&[("autovacuum", "off")]);
        stand.cluster.reload();
    }
    if case.start == Start::Warm && is_debezium {
        warm_up(&stand, &mut db, case);
    }
    match case.start {
        Start::Warm => peer.stop(&stand),
        Start::Cold => peer.end(&stand),
    }
    let (aggregate_type, topic) = stand.new_topic("drain");
    backlog::insert(&mut db, case.kind.table(), &aggregate_type, case.size, case.events);
    // As autovacuum would have, had the backlog come more slowly.
    db.run(&format!("ANALYZE {}", case.kind.table().relation()));
    settle_disks(&mut db);
    let mut drained = watch(&stand, &mut db, peer.as_mut(), case, &topic);
    assert_eq!(
        stand.broker.count(&topic),
        case.events,
        "{}: each event once",
        case.kind.name()
    );
    peer.end(&stand);
    drained.dead_rows = made_dead(&mut db, case);
    stand.end();
    drained
}

fn warm_up(stand: &Stand, db: &mut Db, case: &Case) {
    let (aggregate_type, topic) = stand.new_topic("warm");
    let events = WARM_UP.min(case.events);
    backlog::insert(db, case.kind.table(), &aggregate_type, Size::Usual, events);
    stand.broker.wait_count(&topic, events, DEADLINE);
}

fn watch(stand: &Stand, db: &mut Db, peer: &mut dyn Peer, case: &Case, topic: &str) -> Drained {
    let cpu_before = process::cpu_of(&peer.processes(db));
    let position = wal::position(db);
    let busy = process::busy_seconds();
    let began = Instant::now();
    peer.go(stand);

    let mut first: Option<(Instant, usize)> = None;
    let mut looked_at_memory = began;
    let mut peak = 0.0_f64;
    let all = try_wait(DEADLINE, || {
        let count = stand.broker.count(topic);
        if count > 0 && first.is_none() {
            first = Some((Instant::now(), count));
        }
        if count >= case.events {
            return Ok(Instant::now());
        }
        if first.is_some() && looked_at_memory.elapsed() > LOOK_AT_MEMORY {
            looked_at_memory = Instant::now();
            peak = peak.max(process::private_of(&peer.processes(db)));
        }
        let_pass(LOOK);
        Err(count.to_string())
    });
    let last = all.unwrap_or_else(|seen| panic!("{}: only {seen} records after {DEADLINE:?}", case.kind.name()));
    let (first, events_at_first) = first.unwrap_or((began, 0));

    let busy = process::busy_seconds() - busy;
    // The last rows may still be on their way to being marked as sent.
    wait_marked(db, case.kind);
    let cpu = process::cpu_since(&cpu_before, &peer.processes(db));
    let wal = wal::since(db, &position);
    let events = case.events as f64;
    Drained {
        case: *case,
        rate: (events - events_at_first as f64) / (last - first).as_secs_f64().max(1e-3),
        rate_from_go: events / (last - began).as_secs_f64(),
        cpu_per_event: cpu / events * 1e6,
        wal_per_event: wal / events,
        dead_rows: 0.0,
        private_peak: peak,
        busy_cores: busy / (last - began).as_secs_f64(),
    }
}

/// Row versions that were made obsolete in its table, once its backend has told the statistics.
fn made_dead(db: &mut Db, case: &Case) -> f64 {
    let relation = case.kind.table().relation();
    let dead = format!("SELECT n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE relname = '{relation}'");
    if matches!(case.kind, Kind::Polling(_)) {
        db.wait_true(&format!("SELECT ({dead}) >= {}", case.events), seconds(30));
    }
    db.one::<i64>(&dead) as f64
}

fn wait_marked(db: &mut Db, kind: Kind) {
    if matches!(kind, Kind::Polling(_)) {
        db.wait_true(
            "SELECT NOT EXISTS (SELECT FROM outbox WHERE published_at IS NULL)",
            seconds(30),
        );
    }
}
