//! A connection to a database under test: SQL in, plain values out, and a panic that names the statement.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postgres::types::{FromSqlOwned, ToSql};
use postgres::{Client, Config, Error, NoTls, Row};

use crate::wait::{check, wait};

pub struct Db {
    client: Client,
    notices: Arc<Mutex<Vec<String>>>,
}

/// One event to emit; `Emit::new` fills in the usual.
pub struct Emit<'a> {
    pub aggregate_type: &'a str,
    pub aggregate_id: &'a str,
    pub event_type: &'a str,
    pub payload: &'a str,
    pub headers: Option<&'a str>,
    pub topic: Option<&'a str>,
    pub event_id: Option<&'a str>,
    pub available_at: Option<&'a str>,
}

impl<'a> Emit<'a> {
    pub fn new(aggregate_type: &'a str, aggregate_id: &'a str, payload: &'a str) -> Self {
        Emit {
            aggregate_type,
            aggregate_id,
            event_type: "Happened",
            payload,
            headers: None,
            topic: None,
            event_id: None,
            available_at: None,
        }
    }
}

impl Db {
    pub(crate) fn connect(socket: &Path, database: &str) -> Result<Db, Error> {
        let notices = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&notices);
        let client = Config::new()
            .host_path(socket)
            .user("postgres")
            .dbname(database)
            .application_name("scenario")
            // Questions about all events are taken for costly and compiled, for seconds, in which no stop of the server ends them.
            .options("-c jit=off")
            .notice_callback(move |notice| {
                let line = format!("{}: {}", notice.severity(), notice.message());
                heard.lock().expect("nobody panics holding it").push(line);
            })
            .connect(NoTls)?;
        Ok(Db { client, notices })
    }

    /// What the server said besides answers since the last call, as `WARNING: ...`.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut *self.notices.lock().expect("nobody panics holding it"))
    }

    /// One or more statements without an answer.
    #[track_caller]
    pub fn run(&mut self, sql: &str) {
        self.try_run(sql)
            .unwrap_or_else(|error| panic!("{}: {}", short(sql), say(&error)));
    }

    pub fn try_run(&mut self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql)
    }

    /// The error of a statement that must fail: its SQLSTATE and message.
    #[track_caller]
    pub fn refused(&mut self, sql: &str) -> (String, String) {
        let error = self
            .try_run(sql)
            .expect_err(&format!("{}: should be refused", short(sql)));
        let error = error.as_db_error().unwrap_or_else(|| panic!("{}: {error}", short(sql)));
        (error.code().code().to_owned(), error.message().to_owned())
    }

    /// The one value of a query's one row.
    #[track_caller]
    pub fn one<T: FromSqlOwned>(&mut self, sql: &str) -> T {
        self.one_with(sql, &[])
    }

    #[track_caller]
    pub fn one_with<T: FromSqlOwned>(&mut self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> T {
        let row = self.client.query_one(sql, values);
        row.and_then(|row| row.try_get(0))
            .unwrap_or_else(|error| panic!("{}: {}", short(sql), say(&error)))
    }

    pub fn try_one<T: FromSqlOwned>(&mut self, sql: &str) -> Result<T, Error> {
        self.client.query_one(sql, &[]).and_then(|row| row.try_get(0))
    }

    /// The value of each row.
    #[track_caller]
    pub fn all<T: FromSqlOwned>(&mut self, sql: &str) -> Vec<T> {
        self.rows(sql).iter().map(|row| row.get(0)).collect()
    }

    #[track_caller]
    pub fn rows(&mut self, sql: &str) -> Vec<Row> {
        self.client
            .query(sql, &[])
            .unwrap_or_else(|error| panic!("{}: {}", short(sql), say(&error)))
    }

    /// Number of rows touched.
    #[track_caller]
    pub fn touched(&mut self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> u64 {
        self.try_touched(sql, values)
            .unwrap_or_else(|error| panic!("{}: {}", short(sql), say(&error)))
    }

    pub fn try_touched(&mut self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.client.execute(sql, values)
    }

    /// `COPY ... FROM STDIN` with these lines; returns the number of rows.
    #[track_caller]
    pub fn copy_in(&mut self, sql: &str, lines: &str) -> u64 {
        let copied = self.client.copy_in(sql).and_then(|mut writer| {
            std::io::Write::write_all(&mut writer, lines.as_bytes()).expect("the server reads it");
            writer.finish()
        });
        copied.unwrap_or_else(|error| panic!("{}: {}", short(sql), say(&error)))
    }

    /// `outbox_emit` with all its arguments; returns the event's id as text.
    #[track_caller]
    pub fn emit(&mut self, event: &Emit) -> String {
        self.one_with(
            "SELECT outbox_emit($1, $2, $3, $4::text::jsonb, $5::text::jsonb, $6, $7::text::uuid,
                                $8::text::timestamptz)::text",
            &[
                &event.aggregate_type,
                &event.aggregate_id,
                &event.event_type,
                &event.payload,
                &event.headers,
                &event.topic,
                &event.event_id,
                &event.available_at,
            ],
        )
    }

    /// Emits one usual event.
    #[track_caller]
    pub fn emit_one(&mut self, aggregate_type: &str, aggregate_id: &str, payload: &str) -> String {
        self.emit(&Emit::new(aggregate_type, aggregate_id, payload))
    }

    #[track_caller]
    pub fn pending(&mut self) -> i64 {
        self.one("SELECT count(*) FROM outbox_pending")
    }

    /// `outbox_status` as JSON text, for messages.
    pub fn status(&mut self) -> String {
        self.try_one("SELECT to_jsonb(s)::text FROM outbox_status s")
            .unwrap_or_else(|error| say(&error))
    }

    /// Waits until nothing is left to publish.
    #[track_caller]
    pub fn wait_drained(&mut self, deadline: Duration) {
        wait("everything to be published", deadline, || {
            let pending = self.pending();
            check(pending == 0, || format!("{pending} pending, status {}", self.status()))
        });
    }

    /// Waits until a query that returns one boolean says true.
    #[track_caller]
    pub fn wait_true(&mut self, sql: &str, deadline: Duration) {
        wait(sql, deadline, || match self.try_one::<Option<bool>>(sql) {
            Ok(Some(true)) => Ok(()),
            Ok(value) => Err(format!("{value:?}, status {}", self.status())),
            Err(error) => Err(say(&error)),
        });
    }

    /// Waits until `outbox_status` says this state.
    #[track_caller]
    pub fn wait_state(&mut self, state: &str, deadline: Duration) {
        wait(&format!("state {state}"), deadline, || {
            let seen: String = self.one("SELECT state FROM outbox_status");
            check(seen == state, || self.status())
        });
    }

    /// The relay of this database, once there is one.
    #[track_caller]
    pub fn relay(&mut self) -> i32 {
        wait("a relay", crate::seconds(10), || {
            self.one::<Option<i32>>("SELECT relay_pid FROM outbox_status")
                .filter(|pid| *pid != 0)
                .ok_or_else(|| self.status())
        })
    }
}

/// A statement in a message: long ones are cut.
fn short(sql: &str) -> String {
    sql.chars().take(160).collect()
}

fn say(error: &Error) -> String {
    match error.as_db_error() {
        Some(db) => format!("{} {}", db.code().code(), db),
        None => error.to_string(),
    }
}
