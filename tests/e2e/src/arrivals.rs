//! When each record of many topics arrives at a consumer that waits for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::{Offset, TopicPartitionList};

use crate::Broker;
use crate::topic::{self, Record};

/// Watches topics of one partition each, from where they end now.
pub struct Arrivals {
    stop: Arc<AtomicBool>,
    seen: Arc<AtomicUsize>,
    watching: JoinHandle<HashMap<String, Instant>>,
}

impl Arrivals {
    #[track_caller]
    pub fn watch(broker: &Broker, topics: &[String]) -> Arrivals {
        let consumer = topic::consumer(broker.address());
        let mut list = TopicPartitionList::new();
        for topic in topics {
            let (_, end) = consumer
                .fetch_watermarks(topic, 0, Duration::from_secs(10))
                .unwrap_or_else(|error| panic!("the end of {topic}: {error}"));
            list.add_partition_offset(topic, 0, Offset::Offset(end))
                .expect("a valid offset");
        }
        consumer.assign(&list).expect("assigning by hand takes no broker");
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counter) = (Arc::clone(&stop), Arc::clone(&seen));
        let watching = thread::spawn(move || {
            let mut arrived = HashMap::new();
            while !stopped.load(Ordering::Relaxed) {
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                    let now = Instant::now();
                    arrived.entry(Record::of(&message).id().to_owned()).or_insert(now);
                    counter.store(arrived.len(), Ordering::Relaxed);
                }
            }
            arrived
        });
        Arrivals { stop, seen, watching }
    }

    /// Different events that have arrived so far.
    pub fn count(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }

    /// When each event, by its id, arrived first.
    pub fn stop(self) -> HashMap<String, Instant> {
        self.stop.store(true, Ordering::Relaxed);
        self.watching.join().expect("watching does not panic")
    }
}
