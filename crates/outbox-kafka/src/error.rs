//! What the relay makes of an error of librdkafka: one table.
//!
//! Four fates. *Topic*: the topic's events wait and the topic is asked for again. *Refused*: the
//! record's own fault, the only class that counts an attempt. *Producer*: nothing is wrong with the
//! record; the producer is rebuilt with back-off. *Purged*: nothing was said about the record; it is
//! read again. What is not in the table is *Producer*: an unknown error never costs an event.
//!
//! Texts are made of librdkafka's description of the code and our explanation. They never contain
//! what a broker wrote about a record, which may quote the record.

use outbox_core::failure::{Failure, TopicFailure};
use rdkafka::error::RDKafkaErrorCode as Code;

use crate::native;

enum Fate {
    Topic(TopicFailure),
    Refused,
    Producer,
    Purged,
}

#[rustfmt::skip]
fn fate(code: Code) -> (Fate, &'static str) {
    use Fate::{Producer, Purged, Refused, Topic};
    use TopicFailure::{Invalid, NotAuthorized, Unknown};
    match code {
        // From metadata, from the brokers, or because a partition count was out of date.
        Code::UnknownTopicOrPartition
        | Code::UnknownTopic          => (Topic(Unknown), "the topic does not exist, or the client may not describe it: create it, or grant DESCRIBE"),
        Code::UnknownPartition        => (Topic(Unknown), "the topic has fewer partitions than it had"),
        Code::LeaderNotAvailable      => (Topic(Unknown), "the topic is being created"),
        Code::InvalidTopic            => (Topic(Invalid), "Kafka does not allow this topic name"),
        Code::TopicAuthorizationFailed => (Topic(NotAuthorized), "the client may not write to the topic: grant WRITE on it"),

        // The whole batch comes back with the same code: each of its records is a suspect only.
        Code::MessageSizeTooLarge     => (Refused, "the record is larger than max.message.bytes of the topic, or than outbox_ext.max_message_bytes: raise it and call outbox_retry"),
        Code::MessageBatchTooLarge    => (Refused, "the record is larger than a segment of the topic"),
        Code::InvalidTimestamp        => (Refused, "the record's timestamp is outside what the topic allows"),
        Code::InvalidRecord           => (Refused, "the broker's validation rejected the record"),
        Code::PolicyViolation         => (Refused, "a policy of the broker rejected the record"),

        // A neighbour in the same batch was refused.
        Code::InvalidDifferentRecord  => (Purged, "another record of the same batch was rejected"),
        Code::PurgeQueue
        | Code::PurgeInflight
        | Code::BrokerDestroy         => (Purged, "the producer was thrown away before the record was acknowledged"),

        Code::ClusterAuthorizationFailed => (Producer, "the client may not use this cluster"),
        Code::SaslAuthenticationFailed
        | Code::Authentication        => (Producer, "the brokers rejected the client's credentials"),
        Code::ThrottlingQuotaExceeded => (Producer, "the client's quota is exceeded"),
        Code::InvalidProducerEpoch
        | Code::OutOfOrderSequenceNumber
        | Code::UnknownProducerId
        | Code::GaplessGuarantee
        | Code::Inconsistent          => (Producer, "the brokers lost track of this producer's sequence"),
        Code::Fatal                   => (Producer, "the producer failed earlier"),
        _                             => (Producer, "the producer is rebuilt"),
    }
}

/// What an error of a record means for it.
pub(crate) fn failure(code: Code) -> Failure {
    let (fate, explanation) = fate(code);
    let text = describe(code, explanation);
    match fate {
        Fate::Topic(kind) => Failure::Topic { kind, text },
        Fate::Refused => Failure::Refused { text },
        Fate::Producer => Failure::Producer { text },
        Fate::Purged => Failure::Purged,
    }
}

/// The codes of the table's second group.
const REFUSALS: [Code; 5] = [
    Code::MessageSizeTooLarge,
    Code::MessageBatchTooLarge,
    Code::InvalidTimestamp,
    Code::InvalidRecord,
    Code::PolicyViolation,
];

/// Others for which a broker refuses a batch for good, so that the gapless producer fails.
const CAUSES: [Code; 7] = [
    Code::ClusterAuthorizationFailed,
    Code::ThrottlingQuotaExceeded,
    Code::InvalidProducerEpoch,
    Code::OutOfOrderSequenceNumber,
    Code::UnknownProducerId,
    Code::InvalidRequiredAcks,
    Code::Unknown,
];

