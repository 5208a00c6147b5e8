//! What is done to the parts, drawn from a seed: the same seed draws the same faults in the same order.

use std::time::Duration;

use outbox_e2e::Random;
use outbox_e2e::kafka_cluster::BROKERS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    RelayKilled,
    RelayFrozen,
    RelayTerminated,
    LauncherTerminated,
    PostmasterKilled,
    ImmediateStop,
    FastStop,
    SwitchedOff,
    Reload,
    TableRewritten,
    LateTopic,
    BrokerKilled,
    BrokerFrozen,
    TwoBrokersKilled,
    LeaderMoved,
    RollingRestart,
    PartitionAdded,
    LinkCut,
    AnswersHeld,
    RequestsHeld,
    LinkHeld,
    LinkSlow,
}

use Kind::{
    AnswersHeld, BrokerFrozen, BrokerKilled, FastStop, ImmediateStop, LateTopic, LauncherTerminated, LeaderMoved,
    LinkCut, LinkHeld, LinkSlow, PartitionAdded, PostmasterKilled, RelayFrozen, RelayKilled, RelayTerminated, Reload,
    RequestsHeld, RollingRestart, SwitchedOff, TableRewritten, TwoBrokersKilled,
};

/// How often each is drawn, in tickets.
const WEIGHTS: [(Kind, u64); 22] = [
    (RelayKilled, 4),
    (RelayFrozen, 2),
    (RelayTerminated, 2),
    (LauncherTerminated, 1),
    (PostmasterKilled, 3),
    (ImmediateStop, 3),
    (FastStop, 2),
    (SwitchedOff, 1),
    (Reload, 1),
    (TableRewritten, 1),
    (LateTopic, 1),
    (BrokerKilled, 3),
    (BrokerFrozen, 2),
    (TwoBrokersKilled, 1),
    (LeaderMoved, 1),
    (RollingRestart, 1),
    (PartitionAdded, 1),
    (LinkCut, 3),
    (AnswersHeld, 3),
    (RequestsHeld, 2),
    (LinkHeld, 2),
    (LinkSlow, 2),
];

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            RelayKilled => "relay killed",
            RelayFrozen => "relay frozen beyond its lease",
            RelayTerminated => "relay terminated",
            LauncherTerminated => "launcher terminated",
            PostmasterKilled => "postmaster killed",
            ImmediateStop => "immediate stop",
            FastStop => "fast stop",
            SwitchedOff => "switched off and on",
            Reload => "settings reloaded",
            TableRewritten => "table rewritten",
            LateTopic => "topic that comes late",
            BrokerKilled => "broker killed",
            BrokerFrozen => "broker frozen",
            TwoBrokersKilled => "two brokers killed",
            LeaderMoved => "leader moved",
            RollingRestart => "rolling restart",
            PartitionAdded => "partition added",
            LinkCut => "link cut",
            AnswersHeld => "answers held back",
            RequestsHeld => "requests held back",
            LinkHeld => "link held both ways",
            LinkSlow => "link slow",
        }
    }

    /// Whether an event may be delivered again because of it. An end in order is among them: it waits for the brokers'
    /// answers half a second and no longer.
    pub fn may_repeat(self) -> bool {
        !matches!(
            self,
            LauncherTerminated | TableRewritten | LateTopic | PartitionAdded | LinkSlow
        )
    }

    /// Whether the relay ends at once, with whatever it had in hand.
    pub fn is_crash(self) -> bool {
        matches!(self, RelayKilled | PostmasterKilled | ImmediateStop)
    }

    /// Whether it lasts a while, in which something else may happen to the server.
    fn lasts(self) -> bool {
        matches!(
            self,
            BrokerKilled | BrokerFrozen | TwoBrokersKilled | LinkCut | AnswersHeld | RequestsHeld | LinkHeld | LinkSlow
        )
    }
}

const SHORT_SECONDS: u64 = 200;

/// What may happen to the server while a broker or a link is in trouble.
const MEANWHILE: [Kind; 6] = [
    RelayKilled,
    ImmediateStop,
    PostmasterKilled,
    FastStop,
    RelayTerminated,
    Reload,
];

#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Load without a fault before it.
    pub pause: Duration,
    pub kind: Kind,
    /// For what lasts.
    pub lasts: Duration,
    pub broker: i32,
    /// In the middle of it.
    pub meanwhile: Option<Kind>,
    /// Whether the next one waits until the backlog of this one is gone.
    pub waits: bool,
}

pub struct Plan {
    random: Random,
    /// Of a run too short for what takes a minute.
    is_short: bool,
}

impl Plan {
    pub fn new(seed: u64, seconds: u64) -> Plan {
        Plan {
            random: Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            is_short: seconds < SHORT_SECONDS,
        }
    }

    /// The next fault.
    pub fn next(&mut self) -> Step {
        loop {
            let step = self.draw();
            if !(self.is_short && step.kind == RollingRestart) {
                return step;
            }
        }
    }

    /// Always as many draws, whatever comes out.
    fn draw(&mut self) -> Step {
        let random = &mut self.random;
        let mut ticket = random.below(WEIGHTS.iter().map(|(_, weight)| weight).sum());
        let mut kinds = WEIGHTS.iter();
        let kind = kinds
            .find_map(|(kind, weight)| {
                let found = ticket < *weight;
                ticket = ticket.saturating_sub(*weight);
                found.then_some(*kind)
            })
            .expect("a ticket belongs to a kind");
        let meanwhile = MEANWHILE[random.below(MEANWHILE.len() as u64) as usize];
        let happens = random.percent(35);
        Step {
            pause: Duration::from_millis(500 + random.below(2_500)),
            kind,
            lasts: Duration::from_millis(1_000 + random.below(8_000)),
            broker: 1 + random.below(BROKERS as u64) as i32,
            meanwhile: (kind.lasts() && happens).then_some(meanwhile),
            waits: random.percent(75),
        }
    }
}
