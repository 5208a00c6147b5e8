//! Reading a topic as a consumer finds it: every record from the beginning, with all that Kafka says of it.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

#[derive(Clone, Debug)]
pub struct Record {
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// In the order of the record.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    pub timestamp_ms: Option<i64>,
}

impl Record {
    pub(crate) fn of(message: &BorrowedMessage) -> Record {
        let headers = message.headers().map(|headers| {
            let each = headers.iter();
            each.map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect()
        });
        Record {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: headers.unwrap_or_default(),
            timestamp_ms: message.timestamp().to_millis(),
        }
    }

    /// The first header of that name as text, or nothing.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(key, _)| key == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    /// The event's id; empty where a record has none.
    pub fn id(&self) -> &str {
        self.header("id").unwrap_or("")
    }

    pub fn key_text(&self) -> &str {
        text(self.key.as_deref())
    }

    pub fn value_text(&self) -> &str {
        text(self.value.as_deref())
    }
}

fn text(bytes: Option<&[u8]>) -> &str {
    bytes.map_or("", |bytes| std::str::from_utf8(bytes).unwrap_or("(not UTF-8)"))
}

/// How long a client's close is waited for.
const CLOSE: Duration = Duration::from_secs(3);

/// How long a question to the broker may take before the look counts as failed.
const ANSWER: Duration = Duration::from_secs(5);

/// A client that reads. Its close is not waited for beyond a while: rust-rdkafka waits in `drop` until the group's coordinator has answered, which one that
/// was killed meanwhile does late or never. It must be closed, though: else it goes on connecting to brokers that are gone, with six threads.
pub(crate) struct Client(Option<BaseConsumer>);

impl Deref for Client {
    type Target = BaseConsumer;

    fn deref(&self) -> &BaseConsumer {
        self.0.as_ref().expect("it is taken in drop only")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let consumer = self.0.take();
        let (closed, is_closed) = channel();
        thread::spawn(move || {
            drop(consumer);
            // Nobody waits any more if this fails.
            let _ = closed.send(());
        });
        let _ = is_closed.recv_timeout(CLOSE);
    }
}

pub(crate) fn consumer(brokers: &str) -> Client {
    let consumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        // Partitions are assigned by hand: the group is never joined, but the client wants a name.
        .set("group.id", "outbox-e2e")
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .set("allow.auto.create.topics", "false")
        .set("enable.metrics.push", "false")
        .set("reconnect.backoff.max.ms", "500")
        // A broker that stands still is asked once, and then another.
        .set("socket.timeout.ms", "3000")
        .create()
        .expect("the consumer's settings are right");
    Client(Some(consumer))
}

/// Partitions of a topic; 0 while it does not exist.
pub(crate) fn partitions(client: &BaseConsumer, topic: &str) -> Result<i32, String> {
    let metadata = client
        .fetch_metadata(Some(topic), ANSWER)
        .map_err(|error| error.to_string())?;
    let topic = metadata.topics().first().ok_or("no answer for the topic")?;
    Ok(topic.partitions().len() as i32)
}

/// A partition as the brokers' metadata describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub number: i32,
    /// The leading broker; none at the moment.
    pub leader: Option<i32>,
    pub replicas: Vec<i32>,
    pub in_sync: Vec<i32>,
}

pub(crate) fn describe(client: &BaseConsumer, topic: &str) -> Result<Vec<Partition>, String> {
    let metadata = client
        .fetch_metadata(Some(topic), ANSWER)
        .map_err(|error| error.to_string())?;
    let topic = metadata.topics().first().ok_or("no answer for the topic")?;
    let mut partitions: Vec<Partition> = topic
        .partitions()
        .iter()
        .map(|partition| Partition {
            number: partition.id(),
            leader: Some(partition.leader()).filter(|leader| *leader >= 0),
            replicas: partition.replicas().to_vec(),
            in_sync: partition.isr().to_vec(),
        })
        .collect();
    partitions.sort_by_key(|partition| partition.number);
    Ok(partitions)
}

/// Where each partition begins and ends now.
pub(crate) fn bounds(client: &BaseConsumer, topic: &str) -> Result<BTreeMap<i32, (i64, i64)>, String> {
    (0..partitions(client, topic)?)
        .map(|partition| {
            let bounds = client.fetch_watermarks(topic, partition, ANSWER);
            bounds
                .map(|bounds| (partition, bounds))
                .map_err(|error| error.to_string())
        })
        .collect()
}

/// Number of records in a topic now; 0 while it does not exist.
pub(crate) fn count(client: &BaseConsumer, topic: &str) -> Result<usize, String> {
    Ok(counts(client, topic)?.into_iter().sum())
}

/// The same by partition.
pub(crate) fn counts(client: &BaseConsumer, topic: &str) -> Result<Vec<usize>, String> {
    let bounds = bounds(client, topic)?;
    Ok(bounds.values().map(|(low, high)| (high - low) as usize).collect())
}

/// Every record that is in the topic now, each partition in its order, partition by partition as they come.
pub(crate) fn read(brokers: &str, topic: &str) -> Result<Vec<Record>, String> {
    let consumer = consumer(brokers);
    let ends: BTreeMap<i32, i64> = bounds(&consumer, topic)?
        .into_iter()
        .filter(|(_, (low, high))| high > low)
        .map(|(partition, (_, high))| (partition, high))
        .collect();
    let mut records = Vec::new();
    let mut open = ends.len();
    if open == 0 {
        return Ok(records);
    }
    assign(&consumer, topic, ends.keys().map(|partition| (*partition, 0)));
    let mut heard = Instant::now();
    while open > 0 {
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                heard = Instant::now();
                let end = ends[&message.partition()];
                // What arrived after the look at the ends is left for the next read.
                if message.offset() < end {
                    open -= usize::from(message.offset() == end - 1);
                    records.push(Record::of(&message));
                }
            }
            Some(Err(error)) => return Err(error.to_string()),
            None if heard.elapsed() > 2 * ANSWER => return Err("the broker went silent".into()),
            None => {}
        }
    }
    Ok(records)
}

/// From these offsets on; 0 is the beginning.
fn assign(consumer: &BaseConsumer, topic: &str, partitions: impl Iterator<Item = (i32, i64)>) {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in partitions {
        list.add_partition_offset(topic, partition, Offset::Offset(offset))
            .expect("a valid offset");
    }
    consumer.assign(&list).expect("assigning by hand takes no broker");
}

/// A consumer that waits at the end of a topic, as a service does.
pub struct Live {
    consumer: Client,
}

impl Live {
    pub(crate) fn new(brokers: &str, topic: &str, partitions: impl Iterator<Item = (i32, i64)>) -> Live {
        let consumer = consumer(brokers);
        assign(&consumer, topic, partitions);
        Live { consumer }
    }

    /// The next record, as soon as it is there.
    #[track_caller]
    pub fn next(&mut self, deadline: Duration) -> Record {
        self.try_next(deadline).expect("a record before the deadline")
    }

    /// The same, or nothing when the time is over. A broker that goes away is no end: the client looks for another.
    pub fn try_next(&mut self, deadline: Duration) -> Option<Record> {
        let began = Instant::now();
        loop {
            match self.consumer.poll(deadline.saturating_sub(began.elapsed())) {
                Some(Ok(message)) => return Some(Record::of(&message)),
                Some(Err(_)) if began.elapsed() < deadline => {}
                Some(Err(_)) | None => return None,
            }
        }
    }
}
