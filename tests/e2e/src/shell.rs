//! Commands of the operating system: run as the server's user, end a process, ask where PostgreSQL is.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// PostgreSQL refuses to run as root: root runs it as this user, anybody else as themselves.
const SERVER_USER: &str = "postgres";

pub fn is_root() -> bool {
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| stdout(Command::new("id").arg("-u")).trim() == "0")
}

/// A command that runs as the server's user.
pub fn as_server_user(program: impl AsRef<Path>) -> Command {
    let program = program.as_ref();
    if is_root() {
        let mut command = Command::new("runuser");
        command.args(["-u", SERVER_USER, "--"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}

/// Makes an existing folder or file the server user's own.
pub fn give_to_server_user(path: &Path) {
    if is_root() {
        run(Command::new("chown").arg("-R").arg(format!("{SERVER_USER}:")).arg(path));
    }
}

/// Runs it to its end.
///
/// # Panics
/// With its output when it fails.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    let output = try_run(command);
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

#[track_caller]
pub fn try_run(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"))
}

#[track_caller]
pub fn stdout(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).expect("the command prints UTF-8")
}

/// Sends a signal (`KILL`, `TERM`, `STOP`, `CONT`) to one process.
#[track_caller]
pub fn signal(pid: i32, signal: &str) {
    run(Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()));
}

pub fn is_alive(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// What pg_config (`$PG_CONFIG`, else the one on the PATH) says, for example `--bindir`.
pub fn pg_config(option: &str) -> PathBuf {
    let pg_config = std::env::var_os("PG_CONFIG").unwrap_or_else(|| "pg_config".into());
    PathBuf::from(stdout(Command::new(pg_config).arg(option)).trim())
}

/// A program of the PostgreSQL under test.
pub fn pg_program(name: &str) -> PathBuf {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(|| pg_config("--bindir")).join(name)
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("the crate lies two folders below the root")
        .to_owned()
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => repository().join(folder),
        None => repository().join("target"),
    }
}
