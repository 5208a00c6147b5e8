//! Apache Kafka for the scenarios: one shared by all, started at first use, or one of a scenario's own.
//!
//! `OUTBOX_TEST_BROKERS` names a broker that is there already; scenarios that must stop one are then skipped, since it
//! is not ours to stop.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;

use crate::topic::{self, Live, Partition, Record};
use crate::wait::wait;
use crate::{port, run, shell};

pub struct Broker {
    address: String,
    /// Its data folder; nothing for a broker that is not ours.
    folder: Option<PathBuf>,
    /// `key=value` lines of its own for server.properties.
    properties: Vec<String>,
    /// Replicas of the topics it makes.
    replication: i32,
    /// For metadata and offsets.
    client: topic::Client,
}

/// Set to use a broker that is there already.
pub const EXTERNAL: &str = "OUTBOX_TEST_BROKERS";

/// The topic's setting that bounds a batch.
const BATCH_LIMIT: &str = "max.message.bytes";

/// Kafka's tool for access control lists.
pub const ACLS: &str = "org.apache.kafka.tools.AclCommand";

pub fn external() -> Option<String> {
    std::env::var(EXTERNAL).ok().filter(|brokers| !brokers.is_empty())
}

impl Broker {
    /// The one that all scenarios share.
    pub fn shared() -> &'static Broker {
        static SHARED: OnceLock<Broker> = OnceLock::new();
        SHARED.get_or_init(|| match external() {
            Some(address) => Broker::at(address, None),
            None => {
                let broker = Broker::prepare();
                broker.start();
                broker
            }
        })
    }

    /// A broker of the scenario's own, not started yet; its address is known already.
    pub fn prepare() -> Broker {
        Broker::prepare_with(&[])
    }

    /// The same with `key=value` properties of its own.
    pub fn prepare_with(properties: &[&str]) -> Broker {
        Broker::prepare_at(port::free(), properties)
    }

    /// The same at a port that the caller has chosen.
    pub(crate) fn prepare_at(port: u16, properties: &[&str]) -> Broker {
        let properties = properties.iter().copied().map(str::to_owned).collect();
        Broker {
            properties,
            ..Broker::at(format!("127.0.0.1:{port}"), Some(new_folder()))
        }
    }

    /// The brokers of a cluster seen as one; each is started and stopped by `kafka_cluster`.
    pub(crate) fn of_cluster(addresses: String, replication: i32) -> Broker {
        Broker {
            replication,
            ..Broker::at(addresses, None)
        }
    }

    fn at(address: String, folder: Option<PathBuf>) -> Broker {
        let client = topic::consumer(&address);
        Broker {
            address,
            folder,
            properties: Vec::new(),
            replication: 1,
            client,
        }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Starts it, or starts it again with the data it had.
    #[track_caller]
    pub fn start(&self) {
        let port = self.address.rsplit(':').next().expect("an address ends with its port");
        let folder = self.folder.as_ref().expect("only a broker of ours is started");
        let mut arguments: Vec<&str> = vec![port];
        arguments.extend(self.properties.iter().map(String::as_str));
        launch("start", folder, &arguments, None);
    }

    /// Stops it in order.
    #[track_caller]
    pub fn stop(&self) {
        self.end("TERM");
    }

    /// Ends its process at once, as a crash does.
    #[track_caller]
    pub fn kill(&self) {
        self.end("KILL");
    }

    #[track_caller]
    fn end(&self, signal: &str) {
        end(self.folder.as_ref().expect("only a broker of ours is stopped"), signal);
    }

    /// Every record of a topic.
    #[track_caller]
    pub fn read(&self, topic: &str) -> Vec<Record> {
        topic::read(&self.address, topic).unwrap_or_else(|error| panic!("reading {topic}: {error}"))
    }

    /// Number of records of a topic; 0 while it does not exist.
    #[track_caller]
    pub fn count(&self, topic: &str) -> usize {
        // A topic that was made a moment ago may have no leader yet.
        wait(&format!("a count of {topic}"), Duration::from_secs(10), || {
            topic::count(&self.client, topic)
        })
    }

    /// The same, or why it cannot be told now.
    pub fn try_count(&self, topic: &str) -> Result<usize, String> {
        topic::count(&self.client, topic)
    }

    /// Number of records in each partition.
    pub fn counts(&self, topic: &str) -> Result<Vec<usize>, String> {
        topic::counts(&self.client, topic)
    }

    /// Waits until a topic holds at least so many records, and reads all it holds then.
    #[track_caller]
    pub fn wait_records(&self, topic: &str, at_least: usize, deadline: Duration) -> Vec<Record> {
        self.wait_count(topic, at_least, deadline);
        self.read(topic)
    }

    #[track_caller]
    pub fn wait_count(&self, topic: &str, at_least: usize, deadline: Duration) -> usize {
        wait(
            &format!("{at_least} records in {topic}"),
            deadline,
            || match topic::count(&self.client, topic)? {
                enough if enough >= at_least => Ok(enough),
                fewer => Err(format!("{fewer} records")),
            },
        )
    }

    /// A consumer that waits for what comes to a topic that exists.
    pub fn live(&self, topic: &str) -> Live {
        let bounds = self.bounds(topic);
        Live::new(&self.address, topic, bounds.map(|(partition, _)| (partition, 0)))
    }

    /// A consumer that waits for what comes to a topic after what it holds now.
    pub fn live_end(&self, topic: &str) -> Live {
        Live::new(&self.address, topic, self.bounds(topic))
    }

    /// The partitions of a topic that exists, and where each ends.
    fn bounds(&self, topic: &str) -> impl Iterator<Item = (i32, i64)> + use<> {
        let bounds = wait("the topic", Duration::from_secs(30), || {
            let found = topic::bounds(&self.client, topic)?;
            if found.is_empty() {
                Err("no topic".to_owned())
            } else {
                Ok(found)
            }
        });
        bounds.into_iter().map(|(partition, (_, end))| (partition, end))
    }

    #[track_caller]
    pub fn create_topic(&self, name: &str, partitions: i32) {
        self.create(self.new_topic(name, partitions));
    }

    /// A topic with one setting of its own.
    #[track_caller]
    pub fn create_topic_with(&self, name: &str, partitions: i32, setting: &str, value: &str) {
        self.create(self.new_topic(name, partitions).set(setting, value));
    }

    fn new_topic<'a>(&self, name: &'a str, partitions: i32) -> NewTopic<'a> {
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(self.replication));
        // A broker's own setting of this name does not count where the controller keeps eligible leaders.
        let in_sync_min = if self.replication > 2 { "2" } else { "1" };
        topic.set("min.insync.replicas", in_sync_min)
    }

    /// A topic that takes no batch larger than this.
    #[track_caller]
    pub fn create_narrow_topic(&self, name: &str, partitions: i32, bytes_max: &str) {
        self.create_topic_with(name, partitions, BATCH_LIMIT, bytes_max);
    }

    /// Changes how large a batch a topic takes.
    #[track_caller]
    pub fn limit_topic(&self, name: &str, bytes_max: &str) {
        self.set_topic(name, BATCH_LIMIT, bytes_max);
    }

    /// Changes a setting of a topic; its others go back to their defaults.
    #[track_caller]
    pub fn set_topic(&self, name: &str, setting: &str, value: &str) {
        let change = AlterConfig::new(ResourceSpecifier::Topic(name)).set(setting, value);
        let admin = self.admin();
        for answer in block_on(admin.alter_configs([&change], &options())).expect("ask the broker") {
            answer.unwrap_or_else(|(_, code)| panic!("changing {name}: {code}"));
        }
    }

    /// Gives a topic more partitions: so many in all.
    #[track_caller]
    pub fn grow_topic(&self, name: &str, partitions: usize) {
        let admin = self.admin();
        let change = NewPartitions::new(name, partitions);
        for answer in block_on(admin.create_partitions([&change], &options())).expect("ask the broker") {
            answer.unwrap_or_else(|(_, code)| panic!("growing {name}: {code}"));
        }
    }

    /// The partitions of a topic, with who leads each.
    pub fn partitions(&self, topic: &str) -> Result<Vec<Partition>, String> {
        topic::describe(&self.client, topic)
    }

    /// Runs one of Kafka's own tools against this broker.
    #[track_caller]
    pub fn tool(&self, class: &str, arguments: &[&str]) {
        shell::run(
            Command::new(shell::repository().join("scripts/kafka"))
                .args(["tool", class, "--bootstrap-server", &self.address])
                .args(arguments),
        );
    }

    /// Forbids everybody to write to a topic; they may still see it. The broker was started with an authorizer.
    #[track_caller]
    pub fn deny_writes(&self, topic: &str) {
        self.change_denial(topic, &["--add"]);
    }

    /// Takes back what `deny_writes` did.
    #[track_caller]
    pub fn allow_writes(&self, topic: &str) {
        self.change_denial(topic, &["--remove", "--force"]);
    }

    #[track_caller]
    fn change_denial(&self, topic: &str, change: &[&str]) {
        let denial = ["--deny-principal", "User:ANONYMOUS", "--operation", "Write"];
        self.tool(ACLS, &[change, &["--topic", topic], &denial].concat());
    }

    #[track_caller]
    fn create(&self, topic: NewTopic) {
        let admin = self.admin();
        let answer = block_on(admin.create_topics([&topic], &options())).expect("ask the broker");
        answer.into_iter().for_each(|topic| {
            topic.unwrap_or_else(|(name, code)| panic!("creating {name}: {code}"));
        });
    }

    /// Deletes topics that exist. For a broker that stays after us.
    pub fn delete_topics(&self, names: &[&str]) {
        let admin = self.admin();
        let answers = block_on(admin.delete_topics(names, &options())).unwrap_or_default();
        for (name, code) in answers.into_iter().filter_map(Result::err) {
            if code != RDKafkaErrorCode::UnknownTopicOrPartition {
                eprintln!("could not delete topic {name}: {code}");
            }
        }
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        ClientConfig::new()
            .set("bootstrap.servers", &self.address)
            .create()
            .expect("the admin client's settings are right")
    }
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(Duration::from_secs(10)))
}

/// The folder of a broker to be.
pub(crate) fn new_folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    run::folder().join(format!("broker-{number}"))
}

/// `scripts/kafka KIND FOLDER ...`, which returns when the node is up.
#[track_caller]
pub(crate) fn launch(kind: &str, folder: &Path, arguments: &[&str], heap: Option<&str>) {
    // It must not hold a pipe of ours open: its words go into a log.
    let log = folder.with_extension("start.log");
    let output = std::fs::File::create(&log).expect("create the start's log");
    let mut command = Command::new(shell::repository().join("scripts/kafka"));
    if let Some(heap) = heap {
        command.env("KAFKA_HEAP", heap);
    }
    let status = command
        .arg(kind)
        .arg(folder)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output.try_clone().expect("a second handle"))
        .stderr(output)
        .status()
        .expect("run scripts/kafka");
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    assert!(status.success(), "Kafka did not start:\n{}", said());
}

/// Ends a node by a signal and waits until it is gone.
#[track_caller]
pub(crate) fn end(folder: &Path, signal: &str) {
    shell::run(
        Command::new(shell::repository().join("scripts/kafka"))
            .arg("stop")
            .arg(folder)
            .arg(signal),
    );
}

/// Waits for the admin client's answer, which another thread brings.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}