/// What the fatal error of a producer means.
///
/// A refused batch makes the gapless producer fail with a code of its own and the cause in the text
/// only (`rd_kafka_handle_Produce_error`: "... failed: <cause> (broker ..."). The reports of that
/// batch may never come, so the cause is looked for here too: it is no reason to build the same
/// batch again. With the cause known the error reads as a report of it does; librdkafka's text holds
/// numbers that differ with each producer, and so would be news in the log each time.
pub(crate) fn fatal_failure(code: Code, text: String) -> Failure {
    let is_cause = |cause: &&Code| text.contains(&format!("failed: {} (broker", native::description(**cause)));
    let cause = (code == Code::GaplessGuarantee).then(|| REFUSALS.iter().chain(&CAUSES).find(is_cause));
    match cause.flatten() {
        Some(cause) => failure(*cause),
        None => Failure::Producer { text },
    }
}

/// What an error of a topic in a metadata answer means, or `None` when it says nothing about the topic.
pub(crate) fn topic_failure(code: Code) -> Option<(TopicFailure, String)> {
    match fate(code) {
        (Fate::Topic(kind), explanation) => Some((kind, describe(code, explanation))),
        _ => None,
    }
}

/// The code as librdkafka describes it, for errors that concern no record.
pub(crate) fn describe_code(code: Code) -> String {
    native::description(code)
}

fn describe(code: Code, explanation: &str) -> String {
    format!("{explanation} ({})", native::description(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_events_own_faults_are_refusals() {
        for code in REFUSALS {
            assert!(matches!(failure(code), Failure::Refused { .. }), "{code:?}");
        }
        for code in [
            Code::BrokerTransportFailure,
            Code::AllBrokersDown,
            Code::NotEnoughReplicas,
            Code::RequestTimedOut,
            Code::MessageTimedOut,
            Code::ClusterAuthorizationFailed,
            Code::Unknown,
            Code::InvalidProducerEpoch,
            Code::Fatal,
        ] {
            assert!(matches!(failure(code), Failure::Producer { .. }), "{code:?}");
        }
    }

    #[test]
    fn the_innocent_neighbours_of_a_refused_record_are_read_again() {
        assert!(matches!(failure(Code::InvalidDifferentRecord), Failure::Purged));
        assert!(matches!(failure(Code::PurgeQueue), Failure::Purged));
        assert!(matches!(failure(Code::PurgeInflight), Failure::Purged));
    }

    #[test]
    fn a_fatal_error_over_a_refused_batch_is_a_refusal() {
        let text = |cause| {
            format!(
                "ProduceRequest for t [0] with 3 message(s) failed: {} (broker 1 PID{{Id:1,Epoch:0}}, \
                 base seq 0): unable to satisfy gap-less guarantee",
                native::description(cause)
            )
        };
        let refused = fatal_failure(Code::GaplessGuarantee, text(Code::PolicyViolation));
        assert!(matches!(refused, Failure::Refused { .. }), "{refused:?}");
        let other = fatal_failure(Code::GaplessGuarantee, text(Code::ClusterAuthorizationFailed));
        assert!(matches!(other, Failure::Producer { .. }), "{other:?}");
    }

    #[test]
    fn a_fatal_error_reads_as_its_cause_whatever_the_producers_number() {
        let fatal = |id: u32| {
            let cause = native::description(Code::ClusterAuthorizationFailed);
            let text = format!("ProduceRequest for t [0] failed: {cause} (broker 1 PID{{Id:{id},Epoch:0}})");
            fatal_failure(Code::GaplessGuarantee, text).to_string()
        };
        assert_eq!(fatal(1), fatal(2));
        assert_eq!(fatal(1), failure(Code::ClusterAuthorizationFailed).to_string());
    }

    #[test]
    fn a_topics_failure_says_which() {
        let kind = |code| topic_failure(code).map(|(kind, _)| kind);
        assert!(matches!(
            kind(Code::UnknownTopicOrPartition),
            Some(TopicFailure::Unknown)
        ));
        assert!(matches!(
            kind(Code::TopicAuthorizationFailed),
            Some(TopicFailure::NotAuthorized)
        ));
        assert!(matches!(kind(Code::InvalidTopic), Some(TopicFailure::Invalid)));
        assert!(kind(Code::BrokerTransportFailure).is_none());
    }

    #[test]
    fn a_text_explains_and_names_the_code() {
        let Failure::Refused { text } = failure(Code::MessageSizeTooLarge) else {
            panic!("not refused");
        };
        assert!(text.contains("max.message.bytes"), "{text}");
        assert!(text.contains("Message size too large"), "{text}");
    }
}
