//! A PostgreSQL cluster of one scenario: its own data folder and socket, no TCP port.
//!
//! initdb runs once per run of the tests; each cluster starts from a copy of what it made. Settings are lines of
//! postgresql.conf; `configure` appends, and of two lines the last one counts.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::db::Db;
use crate::shell::{as_server_user, give_to_server_user, pg_program, run as run_command};
use crate::wait::{check, let_pass, try_wait, wait};
use crate::{run, shell};

/// The database that scenarios work in. It comes with the template, without the extension.
pub const DATABASE: &str = "app";

/// How a server is stopped; the words are pg_ctl's.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    Smart,
    Fast,
    Immediate,
}

impl Stop {
    fn mode(self) -> &'static str {
        match self {
            Stop::Smart => "smart",
            Stop::Fast => "fast",
            Stop::Immediate => "immediate",
        }
    }
}

/// A handle: clones are of the same cluster.
#[derive(Clone)]
pub struct Cluster {
    folder: PathBuf,
    /// Of the server's processes, on top of ours.
    environment: Vec<(&'static str, PathBuf)>,
}

/// Part of the socket's name; nothing listens on TCP.
const PORT: &str = "5432";

/// What every cluster has. fsync stays on: the promises are about what survives.
const BASE_SETTINGS: [(&str, &str); 10] = [
    // Said, since a PGPORT of the person's would count else.
    ("port", PORT),
    ("shared_preload_libraries", "outbox_ext"),
    ("listen_addresses", ""),
    ("max_connections", "100"),
    ("max_prepared_transactions", "20"),
    ("shared_buffers", "128MB"),
    ("max_wal_size", "4GB"),
    ("log_line_prefix", "%m [%p] %b "),
    ("log_checkpoints", "off"),
    ("timezone", "UTC"),
];

impl Cluster {
    /// Lays a new cluster out; `start` starts it.
    pub fn create(settings: &[(&str, &str)]) -> Cluster {
        let cluster = Cluster::copy_of(template());
        cluster.configure(&BASE_SETTINGS);
        cluster.configure(settings);
        cluster
    }

    fn new_folder() -> PathBuf {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = run::folder().join(format!("cluster-{number}"));
        fs::create_dir(&folder).expect("create the cluster's folder");
        give_to_server_user(&folder);
        folder
    }

    fn in_folder(folder: PathBuf) -> Cluster {
        Cluster {
            folder,
            environment: Vec::new(),
        }
    }

    fn copy_of(template: &Path) -> Cluster {
        let folder = Cluster::new_folder();
        run_command(as_server_user("cp").arg("-a").arg(template).arg(folder.join("data")));
        Cluster::in_folder(folder)
    }

    /// Lays out a streaming standby of this running cluster, known to it by this name; `start` starts it.
    #[track_caller]
    pub fn create_standby(&self, name: &str) -> Cluster {
        let folder = Cluster::new_folder();
        let primary = format!("host={} user=postgres application_name={name}", self.folder.display());
        run_command(
            as_server_user(pg_program("pg_basebackup"))
                .args([
                    "--checkpoint=fast",
                    "--write-recovery-conf",
                    "--no-sync",
                    "-d",
                    &primary,
                    "-D",
                ])
                .arg(folder.join("data")),
        );
        Cluster::in_folder(folder)
    }

    /// The folder of the cluster, which its server can read.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub fn log_path(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// The whole server log so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    /// Its last lines.
    pub fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Appends to postgresql.conf. A running server sees it after `reload` or a restart.
    pub fn configure(&self, settings: &[(&str, &str)]) {
        let file = self.data().join("postgresql.conf");
        let mut text = fs::read_to_string(&file).expect("read postgresql.conf");
        for (name, value) in settings {
            writeln!(text, "{name} = '{}'", value.replace('\'', "''")).expect("a string takes it");
        }
        // Written over in place, so that it stays the server user's own.
        fs::write(&file, text).expect("write postgresql.conf");
    }

