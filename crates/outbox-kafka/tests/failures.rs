//! What goes wrong is named by its class, and an outage is seen to begin and to end.

mod common;

use common::{Driver, NOBODY, mock, producer, record, settings};
use outbox_core::failure::{Failure, TopicFailure};
use outbox_kafka::{Lane, SendError, TopicMetadata};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

#[test]
fn a_record_over_the_limit_is_refused_at_once() {
    let mock = mock();
    let driver = producer(&mock.bootstrap_servers(), &[]);
    let at_limit = vec![b'x'; 1_000_000 - 3];
    driver
        .producer
        .send(&record("t", &at_limit), 0, 1)
        .expect("key and payload fill the limit");
    let over = vec![b'x'; 1_010_000];
    let error = driver.producer.send(&record("t", &over), 0, 2).unwrap_err();
    let SendError::Failed(Failure::Refused { text }) = error else {
        panic!("{error:?}");
    };
    assert!(
        text.contains("outbox_ext.max_message_bytes") && !text.contains("xxx"),
        "{text}"
    );
}

#[test]
fn a_refused_batch_is_fatal_and_says_why() {
    let mock = mock();
    mock.create_topic("t", 1, 1).unwrap();
    let mut driver = producer(&mock.bootstrap_servers(), &[]);
    driver.producer.send(&record("t", b"{}"), 0, 1).unwrap();
    driver.until("the first report", |d| d.reports.len() == 1);
    mock.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE],
    );
    driver.producer.send(&record("t", b"payload-of-two"), 0, 2).unwrap();
    driver.until("a fatal error", |d| {
        d.producer.fatal().is_some() && d.reports.len() == 2
    });

    let Err(Failure::Refused { text }) = &driver.reports[1].outcome else {
        panic!("{:?}", driver.reports[1]);
    };
    assert!(text.contains("max.message.bytes"), "{text}");
    let Some(Failure::Refused { text }) = driver.producer.fatal() else {
        panic!("{:?}", driver.producer.fatal());
    };
    assert!(text.contains("Message size too large"), "{text}");
    assert!(!text.contains("payload-of-two"), "{text}");
    let error = driver.producer.send(&record("t", b"{}"), 0, 3).unwrap_err();
    assert_eq!(error, SendError::Failed(driver.producer.fatal().unwrap()));
    // The relay reports it; librdkafka's own lines about it are for debugging.
    let loud = driver
        .logs
        .iter()
        .filter(|line| line.level > outbox_kafka::Level::Notice);
    assert_eq!(loud.count(), 0, "{:#?}", driver.logs);
}

#[test]
fn in_the_careful_lane_a_refusal_is_the_records_own_and_the_producer_goes_on() {
    let mock = mock();
    mock.create_topic("t", 1, 1).unwrap();
    let mut driver = Driver::new(&settings(&mock.bootstrap_servers(), &[]), Lane::Careful);
    for error in [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD,
    ] {
        driver.reports.clear();
        driver.producer.send(&record("t", b"{}"), 0, 1).unwrap();
        driver.until("a report", |d| d.reports.len() == 1);
        assert_eq!(driver.reports[0].outcome, Ok(()));
        mock.request_errors(RDKafkaApiKey::Produce, &[error]);
        driver.producer.send(&record("t", b"poison"), 0, 2).unwrap();
        driver.until("a refusal", |d| d.reports.len() == 2);
        let outcome = &driver.reports[1].outcome;
        assert!(matches!(outcome, Err(Failure::Refused { .. })), "{outcome:?}");
        assert_eq!(driver.producer.fatal(), None);
        driver.producer.send(&record("t", b"{}"), 0, 3).unwrap();
        driver.until("the next report", |d| d.reports.len() == 3);
        assert_eq!(driver.reports[2].outcome, Ok(()));
    }
}

#[test]
fn errors_that_are_not_the_records_fault_call_for_a_new_producer() {
    for error in [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH,
    ] {
        let mock = mock();
        mock.create_topic("t", 1, 1).unwrap();
        mock.request_errors(RDKafkaApiKey::Produce, &[error]);
        let mut driver = producer(&mock.bootstrap_servers(), &[]);
        driver.producer.send(&record("t", b"{}"), 0, 1).unwrap();
        driver.until("a report", |d| !d.reports.is_empty());
        let outcome = &driver.reports[0].outcome;
        assert!(
            matches!(outcome, Err(Failure::Producer { .. })),
            "{error:?}: {outcome:?}"
        );
        driver.until("a fatal error", |d| d.producer.fatal().is_some());
        let fatal = driver.producer.fatal();
        assert!(matches!(fatal, Some(Failure::Producer { .. })), "{error:?}: {fatal:?}");
    }
}

