//! librdkafka's mock cluster, run as a process beside the relay (`src/bin/mock_kafka.rs`), and told what to answer.
//!
//! It stores what it accepts, and a consumer reads it back as from any Kafka. What it refuses on command it does not
//! store. It knows no retention, no replicas that lag, no access control.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use crate::broker::Broker;

pub struct MockKafka {
    child: Child,
    /// Its input and output; none once it is told to end.
    talk: Mutex<Option<(ChildStdin, BufReader<ChildStdout>)>>,
    kafka: Broker,
}

impl MockKafka {
    /// Starts the program that this crate builds; cargo tells tests where it is.
    pub fn start(program: &str) -> MockKafka {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
        let input = child.stdin.take().expect("it was asked for");
        let mut output = BufReader::new(child.stdout.take().expect("it was asked for"));
        let addresses = line(&mut output);
        MockKafka {
            child,
            talk: Mutex::new(Some((input, output))),
            kafka: Broker::of_cluster(addresses, 1),
        }
    }

    pub fn kafka(&self) -> &Broker {
        &self.kafka
    }

    /// One command of those that the program's head lists.
    #[track_caller]
    pub fn tell(&self, command: &str) {
        let mut talk = self.talk.lock().expect("nobody panics holding it");
        let (input, output) = talk.as_mut().expect("it runs");
        writeln!(input, "{command}").expect("it reads");
        let answer = line(output);
        drop(talk);
        assert_eq!(answer, "ok", "{command}");
    }
}

fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("it writes UTF-8");
    line.trim_end().to_owned()
}

impl Drop for MockKafka {
    fn drop(&mut self) {
        if let Ok(talk) = self.talk.get_mut() {
            // It ends with its input.
            *talk = None;
        }
        // Its exit code says nothing that a test could use.
        let _ = self.child.wait();
    }
}
