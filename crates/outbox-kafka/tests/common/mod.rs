#![allow(unsafe_code)] // poll(2) has no safe binding here.
#![allow(dead_code)] // Each test file uses a part of it.
//! A producer against librdkafka's pretend brokers, driven as the relay drives it: sleep on the
//! descriptor, then serve.

use std::time::{Duration, Instant};

use outbox_kafka::{Lane, LogLine, Producer, Record, Report, Settings, TopicMetadata};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

pub type Mock = MockCluster<'static, DefaultProducerContext>;

/// Far above what any condition needs; a test that waits so long has failed.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Nothing listens there.
pub const NOBODY: &str = "127.0.0.1:1";

pub fn mock() -> Mock {
    MockCluster::new(1).expect("mock cluster")
}

pub fn settings(brokers: &str, options: &[(&str, &str)]) -> Settings {
    Settings {
        brokers: brokers.to_owned(),
        options: options
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        max_message_bytes: 1_000_000,
        max_in_flight_bytes: 64 << 20,
        max_in_flight_events: 50_000,
        batch_bytes: None,
    }
}

pub fn producer(brokers: &str, options: &[(&str, &str)]) -> Driver {
    Driver::new(&settings(brokers, options), Lane::Fast)
}

pub fn record<'a>(topic: &'a str, payload: &'a [u8]) -> Record<'a> {
    Record {
        topic,
        key: b"key",
        payload,
        headers: &[],
        timestamp_ms: 1_700_000_000_000,
    }
}

pub struct Driver {
    pub producer: Producer,
    pub reports: Vec<Report>,
    pub logs: Vec<LogLine>,
    pub answers: Vec<(u64, TopicMetadata)>,
}

impl Driver {
    pub fn new(settings: &Settings, lane: Lane) -> Driver {
        Driver {
            producer: Producer::new(settings, lane).expect("producer"),
            reports: Vec::new(),
            logs: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// Sleeps on the descriptor and serves, until the condition holds.
    pub fn until(&mut self, what: &str, condition: impl Fn(&Driver) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            while self.producer.serve(100, &mut self.reports) {}
            self.logs.append(&mut self.producer.take_logs());
            self.answers.append(&mut self.producer.topic_answers());
            if condition(self) {
                return;
            }
            assert!(Instant::now() < deadline, "never: {what}; {self:?}");
            wait_readable(self.producer.event_fd(), Duration::from_millis(200));
        }
    }

    pub fn ask(&mut self, topic: &str) -> TopicMetadata {
        self.answers.clear();
        self.producer.ask_topic(topic, 7);
        self.until("an answer", |d| !d.answers.is_empty());
        let (question, answer) = self.answers.pop().unwrap();
        assert_eq!(question, 7);
        answer
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} reports, the last {:?}; outage {:?}; fatal {:?}; {} in librdkafka; logs {:#?}",
            self.reports.len(),
            self.reports.last(),
            self.producer.outage(),
            self.producer.fatal(),
            self.producer.queue_len(),
            self.logs,
        )
    }
}

pub fn wait_readable(fd: i32, timeout: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&mut poll, 1, timeout.as_millis() as i32) == 1 }
}