#[test]
fn a_partition_that_the_topic_does_not_have_is_the_topics_failure() {
    let mock = mock();
    mock.create_topic("t", 2, 1).unwrap();
    let mut driver = producer(&mock.bootstrap_servers(), &[]);
    assert_eq!(driver.ask("t"), TopicMetadata::Partitions(2));
    driver.producer.send(&record("t", b"{}"), 0, 1).unwrap();
    driver.until("a report", |d| d.reports.len() == 1);
    let error = driver.producer.send(&record("t", b"{}"), 5, 2).unwrap_err();
    let SendError::Failed(Failure::Topic { kind, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(kind, TopicFailure::Unknown);
}

#[test]
fn a_topic_is_created_on_demand_unless_that_is_switched_off() {
    let mock = mock();
    let mut creating = producer(&mock.bootstrap_servers(), &[]);
    assert!(matches!(creating.ask("made"), TopicMetadata::Partitions(n) if n > 0));
    let options = [("allow.auto.create.topics", "false")];
    let mut asking = producer(&mock.bootstrap_servers(), &options);
    let answer = asking.ask("not-made");
    let TopicMetadata::Missing(TopicFailure::Unknown, text) = answer else {
        panic!("{answer:?}");
    };
    assert!(text.contains("does not exist"), "{text}");
}

#[test]
fn a_topics_error_is_told_by_kind() {
    use RDKafkaRespErr as E;
    let mock = mock();
    let mut driver = producer(&mock.bootstrap_servers(), &[]);
    for (topic, error, kind) in [
        (
            "denied",
            E::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
            TopicFailure::NotAuthorized,
        ),
        ("invalid", E::RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION, TopicFailure::Invalid),
        (
            "unknown",
            E::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART,
            TopicFailure::Unknown,
        ),
        (
            "leaderless",
            E::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
            TopicFailure::Unknown,
        ),
        // As brokers say that are too few for default.replication.factor.
        (
            "not-made",
            E::RD_KAFKA_RESP_ERR_INVALID_REPLICATION_FACTOR,
            TopicFailure::Unknown,
        ),
    ] {
        mock.create_topic(topic, 1, 1).unwrap();
        mock.topic_error(topic, error).unwrap();
        let answer = driver.ask(topic);
        assert!(
            matches!(&answer, TopicMetadata::Missing(found, _) if *found == kind),
            "{topic}: {answer:?}"
        );
    }
    // One topic's trouble is not another's.
    mock.create_topic("fine", 6, 1).unwrap();
    assert_eq!(driver.ask("fine"), TopicMetadata::Partitions(6));
}

#[test]
fn a_topic_that_may_not_be_written_fails_as_a_topic() {
    let mock = mock();
    mock.create_topic("t", 1, 1).unwrap();
    mock.topic_error("t", RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
        .unwrap();
    let mut driver = producer(&mock.bootstrap_servers(), &[]);
    driver.producer.send(&record("t", b"{}"), 0, 1).unwrap();
    driver.until("a report", |d| !d.reports.is_empty());
    let Err(Failure::Topic { kind, .. }) = &driver.reports[0].outcome else {
        panic!("{:?}", driver.reports[0]);
    };
    assert_eq!(*kind, TopicFailure::NotAuthorized);
    assert_eq!(driver.producer.fatal(), None);
}

#[test]
fn questions_are_answered_while_nobody_answers() {
    let mut driver = producer(NOBODY, &[]);
    let started = std::time::Instant::now();
    for question in 0..5 {
        driver.producer.ask_topic(&format!("t{question}"), question);
    }
    driver.until("5 answers", |d| d.answers.len() == 5);
    // All within the time of one, not one after the other.
    assert!(started.elapsed() < std::time::Duration::from_secs(8));
    for (_, answer) in &driver.answers {
        assert!(matches!(answer, TopicMetadata::NoAnswer(_)), "{answer:?}");
    }
    let outage = driver.producer.outage().expect("an outage");
    assert!(outage.contains("127.0.0.1:1"), "{outage}");
}

#[test]
fn a_slow_broker_is_heard_out() {
    let mock = mock();
    mock.create_topic("t", 3, 1).unwrap();
    let mut driver = producer(&mock.bootstrap_servers(), &[]);
    assert_eq!(driver.ask("t"), TopicMetadata::Partitions(3));
    mock.broker_round_trip_time(-1, std::time::Duration::from_millis(700))
        .unwrap();
    assert_eq!(driver.ask("t"), TopicMetadata::Partitions(3));
}

#[test]
fn an_outage_is_seen_and_its_end_too_though_nothing_is_sent() {
    let mock = mock();
    mock.create_topic("t", 1, 1).unwrap();
    let options = [("reconnect.backoff.max.ms", "500")];
    let mut driver = producer(&mock.bootstrap_servers(), &options);
    driver.producer.send(&record("t", b"{}"), 0, 1).unwrap();
    driver.until("a report", |d| d.reports.len() == 1);
    mock.broker_down(-1).unwrap();
    driver.until("an outage", |d| d.producer.outage().is_some());
    mock.broker_up(-1).unwrap();
    driver.until("the end of the outage", |d| d.producer.outage().is_none());
}

#[test]
fn an_outage_costs_no_record() {
    let mock = mock();
    mock.create_topic("t", 1, 1).unwrap();
    let options = [("reconnect.backoff.max.ms", "500")];
    let mut driver = producer(&mock.bootstrap_servers(), &options);
    mock.broker_down(-1).unwrap();
    for ticket in 0..50 {
        driver.producer.send(&record("t", b"{}"), 0, ticket).unwrap();
    }
    driver.until("an outage", |d| d.producer.outage().is_some());
    assert!(driver.reports.is_empty());
    mock.broker_up(-1).unwrap();
    driver.until("50 reports", |d| d.reports.len() == 50);
    assert!(driver.reports.iter().all(|report| report.outcome.is_ok()));
    assert_eq!(driver.producer.outage(), None);
}
