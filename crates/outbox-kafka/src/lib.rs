//! Everything of the relay that touches librdkafka, and nothing of PostgreSQL.
//!
//! The relay hands over records with a ticket each ([`Producer::send`]) and gets one report per
//! ticket back ([`Producer::serve`]). It never blocks in here: whatever takes time happens on
//! librdkafka's threads or on ours, and an eventfd says when there is something to collect.
//!
//! | module         | owns                                                                 |
//! |----------------|----------------------------------------------------------------------|
//! | `brokers`      | the list of brokers: refusing slips                                  |
//! | `options`      | the user's librdkafka properties: reading them, refusing the harmful |
//! | `producer`     | a producer, of the fast or the careful lane, from start to end       |
//! | `settings`     | the properties it is made with: ours, then the user's                |
//! | `acknowledged` | whether an acknowledgement is of a new batch                         |
//! | `metadata`     | the thread that asks brokers about topics                            |
//! | `outage`       | whether brokers can be reached                                       |
//! | `connection`   | what an error of a connection means, and where to look               |
//! | `error`        | the table from librdkafka's error codes to what the relay does       |
//! | `logs`         | librdkafka's log lines: levels, limits, no secrets                   |
//! | `native`       | the calls into librdkafka (`unsafe`)                                 |
//! | `wake`         | eventfd, threads with all signals blocked (`unsafe`)                 |
//!
//! No thread started here, by librdkafka or by us, ever takes a signal or calls PostgreSQL.

mod acknowledged;
mod brokers;
mod connection;
mod error;
mod logs;
mod metadata;
mod native;
pub mod options;
mod outage;
pub mod producer;
mod settings;
mod wake;

pub use brokers::check_brokers;
pub use logs::{Level, LogLine};
pub use metadata::TopicMetadata;
pub use options::{OptionError, check_options, parse_options};
pub use producer::{Lane, Producer, ProducerError, Record, Report, SendError, Settings, Teardown};
pub use settings::BATCH_BYTES;
