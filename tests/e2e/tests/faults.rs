//! What can be wrong between a relay and Kafka: each fault says what it is and where to look, tells no secret and no
//! payload, costs no event anything, and once mended is over without a restart.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use outbox_e2e::guarded::USER;
use outbox_e2e::scenario::topic_of;
use outbox_e2e::shell::give_to_server_user;
use outbox_e2e::wait::check;
use outbox_e2e::{Broker, Db, GuardedBroker, Scenario, committed_of, judge, seconds, wait};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

trials![
    stops_broker faults_of_connections_read_differently,
    stops_broker faults_of_topics_read_differently,
    scenario too_few_replicas,
];

const PASSWORD: &str = "Right5ecret";
const WRONG_PASSWORD: &str = "Wrong5ecret";
/// Stands in every payload.
const MARKER: &str = "Marker7payload";

/// A status says so within this time.
const SAID_WITHIN: Duration = Duration::from_secs(30);

/// What a scenario of faults works on.
struct Faulty {
    s: Scenario,
    db: Db,
    /// What statuses and events said, fault by fault.
    said: Vec<String>,
}

impl Faulty {
    fn begin(name: &str, brokers: &str) -> Faulty {
        let s = Scenario::with_brokers(
            name,
            brokers,
            &[
                ("outbox_ext.retry_backoff_max", "1s"),
                ("outbox_ext.max_attempts", "2"),
                ("outbox_ext.partition_stall", "2s"),
            ],
        );
        s.allow("outbox_ext relay WARNING", "it says what somebody must mend");
        let mut db = s.db();
        db.run("CREATE EXTENSION outbox_ext");
        Faulty {
            s,
            db,
            said: Vec::new(),
        }
    }

    fn emit(&mut self, kind: &str, events: i32) {
        for n in 0..events {
            self.db
                .emit_one(kind, &(n % 3).to_string(), &format!("\"{MARKER} {n}\""));
        }
    }

    /// Changes settings, or the file that one names, as a DBA does, and waits until the relay has taken that over: what is emitted then meets it.
    #[track_caller]
    fn alter(&mut self, settings: &[(&str, &str)]) {
        let before: String = self
            .db
            .one("SELECT COALESCE(max(lease_token::text), '') FROM outbox_lease");
        for (name, value) in settings {
            self.db.run(&format!("ALTER SYSTEM SET outbox_ext.{name} = '{value}'"));
        }
        self.db.run("SELECT pg_reload_conf()");
        // Each session has a token of its own; with wrong settings there is none.
        let taken_over = format!(
            "SELECT state = 'misconfigured' OR EXISTS (SELECT FROM outbox_lease WHERE lease_token::text <> '{before}') FROM outbox_status"
        );
        self.db.wait_true(&taken_over, seconds(20));
    }

    /// Waits until the status is in this state with an error that has all these words, and keeps the error.
    #[track_caller]
    fn expect(&mut self, state: &str, words: &[&str]) {
        let db = &mut self.db;
        let error = wait(&format!("{state}: {words:?}"), SAID_WITHIN, || {
            let row = db
                .rows("SELECT state, COALESCE(last_error, '') FROM outbox_status")
                .remove(0);
            let (seen, error): (String, String) = (row.get(0), row.get(1));
            let right = seen == state && words.iter().all(|word| error.contains(word));
            check(right, || format!("{seen}: {error}")).map(|()| error)
        });
        self.said.push(error);
    }

    /// All that was said differs from fault to fault and tells nothing that it must not.
    #[track_caller]
    fn assert_told_apart(&mut self) {
        let mut beginnings: Vec<&str> = self
            .said
            .iter()
            .map(|text| text.split('(').next().unwrap_or(""))
            .collect();
        beginnings.sort_unstable();
        let all = beginnings.len();
        beginnings.dedup();
        assert_eq!(
            beginnings.len(),
            all,
            "each fault has words of its own: {:#?}",
            self.said
        );
        let of_events: Vec<String> = self
            .db
            .all("SELECT last_error FROM outbox_event WHERE last_error IS NOT NULL");
        let of_parked: Vec<String> = self
            .db
            .all("SELECT last_error FROM outbox_parked WHERE last_error IS NOT NULL");
        let log = self.s.cluster.log();
        for text in self.said.iter().chain(&of_events).chain(&of_parked).chain([&log]) {
            for secret in [PASSWORD, WRONG_PASSWORD, MARKER] {
                assert!(!text.contains(secret), "{secret} in: {text}");
            }
        }
    }
}

