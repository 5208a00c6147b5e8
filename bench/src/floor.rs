//! The floors: librdkafka alone, through the producer the relay uses and with its settings, but no PostgreSQL.

use std::time::{Duration, Instant};

use outbox_core::record::{HEADER_AGGREGATE_TYPE, HEADER_EVENT_TYPE, HEADER_ID};
use outbox_kafka::{Lane, Producer, Record, Report, SendError, Settings};

use crate::backlog::{EVENT_TYPE, Records};
use crate::wait_fd::wait_readable;

/// Records handed over between two looks at the reports.
const SENDS_PER_TURN: usize = 1_000;
/// Longest silence of the broker before the measurement is given up.
const SILENCE: Duration = Duration::from_secs(30);

/// The relay's settings at the extension's defaults.
pub fn producer(brokers: &str) -> Producer {
    const MIB: usize = 1 << 20;
    Producer::new(
        &Settings {
            brokers: brokers.to_owned(),
            options: Vec::new(),
            max_message_bytes: 1_000_000,
            max_in_flight_bytes: 32 * MIB + 4 * MIB + 1_000_000,
            max_in_flight_events: 205_000,
            batch_bytes: None,
        },
        Lane::Fast,
    )
    .expect("the extension's own settings are right")
}

/// Produces the first so many records and waits for every report; returns the seconds from making the producer to the
/// last report.
pub fn produce_all(brokers: &str, topic: &str, records: &Records, count: usize) -> f64 {
    let began = Instant::now();
    let producer = producer(brokers);
    let (mut sent, mut acknowledged) = (0, 0);
    let mut reports = Vec::new();
    let mut heard = Instant::now();
    while acknowledged < count {
        let mut full = false;
        let until = count.min(sent + SENDS_PER_TURN);
        while sent < until && !full {
            full = !send(&producer, topic, records, sent);
            sent += usize::from(!full);
        }
        if full || sent == count {
            wait_readable(producer.event_fd(), Duration::from_secs(1));
        }
        let served = take(&producer, &mut reports);
        acknowledged += served;
        if served > 0 {
            heard = Instant::now();
        }
        assert!(
            heard.elapsed() < SILENCE,
            "the broker does not answer: {:?}",
            producer.outage()
        );
    }
    began.elapsed().as_secs_f64()
}

/// False: the queue is full.
fn send(producer: &Producer, topic: &str, records: &Records, index: usize) -> bool {
    let record = records.get(index);
    let sent = producer.send(
        &Record {
            topic,
            key: record.key,
            payload: record.value,
            headers: &[
                (HEADER_ID, record.id),
                (HEADER_EVENT_TYPE, EVENT_TYPE.as_bytes()),
                (HEADER_AGGREGATE_TYPE, records.aggregate_type.as_bytes()),
            ],
            timestamp_ms: record.timestamp_ms,
        },
        record.partition,
        index as u64,
    );
    match sent {
        Ok(()) => true,
        Err(SendError::QueueFull) => false,
        Err(SendError::Failed(failure)) => panic!("librdkafka refused a record: {failure}"),
    }
}

/// Takes the reports that are there; returns how many.
pub fn take(producer: &Producer, reports: &mut Vec<Report>) -> usize {
    while producer.serve(usize::MAX, reports) {}
    let taken = reports.len();
    for report in reports.drain(..) {
        if let Err(failure) = report.outcome {
            panic!("a record was not acknowledged: {failure}");
        }
    }
    taken
}
