//! The folder of one run of the tests, and the guard that clears up after it.
//!
//! The guard is a shell that reads from a pipe whose other end this process holds. The pipe closes when this process
//! ends, be it by its own will, by a panic or by a signal; the guard then ends every server recorded in the folder, by
//! the process id in its pid file, and removes the folder. It has its own session, so that Ctrl-C does not reach it.

use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock};

use crate::shell;

/// Set to keep the folders of clusters and brokers after the run.
const KEEP: &str = "OUTBOX_E2E_KEEP";

/// `$1` the run's folder, `$2` scripts/kafka, `$3` whether to keep the folder. `cat` returns when the pipe closes.
const GUARD: &str = r#"
cat >/dev/null
cd "$1" || exit 0
for file in cluster-*/data/postmaster.pid; do
    [ -f "$file" ] && read -r pid <"$file" && kill -QUIT "$pid" && pids="$pids $pid"
done
for file in broker-*/kafka.pid; do
    [ -f "$file" ] && "$2" stop "$1/${file%/kafka.pid}" KILL
done
for pid in $pids; do
    for i in 1 2 3 4 5 6 7 8 9 10; do
        [ -d "/proc/$pid" ] || break
        sleep 0.5
    done
done
[ "$3" = keep ] || rm -rf "$1"
"#;

struct Run {
    folder: PathBuf,
    guard: Mutex<Option<(Child, ChildStdin)>>,
}

fn current() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(Run::begin)
}

/// Whether data folders are to stay after their use.
pub fn keeps() -> bool {
    std::env::var_os(KEEP).is_some()
}

/// The folder of this run: short, for the sockets in it, and open to the server's user.
pub fn folder() -> &'static Path {
    &current().folder
}

/// Ends what is left and waits until it is gone. Without this call the guard does the same a moment later.
pub fn end() {
    let guard = current().guard.lock().expect("nobody panics holding it").take();
    if let Some((mut child, pipe)) = guard {
        drop(pipe);
        // Its exit code says nothing that a test could use.
        let _ = child.wait();
    }
}

impl Run {
    fn begin() -> Run {
        let folder = std::env::temp_dir().join(format!("outbox-e2e-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("create the folder of the run");
        // mkdir obeys the umask; the server's user must be able to pass through.
        shell::run(Command::new("chmod").arg("755").arg(&folder));
        let keep = if keeps() { "keep" } else { "remove" };
        let mut child = Command::new("setsid")
            .args(["sh", "-c", GUARD, "guard"])
            .arg(&folder)
            .arg(shell::repository().join("scripts/kafka"))
            .arg(keep)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start the guard");
        let pipe = child.stdin.take().expect("the pipe was asked for");
        Run {
            folder,
            guard: Mutex::new(Some((child, pipe))),
        }
    }
}