/// Eight ways not to get a connection.
fn faults_of_connections_read_differently(name: &str) {
    // Routing knows no way for TCP to it, and nothing leaves the machine.
    const UNREACHABLE: &str = "255.255.255.255:9092";
    let mut f = Faulty::begin(name, UNREACHABLE);
    let kafka = GuardedBroker::prepare(f.s.cluster.folder(), PASSWORD, &[]);
    kafka.broker.start();
    let kind = f.s.aggregate_type("faulty");
    kafka.broker.create_topic(&topic_of(&kind), 2);
    f.emit(&kind, 100);
    f.expect("outage", &["no way to the broker's machine", "outbox_ext.brokers"]);
    // Longer than a name's label may be: refused without asking a name server.
    let nameless = format!("{}:9092", "k".repeat(64));
    f.alter(&[("brokers", &nameless)]);
    f.expect("outage", &["name cannot be resolved", "outbox_ext.brokers"]);
    f.alter(&[("brokers", "127.0.0.1:1")]);
    f.expect("outage", &["nothing listens there", "outbox_ext.brokers"]);
    f.alter(&[("brokers", &kafka.tls)]);
    f.expect("outage", &["close the connections", "security.protocol"]);
    f.alter(&[
        ("brokers", kafka.broker.address()),
        ("kafka_options", "security.protocol=ssl"),
    ]);
    f.expect("outage", &["does not speak TLS", "security.protocol"]);

    let trust = |file: &str| format!("security.protocol=ssl ssl.ca.location={file}");
    let stranger = kafka.stranger.display().to_string();
    f.alter(&[("brokers", &kafka.tls), ("kafka_options", "security.protocol=ssl")]);
    f.expect("outage", &["CA that this machine trusts", "ssl.ca.location"]);
    f.alter(&[("kafka_options", &trust(&stranger))]);
    f.expect("outage", &["certificate is not signed", &stranger, "ssl.ca.location"]);
    f.alter(&[("kafka_options", &trust("/nowhere.pem"))]);
    f.expect("misconfigured", &["/nowhere.pem", "ssl.ca.location", "cannot be used"]);
    assert_eq!(f.db.pending(), 100);
    f.alter(&[("kafka_options", &trust(&kafka.root.display().to_string()))]);
    f.db.wait_drained(seconds(20));

    // The password comes from a file, as the manual says: what stands in postgresql.conf PostgreSQL itself logs.
    let file = f.s.cluster.folder().join("kafka.options");
    let write = |password: &str| {
        let text = format!(
            "security.protocol=sasl_plaintext\nsasl.mechanism=PLAIN\nsasl.username={USER}\nsasl.password={password}\n"
        );
        fs::write(&file, text).expect("write the file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("close the file");
        give_to_server_user(&file);
    };
    write(WRONG_PASSWORD);
    f.alter(&[
        ("brokers", &kafka.sasl),
        ("kafka_options", ""),
        ("kafka_options_file", &file.display().to_string()),
    ]);
    // Before anything is emitted: a relay that has not heard of the change yet would publish it.
    f.expect("outage", &["authentication failed", "sasl properties"]);
    f.emit(&kind, 100);
    assert_eq!(f.db.pending(), 100);
    write(PASSWORD);
    f.alter(&[]);
    f.db.wait_drained(seconds(20));
    f.assert_told_apart();
    assert_unharmed(&mut f.db, &kafka.broker, &kind);
    drop(f);
    kafka.broker.stop();
}

/// Nothing lost, nothing repeated, no attempt counted.
#[track_caller]
fn assert_unharmed(db: &mut Db, broker: &Broker, kind: &str) {
    let verdict = judge(&committed_of(db, kind), &broker.read(&topic_of(kind)));
    verdict.assert_complete();
    verdict.assert_in_order();
    let attempts: i64 = db.one("SELECT COALESCE(sum(attempts), 0)::bigint FROM outbox_event WHERE state = 'published'");
    assert_eq!(attempts, 0, "none of these is an event's fault");
}

/// The brokers are there, and a topic cannot be written.
fn faults_of_topics_read_differently(name: &str) {
    let broker = Broker::prepare_with(&[
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found=true",
    ]);
    broker.start();
    let mut f = Faulty::begin(name, broker.address());
    f.alter(&[("kafka_options", "allow.auto.create.topics=false")]);
    let [missing, denied, narrow, good] = ["missing", "denied", "narrow", "good"].map(|word| f.s.aggregate_type(word));
    broker.create_topic(&topic_of(&good), 2);

    f.emit(&missing, 10);
    f.expect("idle", &[&topic_of(&missing), "does not exist", "create it"]);
    f.emit(&good, 10);
    broker.wait_count(&topic_of(&good), 10, seconds(10));
    broker.create_topic(&topic_of(&missing), 2);
    f.db.wait_drained(seconds(20));
    f.db.wait_true("SELECT last_error IS NULL FROM outbox_status", seconds(10));

    broker.create_topic(&topic_of(&denied), 2);
    broker.deny_writes(&topic_of(&denied));
    f.emit(&denied, 10);
    f.expect("idle", &[&topic_of(&denied), "may not write", "grant WRITE"]);
    f.emit(&good, 10);
    broker.wait_count(&topic_of(&good), 20, seconds(10));
    // Without any ACL on it the topic is everybody's again.
    broker.allow_writes(&topic_of(&denied));
    f.db.wait_drained(seconds(20));
    f.db.wait_true("SELECT last_error IS NULL FROM outbox_status", seconds(10));

    broker.create_narrow_topic(&topic_of(&narrow), 1, "2000");
    f.emit(&narrow, 10);
    let mut random = outbox_e2e::Random::from_clock();
    let noise = random.noise();
    f.db.emit_one(&narrow, "large", &format!("\"{MARKER} {noise}\""));
    f.db.wait_true("SELECT count(*) = 1 FROM outbox_dead_letter", seconds(20));
    let error: String = f.db.one("SELECT last_error FROM outbox_dead_letter");
    assert!(
        error.contains("max.message.bytes") && error.contains("outbox_retry"),
        "{error}"
    );
    f.said.push(error);
    f.emit(&good, 10);
    broker.wait_count(&topic_of(&good), 30, seconds(10));
    broker.limit_topic(&topic_of(&narrow), "1000000");
    assert_eq!(f.db.one::<i64>("SELECT outbox_retry_all()"), 1);
    f.db.wait_drained(seconds(20));

    f.assert_told_apart();
    for kind in [&missing, &denied, &narrow, &good] {
        let verdict = judge(&committed_of(&mut f.db, kind), &broker.read(&topic_of(kind)));
        verdict.assert_complete();
        verdict.assert_in_order();
    }
    drop(f);
    broker.stop();
}

/// On a single broker of librdkafka's own making: a real one counts a topic's only replica as enough.
fn too_few_replicas(name: &str) {
    let mock = MockCluster::new(1).expect("a mock cluster");
    let mut f = Faulty::begin(name, &mock.bootstrap_servers());
    let [short, good] = ["short", "good"].map(|word| f.s.aggregate_type(word));
    for kind in [&short, &good] {
        mock.create_topic(&topic_of(kind), 1, 1).expect("a topic");
    }
    f.emit(&good, 1);
    f.db.wait_drained(seconds(20));
    // Each is retried after at most a second.
    let errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 1_000];
    mock.request_errors(RDKafkaApiKey::Produce, &errors);
    f.emit(&short, 10);
    f.expect(
        "running",
        &[
            &topic_of(&short),
            "acknowledges nothing",
            "min.insync.replicas",
            "events wait",
        ],
    );
    f.db.wait_true("SELECT bool_and(attempts = 0) FROM outbox_event", seconds(5));
    mock.clear_request_errors(RDKafkaApiKey::Produce);
    let mended = Instant::now();
    f.db.wait_drained(seconds(20));
    eprintln!(
        "  {name}: published {:?} after the replicas were back",
        mended.elapsed()
    );
    f.db.wait_true("SELECT last_error IS NULL FROM outbox_status", seconds(10));
    f.assert_told_apart();
    assert_eq!(f.db.one::<i64>("SELECT sum(attempts)::bigint FROM outbox_event"), 0);
}
