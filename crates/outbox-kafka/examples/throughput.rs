//! Records and reports a second through `Producer`, on one thread.
//!
//! `cargo run --release -p outbox-kafka --example throughput -- BROKERS [RECORDS] [PAYLOAD_BYTES] [OPTIONS]`
//! The topic `throughput` is created on demand. BROKERS = "mock" uses librdkafka's own pretend broker
//! in this process, which then shares the cores.

use std::time::Instant;

use outbox_kafka::{Lane, Producer, Record, SendError, Settings, TopicMetadata, parse_options};
use rdkafka::mocking::MockCluster;

const TOPIC: &str = "throughput";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let brokers = arguments.next().expect("BROKERS or \"mock\"");
    let mut number = |default| arguments.next().map_or(default, |n| n.parse().expect("a number"));
    let (records, payload_bytes) = (number(1_000_000), number(400));
    let options = arguments.next().unwrap_or_default();
    let mock = (brokers == "mock").then(|| MockCluster::new(1).expect("mock cluster"));
    let settings = Settings {
        brokers: mock.as_ref().map_or(brokers, |mock| mock.bootstrap_servers()),
        options: parse_options(&options).expect("librdkafka properties"),
        max_message_bytes: 1_000_000,
        max_in_flight_bytes: 64 << 20,
        max_in_flight_events: 50_000,
        batch_bytes: None,
    };
    let producer = Producer::new(&settings, Lane::Fast).expect("producer");
    producer.ask_topic(TOPIC, 0);
    let partitions = loop {
        wait_for(producer.event_fd());
        producer.serve(usize::MAX, &mut Vec::new());
        match producer.topic_answers().pop() {
            Some((_, TopicMetadata::Partitions(partitions))) => break partitions,
            Some((_, other)) => panic!("{other:?}"),
            None => {}
        }
    };
    let payload = vec![b'x'; payload_bytes];
    let started = Instant::now();
    let cpu_before = thread_cpu_seconds();
    let (mut sent, mut acknowledged) = (0, 0);
    let mut reports = Vec::new();
    while acknowledged < records {
        while sent < records {
            let key = sent.to_string();
            let record = Record {
                topic: TOPIC,
                key: key.as_bytes(),
                payload: &payload,
                headers: &[
                    ("id", b"0190163d-8694-739b-aea5-966c26f8ad91"),
                    ("eventType", b"OrderPlaced"),
                    ("aggregateType", b"order"),
                ],
                timestamp_ms: 1_700_000_000_000,
            };
            match producer.send(&record, (sent as u32 % partitions) as i32, sent as u64) {
                Ok(()) => sent += 1,
                Err(SendError::QueueFull) => break,
                Err(error) => panic!("{error:?}"),
            }
            if sent % 1000 == 0 {
                break;
            }
        }
        if sent == records || producer.queue_len() > 50_000 {
            wait_for(producer.event_fd());
        }
        while producer.serve(10_000, &mut reports) {}
        for report in reports.drain(..) {
            report.outcome.expect("acknowledged");
            acknowledged += 1;
        }
    }
    let elapsed = started.elapsed().as_secs_f64();
    let cpu = thread_cpu_seconds() - cpu_before;
    println!(
        "{records} records of {payload_bytes} bytes in {elapsed:.2} s: {:.0}/s; \
         this thread {cpu:.2} CPU s: {:.0} records per CPU second",
        records as f64 / elapsed,
        records as f64 / cpu
    );
}

#[allow(unsafe_code)] // poll(2) has no safe binding here.
fn wait_for(fd: i32) {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, 10_000) };
}

#[allow(unsafe_code)] // clock_gettime(2) has no safe binding here.
fn thread_cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid to write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
