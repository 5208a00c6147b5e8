//! What was sent arrives as it was sent, and each record gets its one report.

mod common;

use std::collections::HashSet;
use std::time::Instant;

use common::{DEADLINE, mock, producer, record, wait_readable};
use outbox_core::failure::Failure;
use outbox_kafka::{Record, Report, SendError};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

#[test]
fn each_record_is_reported_once() {
    let mock = mock();
    mock.create_topic("t", 4, 1).unwrap();
    let mut driver = producer(&mock.bootstrap_servers(), &[]);
    for ticket in 0..1000 {
        let partition = (ticket % 4) as i32;
        driver.producer.send(&record("t", b"{}"), partition, ticket).unwrap();
    }
    driver.until("1000 reports", |d| d.reports.len() >= 1000);
    assert!(driver.reports.iter().all(|report| report.outcome.is_ok()));
    let tickets: HashSet<u64> = driver.reports.iter().map(|report| report.ticket).collect();
    assert_eq!(tickets, (0..1000).collect());
    assert_eq!(driver.producer.queue_len(), 0);
    assert_eq!(driver.producer.fatal(), None);
    assert_eq!(driver.producer.outage(), None);
}

#[test]
fn a_record_arrives_byte_for_byte_in_its_partition() {
    let mock = mock();
    mock.create_topic("t", 3, 1).unwrap();
    let mut driver = producer(&mock.bootstrap_servers(), &[]);
    let sent = Record {
        topic: "t",
        key: b"",
        payload: "{\"a\": \"ü\", \"b\": 1.10}".as_bytes(),
        headers: &[("id", b"1"), ("empty", b""), ("id", b"\xff\x00 twice")],
        timestamp_ms: 1_234_567_890_123,
    };
    driver.producer.send(&sent, 2, u64::MAX).unwrap();
    driver.until("a report", |d| !d.reports.is_empty());
    assert_eq!(driver.reports[0].ticket, u64::MAX);
    assert_eq!(driver.reports[0].outcome, Ok(()));

    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", mock.bootstrap_servers())
        .set("group.id", "g")
        .create()
        .unwrap();
    let mut from_start = TopicPartitionList::new();
    from_start.add_partition_offset("t", 2, Offset::Beginning).unwrap();
    consumer.assign(&from_start).unwrap();
    let received = consumer.poll(DEADLINE).expect("a record").unwrap().detach();
    assert_eq!(received.partition(), 2);
    assert_eq!(received.key(), Some(&b""[..]), "an empty key is not a missing key");
    assert_eq!(received.payload(), Some(sent.payload));
    assert_eq!(received.timestamp().to_millis(), Some(1_234_567_890_123));
    let headers: Vec<(String, Option<Vec<u8>>)> = received
        .headers()
        .unwrap()
        .iter()
        .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
        .collect();
    let expected: Vec<(String, Option<Vec<u8>>)> = sent
        .headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Some(value.to_vec())))
        .collect();
    assert_eq!(headers, expected);
}

/// librdkafka writes to the descriptor only when its queue stops being empty, and one poll takes one
/// batch: whoever sleeps after one poll never hears of the others.
#[test]
fn no_report_is_left_behind_when_the_descriptor_fires_once() {
    let mock = mock();
    mock.create_topic("t", 18, 1).unwrap();
    let driver = producer(&mock.bootstrap_servers(), &[]);
    let producer = driver.producer;
    let mut reports = Vec::new();
    for round in 1..=20 {
        for ticket in 0..18 {
            producer.send(&record("t", b"{}"), ticket as i32, ticket).unwrap();
        }
        while reports.len() < 18 * round {
            assert!(
                wait_readable(producer.event_fd(), DEADLINE),
                "slept with {} of {} reports; {} left in librdkafka",
                reports.len(),
                18 * round,
                producer.queue_len()
            );
            // One batch a turn, as a relay that has other things to do in between.
            while producer.serve(1, &mut reports) {}
            producer.take_logs();
        }
    }
}

