//! What the relay says in the server log and as its last error: each change of state once, librdkafka's own lines as they come (outbox-kafka limits
//! their number). Never a payload, a key or a secret.

use crate::shmem::{self, State};
use outbox_kafka::{Level, LogLine};

/// Remembers what was said.
pub struct Reporter {
    slot: usize,
    database: String,
    told: Option<(State, Option<String>)>,
    /// The last trouble that was logged while events flowed: it may come and go with each try.
    trouble: Option<String>,
}

impl Reporter {
    /// `database` is named in each line.
    pub fn new(slot: usize, database: String) -> Reporter {
        shmem::clear_details(slot);
        Reporter {
            slot,
            database,
            told: None,
            trouble: None,
        }
    }

    /// The relay is in this state, for this reason. Logs a change.
    pub fn tell(&mut self, state: State, error: Option<String>) {
        let calm = |state| matches!(state, State::Running | State::Idle | State::Starting);
        match &self.told {
            Some((told, text)) if *text == error && (*told == state || (calm(*told) && calm(state))) => return,
            _ => {}
        }
        shmem::set_error(self.slot, error.as_deref().unwrap_or_default());
        let database = &self.database;
        match (state, &error) {
            (State::Misconfigured | State::Damaged | State::ForeignRows, Some(text)) => {
                pgrx::warning!("outbox_ext publishes nothing of database \"{database}\": {text}");
            }
            // The texts of one outage differ from broker to broker; its beginning is news, the rest is not.
            (State::Outage, _) if self.told.as_ref().is_some_and(|(told, _)| *told == State::Outage) => {}
            (State::Outage, Some(text)) => {
                pgrx::log!("outbox_ext cannot reach Kafka, events of database \"{database}\" wait: {text}");
            }
            (_, Some(text)) if self.trouble.as_ref() == Some(text) => {}
            (_, Some(text)) => {
                pgrx::log!("outbox_ext, database \"{database}\": {text}");
                self.trouble = Some(text.clone());
            }
            (State::NoBrokers, None) => {
                pgrx::log!("outbox_ext.brokers is not set, events of database \"{database}\" wait");
            }
            (State::Disabled, None) => {
                pgrx::log!("outbox_ext.enabled is off, events of database \"{database}\" wait");
            }
            (State::Starting, None) => {}
            (_, None) if self.told.as_ref().is_some_and(|(told, _)| calm(*told)) => {}
            (_, None) => pgrx::log!("outbox_ext publishes the events of database \"{database}\""),
        }
        self.told = Some((state, error));
    }

    /// The client's waits hang on the clock: it is replaced.
    pub fn clock_set_back(&self, back_ms: i64) {
        pgrx::log!(
            "outbox_ext, database \"{}\": the clock was set back by {} s; the Kafka client is started anew",
            self.database,
            back_ms / 1_000
        );
    }

    /// A reload found a file of properties that cannot be used.
    pub fn keeps_options(&self, error: &str) {
        pgrx::warning!(
            "outbox_ext goes on with the Kafka properties it has for database \"{}\": {error}",
            self.database
        );
    }

    /// Events were given up: somebody must decide about them.
    pub fn given_up(&self, events: usize) {
        pgrx::warning!(
            "outbox_ext gave up {events} events of database \"{}\"; outbox_dead_letter says which, and why",
            self.database
        );
    }

    /// Writes librdkafka's lines to the server log.
    pub fn kafka_logs(&self, lines: Vec<LogLine>) {
        for line in lines {
            match line.level {
                Level::Debug => pgrx::debug1!("{}", line.text),
                // What it warns of is either retried, and then no news, or ends the session, which the relay reports itself.
                Level::Info | Level::Notice | Level::Warning | Level::Error => pgrx::log!("{}", line.text),
            }
        }
    }
}
