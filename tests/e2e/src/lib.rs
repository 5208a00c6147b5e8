//! The end-to-end harness: real PostgreSQL clusters, a real Apache Kafka, and a judge of what arrived.
//!
//! Each scenario owns a cluster (`Scenario`); all of them share one broker unless they stop it. Nothing here links
//! with the extension: the harness sees what a user sees, that is SQL, the topic, and the server log.
//!
//! Invariants:
//! - Waiting is `wait`: a condition with a deadline. No sleep stands for an event.
//! - A scenario ends with a look at the server log; what it does not expect there fails it (`log_watch`).
//! - Whatever is started is recorded in the run's folder first, so that the guard ends it however this process ends
//!   (`run`).

pub mod arrivals;
pub mod audit;
pub mod broker;
pub mod cluster;
pub mod committed;
pub mod db;
pub mod guarded;
pub mod install;
pub mod json;
pub mod judge;
pub mod kafka_cluster;
pub mod log_watch;
pub mod memory;
pub mod mock;
pub mod port;
pub mod preload;
pub mod proxy;
pub mod random;
pub mod refusal;
pub mod run;
pub mod scenario;
pub mod shell;
pub mod silent_broker;
pub mod topic;
pub mod wait;

pub use arrivals::Arrivals;
pub use broker::Broker;
pub use cluster::{Cluster, Stop};
pub use committed::{committed, committed_of};
pub use db::{Db, Emit};
pub use guarded::GuardedBroker;
pub use judge::{Committed, Verdict, judge};
pub use kafka_cluster::KafkaCluster;
pub use mock::MockKafka;
pub use preload::{SteppedClock, StuckResolver};
pub use random::Random;
pub use scenario::Scenario;
pub use topic::Record;
pub use wait::{seconds, wait};
