//! Apache Kafka for the scenarios: one shared by all, started at first use, or one of a scenario's own.
//!
//! `OUTBOX_TEST_BROKERS` names a broker that is there already; scenarios that must stop one are then skipped, since it
//! is not ours to stop.

use std::future::Future;
use std::net::TcpListener;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::RDKafkaErrorCode;

use crate::topic::{self, Live, Record};
use crate::wait::wait;
use crate::{run, shell};

pub struct Broker {
    address: String,
    /// Its data folder; nothing for a broker that is not ours.
    folder: Option<PathBuf>,
    /// `key=value` lines of its own for server.properties.
    properties: Vec<String>,
    /// For metadata and offsets.
    client: BaseConsumer,
}

/// Set to use a broker that is there already.
pub const EXTERNAL: &str = "OUTBOX_TEST_BROKERS";

/// The topic's setting that bounds a batch.
const BATCH_LIMIT: &str = "max.message.bytes";

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
        Broker::prepare_at(free_port(), properties)
    }

    /// The same at a port that the caller has chosen.
    pub(crate) fn prepare_at(port: u16, properties: &[&str]) -> Broker {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = run::folder().join(format!("broker-{number}"));
        let properties = properties.iter().copied().map(str::to_owned).collect();
        Broker {
            properties,
            ..Broker::at(format!("127.0.0.1:{port}"), Some(folder))
        }
    }

    fn at(address: String, folder: Option<PathBuf>) -> Broker {
        let client = topic::consumer(&address);
        Broker {
            address,
            folder,
            properties: Vec::new(),
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
        // It must not hold a pipe of ours open: its words go into its own log.
        let log = run::folder().join("kafka-start.log");
        let output = std::fs::File::create(&log).expect("create the start's log");
        let status = Command::new(shell::repository().join("scripts/kafka"))
            .arg("start")
            .arg(folder)
            .arg(port)
            .args(&self.properties)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output)
            .status()
            .expect("run scripts/kafka");
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        assert!(status.success(), "Kafka did not start:\n{}", said());
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
        let folder = self.folder.as_ref().expect("only a broker of ours is stopped");
        shell::run(
            Command::new(shell::repository().join("scripts/kafka"))
                .arg("stop")
                .arg(folder)
                .arg(signal),
        );
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
        let partitions = wait("the topic", Duration::from_secs(10), || {
            topic::partitions(&self.client, topic).and_then(|found| {
                if found > 0 {
                    Ok(found)
                } else {
                    Err("no topic".to_owned())
                }
            })
        });
        Live::new(&self.address, topic, partitions)
    }

    #[track_caller]
    pub fn create_topic(&self, name: &str, partitions: i32) {
        self.create(NewTopic::new(name, partitions, TopicReplication::Fixed(1)));
    }

    /// A topic that takes no batch larger than this.
    #[track_caller]
    pub fn create_narrow_topic(&self, name: &str, partitions: i32, bytes_max: &str) {
        self.create_topic_with(name, partitions, (BATCH_LIMIT, bytes_max));
    }

    /// A topic with a setting of its own.
    #[track_caller]
    pub fn create_topic_with(&self, name: &str, partitions: i32, setting: (&str, &str)) {
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        self.create(topic.set(setting.0, setting.1));
    }

    /// Changes how large a batch a topic takes.
    #[track_caller]
    pub fn limit_topic(&self, name: &str, bytes_max: &str) {
        self.change_topic(name, (BATCH_LIMIT, bytes_max));
    }

    /// Changes one setting of a topic; its others go back to what they are by default.
    #[track_caller]
    pub fn change_topic(&self, name: &str, setting: (&str, &str)) {
        let change = AlterConfig::new(ResourceSpecifier::Topic(name)).set(setting.0, setting.1);
        let admin = self.admin();
        for answer in block_on(admin.alter_configs([&change], &options())).expect("ask the broker") {
            answer.unwrap_or_else(|(_, code)| panic!("changing {name}: {code}"));
        }
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

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
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
