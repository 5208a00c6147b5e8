//! The producer: idempotent, one request in flight, no timeout; gapless in the fast lane.
//!
//! Owns one librdkafka client with its topics, and everything that came out of it and was not taken
//! yet. Used by one thread, the relay's main thread, which never waits in here: it sleeps on
//! `event_fd` and then calls `serve`, `topic_answers` and `take_logs`.
//!
//! Promises: a report is `Ok` only when a broker gave the record an offset, and not that of an
//! earlier batch over again. A record that was sent
//! gets one report at most; after a fatal error or a purge it may get none. After the first failure
//! of any record throw the producer away, or make sure that nothing of that partition follows.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use outbox_core::failure::Failure;
use rdkafka::error::RDKafkaErrorCode as Code;

use crate::acknowledged::Acknowledged;
use crate::error::{failure, fatal_failure};
use crate::logs::{LogBook, LogLine, redact};
use crate::metadata::{MetadataThread, SLICE_MAX, TopicMetadata};
use crate::native::{Client, Delivery, Event, EventKind, Topic};
use crate::outage::Outage;
use crate::wake::{EventFd, spawn_without_signals};

pub use crate::settings::{Lane, Settings};

/// Why there is no producer. Contains no secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerError(String);

impl ProducerError {
    pub(crate) fn new(text: String) -> ProducerError {
        ProducerError(text)
    }
}

impl fmt::Display for ProducerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProducerError {}

/// One Kafka record, borrowed while it is handed over.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    pub topic: &'a str,
    /// May be empty, is never null.
    pub key: &'a [u8],
    pub payload: &'a [u8],
    pub headers: &'a [(&'a str, &'a [u8])],
    pub timestamp_ms: i64,
}

/// What became of the record that was sent with this ticket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub ticket: u64,
    pub outcome: Result<(), Failure>,
    /// A broker may have stored it though the outcome is a failure.
    pub may_be_stored: bool,
}

/// Why a record was not taken. There will be no report for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendError {
    /// librdkafka's queue is full: send again after reports came in.
    QueueFull,
    Failed(Failure),
}

/// Topic handles kept. Beyond that, as with a topic for each event, all are made anew.
const TOPICS_MAX: usize = 1000;

pub struct Producer {
    /// Present until the end.
    client: Option<Arc<Client>>,
    metadata: Option<MetadataThread>,
    topics: RefCell<HashMap<String, Topic>>,
    wake: Arc<EventFd>,
    /// Of producers that share a descriptor, the one that makes it unreadable.
    owns_wake: bool,
    logs: RefCell<LogBook>,
    acknowledged: RefCell<Acknowledged>,
    outage: Arc<Outage>,
    secrets: Vec<String>,
    uses_tls: bool,
}

impl Producer {
    /// Starts a producer; connecting goes on in the background and its failures are no error here.
    pub fn new(settings: &Settings, lane: Lane) -> Result<Producer, ProducerError> {
        let wake = EventFd::new().map_err(system_error)?;
        Producer::with_wake(settings, lane, Arc::new(wake), true)
    }

    /// Another producer that is waited for by this one's `event_fd`: when it is readable serve this one, which makes
    /// it unreadable, and then the other.
    pub fn beside(&self, settings: &Settings, lane: Lane) -> Result<Producer, ProducerError> {
        Producer::with_wake(settings, lane, Arc::clone(&self.wake), false)
    }

    fn with_wake(
        settings: &Settings,
        lane: Lane,
        wake: Arc<EventFd>,
        owns_wake: bool,
    ) -> Result<Producer, ProducerError> {
        let secrets = settings.secrets();
        let outage = Arc::new(Outage::new(settings.ca_file()));
        let client = Client::new(settings.conf(lane)?)
            .map_err(|text| ProducerError::new(settings.unusable(&redact(&text, &secrets))))?;
        let client = Arc::new(client);
        client.enable_io_event(wake.raw());
        // librdkafka logged while it was made: its queue is not empty, and will not become so unless
        // somebody is woken to empty it.
        wake.signal();
        let mut producer = Producer {
            client: Some(Arc::clone(&client)),
            metadata: None,
            topics: RefCell::default(),
            wake: Arc::clone(&wake),
            owns_wake,
            logs: RefCell::new(LogBook::new(secrets.clone())),
            acknowledged: RefCell::default(),
            outage: Arc::clone(&outage),
            secrets,
            uses_tls: settings.uses_tls(),
        };
        // Topics are asked about by the fast lane.
        if lane == Lane::Fast {
            let thread = MetadataThread::start(client, wake, outage, settings.allows_topic_creation());
            producer.metadata = Some(thread.map_err(system_error)?);
        }
        Ok(producer)
    }

