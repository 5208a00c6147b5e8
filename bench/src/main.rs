//! The benchmark: what outbox_ext costs, beside its peers and beside the floor of the same work, in one run on one machine.
//!
//! It owns its clusters and broker (by the harness of `tests/e2e`) and leaves nothing running. A figure is a median over
//! rounds; where it has a floor, rounds of both alternate. It is a report, not a test: a missed bar is printed and the
//! exit code stays 0; it is 1 when something could not be measured.

mod args;
mod backlog;
mod consumer;
mod drain;
mod drain_peers;
mod emit;
mod flatness;
mod flatness_lines;
mod floor;
mod idle;
mod instructions;
mod latency;
mod load;
mod machine;
mod peers;
mod pgbench;
mod plot;
mod process;
mod rates;
mod report;
mod stand;
mod stats;
mod sustained;
mod table;
mod wait_fd;
mod wal;

use std::panic;
use std::process::ExitCode;

use args::{Options, Row};
use machine::Machine;
use outbox_e2e::{install, run};
use report::{Report, Section};

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    let measured = panic::catch_unwind(|| measure(&options));
    run::end();
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        // The panic has said what and where.
        Err(_) => {
            eprintln!("could not measure: no report was written");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) {
    install::check_installed();
    // Before the rows: what they measure is what stood here when they began.
    let machine = Machine::look();
    let mut busy = process::busy_cores();
    let sections: Vec<Section> = options
        .rows
        .iter()
        .flat_map(|row| {
            // Again before each row: somebody may have started something since.
            busy = busy.max(process::busy_cores());
            match row {
                Row::Latency => vec![latency::measure(options.rounds, options.scale)],
                Row::Rates => vec![rates::measure(options.rounds, options.scale)],
                Row::Sustained => vec![sustained::measure(options.rounds, options.scale)],
                Row::Flatness => vec![flatness::measure(options.scale, options.only.as_deref())],
                Row::Drain => drain::measure(options.rounds, options.scale),
                Row::Emit => vec![emit::measure(options.rounds, options.scale)],
                Row::Instructions => vec![instructions::measure()],
                Row::Idle => vec![idle::measure(options.scale)],
            }
        })
        .collect();
    let report = Report {
        command: options.command(),
        machine: machine.was_busy(busy),
        sections,
    };
    println!("{}", report.text());
    report.keep(options.keeps_as());
}
