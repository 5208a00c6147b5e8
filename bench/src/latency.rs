//! Row latency: one event at a time on an idle system, from COMMIT returning to the record in a waiting consumer's hands.
//! Floor: the same record by librdkafka alone, from handing it over, to the same broker and the same consumer.

use std::time::{Duration, Instant};

use outbox_core::partition::partition_for;
use outbox_core::record::{HEADER_AGGREGATE_TYPE, HEADER_EVENT_TYPE, HEADER_ID};
use outbox_e2e::wait::let_pass;
use outbox_e2e::{Emit, Random, seconds};
use outbox_kafka::Record;
use serde_json::json;

use crate::args::Scale;
use crate::backlog::{AGGREGATES, EVENT_TYPE, payload};
use crate::consumer::Waiting;
use crate::floor;
use crate::report::{Figure, Grid, Section};
use crate::stand::{PARTITIONS, Stand};
use crate::stats::{median, percentile};

/// Events of a round that count.
const EVENTS: usize = 300;
/// Before them: connections are made, every partition has had its first record.
const WARM_UP: usize = 30;
/// Of each way before the first round.
const FIRST_EVENTS: usize = 100;
const BAR_MS: f64 = 5.0;

/// The times of one round, in milliseconds.
#[derive(Default)]
struct Round {
    /// From the commit's return (the floor: from handing over) to the consumer.
    after: Vec<f64>,
    /// From sending the statement: the commit's own flush of the WAL included.
    whole: Vec<f64>,
}

pub fn measure(rounds: usize, scale: Scale) -> Section {
    let events = scale.share(EVENTS);
    eprintln!("latency: {rounds} rounds of {events} events each way");
    let stand = Stand::new(&[]);
    let (mut outbox, mut alone) = (Vec::new(), Vec::new());
    // The broker has just been started: what it runs for the first time is nobody's latency.
    round_alone(&stand, events.min(FIRST_EVENTS));
    round_outbox(&stand, events.min(FIRST_EVENTS));
    for round in 1..=rounds {
        // In turn: whoever goes second finds the broker busier.
        if round.is_multiple_of(2) {
            outbox.push(round_outbox(&stand, events));
            alone.push(round_alone(&stand, events));
        } else {
            alone.push(round_alone(&stand, events));
            outbox.push(round_outbox(&stand, events));
        }
        let (Some(outbox), Some(alone)) = (outbox.last(), alone.last()) else {
            unreachable!("pushed above")
        };
        eprintln!(
            "  round {round}: median {:.2} ms, librdkafka alone {:.2} ms",
            median(&outbox.after),
            median(&alone.after)
        );
    }
    stand.end();
    section(&outbox, &alone)
}