    /// Environment variables for the server when it is started next.
    pub(crate) fn set_environment(&mut self, variables: &[(&'static str, &Path)]) {
        self.environment = variables
            .iter()
            .map(|&(name, value)| (name, value.to_owned()))
            .collect();
    }

    /// Starts the server and waits until it takes connections.
    #[track_caller]
    pub fn start(&self) {
        self.start_program(&pg_program("postgres"));
    }

    /// The same with another program in the server's place, which becomes the server in the end.
    #[track_caller]
    pub fn start_program(&self, program: &Path) {
        // pg_ctl's children would keep a pipe open: its own words go nowhere, the server's into the log.
        let status = as_server_user(pg_program("pg_ctl"))
            .envs(self.environment.iter().cloned())
            .arg("-p")
            .arg(program)
            .args(["-s", "-w", "-t", "60", "-D"])
            .arg(self.data())
            .arg("-l")
            .arg(self.log_path())
            .arg("-o")
            .arg(format!("-k {}", self.folder.display()))
            .arg("start")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("run pg_ctl");
        assert!(
            status.success(),
            "the server did not start; its log ends:\n{}",
            self.log_end()
        );
    }

    /// Stops the server and says how long that took.
    #[track_caller]
    pub fn stop(&self, how: Stop) -> Duration {
        let began = Instant::now();
        run_command(
            as_server_user(pg_program("pg_ctl"))
                .args(["-s", "-w", "-t", "60", "-m", how.mode(), "-D"])
                .arg(self.data())
                .arg("stop"),
        );
        began.elapsed()
    }

    /// Ends the postmaster as the out-of-memory killer does, and waits until its processes have noticed: until then no
    /// server starts on this data.
    #[track_caller]
    pub fn kill_postmaster(&self) {
        shell::signal(self.postmaster(), "KILL");
        wait("the server's processes to go", crate::seconds(20), || {
            let left = self.processes();
            check(left.is_empty(), || format!("{left:?}"))
        });
        // Where nobody has asked for its exit code yet its number is still taken, and its lock files look alive.
        for lock in [
            self.data().join("postmaster.pid"),
            self.folder.join(".s.PGSQL.5432.lock"),
        ] {
            fs::remove_file(lock).expect("a killed server leaves its locks");
        }
    }

    /// The processes that work in its data folder.
    fn processes(&self) -> Vec<PathBuf> {
        let data = self.data();
        let all = fs::read_dir("/proc").expect("Linux");
        let paths = all.flatten().map(|entry| entry.path());
        paths
            .filter(|path| fs::read_link(path.join("cwd")).is_ok_and(|folder| folder == data))
            .collect()
    }

    /// Removes the data of a stopped server: a run makes gigabytes of it.
    pub fn remove(&self) {
        if !run::keeps()
            && let Err(error) = fs::remove_dir_all(&self.folder)
        {
            eprintln!("{} stays: {error}", self.folder.display());
        }
    }

    pub fn is_running(&self) -> bool {
        self.data().join("postmaster.pid").exists()
    }

    #[track_caller]
    pub fn reload(&self) {
        run_command(
            as_server_user(pg_program("pg_ctl"))
                .args(["-s", "-D"])
                .arg(self.data())
                .arg("reload"),
        );
    }

    /// The number of the postmaster's process.
    pub fn postmaster(&self) -> i32 {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).expect("it runs");
        file.lines()
            .next()
            .and_then(|line| line.trim().parse().ok())
            .expect("a pid stands first")
    }

    #[track_caller]
    pub fn connect(&self, database: &str) -> Db {
        self.try_connect(database)
            .unwrap_or_else(|error| panic!("cannot connect to {database}: {error}"))
    }

    pub fn try_connect(&self, database: &str) -> Result<Db, postgres::Error> {
        Db::connect(&self.folder, database)
    }

    /// Connects as soon as the server takes connections, be it in recovery now or down. Looks less often than `wait`: each
    /// look is a process of the server and a line in its log.
    pub fn connect_again(&self, database: &str, deadline: Duration) -> Result<Db, String> {
        try_wait(deadline, || {
            self.try_connect(database).map_err(|error| {
                let_pass(Duration::from_millis(40));
                error.to_string()
            })
        })
    }

    /// A client program of PostgreSQL (`pg_dump`, `psql`) that will connect to this cluster.
    pub fn client(&self, program: &str) -> Command {
        let mut command = Command::new(pg_program(program));
        command.arg("-h").arg(&self.folder).args(["-U", "postgres", "-p", PORT]);
        command
    }
}

/// A data folder as initdb makes it, with the database of the scenarios. Made once.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let cluster = Cluster::in_folder(Cluster::new_folder());
        run_command(
            as_server_user(pg_program("initdb"))
                .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"])
                .args(["--no-sync", "-D"])
                .arg(cluster.data()),
        );
        cluster.configure(&BASE_SETTINGS);
        cluster.configure(&[("shared_preload_libraries", "")]);
        cluster.start();
        cluster.connect("postgres").run(&format!("CREATE DATABASE {DATABASE}"));
        cluster.stop(Stop::Fast);
        cluster.data()
    })
}
