//! Goal: whatever topics, broker and relay do, every event is published, the first deliveries of an
//! aggregate on a topic are in seq order, a settle never claims what did not happen, and in the end
//! nothing is held.
//! Method: random schedules of a simulated relay around a `Window`, with topics that are missing,
//! appear, vanish and grow, cold lanes, outages, failing settles, restarts and their zombies.

mod broker;
mod relay;
#[path = "../support/mod.rs"]
mod support;
mod tables;

use std::collections::{BTreeSet, HashMap, VecDeque};

use broker::Presence;
use outbox_core::window::ParkReason;
use relay::{AGGREGATES, Ending, Memory, PARTITIONS_MAX, Relay, TOPICS};
use support::{Rng, run_schedules};
use tables::{Event, EventNo};

fn emit(relay: &mut Relay, rng: &mut Rng) {
    for _ in 0..1 + rng.below(5) {
        let aggregate = rng.below(AGGREGATES);
        let topic = if rng.one_in(5) {
            rng.below(TOPICS)
        } else {
            aggregate % TOPICS
        };
        let available_at = rng.one_in(8).then(|| relay.now_ms + rng.below(5_000) as u64);
        let defect = rng.one_in(25);
        let poison = rng.one_in(20) && !relay.mended;
        if poison {
            relay.broker.poison.insert(relay.tables.log.len());
        }
        relay.tables.log.push(Event {
            aggregate,
            topic,
            available_at,
            defect,
            poison,
        });
    }
}

fn change_topic(relay: &mut Relay, rng: &mut Rng) {
    let topic = rng.below(TOPICS);
    let presence = match (relay.broker.topics[topic], rng.below(4)) {
        (Presence::Present { partitions }, 0) => Presence::Present {
            partitions: PARTITIONS_MAX.min(partitions + 1),
        },
        (Presence::Present { partitions }, 1) => Presence::WriteDenied { partitions },
        (Presence::WriteDenied { partitions }, _) => Presence::Present { partitions },
        (Presence::Present { .. }, 2) | (Presence::Absent, 3) => Presence::Denied,
        (Presence::Present { .. }, _) => Presence::Absent,
        _ => Presence::Present {
            partitions: 1 + rng.below(3) as u32,
        },
    };
    relay.broker.set_topic(topic, presence);
}

/// Of one partition of a topic; it may be one that nobody uses.
fn change_silence(relay: &mut Relay, rng: &mut Rng) {
    let partition = (rng.below(TOPICS), rng.below(2) as u32);
    if !relay.broker.silent.remove(&partition) {
        relay.broker.silent.insert(partition);
    }
}

fn act(relay: &mut Relay, rng: &mut Rng) -> Result<(), String> {
    match rng.below(100) {
        0..8 => emit(relay, rng),
        8..20 => relay.read_log(),
        20..28 => relay.read_parked(),
        28..44 => relay.send(rng)?,
        44..58 => relay.broker.progress(rng)?,
        58..60 => change_silence(relay, rng),
        60..74 => relay.take_report(rng)?,
        74..78 => relay.ask(),
        78..82 => relay.answer(rng),
        82..91 => {
            relay.check_stalls();
            relay.settle(rng, true)?;
        }
        91..95 => relay.now_ms += rng.below(300) as u64,
        95 if rng.one_in(4) => relay.now_ms += rng.below(70_000) as u64,
        96 => change_topic(relay, rng),
        97 => relay.broker.outage = !relay.broker.outage && rng.one_in(2),
        98 if rng.one_in(6) => relay.restart(Ending::Crash),
        98 if rng.one_in(6) => relay.restart(Ending::Orderly),
        99 if rng.one_in(10) => relay.retry_failed(),
        _ => {}
    }
    Ok(())
}

/// All is well with the brokers. Everything must go out but what is at fault itself and, if it is to
/// hold, what waits behind it; and when that is mended, nothing may be left behind.
fn wind_up(relay: &mut Relay, rng: &mut Rng) -> Result<(), String> {
    relay.broker.outage = false;
    for topic in 0..TOPICS {
        if !matches!(relay.broker.topics[topic], Presence::Present { .. }) {
            relay.broker.set_topic(topic, Presence::Present { partitions: 2 });
        }
    }
    strangers_go_out(relay, rng)?;
    relay.broker.silent.clear();
    run_until(relay, rng, only_given_up_left)?;
    check_published(relay, |event| !relay.tables.parked.contains_key(&event))?;
    relay.retry_failed();
    run_until(relay, rng, |relay| relay.tables.parked.is_empty())
}

