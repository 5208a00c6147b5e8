//! librdkafka's mock cluster as a process of its own: for answers that a real broker does not give on demand.
//!
//! Prints the brokers' addresses, then obeys one command a line on its standard input, answers `ok` or `error: ...`,
//! and ends with its input.
//!
//!   topic NAME PARTITIONS         makes a topic
//!   fail CODE COUNT               the next COUNT produce requests are refused with this error code of the protocol
//!   forget-failures               no more of them
//!   topic-error NAME CODE         what metadata say of a topic; 0 takes it back
//!   delay MS                      every answer comes so much later
//!   down BROKER, up BROKER        connections of one broker, from 1 on, or of all with -1

use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

const BROKERS: i32 = 3;
const REPLICAS: i32 = 1;

type Cluster = MockCluster<'static, DefaultProducerContext>;

fn main() {
    let cluster = MockCluster::new(BROKERS).expect("librdkafka has a mock cluster");
    answer(&cluster.bootstrap_servers());
    for line in stdin().lock().lines() {
        let line = line.expect("commands are UTF-8");
        let words: Vec<&str> = line.split_whitespace().collect();
        match obey(&cluster, &words) {
            Ok(()) => answer("ok"),
            Err(error) => answer(&format!("error: {error}")),
        }
    }
}

fn answer(line: &str) {
    let mut output = stdout().lock();
    // Nobody to tell means that the parent is gone; the input ends then too.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

fn obey(cluster: &Cluster, words: &[&str]) -> Result<(), String> {
    let done = match words {
        ["topic", name, partitions] => cluster.create_topic(name, number(partitions)?, REPLICAS),
        ["fail", error, count] => {
            let errors = vec![code(error)?; number::<usize>(count)?];
            cluster.request_errors(RDKafkaApiKey::Produce, &errors);
            Ok(())
        }
        ["forget-failures"] => {
            cluster.clear_request_errors(RDKafkaApiKey::Produce);
            Ok(())
        }
        ["topic-error", name, error] => cluster.topic_error(name, code(error)?),
        ["delay", ms] => cluster.broker_round_trip_time(-1, Duration::from_millis(number(ms)?)),
        ["down", broker] => cluster.broker_down(number(broker)?),
        ["up", broker] => cluster.broker_up(number(broker)?),
        _ => return Err("unknown command".to_owned()),
    };
    done.map_err(|error| error.to_string())
}

fn number<N: std::str::FromStr>(word: &str) -> Result<N, String> {
    word.parse().map_err(|_| format!("no such number: {word}"))
}

fn code(word: &str) -> Result<RDKafkaRespErr, String> {
    let code: i32 = number(word)?;
    RDKafkaRespErr::try_from(code).map_err(|_| format!("no such error code: {word}"))
}
