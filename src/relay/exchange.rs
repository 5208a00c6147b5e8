//! The session's exchange with Kafka: events out, reports and answers in.

use super::session::{End, Session};
use super::step;
use outbox_core::failure::{Action, Failure, TopicFailure};
use outbox_core::window::{Ticket, TopicAnswer};
use outbox_kafka::{Record, SendError, TopicMetadata};

/// Reports taken from librdkafka in one turn, so that a turn stays short.
const REPORTS_PER_TURN: usize = 20_000;
/// Events handed to librdkafka in one turn, for the same reason.
const SENDS_PER_TURN: usize = 20_000;

impl Session<'_> {
    /// Takes what librdkafka and the metadata thread have to say. True: reports are left.
    pub(super) fn take_reports(&mut self, now: u64) -> Result<bool, End> {
        let mut reports = std::mem::take(&mut self.reports);
        let left = self.producer.serve(REPORTS_PER_TURN, &mut reports);
        let mut failed: Option<Failure> = None;
        for report in reports.drain(..) {
            let ticket = Ticket::from_u64(report.ticket);
            match report.outcome {
                Ok(()) => self.window.report_delivered(ticket),
                Err(failure) if failure.action() == Action::ParkTopic => {
                    self.window
                        .report_topic_failure(ticket, failure.to_string().into(), now);
                }
                // Those that come after the first are mostly consequences of it.
                Err(failure) => failed = Some(worse(failed, failure)),
            }
        }
        self.reports = reports;
        for (question, answer) in self.producer.topic_answers() {
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
        self.reporter.kafka_logs(self.producer.take_logs());
        match failed.or_else(|| self.producer.fatal()) {
            None => Ok(left),
            Some(failure) => Err(end_of(failure)),
        }
    }

    /// Hands ready events to the producer. True: more are ready.
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
                self.producer
                    .send(&record, dispatch.partition as i32, dispatch.ticket.to_u64())
            });
            match sent {
                Ok(()) => {}
                Err(SendError::QueueFull) => {
                    self.window.unsend(dispatch.ticket);
                    return Ok(false);
                }
                Err(SendError::Failed(failure)) if failure.action() == Action::ParkTopic => {
                    self.window
                        .report_topic_failure(dispatch.ticket, failure.to_string().into(), now);
                }
                Err(SendError::Failed(failure)) => return Err(end_of(failure)),
            }
        }
        Ok(true)
    }
}

/// Of two failures the one that says more: a refusal explains the fatal error and the purge that follow from it.
fn worse(known: Option<Failure>, new: Failure) -> Failure {
    let rank = |failure: &Failure| match failure.action() {
        Action::StopRelay => 3,
        Action::Rebuild => 2,
        Action::ParkTopic => 1,
        Action::ReadAgain => 0,
    };
    match known {
        Some(known) if rank(&known) >= rank(&new) => known,
        _ => new,
    }
}

fn end_of(failure: Failure) -> End {
    match failure.action() {
        Action::StopRelay => End::Refused(failure.to_string()),
        Action::Rebuild | Action::ReadAgain | Action::ParkTopic => End::Trouble(failure.to_string()),
    }
}
