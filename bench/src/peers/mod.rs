//! Who moves events from a table to Kafka: outbox_ext and what a user would take instead, all driven in the same way.
//!
//! A peer belongs to one stand and writes nothing but what it must. `stop` makes it take up no event, `go` lets it begin:
//! what is inserted between them is the backlog that a drain is measured with. Each peer has the table that it is documented with; the
//! record that reaches the topic is the same (key, value, headers `id`, `eventType`, `aggregateType`).

mod debezium;
mod outbox;
mod polling;

use outbox_e2e::Db;

use crate::stand::Stand;
use crate::table::Table;

pub use debezium::Tuning;
pub use polling::Way;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Outbox,
    Debezium(Tuning),
    Polling(Way),
}

pub trait Peer {
    fn stop(&mut self, stand: &Stand);

    /// Returns at once; the first event may take a while.
    fn go(&mut self, stand: &Stand);

    /// Ends its processes, so that the next `go` starts them anew.
    fn end(&mut self, stand: &Stand);

    /// Every process that works for it, PostgreSQL's included.
    fn processes(&self, db: &mut Db) -> Vec<i32>;
}

impl Kind {
    /// As reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Outbox => "outbox_ext",
            Kind::Debezium(Tuning::Defaults) => "Debezium, defaults",
            Kind::Debezium(Tuning::Throughput) => "Debezium, tuned for throughput",
            Kind::Debezium(Tuning::Latency) => "Debezium, tuned for latency",
            Kind::Polling(Way::OneByOne) => "relay one by one",
            Kind::Polling(Way::Batch) => "relay with SKIP LOCKED",
        }
    }

    /// As raw figures call it.
    pub fn key(self) -> &'static str {
        match self {
            Kind::Outbox => "outbox_ext",
            Kind::Debezium(Tuning::Defaults) => "debezium_defaults",
            Kind::Debezium(Tuning::Throughput) => "debezium_throughput",
            Kind::Debezium(Tuning::Latency) => "debezium_latency",
            Kind::Polling(Way::OneByOne) => "one_by_one",
            Kind::Polling(Way::Batch) => "skip_locked",
        }
    }

    pub fn table(self) -> Table {
        match self {
            Kind::Outbox => Table::Event,
            Kind::Debezium(_) => Table::Router,
            Kind::Polling(_) => Table::Textbook,
        }
    }

    /// A stand with its table, and the peer on it, ready for the first event.
    pub fn set_up(self) -> (Stand, Box<dyn Peer>) {
        match self {
            Kind::Outbox => {
                let stand = Stand::new(&[]);
                (stand, Box::new(outbox::Outbox))
            }
            Kind::Debezium(tuning) => {
                let stand = Stand::for_others(self.table());
                let worker = debezium::Debezium::start(&stand, tuning);
                (stand, Box::new(worker))
            }
            Kind::Polling(way) => {
                let stand = Stand::for_others(self.table());
                let relay = polling::Polling::start(&stand, way);
                (stand, Box::new(relay))
            }
        }
    }
}
