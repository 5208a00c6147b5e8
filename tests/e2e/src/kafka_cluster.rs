//! A Kafka cluster of three brokers, each with a link between it and the relay.
//!
//! The controller is a process of its own, so that any broker may go, or all of them, and the cluster still knows who
//! leads what. Each broker has two listeners: DIRECT, for the other brokers and for the harness, and PROXIED, whose
//! advertised address is the link's. A client that begins with `address()` sees links only; one that begins with
//! `kafka()` sees none.
//!
//! Topics are replicated three times and need two replicas in sync.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;

use crate::broker::{self, Broker};
use crate::proxy::Link;
use crate::topic::Partition;
use crate::wait::{check, wait};
use crate::{port, seconds, shell};

pub const BROKERS: i32 = 3;

/// Heap of a broker and of the controller. Small, for four of them on a machine that is tested as well.
const BROKER_HEAP: &str = "288m";
const CONTROLLER_HEAP: &str = "128m";

/// Of the controller: how soon a broker that does not answer loses what it leads. Kafka's default is 9 s.
const SESSION: [&str; 2] = ["broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500"];

pub struct KafkaCluster {
    controller: PathBuf,
    nodes: Vec<Node>,
    kafka: Broker,
}

/// One broker.
pub struct Node {
    pub id: i32,
    folder: PathBuf,
    controller: PathBuf,
    port: u16,
    properties: Vec<String>,
    /// Between it and the relay.
    pub link: Link,
}

impl KafkaCluster {
    /// The one that scenarios share. Each leaves it whole: `make_whole`.
    pub fn shared() -> &'static KafkaCluster {
        static SHARED: OnceLock<KafkaCluster> = OnceLock::new();
        SHARED.get_or_init(KafkaCluster::start)
    }

    fn start() -> KafkaCluster {
        let controller = broker::new_folder();
        let address = port::free().to_string();
        broker::launch(
            "controller",
            &controller,
            &[&[address.as_str()], &SESSION[..]].concat(),
            Some(CONTROLLER_HEAP),
        );
        let nodes: Vec<Node> = (1..=BROKERS).map(|id| Node::prepare(id, controller.clone())).collect();
        let addresses: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let kafka = Broker::of_cluster(addresses.join(","), BROKERS);
        let cluster = KafkaCluster {
            controller,
            nodes,
            kafka,
        };
        cluster.start_all();
        cluster
    }

    fn start_all(&self) {
        thread::scope(|scope| {
            for node in &self.nodes {
                scope.spawn(|| node.start());
            }
        });
    }

    /// All brokers as one, past the links.
    pub fn kafka(&self) -> &Broker {
        &self.kafka
    }

    /// What a relay is told: the links.
    pub fn address(&self) -> String {
        let links: Vec<String> = self
            .nodes()
            .map(|node| format!("127.0.0.1:{}", node.link.port()))
            .collect();
        links.join(",")
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter()
    }

    pub fn node(&self, id: i32) -> &Node {
        &self.nodes[(id - 1) as usize]
    }

    /// The broker that leads a partition, as soon as one does.
    #[track_caller]
    pub fn leader(&self, topic: &str, partition: i32) -> &Node {
        let id = wait(&format!("a leader of {topic}[{partition}]"), seconds(30), || {
            let found = self.partition(topic, partition)?;
            found.leader.ok_or_else(|| format!("{found:?}"))
        });
        self.node(id)
    }

    fn partition(&self, topic: &str, partition: i32) -> Result<Partition, String> {
        let partitions = self.kafka.partitions(topic)?;
        let found = partitions.into_iter().find(|found| found.number == partition);
        found.ok_or_else(|| "no such partition".to_owned())
    }

    /// Has another broker lead a partition, all brokers being well.
    #[track_caller]
    pub fn move_leader(&self, topic: &str, partition: i32, to: i32) {
        let now = wait("the partition", seconds(10), || self.partition(topic, partition));
        let mut replicas = now.replicas;
        // The first replica is the preferred leader.
        replicas.sort_by_key(|id| (*id != to, *id));
        let plan = self.controller.with_extension("plan.json");
        let text = format!(
            r#"{{"version": 1, "partitions": [{{"topic": "{topic}", "partition": {partition}, "replicas": {replicas:?}}}]}}"#
        );
        std::fs::write(&plan, text).expect("write the plan");
        let plan = plan.display().to_string();
        self.kafka.tool(
            "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
            &["--reassignment-json-file", &plan, "--execute"],
        );
        self.kafka.tool(
            "org.apache.kafka.tools.LeaderElectionCommand",
            &[
                "--election-type",
                "preferred",
                "--topic",
                topic,
                "--partition",
                &partition.to_string(),
            ],
        );
        wait(&format!("broker {to} to lead"), seconds(20), || {
            let found = self.partition(topic, partition)?;
            check(found.leader == Some(to), || format!("{found:?}"))
        });
    }

    /// Heals every link, brings every broker back, and waits until all replicas of these topics are in sync.
    #[track_caller]
    pub fn make_whole(&self, topics: &[String]) {
        for node in &self.nodes {
            node.link.heal();
            node.thaw();
        }
        self.start_all();
        for topic in topics {
            wait(&format!("all replicas of {topic} in sync"), seconds(60), || {
                let partitions = self.kafka.partitions(topic)?;
                let whole = partitions
                    .iter()
                    .all(|found| found.leader.is_some() && found.in_sync.len() == found.replicas.len());
                check(whole, || format!("{partitions:?}"))
            });
        }
    }
}

