//! The shared cluster of three brokers as a scenario uses it: a topic of its own, load on it, and the judgement at the end.
//!
//! The cluster is shared: each scenario runs alone and leaves it whole.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outbox_e2e::judge::counters_backwards;
use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::check;
use outbox_e2e::{Db, KafkaCluster, Record, Scenario, Verdict, seconds, wait};

use crate::load::{Commits, Load, counter};

/// A scenario on the shared cluster, with one topic of six partitions, two led by each broker.
pub struct Stage {
    pub s: Scenario,
    pub db: Db,
    pub cluster: &'static KafkaCluster,
    pub kind: String,
    pub topic: String,
}

pub const PARTITIONS: i32 = 6;

impl Stage {
    pub fn begin(name: &str, settings: &[(&str, &str)]) -> Stage {
        let cluster = KafkaCluster::shared();
        let s = Scenario::with_brokers(name, &cluster.address(), settings);
        s.allow("outbox_ext relay WARNING", "it says what holds it up");
        let mut db = s.db();
        db.run("CREATE EXTENSION outbox_ext");
        let kind = s.aggregate_type("cluster");
        let topic = topic_of(&kind);
        cluster.kafka().create_topic(&topic, PARTITIONS);
        let mut stage = Stage {
            s,
            db,
            cluster,
            kind,
            topic,
        };
        stage.make_whole();
        stage
    }

    pub fn make_whole(&mut self) {
        self.cluster.make_whole(std::slice::from_ref(&self.topic));
    }

    pub fn load(&self) -> Load {
        Load::start(&self.s, 4, std::slice::from_ref(&self.kind), Commits::Mixed)
    }

    pub fn records(&self) -> Vec<Record> {
        self.cluster.kafka().read(&self.topic)
    }

    /// Waits for so many more records than there are now.
    #[track_caller]
    pub fn wait_more(&self, more: usize, deadline: Duration) {
        let now = wait("a count", seconds(30), || self.try_count());
        wait(&format!("{more} more records"), deadline, || {
            let count = self.try_count()?;
            check(count >= now + more, || format!("{} more", count.saturating_sub(now)))
        });
    }

    fn try_count(&self) -> Result<usize, String> {
        self.cluster.kafka().try_count(&self.topic)
    }

    /// Puts the cluster right, waits for the rest, and judges it by seq and by the writers' counters.
    #[track_caller]
    pub fn finish(&mut self, load: Load) -> Verdict {
        let written = load.stop();
        self.make_whole();
        let (verdict, records) = self.s.judge_all_on(self.cluster.kafka(), &mut self.db, seconds(60));
        written.assert_all_in(&mut self.db);
        let backwards = counters_backwards(&records, counter);
        assert!(backwards.is_empty(), "{backwards:#?}");
        self.assert_unblamed();
        verdict
    }

    /// No attempt was used up, nothing was given up, nothing stays parked.
    #[track_caller]
    pub fn assert_unblamed(&mut self) {
        assert_eq!(self.attempts(), 0, "attempts are not used up");
        let parked: i64 = self.db.one("SELECT count(*) FROM outbox_parked");
        assert_eq!(parked, 0, "nothing stays parked");
    }

    pub fn attempts(&mut self) -> i64 {
        self.db
            .one("SELECT COALESCE(sum(attempts), 0)::bigint FROM outbox_event")
    }

    pub fn relay_lines(&self) -> usize {
        let log = self.s.cluster.log();
        log.lines().filter(|line| line.contains("outbox_ext relay")).count()
    }

    pub fn lease_token(&mut self) -> String {
        self.db.one("SELECT lease_token::text FROM outbox_lease")
    }

    /// Emits and waits until the record is there; how long that took.
    #[track_caller]
    pub fn round_trip(&mut self, id: &str, deadline: Duration) -> Duration {
        let mut ends = self.cluster.kafka().live_end(&self.topic);
        let began = Instant::now();
        let event = self.db.emit_one(&self.kind, id, "1");
        while ends.next(deadline.saturating_sub(began.elapsed())).id() != event {}
        began.elapsed()
    }

    /// One aggregate for each partition, by publishing a few and looking where they went.
    pub fn aggregate_by_partition(&mut self) -> BTreeMap<i32, String> {
        for n in 0..60 {
            self.db.emit_one(&self.kind, &format!("probe-{n}"), "0");
        }
        self.db.wait_drained(seconds(20));
        let found: BTreeMap<i32, String> = self
            .records()
            .iter()
            .map(|record| (record.partition, record.key_text().to_owned()))
            .collect();
        assert_eq!(found.len(), PARTITIONS as usize, "each partition got one");
        found
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The next scenario needs its brokers all the same.
            for node in self.cluster.nodes() {
                node.link.heal();
                node.thaw();
            }
        }
    }
}