    /// Readable when `serve` or `topic_answers` may have something.
    pub fn event_fd(&self) -> RawFd {
        self.wake.raw()
    }

    /// Makes the descriptor unreadable and takes what librdkafka has to say, up to about
    /// `max_events` reports (the reports of one batch are not divided). True: more is left, call
    /// again before sleeping, for the descriptor will not become readable for it.
    pub fn serve(&self, max_events: usize, out: &mut Vec<Report>) -> bool {
        if self.owns_wake {
            self.wake.drain();
        }
        let client = self.client();
        let mut served = 0;
        let mut delivered = false;
        let more = loop {
            // At least one poll a turn: it is also what arms librdkafka's next wake-up.
            if let Some(event) = client.poll() {
                match event.kind() {
                    EventKind::Deliveries => {
                        let before = out.len();
                        delivered |= self.take_batch(&event, out);
                        served += out.len() - before;
                    }
                    EventKind::Error(code, text) => {
                        self.outage.trouble(code, &redact(&text, &self.secrets));
                        if let Some(metadata) = &self.metadata {
                            metadata.look_again();
                        }
                        served += 1;
                    }
                    EventKind::Log(level, kind, text) => {
                        self.logs.borrow_mut().add(level, &kind, &text, Instant::now());
                        served += 1;
                    }
                    EventKind::Other => served += 1,
                }
            }
            if client.events_waiting() == 0 {
                break false;
            }
            if served >= max_events {
                break true;
            }
        };
        if delivered {
            self.outage.contact();
        }
        more
    }

    /// Takes the reports of one batch. True: it was acknowledged.
    fn take_batch(&self, event: &Event<'_>, out: &mut Vec<Report>) -> bool {
        let begin = out.len();
        let mut first = None;
        while let Some(delivery) = event.next_delivery() {
            out.push(report(&delivery));
            first.get_or_insert(delivery);
        }
        let reports = &mut out[begin..];
        let all_ok = reports.iter().all(|report| report.outcome.is_ok());
        let is_new = all_ok && first.is_some_and(|first| self.acknowledged.borrow_mut().add(&first, reports.len()));
        // librdkafka counts the offsets of a batch up from the one that the broker gave, or from -1 where it gave none (rd_kafka_msgq_set_metadata):
        // there the first record alone looks unproven.
        let unproven = |report: &Report| report.outcome == Err(Failure::Unproven);
        if (all_ok && !is_new) || reports.iter().any(unproven) {
            for report in reports.iter_mut().filter(|report| report.outcome.is_ok()) {
                report.outcome = Err(Failure::Unproven);
            }
        }
        is_new
    }

    /// Hands a record over to one partition. librdkafka copies all of it.
    pub fn send(&self, record: &Record<'_>, partition: i32, ticket: u64) -> Result<(), SendError> {
        let mut topics = self.topics.borrow_mut();
        if !topics.contains_key(record.topic) {
            if topics.len() >= TOPICS_MAX {
                topics.clear();
                self.acknowledged.borrow_mut().handles_gone();
            }
            let topic = Topic::new(self.client(), record.topic).map_err(|code| SendError::Failed(failure(code)))?;
            topics.insert(record.topic.to_owned(), topic);
        }
        self.client()
            .produce(&topics[record.topic], partition, record, ticket)
            .map_err(|code| match code {
                Code::QueueFull => SendError::QueueFull,
                // After a fatal error every call returns its code; the cause says more.
                code => SendError::Failed(self.fatal().unwrap_or_else(|| failure(code))),
            })
    }

    /// Asks the brokers about a topic. The answer comes by `topic_answers` within some 5 seconds.
    pub fn ask_topic(&self, topic: &str, question: u64) {
        if let Some(metadata) = &self.metadata {
            metadata.ask(topic, question);
        }
    }

    /// The answers that have come since the last call.
    pub fn topic_answers(&self) -> Vec<(u64, TopicMetadata)> {
        self.metadata.as_ref().map_or_else(Vec::new, MetadataThread::answers)
    }

