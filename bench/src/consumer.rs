//! A consumer that waits, as a service does, and notes when each record came.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use outbox_core::record::HEADER_ID;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Headers;
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use crate::stand::PARTITIONS;

/// Runs in a thread of its own, from the beginning of a topic.
pub struct Waiting {
    arrivals: Receiver<(String, Instant)>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    pub fn start(brokers: &str, topic: &str) -> Waiting {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("group.id", "outbox-bench")
            .set("enable.auto.commit", "false")
            // The broker answers a waiting fetch with the first record that comes.
            .set("fetch.min.bytes", "1")
            .set("fetch.wait.max.ms", "5000")
            .set("socket.nagle.disable", "true")
            .create()
            .expect("the consumer's settings are right");
        let mut assignment = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            assignment
                .add_partition_offset(topic, partition, Offset::Beginning)
                .expect("a valid offset");
        }
        consumer.assign(&assignment).expect("assigning by hand takes no broker");
        let (sender, arrivals) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let Some(message) = consumer.poll(Duration::from_millis(100)) else {
                    continue;
                };
                let now = Instant::now();
                let message = message.expect("the broker answers");
                let headers = message.headers().expect("each record has headers");
                let id = headers.iter().find(|header| header.key == HEADER_ID);
                let id = id.and_then(|header| header.value).expect("each record has an id");
                if sender.send((String::from_utf8_lossy(id).into_owned(), now)).is_err() {
                    return;
                }
            }
        });
        Waiting {
            arrivals,
            stop,
            thread: Some(thread),
        }
    }

    /// The id of the next record, and when it came.
    #[track_caller]
    pub fn next(&self, deadline: Duration) -> (String, Instant) {
        self.arrivals
            .recv_timeout(deadline)
            .unwrap_or_else(|error| panic!("no record within {deadline:?}: {error}"))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !thread::panicking()
        {
            panic!("the consumer failed");
        }
    }
}
