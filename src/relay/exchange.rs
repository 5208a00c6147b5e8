//! The session's exchange with Kafka: events out, reports and answers in.

use super::orphans::OrphanSearch;
use super::session::{End, Session};
use super::step;
use crate::pg::runtime;
use outbox_core::failure::{Action, Failure, TopicFailure};
use outbox_core::window::{Ticket, TopicAnswer, Via};
use outbox_kafka::{BATCH_BYTES, Record, Report, SendError, TopicMetadata};
use std::collections::HashMap;

/// Reports taken from librdkafka in one turn, so that a turn stays short.
const REPORTS_PER_TURN: usize = 20_000;
/// Events handed to librdkafka in one turn, for the same reason.
const SENDS_PER_TURN: usize = 20_000;
/// A batch is made smaller by this factor when one was refused, down to the least: then nearly every event goes alone.
const BATCH_SHRINKS: usize = 4;
const BATCH_BYTES_MIN: usize = 1_024;
/// After so long without a refusal batches are as large as ever.
pub const BATCH_RECOVERS_MS: u64 = 3_600_000;
/// Topics remembered from one session to the next.
const TOPICS_MAX: usize = 1_000;

/// What the next session must know of the one that ended: without it, it would do the same again.
#[derive(Default)]
pub struct Lesson {
    /// Events of a batch that Kafka refused, one of which is to blame. They go carefully.
    pub suspects: Vec<[u8; 16]>,
    /// Largest batch, where Kafka refused larger ones: a topic may allow less than a batch, and librdkafka does not divide what was refused. For a new process, or after
    /// [`BATCH_RECOVERS_MS`], it is the ordinary one again.
    pub batch_bytes: Option<usize>,
    pub batch_shrunk_at_ms: u64,
    /// Topics that could not be written though the brokers know them. Their first events go carefully.
    pub topics: HashMap<String, String>,
    pub orphans: OrphanSearch,
}

