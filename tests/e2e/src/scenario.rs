//! One scenario: a cluster with the extension in it, topics of its own, and the look at the log at its end.

use std::cell::RefCell;
use std::fs;
use std::time::Duration;

use crate::broker::{self, Broker};
use crate::cluster::{Cluster, DATABASE, Stop};
use crate::committed::committed;
use crate::db::Db;
use crate::install::check_installed;
use crate::judge::{Verdict, judge};
use crate::log_watch::{Allowed, unexpected};
use crate::random::Random;
use crate::shell;
use crate::topic::Record;

/// No stop of a server may take longer, whatever the relay is doing.
pub const STOP_SECONDS_MAX: u64 = 10;

pub struct Scenario {
    name: String,
    pub cluster: Cluster,
    allowed: RefCell<Vec<Allowed>>,
    /// Topics to delete from a broker that stays after us.
    topics: RefCell<Vec<String>>,
}

impl Scenario {
    /// A running cluster whose database `app` has the extension; the relay publishes to the shared broker.
    pub fn begin(name: &str) -> Scenario {
        Scenario::with(name, &[])
    }

    /// The same with further settings.
    pub fn with(name: &str, settings: &[(&str, &str)]) -> Scenario {
        let scenario = Scenario::with_brokers(name, Broker::shared().address(), settings);
        scenario.db().run("CREATE EXTENSION outbox_ext");
        scenario
    }

    /// A running cluster without the extension, with these brokers.
    pub fn with_brokers(name: &str, brokers: &str, settings: &[(&str, &str)]) -> Scenario {
        check_installed();
        let cluster = Cluster::create(&[("outbox_ext.brokers", brokers)]);
        cluster.configure(settings);
        cluster.start();
        Scenario {
            name: name.to_owned(),
            cluster,
            allowed: RefCell::default(),
            topics: RefCell::default(),
        }
    }

    pub fn db(&self) -> Db {
        self.cluster.connect(DATABASE)
    }

    /// An aggregate type that no other scenario and no other run uses; with it its topic.
    pub fn aggregate_type(&self, word: &str) -> String {
        let topic = self.topic(&topic_of(word));
        topic[topic_of("").len()..].to_owned()
    }

    /// Allows log lines that contain the pattern; the reason is for the reader of the test.
    pub fn allow(&self, pattern: &str, reason: &str) {
        let allowed = Allowed {
            pattern: pattern.into(),
            reason: reason.into(),
        };
        self.allowed.borrow_mut().push(allowed);
    }

    /// A topic that no other scenario and no other run uses.
    pub fn topic(&self, word: &str) -> String {
        let name = format!("{word}-{:08x}", Random::from_clock().draw() as u32);
        self.topics.borrow_mut().push(name.clone());
        name
    }

    /// Waits until all is published, then judges every event of the database against the topics of its aggregate
    /// types on the shared broker: complete, nothing invented, in order.
    #[track_caller]
    pub fn judge_all(&self, db: &mut Db, deadline: Duration) -> (Verdict, Vec<Record>) {
        self.judge_all_on(Broker::shared(), db, deadline)
    }

    /// The same on a broker of the scenario's own.
    #[track_caller]
    pub fn judge_all_on(&self, broker: &Broker, db: &mut Db, deadline: Duration) -> (Verdict, Vec<Record>) {
        let (verdict, records) = self.judge(broker, db, deadline);
        verdict.assert_complete();
        verdict.assert_in_order();
        (verdict, records)
    }

    /// The same where order is not defined.
    #[track_caller]
    pub fn judge_complete(&self, db: &mut Db, deadline: Duration) -> (Verdict, Vec<Record>) {
        let (verdict, records) = self.judge(Broker::shared(), db, deadline);
        verdict.assert_complete();
        (verdict, records)
    }

    #[track_caller]
    fn judge(&self, broker: &Broker, db: &mut Db, deadline: Duration) -> (Verdict, Vec<Record>) {
        db.wait_drained(deadline);
        let types: Vec<String> = db.all("SELECT DISTINCT aggregate_type FROM outbox_log");
        let records: Vec<Record> = types.iter().flat_map(|name| broker.read(&topic_of(name))).collect();
        let verdict = judge(&committed(db), &records);
        eprintln!("  {}: {}", self.name, verdict.summary());
        (verdict, records)
    }

    /// The log must be free of what was not allowed. Its text stays under target/ when it is not.
    fn assert_quiet_log(&self) {
        let log = self.cluster.log();
        let found: Vec<String> = unexpected(&log, &self.allowed.borrow())
            .into_iter()
            .map(str::to_owned)
            .collect();
        let some = &found[..found.len().min(20)];
        assert!(
            found.is_empty(),
            "{} unexpected lines in the server log (kept in {}):\n{}",
            found.len(),
            self.keep_log(&log),
            some.join("\n")
        );
    }

    fn keep_log(&self, log: &str) -> String {
        let folder = shell::target().join("e2e-logs");
        let file = folder.join(format!("{}.log", self.name));
        let kept = fs::create_dir_all(&folder).and_then(|()| fs::write(&file, log));
        match kept {
            Ok(()) => file.display().to_string(),
            Err(error) => format!("nowhere: {error}"),
        }
    }

    fn delete_topics(&self) {
        if broker::external().is_some() {
            let topics = self.topics.borrow();
            let names: Vec<&str> = topics.iter().map(String::as_str).collect();
            if !names.is_empty() {
                Broker::shared().delete_topics(&names);
            }
        }
    }
}

/// The topic of an aggregate type under the default template.
pub fn topic_of(aggregate_type: &str) -> String {
    format!("outbox.event.{aggregate_type}")
}

impl Drop for Scenario {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "{}: the server log is kept in {}; its end:\n{}",
                self.name,
                self.keep_log(&self.cluster.log()),
                self.cluster.log_end()
            );
            if self.cluster.is_running() {
                self.cluster.stop(Stop::Immediate);
            }
            return;
        }
        let took = if self.cluster.is_running() {
            self.cluster.stop(Stop::Fast)
        } else {
            Duration::ZERO
        };
        self.delete_topics();
        self.assert_quiet_log();
        self.cluster.remove();
        assert!(
            took < crate::seconds(STOP_SECONDS_MAX),
            "the server took {took:?} to stop"
        );
    }
}
