//! The thread that asks brokers about topics, because librdkafka's call for it blocks.
//!
//! Owns the questions that wait and the answers that nobody took yet. One question after the other,
//! each in slices, so that the end of the producer never waits long for the thread. While no broker
//! can be reached it also looks for one now and then, because librdkafka does not say when a
//! connection is back.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outbox_core::failure::TopicFailure;
use rdkafka::error::RDKafkaErrorCode as Code;

use crate::error::{describe_code, topic_failure};
use crate::native::{Client, Topic, TopicState};
use crate::outage::Outage;
use crate::wake::{EventFd, spawn_without_signals};

/// What is known about a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicMetadata {
    /// It exists, with so many partitions.
    Partitions(u32),
    /// The brokers say that nothing can be published to it now, and why.
    Missing(TopicFailure, String),
    /// Nobody answered.
    NoAnswer(String),
}

/// So much time a question takes of its own, then the answer is `NoAnswer` if need be.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// A topic that the brokers create on demand is there within some hundred milliseconds; until then
/// they say that it does not exist.
const CREATION_WITHIN: Duration = Duration::from_secs(1);

/// Between two attempts for the same topic; the longer one while there is no connection, because
/// each attempt makes librdkafka try to connect.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_OFFLINE: Duration = Duration::from_millis(500);

/// How long one blocking call may take. Without a connection the call only waits for one, and
/// repeating it costs nothing; a broker that is slow to answer gets longer each time.
const SLICE_MIN: Duration = Duration::from_millis(200);
pub(crate) const SLICE_MAX: Duration = Duration::from_secs(2);

/// Between two looks for a broker during an outage.
const PROBE_EVERY: Duration = Duration::from_secs(5);

struct Question {
    topic: String,
    id: u64,
    not_before: Instant,
    /// In calls and in the pauses between them. Waiting for its turn behind other questions does not count.
    spent: Duration,
    slice: Duration,
    missing_since: Option<Instant>,
}

#[derive(Default)]
struct Inbox {
    questions: VecDeque<Question>,
    answers: Vec<(u64, TopicMetadata)>,
    closing: bool,
}

struct Shared {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    wake: Arc<EventFd>,
    outage: Arc<Outage>,
    allows_creation: bool,
}

pub(crate) struct MetadataThread {
    shared: Arc<Shared>,
    handle: JoinHandle<()>,
}

impl MetadataThread {
    pub(crate) fn start(
        client: Arc<Client>,
        wake: Arc<EventFd>,
        outage: Arc<Outage>,
        allows_creation: bool,
    ) -> io::Result<MetadataThread> {
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            changed: Condvar::new(),
            wake,
            outage,
            allows_creation,
        });
        let of_thread = Arc::clone(&shared);
        let handle = spawn_without_signals("outbox-metadata", move || of_thread.run(&client))?;
        Ok(MetadataThread { shared, handle })
    }

    pub(crate) fn ask(&self, topic: &str, id: u64) {
        let now = Instant::now();
        self.shared.lock().questions.push_back(Question {
            topic: topic.to_owned(),
            id,
            not_before: now,
            spent: Duration::ZERO,
            slice: SLICE_MIN,
            missing_since: None,
        });
        self.shared.changed.notify_one();
    }

    pub(crate) fn answers(&self) -> Vec<(u64, TopicMetadata)> {
        std::mem::take(&mut self.shared.lock().answers)
    }

    /// Tells the thread that the state of the connections may have changed.
    pub(crate) fn look_again(&self) {
        // With the lock held the thread is either before its own look or waiting already.
        let _inbox = self.shared.lock();
        self.shared.changed.notify_one();
    }

    /// Lets the thread end; it holds the client until then.
    pub(crate) fn close(self) -> JoinHandle<()> {
        self.shared.lock().closing = true;
        self.shared.changed.notify_one();
        self.handle
    }
}

