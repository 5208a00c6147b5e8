//! Does to the parts what the plan says, and notes when.

use std::process::Command;
use std::time::{Duration, Instant};

use outbox_e2e::audit::{Fault, now_ms};
use outbox_e2e::cluster::DATABASE;
use outbox_e2e::proxy::{Direction, Flow};
use outbox_e2e::scenario::topic_of;
use outbox_e2e::wait::{let_pass, try_wait};
use outbox_e2e::{Db, KafkaCluster, Scenario, Stop, seconds, shell, wait};

use super::LEASE_SECONDS;
use super::plan::{Kind, Step};
use crate::load::emit_some;

/// What a slow link still carries, and how late.
const SLOW_BYTES: u64 = 30_000;
const SLOW_DELAY: Duration = Duration::from_millis(120);
/// Events of a topic that does not exist yet.
const LATE_EVENTS: u64 = 40;
const GROWN_MAX: usize = 24;

/// A lag that the load alone can bring about: slow commits, and two cores for everything.
const LAG_OF_LOAD: &str = "1.5 s";

/// A stop in order takes no longer, whatever the brokers do.
const STOP_MAX: Duration = seconds(10);

/// A fault that was done.
pub struct Done {
    pub fault: Fault,
    pub kind: Kind,
    /// When the harness had put everything right: from here on recovery counts.
    pub over_ms: i64,
    /// Until the backlog was gone, if that was waited for.
    pub caught_up_ms: Option<i64>,
}

pub struct Acts<'a> {
    pub s: &'a Scenario,
    pub cluster: &'static KafkaCluster,
    /// A topic of the load, and the one that grows.
    pub steady: String,
    pub growing: String,
    pub late_types: Vec<String>,
    pub done: Vec<Done>,
}