/// While others answer, partitions that do not hold up only aggregates that have events for them.
fn strangers_go_out(relay: &mut Relay, rng: &mut Rng) -> Result<(), String> {
    let concerned = |aggregate: usize| {
        let mut events = relay.tables.log.iter().filter(|row| row.aggregate == aggregate);
        events.any(|row| relay.is_silent(row.aggregate, row.topic))
    };
    let log = 0..relay.tables.log.len();
    let strangers: BTreeSet<EventNo> = log
        .filter(|&event| !concerned(relay.tables.log[event].aggregate))
        .collect();
    let places = (0..AGGREGATES).flat_map(|aggregate| (0..TOPICS).map(move |topic| (aggregate, topic)));
    let sign_of_life = places
        .into_iter()
        .find(|&(aggregate, topic)| !concerned(aggregate) && !relay.is_silent(aggregate, topic));
    let Some((aggregate, topic)) = sign_of_life else {
        return Ok(());
    };
    let mut outcome = Ok(());
    for n in 0..400 {
        if n % 4 == 0 {
            relay.tables.log.push(Event {
                aggregate,
                topic,
                available_at: None,
                defect: false,
                poison: false,
            });
        }
        round(relay, rng)?;
        let given_up = |event: EventNo| {
            let reason = relay.tables.parked.get(&event).map(|row| row.reason);
            matches!(
                reason,
                Some(ParkReason::Failed | ParkReason::Behind | ParkReason::Retry)
            )
        };
        outcome = check_published(relay, |event| strangers.contains(&event) && !given_up(event));
        // When nothing more is read nobody can answer, and it looks like an outage.
        if outcome.is_ok() || relay.window.parked_full() || !relay.window.can_read_parked() {
            return Ok(());
        }
    }
    outcome.map_err(|error| {
        let stalled: Vec<_> = relay.window.stalled_partitions().collect();
        let (silent, parked) = (&relay.broker.silent, &relay.tables.parked);
        format!("held up by strangers: {error}; silent {silent:?}, stalled {stalled:?}, parked {parked:?}")
    })
}

fn only_given_up_left(relay: &Relay) -> bool {
    let (log, parked) = (&relay.tables.log, &relay.tables.parked);
    let failed = |event: EventNo| parked[&event].reason == ParkReason::Failed;
    let behind_failed = |event: EventNo| {
        let mut others = parked.keys();
        parked[&event].reason == ParkReason::Behind
            && relay.tables.failed_holds
            && others.any(|&other| failed(other) && log[other].aggregate == log[event].aggregate)
    };
    parked.keys().all(|&event| failed(event) || behind_failed(event))
}

/// What the relay does, once each.
fn round(relay: &mut Relay, rng: &mut Rng) -> Result<(), String> {
    relay.now_ms += 200;
    relay.read_log();
    relay.read_parked();
    relay.send(rng)?;
    for _ in 0..4 {
        relay.broker.progress(rng)?;
        relay.take_report(rng)?;
    }
    relay.ask();
    relay.answer(rng);
    relay.check_stalls();
    relay.settle(rng, false)?;
    Ok(())
}

fn run_until(relay: &mut Relay, rng: &mut Rng, done: impl Fn(&Relay) -> bool) -> Result<(), String> {
    for _ in 0..1_000 {
        round(relay, rng)?;
        let all_read = relay.tables.ledger_pos == relay.tables.log.len();
        if all_read && relay.window.is_empty() && relay.kept.is_none() && done(relay) {
            return Ok(());
        }
    }
    let window = &relay.window;
    Err(format!(
        "stuck: {} of {} settled, parked {:?}, {} waiting, {} outstanding, missing {:?}",
        relay.tables.ledger_pos,
        relay.tables.log.len(),
        relay.tables.parked,
        window.waiting_events(),
        window.outstanding(),
        window.missing_topics().collect::<Vec<_>>()
    ))
}

