//! What a server's processes believe of the machine and a scenario must change: its clock, its name server.
//!
//! Neither is ours to change for the whole machine. Small libraries (`preload/`), loaded into every process of one server
//! before the C library, stand between; a file that they read holds what the scenario wants.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use crate::cluster::Cluster;
use crate::run;
use crate::shell::{give_to_server_user, repository, run as run_command};

/// A real-time clock that is set forward and back while the server runs.
pub struct SteppedClock {
    file: File,
    offset_us: i64,
}

impl SteppedClock {
    /// Gives a cluster that is not running a clock of its own.
    #[track_caller]
    pub fn of(cluster: &mut Cluster) -> SteppedClock {
        let file = load(cluster, "stepped_clock", "OUTBOX_TEST_CLOCK", &0_i64.to_ne_bytes());
        SteppedClock { file, offset_us: 0 }
    }

    /// Sets the clock forward, or back with a negative number.
    pub fn step(&mut self, seconds: i64) {
        self.offset_us += seconds * 1_000_000;
        let bytes = self.offset_us.to_ne_bytes();
        self.file.write_all_at(&bytes, 0).expect("write the offset");
    }
}

/// A name server that does not answer at first.
pub struct StuckResolver {
    file: File,
}

impl StuckResolver {
    /// Gives a cluster that is not running a name server of its own.
    #[track_caller]
    pub fn of(cluster: &mut Cluster) -> StuckResolver {
        let file = load(cluster, "stuck_resolver", "OUTBOX_TEST_NAMES", b"");
        StuckResolver { file }
    }

    /// From now on every name that ends in `.test` has this address, of nine characters.
    pub fn tell(&self, address: &str) {
        assert_eq!(address.len(), "127.0.0.1".len(), "it replaces the one before");
        self.file
            .write_all_at(address.as_bytes(), 0)
            .expect("write the address");
    }
}

/// Has the cluster's processes load a library, compiled here, that reads a file named by a variable.
#[track_caller]
fn load(cluster: &mut Cluster, name: &str, variable: &'static str, content: &[u8]) -> File {
    let path = cluster.folder().join(name);
    fs::write(&path, content).expect("write the file");
    give_to_server_user(&path);
    cluster.set_environment(&[("LD_PRELOAD", &compile(cluster, name)), (variable, &path)]);
    File::options().write(true).open(&path).expect("open the file")
}

#[track_caller]
fn compile(cluster: &Cluster, name: &str) -> PathBuf {
    // The folder of the run is short-lived, and open to the server's user.
    assert!(cluster.folder().starts_with(run::folder()));
    let library = cluster.folder().join(format!("{name}.so"));
    run_command(
        Command::new("cc")
            .args([
                "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o",
            ])
            .arg(&library)
            .arg(repository().join(format!("tests/e2e/preload/{name}.c"))),
    );
    library
}
