//! A real-time clock of a cluster's own, which a scenario sets forward and back while the server runs.
//!
//! The machine's clock is not ours to set. A small library, loaded into every process of the server before the C
//! library, adds an offset to it (`stepped_clock.c` says how); the offset lies in a file that all of them map.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::shell::{give_to_server_user, repository, run as run_command};
use crate::{Cluster, run};

pub struct SteppedClock {
    file: File,
    offset_us: i64,
}

impl SteppedClock {
    /// Gives a cluster that is not running a clock of its own.
    #[track_caller]
    pub fn of(cluster: &mut Cluster) -> SteppedClock {
        let path = cluster.folder().join("clock");
        fs::write(&path, 0_i64.to_ne_bytes()).expect("write the offset");
        give_to_server_user(&path);
        cluster.set_environment(&[("LD_PRELOAD", library()), ("OUTBOX_TEST_CLOCK", &path)]);
        let file = File::options().write(true).open(&path).expect("open the offset");
        SteppedClock { file, offset_us: 0 }
    }

    /// Sets the clock forward, or back with a negative number.
    pub fn step(&mut self, seconds: i64) {
        self.offset_us += seconds * 1_000_000;
        let bytes = self.offset_us.to_ne_bytes();
        self.file.write_all_at(&bytes, 0).expect("write the offset");
    }
}

/// Compiled once a run.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let library = run::folder().join("stepped_clock.so");
        run_command(
            Command::new("cc")
                .args([
                    "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", "-o",
                ])
                .arg(&library)
                .arg(repository().join("tests/e2e/src/stepped_clock.c")),
        );
        library
    })
}