/// What the thread does next.
enum Task {
    Ask(Question),
    Probe,
    End,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn run(&self, client: &Arc<Client>) {
        let mut probe_slice = SLICE_MIN;
        loop {
            match self.next_task() {
                Task::Ask(question) => self.attempt(client, question),
                Task::Probe => match client.metadata(None, millis(probe_slice)) {
                    Ok(_) => {
                        self.outage.contact();
                        self.wake.signal();
                    }
                    Err(Code::OperationTimedOut) => {
                        probe_slice = (probe_slice * 2).min(SLICE_MAX);
                    }
                    Err(_) => {}
                },
                Task::End => return,
            }
        }
    }

    fn next_task(&self) -> Task {
        let probe_at = Instant::now() + PROBE_EVERY;
        let mut inbox = self.lock();
        loop {
            if inbox.closing {
                return Task::End;
            }
            let now = Instant::now();
            let due = inbox.questions.iter().position(|q| q.not_before <= now);
            if let Some(question) = due.and_then(|index| inbox.questions.remove(index)) {
                return Task::Ask(question);
            }
            let is_down = self.outage.is_down();
            if is_down && now >= probe_at {
                return Task::Probe;
            }
            let next_question = inbox.questions.iter().map(|q| q.not_before).min();
            let wake_at = next_question.into_iter().chain(is_down.then_some(probe_at)).min();
            inbox = match wake_at {
                // Without anything to do there is no tick.
                None => self
                    .changed
                    .wait(inbox)
                    .unwrap_or_else(|poisoned| poisoned.into_inner()),
                Some(wake_at) => {
                    let waited = self.changed.wait_timeout(inbox, wake_at - now);
                    waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0
                }
            };
        }
    }

    /// One call for one question: an answer, or the question back into the box.
    fn attempt(&self, client: &Arc<Client>, mut question: Question) {
        let topic = match Topic::new(client, &question.topic) {
            Ok(topic) => topic,
            Err(code) => return self.answer(question.id, missing_or_no_answer(code)),
        };
        let began = Instant::now();
        let left = ANSWER_WITHIN.saturating_sub(question.spent);
        let state = client.metadata(Some(&topic), millis(question.slice.min(left)));
        if state.is_ok() {
            self.outage.contact();
        }
        let code = match state {
            Ok(TopicState::Exists { partitions: 0 }) => Code::LeaderNotAvailable,
            Ok(TopicState::Exists { partitions }) => {
                return self.answer(question.id, TopicMetadata::Partitions(partitions));
            }
            Ok(TopicState::Fails(code)) | Err(code) => code,
        };
        // What brokers say of the topic is an answer, whatever it is: others must not wait for it for ever.
        let is_of_topic = matches!(state, Ok(TopicState::Fails(_)));
        if code == Code::OperationTimedOut {
            question.slice = (question.slice * 2).min(SLICE_MAX);
        }
        let now = Instant::now();
        let pause = match code {
            Code::BrokerTransportFailure => PAUSE_OFFLINE,
            _ => PAUSE,
        };
        question.spent += now - began + pause;
        let tries_again = match topic_failure(code) {
            None => question.spent < ANSWER_WITHIN,
            Some((TopicFailure::Unknown, _)) if self.allows_creation => {
                now < *question.missing_since.get_or_insert(now) + CREATION_WITHIN
            }
            Some(_) => false,
        };
        if !tries_again {
            let answer = match missing_or_no_answer(code) {
                TopicMetadata::NoAnswer(text) if is_of_topic => {
                    let text = format!("the brokers refuse to make or describe the topic ({text})");
                    TopicMetadata::Missing(TopicFailure::Unknown, text)
                }
                answer => answer,
            };
            return self.answer(question.id, answer);
        }
        question.not_before = now + pause;
        self.lock().questions.push_back(question);
    }

    fn answer(&self, id: u64, answer: TopicMetadata) {
        self.lock().answers.push((id, answer));
        self.wake.signal();
    }
}

fn missing_or_no_answer(code: Code) -> TopicMetadata {
    match topic_failure(code) {
        Some((kind, text)) => TopicMetadata::Missing(kind, text),
        None => TopicMetadata::NoAnswer(describe_code(code)),
    }
}

fn millis(duration: Duration) -> i32 {
    // At least one: zero would mean "do not wait" and never find a connection.
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX).max(1)
}