    /// The error after which this producer sends nothing more.
    pub fn fatal(&self) -> Option<Failure> {
        let (code, text) = self.client().fatal_error()?;
        Some(fatal_failure(code, redact(&text, &self.secrets)))
    }

    /// What librdkafka logged, without secrets and limited in number.
    pub fn take_logs(&self) -> Vec<LogLine> {
        self.logs.borrow_mut().take(Instant::now())
    }

    /// Why no broker can be reached; `None` once one answered or acknowledged something.
    pub fn outage(&self) -> Option<String> {
        self.outage.text()
    }

    /// Messages, requests and events that librdkafka still holds.
    pub fn queue_len(&self) -> usize {
        self.client().outstanding()
    }

    /// Fails all that is not acknowledged; the reports (`Purged`) come by `serve`.
    pub fn purge(&self) {
        self.client().purge();
    }

    /// Ends the producer on a thread of its own. Never blocks; what is not acknowledged is dropped.
    pub fn shut_down(mut self) -> Teardown {
        self.begin_teardown()
    }

    fn client(&self) -> &Arc<Client> {
        self.client.as_ref().expect("the client is present until the end")
    }

    fn begin_teardown(&mut self) -> Teardown {
        let teardown = Teardown {
            done: Arc::new(Done {
                flag: AtomicBool::new(false),
                wake: EventFd::new().ok(),
            }),
            uses_tls: self.uses_tls,
        };
        let Some(client) = self.client.take() else {
            teardown.done.set();
            return teardown;
        };
        // From here on nobody writes to our descriptor, and the thread has the last reference.
        client.disable_io_event();
        self.topics.get_mut().clear();
        let metadata = self.metadata.take().map(MetadataThread::close);
        let done = Arc::clone(&teardown.done);
        // Leaked if the thread cannot be started: blocking here would be worse, and the process that
        // has no thread left will not live long.
        let client = std::mem::ManuallyDrop::new(client);
        let spawned = spawn_without_signals("outbox-teardown", move || {
            if let Some(metadata) = metadata {
                let _ = metadata.join();
            }
            client.purge();
            drop(std::mem::ManuallyDrop::into_inner(client));
            done.set();
        });
        if spawned.is_err() {
            teardown.done.set();
        }
        teardown
    }
}

fn system_error(error: std::io::Error) -> ProducerError {
    ProducerError::new(format!("could not start the producer: {error}"))
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.begin_teardown();
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").finish_non_exhaustive()
    }
}

fn report(delivery: &Delivery<'_>) -> Report {
    let outcome = match delivery.result {
        Ok(()) if delivery.offset >= 0 => Ok(()),
        // librdkafka concluded that the record was stored; no broker said so.
        Ok(()) => Err(Failure::Unproven),
        Err(code) => Err(failure(code)),
    };
    Report {
        ticket: delivery.ticket,
        outcome,
        may_be_stored: delivery.may_be_stored,
    }
}

const PATIENCE_MS: u64 = 800;
const PATIENCE_TLS_MS: u64 = SLICE_MAX.as_millis() as u64 + 500;

/// A producer that is coming to its end.
#[derive(Debug)]
pub struct Teardown {
    done: Arc<Done>,
    uses_tls: bool,
}

#[derive(Debug)]
struct Done {
    flag: AtomicBool,
    /// Missing when the process has no descriptor left; then only `is_done` tells.
    wake: Option<EventFd>,
}

impl Done {
    fn set(&self) {
        self.flag.store(true, Ordering::Release);
        if let Some(wake) = &self.wake {
            wake.signal();
        }
    }
}

impl Teardown {
    /// How long a process that ends waits for it, milliseconds: OpenSSL is cleaned up at exit and must not be in use then, be it that a
    /// question about a topic is under way. Without TLS nobody need wait for that, nor, in any case, for the half a minute for which a stuck
    /// name resolution holds up librdkafka's threads.
    pub fn patience_ms(&self) -> u64 {
        if self.uses_tls { PATIENCE_TLS_MS } else { PATIENCE_MS }
    }

    /// Readable when it is done; -1 when there was no descriptor left.
    pub fn event_fd(&self) -> RawFd {
        self.done.wake.as_ref().map_or(-1, EventFd::raw)
    }

    pub fn is_done(&self) -> bool {
        self.done.flag.load(Ordering::Acquire)
    }
}
