//! An open loop of events: each has its time, whether or not the one before is through, and is a transaction of its own.

use std::thread;
use std::time::{Duration, Instant};

use outbox_core::record::{HEADER_AGGREGATE_TYPE, HEADER_EVENT_TYPE, HEADER_ID};
use outbox_e2e::seconds;
use outbox_e2e::wait::let_pass;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, ThreadedProducer};
use uuid::Uuid;

use crate::backlog::{AGGREGATES, EVENT_TYPE, payload};
use crate::consumer::Waiting;
use crate::stand::Stand;
use crate::table::Table;

/// Events of each run before what counts, and how far apart: each partition has had its first, for which producer and consumer ask
/// the broker more than for later ones.
const FIRST_EVENTS: usize = 60;
const APART: Duration = Duration::from_millis(10);
/// Of the schedule, before what counts.
const WARM_UP: Duration = Duration::from_secs(1);
/// An event that takes longer than this is called lost.
const LOST: Duration = Duration::from_secs(60);

/// What the writers do with an event.
pub struct Load<'a> {
    pub stand: &'a Stand,
    pub table: Table,
    pub aggregate_type: &'a str,
    pub topic: &'a str,
    /// Different for each run on a stand: makes the ids.
    pub number: u64,
    /// Produces each event itself once it is committed: nobody else does.
    pub bare_produce: bool,
}

/// Milliseconds, one value for each event that counts.
pub struct Times {
    /// From the return of the commit to the consumer.
    pub after_commit: Vec<f64>,
    /// From the time that the event was due to be written.
    pub from_schedule: Vec<f64>,
    /// Events a second that the writers really wrote.
    pub rate: f64,
}

struct Written {
    number: usize,
    due: Instant,
    committed: Instant,
}

impl Load<'_> {
    /// Writes so many events a second for so long, and waits until a consumer, which waits already, has them all.
    pub fn run(&self, rate: usize, time: Duration) -> Times {
        let consumer = Waiting::start(self.stand.broker.address(), self.topic);
        let events = events(rate, time);
        let writers = writers(rate);
        let producer = self.bare_produce.then(|| self.producer());
        // Time for the writers to connect and to prepare.
        let began = Instant::now() + Duration::from_millis(500);
        let written: Vec<Written> = thread::scope(|scope| {
            let threads: Vec<_> = (0..writers)
                .map(|writer| {
                    let numbers = (writer..events).step_by(writers);
                    let producer = producer.as_ref();
                    scope.spawn(move || self.write(numbers, began, rate, producer))
                })
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("a writer failed"))
                .collect()
        });
        let ended = Instant::now();
        let arrivals = self.arrivals(&consumer, events);
        let mut times = Times {
            after_commit: Vec::new(),
            from_schedule: Vec::new(),
            rate: (events - FIRST_EVENTS) as f64 / (ended - due(began, rate, FIRST_EVENTS)).as_secs_f64(),
        };
        let counts_from = due(began, rate, FIRST_EVENTS) + WARM_UP;
        for event in written.iter().filter(|event| event.due >= counts_from) {
            let arrived = arrivals[event.number];
            // The record may be there before the writer's own connection has told it of the commit.
            times
                .after_commit
                .push(milliseconds(arrived.saturating_duration_since(event.committed)));
            times
                .from_schedule
                .push(milliseconds(arrived.saturating_duration_since(event.due)));
        }
        times
    }

    fn write(
        &self,
        numbers: impl Iterator<Item = usize>,
        began: Instant,
        rate: usize,
        producer: Option<&ThreadedProducer<DefaultProducerContext>>,
    ) -> Vec<Written> {
        let mut client = self.stand.client();
        let statement = client.prepare(&self.table.insert_one()).expect("the table is there");
        numbers
            .map(|number| {
                let due = due(began, rate, number);
                let_pass(due.saturating_duration_since(Instant::now()));
                let id = Uuid::from_u64_pair(self.number, number as u64);
                let key = format!("customer-{}", number % AGGREGATES);
                let payload = payload(number);
                let parameters: [&(dyn postgres::types::ToSql + Sync); 5] =
                    [&self.aggregate_type, &key, &EVENT_TYPE, &payload, &id];
                client.execute(&statement, &parameters).expect("the event is written");
                let committed = Instant::now();
                if let Some(producer) = producer {
                    self.produce(producer, &id.to_string(), &key, &payload);
                }
                Written { number, due, committed }
            })
            .collect()
    }

    fn produce(&self, producer: &ThreadedProducer<DefaultProducerContext>, id: &str, key: &str, payload: &str) {
        let header = |key, value| Header {
            key,
            value: Some(value),
        };
        let headers = OwnedHeaders::new()
            .insert(header(HEADER_ID, id))
            .insert(header(HEADER_EVENT_TYPE, EVENT_TYPE))
            .insert(header(HEADER_AGGREGATE_TYPE, self.aggregate_type));
        let record = BaseRecord::to(self.topic).key(key).payload(payload).headers(headers);
        producer
            .send(record)
            .unwrap_or_else(|(error, _)| panic!("the producer refused a record: {error}"));
    }

    fn producer(&self) -> ThreadedProducer<DefaultProducerContext> {
        ClientConfig::new()
            .set("bootstrap.servers", self.stand.broker.address())
            .set("enable.idempotence", "true")
            .set("linger.ms", "0")
            // As the relay: a batch gathers while the one before is under way.
            .set("max.in.flight.requests.per.connection", "1")
            .set("partitioner", "murmur2_random")
            .create()
            .expect("the producer's settings are right")
    }

    fn arrivals(&self, consumer: &Waiting, events: usize) -> Vec<Instant> {
        let mut arrivals = vec![None; events];
        for _ in 0..events {
            let (id, when) = consumer.next(LOST);
            let id = Uuid::parse_str(&id).expect("an event's id is a uuid");
            let (run, number) = id.as_u64_pair();
            assert_eq!(run, self.number, "only this run's events are on its topic");
            let slot = arrivals.get_mut(number as usize).expect("an event of this run");
            assert!(slot.replace(when).is_none(), "event {number} came twice");
        }
        arrivals.into_iter().map(|when| when.expect("each came once")).collect()
    }
}

/// How many events a run has, those included that do not count.
pub fn events(rate: usize, time: Duration) -> usize {
    FIRST_EVENTS + rate * (WARM_UP + time).as_secs() as usize
}

/// When an event is to be written.
fn due(began: Instant, rate: usize, number: usize) -> Instant {
    let first = APART * number.min(FIRST_EVENTS) as u32;
    began + first + Duration::from_secs_f64(number.saturating_sub(FIRST_EVENTS) as f64 / rate as f64)
}

/// As many connections as keep the rate when a commit takes a millisecond.
fn writers(rate: usize) -> usize {
    (rate / 300).clamp(1, 16)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Before the first run: events that make the way known to all parts.
pub fn warm_up(stand: &Stand, table: Table, events: usize) {
    let (aggregate_type, topic) = stand.new_topic("warm");
    crate::backlog::insert(
        &mut stand.db(),
        table,
        &aggregate_type,
        crate::backlog::Size::Usual,
        events,
    );
    stand.broker.wait_count(&topic, events, seconds(120));
}
