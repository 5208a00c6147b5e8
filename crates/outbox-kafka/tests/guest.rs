//! How the crate behaves as a guest of a server process: its end, its threads, its log, its secrets.

mod common;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use common::{DEADLINE, NOBODY, mock, producer, record, wait_readable};
use outbox_kafka::{Lane, Level, Producer};

#[test]
fn the_end_never_blocks_the_caller() {
    // Refused connections, names that do not resolve, and a question that is being asked meanwhile.
    for brokers in [NOBODY, "no-such-host.invalid:9092"] {
        let driver = producer(brokers, &[]);
        for ticket in 0..10_000 {
            driver.producer.send(&record("t", b"{}"), 0, ticket).unwrap();
        }
        driver.producer.ask_topic("t", 1);
        let started = Instant::now();
        let teardown = driver.producer.shut_down();
        let blocked = started.elapsed();
        assert!(blocked < Duration::from_millis(200), "{brokers}: {blocked:?}");
        if brokers == NOBODY {
            assert!(wait_readable(teardown.event_fd(), DEADLINE));
            assert!(teardown.is_done());
        }
    }
}

#[test]
fn dropping_a_producer_does_not_block_either() {
    let driver = producer(NOBODY, &[]);
    driver.producer.send(&record("t", b"{}"), 0, 1).unwrap();
    let started = Instant::now();
    drop(driver);
    assert!(started.elapsed() < Duration::from_millis(200));
}

#[test]
fn an_idle_producer_ends_within_a_second() {
    let mock = mock();
    let mut driver = producer(&mock.bootstrap_servers(), &[]);
    driver.producer.send(&record("t", b"{}"), 0, 1).unwrap();
    driver.until("a report", |d| !d.reports.is_empty());
    let started = Instant::now();
    let teardown = driver.producer.shut_down();
    assert!(wait_readable(teardown.event_fd(), DEADLINE));
    assert!(teardown.is_done());
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

/// A server's signal handlers must run on its main thread only.
#[test]
fn no_thread_of_ours_takes_a_signal() {
    let mock = mock();
    let mut driver = producer(&mock.bootstrap_servers(), &[]);
    driver.producer.send(&record("t", b"{}"), 0, 1).unwrap();
    driver.until("a report", |d| !d.reports.is_empty());
    let mut seen = HashSet::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        // A thread of another test may end meanwhile.
        let Ok(status) = std::fs::read_to_string(path.join("status")) else {
            continue;
        };
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        let name = field("Name:");
        // The pretend broker is no part of the product.
        if name == "rdk:mock" || !name.starts_with("rdk:") && !name.starts_with("outbox-") {
            continue;
        }
        let blocked = u64::from_str_radix(field("SigBlk:"), 16).unwrap();
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGURG] {
            assert!(blocked & 1 << (signal - 1) != 0, "{name} takes signal {signal}");
        }
        seen.insert(name.split(['-', ':']).next().unwrap().to_owned());
    }
    assert_eq!(seen, HashSet::from(["rdk".to_owned(), "outbox".to_owned()]));
}

#[test]
fn an_outage_is_logged_in_few_lines_and_none_twice() {
    let mut driver = producer(NOBODY, &[("reconnect.backoff.max.ms", "100")]);
    driver.producer.send(&record("t", b"{}"), 0, 1).unwrap();
    let started = Instant::now();
    driver.until("some seconds of outage", |d| {
        d.producer.outage().is_some() && started.elapsed() > Duration::from_secs(4)
    });
    assert!(!driver.logs.is_empty());
    assert!(driver.logs.len() <= 6, "{:#?}", driver.logs);
    let different: HashSet<&str> = driver.logs.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(different.len(), driver.logs.len(), "{:#?}", driver.logs);
    assert!(
        driver.logs.iter().all(|line| line.level <= Level::Notice),
        "{:#?}",
        driver.logs
    );
}

#[test]
fn an_undisturbed_producer_says_nothing() {
    let mock = mock();
    mock.create_topic("t", 1, 1).unwrap();
    let mut driver = producer(&mock.bootstrap_servers(), &[]);
    for ticket in 0..100 {
        driver.producer.send(&record("t", b"{}"), 0, ticket).unwrap();
    }
    driver.until("100 reports", |d| d.reports.len() == 100);
    let loud = driver.logs.iter().filter(|line| line.level > Level::Debug).count();
    assert_eq!(loud, 0, "{:#?}", driver.logs);
}

#[test]
fn secrets_appear_nowhere() {
    const SECRET: &str = "hunter2hunter2";
    let mock = mock();
    let options = [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "u"),
        ("sasl.password", SECRET),
        ("debug", "all"),
    ];
    let mut driver = producer(&mock.bootstrap_servers(), &options);
    driver.producer.send(&record("t", b"payload-payload"), 0, 1).unwrap();
    let started = Instant::now();
    driver.until("lines", |d| {
        d.logs.len() > 100 || started.elapsed() > Duration::from_secs(3)
    });
    assert!(driver.logs.iter().any(|line| line.level == Level::Debug));
    let everything = format!("{driver:?} {:?} {:?}", driver.logs, driver.producer);
    assert!(!everything.contains(SECRET));
    assert!(!everything.contains("payload-payload"));

    let mut broken = common::settings(NOBODY, &[("ssl.key.pem", SECRET), ("security.protocol", "ssl")]);
    let error = Producer::new(&broken, Lane::Fast).expect_err("a key that is none");
    assert!(!error.to_string().contains(SECRET), "{error}");
    assert!(!format!("{broken:?}").contains(SECRET));
    broken.options = vec![("acks".to_owned(), SECRET.to_owned())];
    let error = Producer::new(&broken, Lane::Fast).expect_err("acks");
    assert!(!error.to_string().contains(SECRET), "{error}");
}