/// For each aggregate and topic the first deliveries must be the first events, in seq order.
fn check_order(relay: &Relay) -> Result<(), String> {
    let log = &relay.tables.log;
    let mut expected: HashMap<(usize, usize), VecDeque<EventNo>> = HashMap::new();
    // The caller's own delay takes an event out of the order.
    for (event, row) in log.iter().enumerate().filter(|(_, row)| row.available_at.is_none()) {
        expected.entry((row.aggregate, row.topic)).or_default().push_back(event);
    }
    // And an event that is given up and holds nobody gives up the order of its aggregate.
    let at_fault = |row: &&Event| row.defect || row.poison;
    let at_fault: BTreeSet<usize> = log.iter().filter(at_fault).map(|row| row.aggregate).collect();
    let passed_by = |aggregate| !relay.tables.failed_holds && at_fault.contains(&aggregate);
    let mut seen = BTreeSet::new();
    for &(event, topic) in relay.broker.appended.iter().filter(|(event, _)| seen.insert(*event)) {
        let row = &log[event];
        if row.topic != topic {
            return Err(format!("event {event} went to topic {topic}, not {}", row.topic));
        }
        if row.available_at.is_some() || passed_by(row.aggregate) {
            continue;
        }
        let next = expected.get_mut(&(row.aggregate, topic)).and_then(VecDeque::pop_front);
        if next != Some(event) {
            return Err(format!(
                "order: event {event} was delivered before event {next:?}, same aggregate and topic"
            ));
        }
    }
    Ok(())
}

fn check_published(relay: &Relay, due: impl Fn(EventNo) -> bool) -> Result<(), String> {
    let published: BTreeSet<EventNo> = relay.broker.appended.iter().map(|&(event, _)| event).collect();
    let mut events = 0..relay.tables.log.len();
    match events.find(|event| due(*event) && !published.contains(event)) {
        Some(event) => Err(format!("lost: event {event}")),
        None => Ok(()),
    }
}

fn check_end(relay: &Relay) -> Result<(), String> {
    check_published(relay, |_| true)?;
    let window = &relay.window;
    let left = (
        window.held_aggregates(),
        window.suspects_left().len() + window.abandoned_events(),
        window.in_flight_bytes(),
        window.in_flight_events(),
    );
    if left != (0, 0, 0, 0) {
        return Err(format!(
            "left in an empty window: (held, suspects and abandoned, bytes, events) = {left:?}"
        ));
    }
    Ok(())
}

fn schedule(rng: &mut Rng, memory: Memory) -> Result<(), String> {
    let mut relay = Relay::new(rng, memory);
    for topic in 0..TOPICS {
        if rng.one_in(2) {
            relay.broker.set_topic(
                topic,
                Presence::Present {
                    partitions: 1 + rng.below(3) as u32,
                },
            );
        }
    }
    for _ in 0..100 + rng.below(500) {
        act(&mut relay, rng)?;
    }
    let wound_up = wind_up(&mut relay, rng);
    check_order(&relay)?;
    wound_up?;
    check_end(&relay)
}

#[test]
fn everything_is_published_in_order() {
    run_schedules(10_000, |rng| schedule(rng, Memory::Whole));
}

/// How many of some schedules end with an error that begins like this.
fn caught(memory: Memory, schedules: u64, error: &str) -> usize {
    let first = support::random_seed();
    println!("{schedules} schedules from seed {first}");
    let outcomes = (0..schedules).map(|n| schedule(&mut Rng::new(first + n), memory));
    let errors = outcomes.filter_map(Result::err);
    errors.filter(|found| found.starts_with(error)).count()
}

#[test]
fn the_schedules_catch_a_relay_that_forgets_what_is_held() {
    let caught = caught(Memory::ForgetsHolds, 200, "order");
    assert!(caught > 10, "only {caught} of 200 schedules saw the order broken");
}

#[test]
fn the_schedules_catch_a_relay_that_forgets_its_suspects() {
    let caught = caught(Memory::ForgetsSuspects, 50, "stuck");
    assert!(
        caught > 10,
        "only {caught} of 50 schedules saw the same batch refused for ever"
    );
}
