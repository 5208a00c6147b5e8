//! Debezium in a real Kafka Connect: one standalone worker, its PostgreSQL connector (pgoutput) and its outbox event router.
//!
//! The worker runs as Kafka's own start script runs it (heap 256 MB to 2 GB, G1). It ends with a pipe that this process
//! holds, so that it never outlives the benchmark. Between `stop` and `go` the connector is in Connect's state STOPPED: its
//! replication slot stays and WAL gathers, while the worker keeps running with its code compiled.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use outbox_e2e::cluster::DATABASE;
use outbox_e2e::shell::target;
use outbox_e2e::{Db, run, seconds, wait};

use super::Peer;
use crate::stand::Stand;

/// What is set beyond what the connector needs in order to work at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tuning {
    Defaults,
    /// The batches and queues that its manual names for throughput, and a producer with batches like those of the others.
    Throughput,
    /// It looks into its queue every millisecond and its producer does not linger.
    Latency,
}

impl Tuning {
    pub fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Tuning::Defaults => &[],
            Tuning::Throughput => &[
                ("max.batch.size", "16384"),
                ("max.queue.size", "65536"),
                ("poll.interval.ms", "10"),
                ("producer.override.batch.size", "262144"),
                ("producer.override.linger.ms", "5"),
                ("producer.override.buffer.memory", "134217728"),
            ],
            Tuning::Latency => &[("poll.interval.ms", "1"), ("producer.override.linger.ms", "0")],
        }
    }
}

const CONNECTOR: &str = "outbox";
const SLOT_IS_ACTIVE: &str = "SELECT COALESCE(bool_or(active), false) FROM pg_replication_slots";
const JVM: [&str; 9] = [
    "-Xms256M",
    "-Xmx2G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
];
/// `$@` the program. Ends it when the pipe closes, hard if it takes too long.
const KEEPER: &str = r#"
"$@" </dev/null &
pid=$!
cat >/dev/null
kill "$pid"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    kill -0 "$pid" 2>/dev/null || exit 0
    sleep 0.5
done
kill -9 "$pid"
"#;

pub struct Debezium {
    folder: PathBuf,
    rest: String,
    /// The shell around it; nothing while the worker is down.
    keeper: Option<Child>,
}

impl Debezium {
    /// Returns once the connector streams.
    pub fn start(stand: &Stand, tuning: Tuning) -> Debezium {
        let folder = run::folder().join(format!("connect-{}", stand.address().replace('.', "-")));
        fs::create_dir(&folder).expect("create the worker's folder");
        let rest = format!("{}:8083", stand.address());
        write_properties(
            &folder.join("worker.properties"),
            &[
                ("bootstrap.servers", stand.broker.address()),
                ("listeners", &format!("http://{rest}")),
                ("plugin.discovery", "service_load"),
                (
                    "offset.storage.file.filename",
                    &folder.join("offsets").to_string_lossy(),
                ),
                ("key.converter", "org.apache.kafka.connect.storage.StringConverter"),
                ("value.converter", "org.apache.kafka.connect.storage.StringConverter"),
            ],
        );
        let needed = [
            ("name", CONNECTOR),
            ("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
            ("tasks.max", "1"),
            ("database.hostname", stand.address()),
            ("database.port", "5432"),
            ("database.user", "postgres"),
            ("database.password", "none"),
            ("database.dbname", DATABASE),
            ("topic.prefix", "bench"),
            ("plugin.name", "pgoutput"),
            ("publication.autocreate.mode", "filtered"),
            ("snapshot.mode", "no_data"),
            ("table.include.list", "public.outbox"),
            ("tombstones.on.delete", "false"),
            ("transforms", "outbox"),
            ("transforms.outbox.type", "io.debezium.transforms.outbox.EventRouter"),
            (
                "transforms.outbox.table.fields.additional.placement",
                "type:header:eventType,aggregatetype:header:aggregateType",
            ),
        ];
        write_properties(
            &folder.join("connector.properties"),
            &[&needed, tuning.settings()].concat(),
        );
        let mut worker = Debezium {
            folder,
            rest,
            keeper: None,
        };
        worker.start_worker();
        stand.db().wait_true(SLOT_IS_ACTIVE, seconds(60));
        worker
    }

    fn start_worker(&mut self) {
        let log = fs::File::create(self.folder.join("connect.log")).expect("create the worker's log");
        let jars = target().join("debezium-jars/*");
        // In a session of its own: Ctrl-C is not to end the keeper before the worker.
        let keeper = Command::new("setsid")
            .args(["sh", "-c", KEEPER, "keeper", "java"])
            .args(JVM)
            .arg("-cp")
            .arg(jars)
            .arg("org.apache.kafka.connect.cli.ConnectStandalone")
            .arg(self.folder.join("worker.properties"))
            .arg(self.folder.join("connector.properties"))
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("start the Connect worker");
        self.keeper = Some(keeper);
    }

    /// `stop` or `resume`.
    fn ask(&self, what: &str) {
        let answer = self.try_ask(what).unwrap_or_else(|error| error.to_string());
        assert!(
            answer.starts_with("HTTP/1.1 20"),
            "Connect was asked to {what} the connector and said: {answer}"
        );
    }

    fn try_ask(&self, what: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&self.rest)?;
        stream.set_read_timeout(Some(seconds(30)))?;
        write!(
            stream,
            "PUT /connectors/{CONNECTOR}/{what} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.rest
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// The Java process: the keeper's only child beside its `cat`.
    fn java(&self) -> Option<i32> {
        let keeper = self.keeper.as_ref()?.id();
        let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
        children
            .split_whitespace()
            .find(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "java"))
            .and_then(|pid| pid.parse().ok())
    }
}

impl Peer for Debezium {
    fn stop(&mut self, stand: &Stand) {
        self.ask("stop");
        let mut db = stand.db();
        wait("the connector to stop", seconds(60), || {
            if db.one::<bool>(SLOT_IS_ACTIVE) {
                Err("its slot is in use".to_owned())
            } else {
                Ok(())
            }
        });
    }

    fn go(&mut self, _: &Stand) {
        if self.keeper.is_some() {
            self.ask("resume");
        } else {
            self.start_worker();
        }
    }

    fn end(&mut self, _: &Stand) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            keeper.wait().expect("wait for the worker's end");
        }
    }

    fn processes(&self, db: &mut Db) -> Vec<i32> {
        // Its walsender, and the connection it asks for the tables' shape on.
        let mut processes = db.all::<i32>("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'Debezium%'");
        processes.extend(self.java());
        processes
    }
}

fn write_properties(file: &Path, properties: &[(&str, &str)]) {
    let lines: String = properties
        .iter()
        .map(|(name, value)| format!("{name}={value}\n"))
        .collect();
    fs::write(file, lines).expect("write the properties");
}
