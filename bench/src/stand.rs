//! The stand: the broker and the clusters that rows are measured on.

use std::fs;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use outbox_e2e::cluster::DATABASE;
use outbox_e2e::{Broker, Cluster, Db, Random, seconds, shell};
use postgres::{Client, NoTls};

use crate::table::Table;

/// Beyond what the harness gives every cluster. fsync and synchronous_commit stay on, as PostgreSQL has them.
const SETTINGS: [(&str, &str); 5] = [
    // PostgreSQL's 128 MB is for machines of another time: a server of this size would have more than that.
    ("shared_buffers", "1GB"),
    // A round must not contain a checkpoint that the next one does not contain; each begins with one instead.
    ("checkpoint_timeout", "1h"),
    ("max_wal_size", "16GB"),
    ("max_connections", "120"),
    // What Debezium needs, all have: its WAL is the same for everybody.
    ("wal_level", "logical"),
];

/// As many as a small production topic has, and what the drain's bar asks for at the least.
pub const PARTITIONS: i32 = 3;

pub struct Stand {
    pub cluster: Cluster,
    pub broker: &'static Broker,
    topics: Mutex<Vec<String>>,
    address: String,
}

impl Stand {
    /// A running cluster whose database has the extension; its relay publishes unless the settings say otherwise.
    pub fn new(settings: &[(&str, &str)]) -> Stand {
        let stand = Stand::bare(settings);
        let mut db = stand.db();
        db.run("CREATE EXTENSION outbox_ext; CREATE EXTENSION pgstattuple");
        db.relay();
        stand
    }

    /// The same server without the extension, with a table for somebody else to read.
    pub fn for_others(table: Table) -> Stand {
        let stand = Stand::bare(&[]);
        stand
            .db()
            .run(&format!("CREATE EXTENSION pgstattuple; {}", table.create()));
        stand
    }

    fn bare(settings: &[(&str, &str)]) -> Stand {
        let broker = Broker::shared();
        let cluster = Cluster::create(&SETTINGS);
        // Debezium connects by TCP only. The port is the usual one, on a loopback address that nobody else has.
        let draw = Random::from_clock().draw();
        let address = format!(
            "127.{}.{}.{}",
            1 + draw % 254,
            draw / 254 % 256,
            1 + draw / 65_536 % 254
        );
        let rules = cluster.data().join("pg_hba.conf");
        let mut text = fs::read_to_string(&rules).expect("read pg_hba.conf");
        text.push_str("host all all 127.0.0.0/8 trust\nhost replication all 127.0.0.0/8 trust\n");
        fs::write(&rules, text).expect("write pg_hba.conf");
        cluster.configure(&[("outbox_ext.brokers", broker.address()), ("listen_addresses", &address)]);
        cluster.configure(settings);
        cluster.start();
        Stand {
            cluster,
            broker,
            topics: Mutex::default(),
            address,
        }
    }

    /// Where its server listens, besides its socket.
    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn db(&self) -> Db {
        self.cluster.connect(DATABASE)
    }

    /// Reads all that a COPY ... TO STDOUT writes out, and returns how many seconds that took.
    pub fn read_out(&self, copy: &str) -> f64 {
        let mut client = self.client();
        let began = Instant::now();
        let mut reader = client.copy_out(copy).expect("the copy begins");
        std::io::copy(&mut reader, &mut std::io::sink()).expect("the server writes it out");
        began.elapsed().as_secs_f64()
    }

    /// A connection as an application has it, with statements that stay prepared.
    pub fn client(&self) -> Client {
        Client::connect(
            &format!(
                "host={} user=postgres dbname={DATABASE}",
                self.cluster.folder().display()
            ),
            NoTls,
        )
        .expect("connect to the stand's server")
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
        self.topics().push(topic.clone());
        (aggregate_type, topic)
    }

    fn topics(&self) -> MutexGuard<'_, Vec<String>> {
        self.topics.lock().expect("nobody panics holding it")
    }

    /// Stops the server, removes its data, and deletes the topics, which may be on a broker that stays.
    pub fn end(self) {
        self.cluster.stop(outbox_e2e::Stop::Fast);
        self.cluster.remove();
        let topics = self.topics();
        self.broker
            .delete_topics(&topics.iter().map(String::as_str).collect::<Vec<&str>>());
    }
}

/// Lets a round begin with a clean server and no pages of an earlier round still to be written to disk.
pub fn settle_disks(db: &mut Db) {
    db.run("CHECKPOINT");
    shell::run(&mut Command::new("sync"));
}
