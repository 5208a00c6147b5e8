//! What an answer of the brokers' metadata changes.

use std::sync::Arc;

use super::event::Ticket;
use super::topics::{KNOWN_AGE_MS_MAX, State, TopicId, Topics, known};

/// How long a topic may be unknown before its events are parked: a broker that creates topics by
/// itself first answers that it does not know them.
pub const TOPIC_GRACE_MS: u64 = 3_000;

/// The first delay before asking again inside of the grace; doubles.
const GRACE_DELAY_MS: u64 = 100;

/// What the brokers' metadata says of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicAnswer {
    Partitions(u32),
    /// Not known, perhaps not yet.
    Missing(Arc<str>),
    /// Known or not, this client may not or cannot write to it: no grace.
    Denied(Arc<str>),
    /// Nobody answered.
    NoAnswer,
}

/// What the window has to do after an answer.
pub(super) enum Effect {
    Nothing,
    /// The topic is known: these go to its lanes, in order.
    Admit(Vec<Ticket>),
    /// The topic is missing: these are parked, in order.
    Park(Vec<Ticket>, Arc<str>),
    /// Call back what is not sent yet and give it to [`Topics::start_moving`].
    Move(u32),
}

impl Topics {
    /// Takes the answer to the open question about a topic.
    pub fn answer(&mut self, id: TopicId, answer: TopicAnswer, now_ms: u64) -> Effect {
        let topic = &mut self.topics[id.0 as usize];
        topic.question_open = false;
        if std::mem::take(&mut topic.asked_as_missing) {
            self.asks.missing_answered();
        }
        let stale = std::mem::take(&mut topic.answer_stale);
        let answer = match answer {
            _ if stale => TopicAnswer::NoAnswer,
            TopicAnswer::Partitions(0) => TopicAnswer::NoAnswer,
            answer => answer,
        };
        match (&mut topic.state, answer) {
            (State::Unknown { waiting, .. }, TopicAnswer::Partitions(partitions)) => {
                let waiting = std::mem::take(waiting);
                topic.state = known(partitions, now_ms + KNOWN_AGE_MS_MAX, false);
                topic.backoff.reset();
                if std::mem::take(&mut topic.rows_expected) {
                    self.recover(id);
                }
                Effect::Admit(waiting)
            }
            (
                State::Unknown {
                    waiting,
                    missing_since,
                    tries,
                },
                TopicAnswer::Missing(error),
            ) => {
                let end = *missing_since.get_or_insert(now_ms) + TOPIC_GRACE_MS;
                if now_ms >= end {
                    let waiting = std::mem::take(waiting);
                    topic.backoff.reset();
                    self.become_missing(id, error.clone(), now_ms);
                    return Effect::Park(waiting, error);
                }
                let delay = GRACE_DELAY_MS << (*tries).min(10);
                *tries += 1;
                self.ask(id, end.min(now_ms + delay));
                Effect::Nothing
            }
            (State::Unknown { waiting, .. }, TopicAnswer::Denied(error)) => {
                let waiting = std::mem::take(waiting);
                topic.backoff.reset();
                self.become_missing(id, error.clone(), now_ms);
                Effect::Park(waiting, error)
            }
            (
                State::Unknown {
                    missing_since, tries, ..
                },
                TopicAnswer::NoAnswer,
            ) => {
                (*missing_since, *tries) = (None, 0);
                let delay = topic.backoff.next_delay_ms();
                self.ask(id, now_ms + delay);
                Effect::Nothing
            }
            (State::Known { lanes, .. }, TopicAnswer::Partitions(partitions)) => {
                if lanes.len() == partitions as usize {
                    Effect::Nothing
                } else {
                    Effect::Move(partitions)
                }
            }
            (State::Moving { partitions, .. }, TopicAnswer::Partitions(newest)) => {
                *partitions = newest;
                Effect::Nothing
            }
            // Of a topic in use the producer itself says when it cannot be written any more.
            (State::Known { .. } | State::Moving { .. }, _) => Effect::Nothing,
            (State::Missing { .. }, TopicAnswer::Partitions(partitions)) => {
                if topic.outstanding > 0 {
                    topic.found_ms = now_ms;
                    self.ask(id, now_ms + GRACE_DELAY_MS);
                    return Effect::Nothing;
                }
                topic.probing = true;
                topic.state = known(partitions, now_ms + KNOWN_AGE_MS_MAX, true);
                self.recover(id);
                Effect::Nothing
            }
            (State::Missing { error, .. }, answer) => {
                if let TopicAnswer::Missing(newest) | TopicAnswer::Denied(newest) = answer {
                    *error = newest;
                }
                let delay = topic.backoff.next_delay_ms();
                self.ask(id, now_ms + delay);
                Effect::Nothing
            }
        }
    }
}
