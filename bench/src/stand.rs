//! The stand: the broker and the clusters that rows are measured on.

use std::cell::RefCell;
use std::process::Command;

use outbox_e2e::cluster::DATABASE;
use outbox_e2e::{Broker, Cluster, Db, Random, seconds, shell};

/// Beyond what the harness gives every cluster. fsync and synchronous_commit stay on, as PostgreSQL has them.
const SETTINGS: [(&str, &str); 4] = [
    // PostgreSQL's 128 MB is for machines of another time: a server of this size would have more than that.
    ("shared_buffers", "1GB"),
    // A round must not contain a checkpoint that the next one does not contain; each begins with one instead.
    ("checkpoint_timeout", "1h"),
    ("max_wal_size", "16GB"),
    ("max_connections", "50"),
];

/// As many as a small production topic has, and what the drain's bar asks for at the least.
pub const PARTITIONS: i32 = 3;

pub struct Stand {
    pub cluster: Cluster,
    pub broker: &'static Broker,
    topics: RefCell<Vec<String>>,
}

impl Stand {
    /// A running cluster whose database has the extension; its relay publishes unless the settings say otherwise.
    pub fn new(settings: &[(&str, &str)]) -> Stand {
        let broker = Broker::shared();
        let cluster = Cluster::create(&SETTINGS);
        cluster.configure(&[("outbox_ext.brokers", broker.address())]);
        cluster.configure(settings);
        cluster.start();
        let stand = Stand {
            cluster,
            broker,
            topics: RefCell::default(),
        };
        let mut db = stand.db();
        db.run("CREATE EXTENSION outbox_ext; CREATE EXTENSION pgstattuple");
        db.relay();
        stand
    }

    pub fn db(&self) -> Db {
        self.cluster.connect(DATABASE)
    }

    /// Switches publishing off or on and waits until the relay has noticed.
    pub fn publish(&self, db: &mut Db, on: bool) {
        self.cluster
            .configure(&[("outbox_ext.enabled", if on { "on" } else { "off" })]);
        db.run("SELECT pg_reload_conf()");
        let wanted = if on {
            "state <> 'disabled'"
        } else {
            "state = 'disabled'"
        };
        db.wait_true(&format!("SELECT {wanted} FROM outbox_status"), seconds(10));
    }

    /// An aggregate type and its topic, new on this broker, which exists when this returns.
    pub fn new_topic(&self, word: &str) -> (String, String) {
        let aggregate_type = format!("{word}-{:08x}", Random::from_clock().draw() as u32);
        let topic = outbox_e2e::scenario::topic_of(&aggregate_type);
        self.broker.create_topic(&topic, PARTITIONS);
        self.topics.borrow_mut().push(topic.clone());
        (aggregate_type, topic)
    }

    /// Stops the server, whose folder goes at the end of the run, and deletes the topics, which may be on a broker that
    /// stays.
    pub fn end(self) {
        self.cluster.stop(outbox_e2e::Stop::Fast);
        let topics = self.topics.borrow();
        self.broker
            .delete_topics(&topics.iter().map(String::as_str).collect::<Vec<&str>>());
    }
}

/// Lets a round begin with a clean server and no pages of an earlier round still to be written to disk.
pub fn settle_disks(db: &mut Db) {
    db.run("CHECKPOINT");
    shell::run(&mut Command::new("sync"));
}
