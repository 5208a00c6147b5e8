//! What runs beside the faults: a consumer that applies each record through the inbox, and one who asks the database
//! what counts as published.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use outbox_e2e::audit::{Sample, now_ms};
use outbox_e2e::cluster::DATABASE;
use outbox_e2e::wait::{let_pass, try_wait};
use outbox_e2e::{Broker, Cluster, Db, Random, seconds};

/// Records applied in one transaction.
const APPLIED_AT_ONCE: usize = 200;
/// The same when a consumer reads everything once more: nearly all of it was applied.
const APPLIED_AT_ONCE_AGAIN: usize = 5_000;
/// Of a hundred batches, so many are read again, as after a crash of the consumer.
const READ_AGAIN_PERCENT: u64 = 5;
/// Events asked about at once, the newest that count as published.
const SAMPLED_AT_ONCE: u32 = 100;

/// Applies the records of a topic, each in the transaction that its inbox key is written in, until it is stopped and
/// has seen the end; then reads the topic from its beginning.
pub fn consume(cluster: &Cluster, kafka: &'static Broker, topic: &str, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (cluster, stop) = (cluster.clone(), Arc::clone(stop));
    let (topic, mut live) = (topic.to_owned(), kafka.live(topic));
    thread::spawn(move || {
        let mut random = Random::from_clock();
        loop {
            let stopping = stop.load(Ordering::Relaxed);
            let mut ids = Vec::new();
            let patience = if stopping { seconds(3) } else { seconds(1) };
            while ids.len() < APPLIED_AT_ONCE
                && let Some(record) = live.try_next(patience)
            {
                ids.push(record.id().to_owned());
            }
            if stopping && ids.is_empty() {
                break;
            }
            apply(&cluster, &ids);
            if random.percent(READ_AGAIN_PERCENT) {
                apply(&cluster, &ids);
            }
        }
        // It loses its place, as consumers do, and gets everything once more. A client that a fault has left without a coordinator is made up for too.
        let ids: Vec<String> = kafka.read(&topic).iter().map(|record| record.id().to_owned()).collect();
        ids.chunks(APPLIED_AT_ONCE_AGAIN).for_each(|ids| apply(&cluster, ids));
    })
}

/// Until it is committed: a consumer whose server went away reads its records again.
fn apply(cluster: &Cluster, ids: &[String]) {
    if ids.is_empty() {
        return;
    }
    let applied = try_wait(seconds(120), || {
        let mut db = cluster.connect_again(DATABASE, seconds(60))?;
        db.try_touched(
            "INSERT INTO applied SELECT id::uuid FROM unnest($1::text[]) id WHERE inbox_try_consume('soak', id::uuid)",
            &[&ids],
        )
        .map_err(|error| error.to_string())
    });
    applied.expect("the server comes back");
}

/// Asks now and then which events count as published.
pub fn sample(cluster: &Cluster, stop: &Arc<AtomicBool>) -> JoinHandle<Vec<Sample>> {
    let (cluster, stop) = (cluster.clone(), Arc::clone(stop));
    thread::spawn(move || {
        let mut samples = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let_pass(seconds(1));
            let Ok(mut db) = cluster.try_connect(DATABASE) else {
                continue;
            };
            let at = published(&mut db);
            let at_ms = now_ms();
            samples.extend(at.into_iter().map(|id| Sample { id, at_ms }));
        }
        samples
    })
}

fn published(db: &mut Db) -> Vec<String> {
    let newest = format!(
        "SELECT COALESCE(array_agg(event_id::text), '{{}}') FROM (
             SELECT event_id FROM outbox_log WHERE seq <= (SELECT settled_pos FROM outbox_status)
              ORDER BY seq DESC LIMIT {SAMPLED_AT_ONCE}) newest
          JOIN outbox_event USING (event_id) WHERE state = 'published'"
    );
    // The server may be down: then nobody says anything.
    db.try_one(&newest).unwrap_or_default()
}
