//! The scenarios, by theme, and their runner.
//!
//! `cargo test --release -p outbox-e2e`, with a part of a name behind `--` to run some of them. Two run side by side,
//! each with a cluster of its own; those that measure time or load run alone.

/// `trials![scenario a, alone b]` makes the function `trials` of a module: its scenarios and how each runs.
macro_rules! trials {
    ($($kind:ident $body:ident),* $(,)?) => {
        pub fn trials() -> Vec<libtest_mimic::Trial> {
            vec![$($crate::$kind(stringify!($body), $body)),*]
        }
    };
}

mod access;
mod answers;
mod atomic;
mod attacks;
mod bars;
mod clock;
mod contract;
mod crash;
mod databases;
mod dump;
mod failures;
mod faults;
mod leases;
mod load;
mod names;
mod order;
mod poison;
mod quiet;
mod reads;
mod retention;
mod selftest;
mod settings;
mod soak;
mod stage;
mod standby;
mod stuck_partitions;
mod three_brokers;
mod writers;

use std::sync::RwLock;

use libtest_mimic::{Arguments, Trial};
use outbox_e2e::{broker, run};

/// Held shared by scenarios that may run beside others, alone by those that may not.
static MACHINE: RwLock<()> = RwLock::new(());

/// May run beside others.
fn scenario(name: &'static str, body: fn(&str)) -> Trial {
    Trial::test(name, move || {
        let _shared = MACHINE.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        body(name);
        Ok(())
    })
}

/// Measures time or puts both cores under load: runs while no other does.
fn alone(name: &'static str, body: fn(&str)) -> Trial {
    Trial::test(name, move || {
        let _alone = MACHINE.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        body(name);
        Ok(())
    })
}

/// Stops a broker of its own; skipped where the broker under test is somebody else's.
fn stops_broker(name: &'static str, body: fn(&str)) -> Trial {
    scenario(name, body).with_ignored_flag(broker::external().is_some())
}

/// Both.
fn stops_broker_alone(name: &'static str, body: fn(&str)) -> Trial {
    alone(name, body).with_ignored_flag(broker::external().is_some())
}

fn main() {
    let arguments = Arguments::from_args();
    let trials = [
        contract::trials(),
        atomic::trials(),
        order::trials(),
        writers::trials(),
        crash::trials(),
        clock::trials(),
        attacks::trials(),
        bars::trials(),
        databases::trials(),
        dump::trials(),
        settings::trials(),
        failures::trials(),
        faults::trials(),
        leases::trials(),
        names::trials(),
        poison::trials(),
        answers::trials(),
        access::trials(),
        retention::trials(),
        standby::trials(),
        quiet::trials(),
        reads::trials(),
        stuck_partitions::trials(),
        three_brokers::trials(),
        soak::trials(),
        selftest::trials(),
    ];
    let conclusion = libtest_mimic::run(&arguments, trials.into_iter().flatten().collect());
    run::end();
    conclusion.exit();
}