impl Session<'_> {
    /// Takes what librdkafka and the metadata thread have to say. True: reports are left.
    pub(super) fn take_reports(&mut self, now: u64) -> Result<bool, End> {
        let (mut fast, mut careful) = std::mem::take(&mut self.reports);
        let left = self.lanes.serve(REPORTS_PER_TURN, &mut fast, &mut careful);
        let mut failed: Option<Failure> = None;
        let mut refused = Vec::new();
        for report in careful.drain(..) {
            match report.outcome {
                Err(Failure::Refused { text }) => {
                    self.blame(Ticket::from_u64(report.ticket));
                    self.window
                        .report_refused(Ticket::from_u64(report.ticket), text.into(), now);
                }
                outcome => self.take_report(report.ticket, outcome, now, &mut failed),
            }
        }
        for report in fast.drain(..) {
            match &report.outcome {
                Err(Failure::Refused { .. }) => refused.push(Ticket::from_u64(report.ticket)),
                // The topic's partitions may be numbered anew, and the next record be taken for this one: not by this producer.
                Err(failure) if report.may_be_stored && failure.action() == Action::ParkTopic => {
                    failed = Some(worse(failed.take(), failure.clone()));
                }
                _ => {}
            }
            self.take_report(report.ticket, report.outcome, now, &mut failed);
        }
        self.reports = (fast, careful);
        for (question, answer) in self.lanes.topic_answers() {
            let answer = match answer {
                TopicMetadata::Partitions(count) => TopicAnswer::Partitions(count),
                TopicMetadata::Missing(TopicFailure::Unknown, text) => TopicAnswer::Missing(text.into()),
                TopicMetadata::Missing(_, text) => TopicAnswer::Denied(text.into()),
                TopicMetadata::NoAnswer(_) => TopicAnswer::NoAnswer,
            };
            if let Some(topic) = self.window.topic_from_u64(question) {
                self.window.topic_answer(topic, answer, now);
            }
        }
        self.reporter.kafka_logs(self.lanes.take_logs());
        match failed.or_else(|| self.lanes.fatal()) {
            None => Ok(left),
            Some(failure) => Err(self.end_of(failure, refused)),
        }
    }

    fn take_report(&mut self, ticket: u64, outcome: Result<(), Failure>, now: u64, failed: &mut Option<Failure>) {
        let ticket = Ticket::from_u64(ticket);
        match outcome {
            Ok(()) => self.window.report_delivered(ticket),
            Err(failure) if failure.action() == Action::ParkTopic => self.topic_failed(ticket, &failure, now),
            // Those that come after the first are mostly consequences of it.
            Err(failure) => *failed = Some(worse(failed.take(), failure)),
        }
    }

    fn topic_failed(&mut self, ticket: Ticket, failure: &Failure, now: u64) {
        let text = failure.to_string();
        let topics = &mut self.lesson.topics;
        if let Some(topic) = self.window.event_topic(ticket) {
            let name = self.window.topic_name(topic);
            if topics.len() < TOPICS_MAX || topics.contains_key(&**name) {
                topics.insert(name.to_string(), text.clone());
            }
        }
        self.window.report_topic_failure(ticket, text.into(), now);
    }

    /// Hands ready events to the producers. True: more are ready.
    pub(super) fn send(&mut self, now: u64) -> Result<bool, End> {
        for _ in 0..SENDS_PER_TURN {
            // A process that was stopped in here for longer than its lease hands over nothing more.
            self.check_not_superseded()?;
            let Some(dispatch) = self.window.next_send() else {
                return Ok(false);
            };
            let event = self.window.body(dispatch.ticket.step).event(dispatch.ticket.index);
            let sent = step::with_headers(&event, |headers| {
                let record = Record {
                    topic: self.window.topic_name(dispatch.topic),
                    key: event.key,
                    payload: event.payload,
                    headers,
                    timestamp_ms: event.timestamp_ms,
                };
                let ticket = dispatch.ticket.to_u64();
                self.lanes.send(dispatch.via, &record, dispatch.partition, ticket)
            });
            match sent {
                Ok(()) => {}
                Err(SendError::QueueFull) => {
                    self.window.unsend(dispatch.ticket);
                    return Ok(false);
                }
                Err(SendError::Failed(Failure::Refused { text })) if dispatch.via == Via::Careful => {
                    self.blame(dispatch.ticket);
                    self.window.report_refused(dispatch.ticket, text.into(), now);
                }
                Err(SendError::Failed(failure)) if failure.action() == Action::ParkTopic => {
                    self.topic_failed(dispatch.ticket, &failure, now);
                }
                Err(SendError::Failed(failure)) => return Err(self.end_of(failure, vec![dispatch.ticket])),
            }
        }
        Ok(true)
    }

    /// An event was refused by its own fault. Until that is settled it is a suspect for the next session: read again, it must not go into a batch.
    fn blame(&mut self, ticket: Ticket) {
        self.guilty.extend(self.window.refused([ticket]));
    }

    /// How the session ends with this failure, and what the next one learns from it.
    fn end_of(&mut self, failure: Failure, refused: Vec<Ticket>) -> End {
        if failure.action() == Action::Suspect {
            let mut suspects = self.window.refused(refused);
            if suspects.is_empty() {
                // The reports of the refused batch need not come: it may have been any of those that are out.
                suspects = self.window.outstanding_events();
            }
            if suspects.is_empty() {
                return End::Trouble(failure.to_string());
            }
            if suspects.len() > 1 {
                let batch = self.lesson.batch_bytes.unwrap_or(BATCH_BYTES) / BATCH_SHRINKS;
                self.lesson.batch_bytes = Some(batch.max(BATCH_BYTES_MIN));
                self.lesson.batch_shrunk_at_ms = runtime::monotonic_ms();
            }
            self.lesson.suspects.extend(suspects);
            // The next session does something else than this one: it need not wait.
            return End::Refusal(failure.to_string());
        }
        End::Trouble(failure.to_string())
    }
}

/// Of two failures the one that says more: a refusal explains the fatal error and the purge that follow from it.
fn worse(known: Option<Failure>, new: Failure) -> Failure {
    let rank = |failure: &Failure| match failure.action() {
        Action::Suspect => 3,
        Action::Rebuild => 2,
        Action::ParkTopic => 1,
        Action::ReadAgain => 0,
    };
    match known {
        Some(known) if rank(&known) >= rank(&new) => known,
        _ => new,
    }
}

/// Reports of the fast and the careful producer, kept between turns for their memory.
pub(super) type Reports = (Vec<Report>, Vec<Report>);
