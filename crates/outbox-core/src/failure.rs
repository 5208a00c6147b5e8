//! What a failure that Kafka or its client reports means to the relay.
//!
//! The classes are neutral of librdkafka: `outbox-kafka` maps its error codes to them in one table,
//! the relay acts on [`Failure::action`] and nothing else.

use std::fmt;

/// Why a topic cannot be written now. None of these is the event's own fault: no attempt counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicFailure {
    /// The brokers do not know the topic (yet).
    Unknown,
    /// The client may not write to it.
    NotAuthorized,
    /// Its name is one that Kafka refuses.
    Invalid,
}

/// What became of a message, or of the producer, when it was not a plain success.
///
/// | class      | examples                                                                | action     |
/// |------------|-------------------------------------------------------------------------|------------|
/// | `Topic`    | unknown topic or partition, not authorised for it, invalid name         | park topic |
/// | `Refused`  | too large, invalid time stamp, invalid record, policy violation         | suspect    |
/// | `Producer` | cluster authorisation, sequence out of order, fenced or unknown producer| rebuild    |
/// | `Purged`   | the client gave its queue up, after a fatal error or at its end         | read again |
/// | `Unproven` | a positive report without an offset of its own: it proves nothing        | rebuild    |
///
/// What librdkafka retries by itself (no leader, too few replicas, transport) never gets here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    Topic { kind: TopicFailure, text: String },
    Refused { text: String },
    Producer { text: String },
    Purged,
    Unproven,
}

/// What the relay does about a [`Failure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Throw the producer away, make a new one after a back-off, start at the settled cursor.
    Rebuild,
    /// [`crate::window::Window::report_topic_failure`]: park the event and what follows it.
    ParkTopic,
    /// A batch was refused, and reading it again would form the same batch again: its events are
    /// suspects, and go one by one through the careful producer of the next session.
    Suspect,
    /// Nothing happened to the event: start at the settled cursor.
    ReadAgain,
}

impl Failure {
    pub fn action(&self) -> Action {
        match self {
            Failure::Topic { .. } => Action::ParkTopic,
            Failure::Refused { .. } => Action::Suspect,
            Failure::Producer { .. } | Failure::Unproven => Action::Rebuild,
            Failure::Purged => Action::ReadAgain,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Topic { text, .. } | Failure::Refused { text } | Failure::Producer { text } => f.write_str(text),
            Failure::Purged => f.write_str("the producer was closed before Kafka answered"),
            Failure::Unproven => f.write_str(
                "Kafka's positive report carries no offset, or that of an earlier batch, and proves nothing",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refused_batch_makes_suspects() {
        let text = || "x".to_owned();
        let kind = TopicFailure::Unknown;
        let failures = [
            (Failure::Topic { kind, text: text() }, Action::ParkTopic),
            (Failure::Refused { text: text() }, Action::Suspect),
            (Failure::Producer { text: text() }, Action::Rebuild),
            (Failure::Purged, Action::ReadAgain),
            (Failure::Unproven, Action::Rebuild),
        ];
        for (failure, action) in failures {
            assert_eq!(failure.action(), action, "{failure}");
        }
    }
}