#[test]
fn one_turn_is_limited_and_says_that_more_is_left() {
    const PARTITIONS: usize = 18;
    let mock = mock();
    mock.create_topic("t", PARTITIONS as i32, 1).unwrap();
    let mut driver = producer(&mock.bootstrap_servers(), &[]);
    let deadline = Instant::now() + DEADLINE;
    let mut turns_with_more = 0;
    // Whether reports gather before they are served is up to the machine; sooner or later two of them do.
    while turns_with_more == 0 {
        assert!(Instant::now() < deadline, "no two reports ever waited at once");
        for ticket in 0..PARTITIONS {
            let sent = driver.producer.send(&record("t", b"{}"), ticket as i32, ticket as u64);
            sent.unwrap();
        }
        let mut total = 0;
        while total < PARTITIONS && Instant::now() < deadline {
            wait_readable(driver.producer.event_fd(), DEADLINE);
            loop {
                let mut one = Vec::new();
                let more = driver.producer.serve(1, &mut one);
                assert!(one.len() <= 1, "one record a batch here, so one report a turn");
                total += one.len();
                turns_with_more += usize::from(more);
                if !more {
                    break;
                }
            }
        }
        assert_eq!(total, PARTITIONS);
    }
    driver.until("an empty queue", |d| d.producer.queue_len() == 0);
}

#[test]
fn a_full_queue_refuses_without_blocking_and_takes_again_later() {
    let mock = mock();
    let mut limits = common::settings(&mock.bootstrap_servers(), &[]);
    limits.max_in_flight_events = 100;
    let mut driver = common::Driver::new(&limits, outbox_kafka::Lane::Fast);
    let mut sent = 0;
    let error = loop {
        match driver.producer.send(&record("t", b"{}"), 0, sent) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
        assert!(sent < 1000, "the queue has no limit");
    };
    assert_eq!(error, SendError::QueueFull);
    assert!(sent >= 100, "the queue is smaller than the relay's window: {sent}");
    driver.until("all reports", |d| d.reports.len() as u64 == sent);
    driver.producer.send(&record("t", b"{}"), 0, sent).unwrap();
}

#[test]
fn what_librdkafka_retries_is_not_reported_and_keeps_its_order() {
    let mock = mock();
    mock.create_topic("t", 1, 1).unwrap();
    mock.request_errors(
        RDKafkaApiKey::Produce,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT,
        ],
    );
    let mut driver = producer(&mock.bootstrap_servers(), &[("batch.num.messages", "10")]);
    for ticket in 0..100 {
        driver.producer.send(&record("t", b"{}"), 0, ticket).unwrap();
    }
    driver.until("100 reports", |d| d.reports.len() == 100);
    assert!(driver.reports.iter().all(|report| report.outcome.is_ok()));
    assert!(driver.reports.windows(2).all(|pair| pair[0].ticket < pair[1].ticket));
}

/// "Duplicate sequence" makes librdkafka report success, though no broker named an offset.
#[test]
fn a_success_without_an_offset_proves_nothing() {
    let mock = mock();
    mock.create_topic("t", 1, 1).unwrap();
    mock.request_errors(
        RDKafkaApiKey::Produce,
        &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER],
    );
    let mut driver = producer(&mock.bootstrap_servers(), &[("linger.ms", "200")]);
    for ticket in 0..3 {
        driver.producer.send(&record("t", b"{}"), 0, ticket).unwrap();
    }
    driver.until("3 reports", |d| d.reports.len() == 3);
    let unproven = |report: &Report| report.outcome == Err(Failure::Unproven);
    assert!(driver.reports.iter().all(unproven), "{:?}", driver.reports);
}

#[test]
fn purging_reports_what_was_not_sent() {
    let mut driver = producer(common::NOBODY, &[]);
    for ticket in 0..10 {
        driver.producer.send(&record("t", b"{}"), 0, ticket).unwrap();
    }
    driver.producer.purge();
    driver.until("10 reports", |d| d.reports.len() == 10);
    assert!(
        driver
            .reports
            .iter()
            .all(|report| report.outcome == Err(Failure::Purged))
    );
}