fn section(outbox: &[Round], alone: &[Round]) -> Section {
    let over = |rounds: &[Round], of: fn(&Round) -> f64| median(&rounds.iter().map(of).collect::<Vec<f64>>());
    let p50: fn(&Round) -> f64 = |round| median(&round.after);
    let p99: fn(&Round) -> f64 = |round| percentile(&round.after, 99.0);
    let whole: fn(&Round) -> f64 = |round| median(&round.whole);
    let lines = outbox.iter().zip(alone).enumerate().map(|(number, (outbox, alone))| {
        vec![
            format!("{}", number + 1),
            format!("{:.2}", p50(outbox)),
            format!("{:.2}", p99(outbox)),
            format!("{:.2}", whole(outbox)),
            format!("{:.2}", p50(alone)),
            format!("{:.2}", p99(alone)),
        ]
    });
    Section {
        name: "latency",
        title: "Latency of one event on an idle system",
        method: format!(
            "{EVENTS} events a round, one at a time, 20 to 40 ms apart, payload about 300 bytes, {PARTITIONS} partitions, \
             a consumer that waits in a thread of its own. From the return of the statement that emits and commits to the \
             record in the consumer's hands. Floor: the same record by librdkafka alone (acks=all, idempotent, linger 0) \
             from handing it over. \
             What the relay does before the writer's connection has told it of the commit does not count; statement sent to consumer is the \
             whole, the commit's flush of the WAL included."
        ),
        figures: vec![
            Figure::below("commit to consumer, median", over(outbox, p50), "ms", BAR_MS),
            Figure::plain("commit to consumer, p99", over(outbox, p99), "ms"),
            Figure::plain("statement sent to consumer, median", over(outbox, whole), "ms"),
            Figure::plain("floor: librdkafka alone, median", over(alone, p50), "ms"),
            Figure::plain("floor: librdkafka alone, p99", over(alone, p99), "ms"),
        ],
        grid: Grid {
            head: vec![
                "round",
                "median ms",
                "p99 ms",
                "from statement ms",
                "floor median ms",
                "floor p99 ms",
            ],
            lines: lines.collect(),
        },
        notes: Vec::new(),
        plots: Vec::new(),
        raw: json!({
            "outbox_ms": outbox.iter().map(|round| &round.after).collect::<Vec<_>>(),
            "outbox_from_statement_ms": outbox.iter().map(|round| &round.whole).collect::<Vec<_>>(),
            "floor_ms": alone.iter().map(|round| &round.after).collect::<Vec<_>>(),
        }),
    }
}

fn round_outbox(stand: &Stand, events: usize) -> Round {
    let mut db = stand.db();
    let (aggregate_type, topic) = stand.new_topic("latency");
    let consumer = Waiting::start(stand.broker.address(), &topic);
    run_round(&consumer, events, |number| {
        let sent = Instant::now();
        let id = db.emit(&Emit {
            event_type: EVENT_TYPE,
            ..Emit::new(&aggregate_type, &key(number), &payload(number))
        });
        (id, sent, Instant::now())
    })
}

fn round_alone(stand: &Stand, events: usize) -> Round {
    let (aggregate_type, topic) = stand.new_topic("floor");
    let consumer = Waiting::start(stand.broker.address(), &topic);
    let producer = floor::producer(stand.broker.address());
    let mut reports = Vec::new();
    run_round(&consumer, events, |number| {
        // The reports of earlier records, so that they do not pile up.
        floor::take(&producer, &mut reports);
        let id = format!("{number:036}");
        let key = key(number);
        let value = payload(number);
        let record = Record {
            topic: &topic,
            key: key.as_bytes(),
            payload: value.as_bytes(),
            headers: &[
                (HEADER_ID, id.as_bytes()),
                (HEADER_EVENT_TYPE, EVENT_TYPE.as_bytes()),
                (HEADER_AGGREGATE_TYPE, aggregate_type.as_bytes()),
            ],
            timestamp_ms: 0,
        };
        let partition = partition_for(key.as_bytes(), PARTITIONS as u32) as i32;
        let sent = Instant::now();
        producer
            .send(&record, partition, number as u64)
            .expect("the queue is empty");
        (id, sent, sent)
    })
}

/// `publish` returns the event's id, when it was begun, and when it was done.
fn run_round(consumer: &Waiting, events: usize, mut publish: impl FnMut(usize) -> (String, Instant, Instant)) -> Round {
    let mut random = Random::from_clock();
    let mut round = Round::default();
    for number in 0..WARM_UP + events {
        let (id, begun, done) = publish(number);
        let (arrived_id, arrived) = consumer.next(seconds(20));
        assert_eq!(arrived_id, id, "one event at a time, each once");
        if number >= WARM_UP {
            // The record may be there before the writer's own connection has told it of the commit.
            round.after.push(milliseconds(arrived.saturating_duration_since(done)));
            round.whole.push(milliseconds(arrived.duration_since(begun)));
        }
        // Not in step with any timer of the parts.
        let_pass(Duration::from_micros(20_000 + random.draw() % 20_000));
    }
    round
}

fn key(number: usize) -> String {
    format!("customer-{}", number % AGGREGATES)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