impl Node {
    fn prepare(id: i32, controller: PathBuf) -> Node {
        let (direct, proxied) = (port::free(), port::free());
        let link = Link::to_kafka(proxied);
        let properties = [
            format!("listeners=DIRECT://127.0.0.1:{direct},PROXIED://127.0.0.1:{proxied}"),
            format!(
                "advertised.listeners=DIRECT://127.0.0.1:{direct},PROXIED://127.0.0.1:{}",
                link.port()
            ),
            "listener.security.protocol.map=DIRECT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
            "inter.broker.listener.name=DIRECT".to_owned(),
            format!("default.replication.factor={BROKERS}"),
            // A follower that is silent holds up acknowledgements until it counts as out of sync. The default is 30 s.
            "replica.lag.time.max.ms=5000".to_owned(),
            // Clients of an idle relay are disconnected soon. The default is 10 min.
            "connections.max.idle.ms=5000".to_owned(),
            // Scenarios move leaders; nobody else does.
            "auto.leader.rebalance.enable=false".to_owned(),
        ];
        Node {
            id,
            folder: broker::new_folder(),
            controller,
            port: direct,
            properties: properties.into_iter().chain(SESSION.map(str::to_owned)).collect(),
            link,
        }
    }

    /// Starts it, or starts it again with the data it had; nothing if it runs.
    #[track_caller]
    pub fn start(&self) {
        let (port, id) = (self.port.to_string(), self.id.to_string());
        let controller = self.controller.display().to_string();
        let mut arguments = vec![port.as_str(), &id, &controller];
        arguments.extend(self.properties.iter().map(String::as_str));
        broker::launch("broker", &self.folder, &arguments, Some(BROKER_HEAP));
    }

    /// Stops it in order: it hands over what it leads first.
    #[track_caller]
    pub fn stop(&self) {
        broker::end(&self.folder, "TERM");
    }

    #[track_caller]
    pub fn kill(&self) {
        broker::end(&self.folder, "KILL");
    }

    /// Its process stands still: connections stay open and nothing answers.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    /// Nothing if it does not run.
    fn signal(&self, signal: &str) {
        if let Ok(pid) = std::fs::read_to_string(self.folder.join("kafka.pid")) {
            shell::try_run(Command::new("kill").arg(format!("-{signal}")).arg(pid.trim()));
        }
    }
}