impl Acts<'_> {
    pub fn act(&mut self, step: Step) {
        let began = self.done.len();
        self.one(step.kind, &step);
        if step.waits {
            self.wait_caught_up(began);
        }
    }

    fn one(&mut self, kind: Kind, step: &Step) {
        let unsettled_before = self.waiting();
        let at = self.done.len();
        let began_ms = now_ms();
        self.done.push(Done {
            fault: Fault {
                kind: kind.name(),
                began_ms,
                ended_ms: began_ms,
                may_repeat: kind.may_repeat(),
                unsettled_before,
                is_crash: kind.is_crash(),
            },
            kind,
            over_ms: began_ms,
            caught_up_ms: None,
        });
        self.carry_out(kind, step);
        let over_ms = now_ms();
        let done = &mut self.done[at];
        done.fault.ended_ms = over_ms;
        done.over_ms = over_ms;
    }

    fn carry_out(&mut self, kind: Kind, step: &Step) {
        let node = self.cluster.node(step.broker);
        let cluster = &self.s.cluster;
        match kind {
            Kind::RelayKilled => {
                self.signal_relay("KILL");
                // The server notices, ends everybody and recovers.
                let_pass(Duration::from_millis(100));
                self.connect();
            }
            Kind::RelayFrozen => {
                let relay = self.signal_relay("STOP");
                let_pass(seconds(LEASE_SECONDS + 2));
                if let Some(pid) = relay {
                    shell::try_run(Command::new("kill").args(["-CONT", &pid.to_string()]));
                }
            }
            Kind::RelayTerminated => self.terminate("relay"),
            Kind::LauncherTerminated => self.terminate("launcher"),
            Kind::PostmasterKilled => {
                cluster.kill_postmaster();
                cluster.start();
            }
            Kind::ImmediateStop => {
                cluster.stop(Stop::Immediate);
                cluster.start();
            }
            Kind::FastStop => {
                let took = cluster.stop(Stop::Fast);
                assert!(took < STOP_MAX, "a fast stop took {took:?}");
                cluster.start();
            }
            Kind::SwitchedOff => {
                self.set("enabled", "off");
                let_pass(seconds(1));
                self.set("enabled", "on");
            }
            Kind::Reload => {
                let sizes = ["200", "500", "1000"];
                self.set("batch_size", sizes[step.broker as usize % sizes.len()]);
                self.set("kafka_options", &super::kafka_options(step.broker));
            }
            Kind::TableRewritten => {
                let mut db = self.connect();
                db.run("VACUUM FULL outbox_log");
                db.run("ALTER TABLE outbox_log ADD COLUMN extra float8 DEFAULT random()");
                db.run("ALTER TABLE outbox_log DROP COLUMN extra");
            }
            Kind::LateTopic => self.late_topic(),
            Kind::BrokerKilled => {
                node.kill();
                self.meanwhile(step);
                node.start();
            }
            Kind::BrokerFrozen => {
                node.freeze();
                self.meanwhile(step);
                node.thaw();
            }
            Kind::TwoBrokersKilled => {
                let others: Vec<_> = self.cluster.nodes().filter(|other| other.id != step.broker).collect();
                others.iter().for_each(|other| other.kill());
                self.meanwhile(step);
                self.cluster.make_whole(&[]);
            }
            Kind::LeaderMoved => {
                self.cluster.make_whole(std::slice::from_ref(&self.steady));
                self.cluster.move_leader(&self.steady, 0, step.broker);
            }
            Kind::RollingRestart => {
                for node in self.cluster.nodes() {
                    node.stop();
                    node.start();
                    self.cluster.make_whole(std::slice::from_ref(&self.steady));
                }
            }
            Kind::PartitionAdded => {
                let kafka = self.cluster.kafka();
                let now = wait("the growing topic", seconds(60), || kafka.partitions(&self.growing));
                if now.len() < GROWN_MAX {
                    kafka.grow_topic(&self.growing, now.len() + 1);
                }
            }
            Kind::LinkCut => {
                node.link.cut();
                self.meanwhile(step);
                node.link.heal();
            }
            Kind::AnswersHeld => self.held(step, Flow::Free, Flow::Held),
            Kind::RequestsHeld => self.held(step, Flow::Held, Flow::Free),
            Kind::LinkHeld => self.held(step, Flow::Held, Flow::Held),
            Kind::LinkSlow => self.held(step, Flow::Delayed(SLOW_DELAY), Flow::Throttled(SLOW_BYTES)),
        }
    }

    fn held(&mut self, step: &Step, to_broker: Flow, to_client: Flow) {
        let link = &self.cluster.node(step.broker).link;
        link.set(Direction::ToBroker, to_broker);
        link.set(Direction::ToClient, to_client);
        self.meanwhile(step);
        link.heal();
    }

    /// The time that a fault lasts, with another one in its middle if the plan says so.
    fn meanwhile(&mut self, step: &Step) {
        let_pass(step.lasts / 2);
        if let Some(kind) = step.meanwhile {
            self.one(kind, step);
        }
        let_pass(step.lasts / 2);
    }

    /// Events whose topic is made only when they have waited for it.
    fn late_topic(&mut self) {
        let kind = self.s.aggregate_type("late");
        let mut db = self.connect();
        db.run("BEGIN");
        emit_some(&mut db, &kind, LATE_EVENTS).expect("nothing else is done to the server now");
        db.run("COMMIT");
        let_pass(seconds(1));
        self.cluster.make_whole(&[]);
        super::create_topic(self.cluster, &topic_of(&kind), 2);
        self.late_types.push(kind);
    }

    fn set(&self, setting: &str, value: &str) {
        self.s.cluster.configure(&[(&format!("outbox_ext.{setting}"), value)]);
        self.s.cluster.reload();
    }

    pub fn connect(&self) -> Db {
        let again = self.s.cluster.connect_again(DATABASE, seconds(60));
        again.unwrap_or_else(|error| panic!("the server does not come back: {error}"))
    }

    /// Events that are committed and not settled.
    fn waiting(&self) -> usize {
        let waiting = self.connect().try_one::<i64>("SELECT waiting FROM outbox_status");
        waiting.unwrap_or(0) as usize
    }

    /// A relay that is gone before we reach it is no fault.
    fn signal_relay(&self, signal: &str) -> Option<i32> {
        let mut db = self.connect();
        let found = try_wait(seconds(5), || {
            let pid = db.try_one::<Option<i32>>("SELECT relay_pid FROM outbox_status");
            pid.ok().flatten().filter(|pid| *pid != 0).ok_or_else(String::new)
        });
        let pid = found.ok()?;
        shell::try_run(Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()));
        Some(pid)
    }

    fn terminate(&self, who: &str) {
        self.connect().all::<bool>(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%{who}%'"
        ));
    }

    /// Waits until nothing that is due is older than under load alone: the backlog of all that was done is gone.
    pub fn wait_caught_up(&mut self, from: usize) {
        let began = Instant::now();
        let mut told = 0;
        wait("the backlog to go", seconds(120), || {
            let mut db = self.connect();
            let caught_up = format!("SELECT COALESCE(oldest_due_age < '{LAG_OF_LOAD}', true) FROM outbox_status");
            let lag = db.try_one::<bool>(&caught_up);
            let_pass(Duration::from_millis(100));
            if began.elapsed().as_secs() / 10 > told {
                told = began.elapsed().as_secs() / 10;
                eprintln!("    still catching up: {}", db.status());
            }
            match lag {
                Ok(true) => Ok(()),
                Ok(false) => Err(db.status()),
                Err(error) => Err(error.to_string()),
            }
        });
        let now = now_ms();
        for done in &mut self.done[from..] {
            done.caught_up_ms = Some(now);
        }
    }
}
