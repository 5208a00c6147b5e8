//! The tables that events are written to: ours, and those that the peers are documented with. All hold the same event.

use crate::backlog::{AGGREGATES, EVENT_TYPE, Size, payload_sql};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Table {
    /// outbox_ext's.
    Event,
    /// The polling relays'.
    Textbook,
    /// The one in the manual of Debezium's outbox event router.
    Router,
}

impl Table {
    /// What creates it; ours comes with the extension.
    pub fn create(self) -> &'static str {
        match self {
            Table::Event => "",
            Table::Textbook => {
                "CREATE TABLE outbox (
                    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
                    aggregate_type text NOT NULL,
                    aggregate_id text NOT NULL,
                    event_type text NOT NULL,
                    payload jsonb NOT NULL,
                    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
                    published_at timestamptz);
                 CREATE INDEX outbox_unpublished_idx ON outbox (created_at) WHERE published_at IS NULL"
            }
            Table::Router => {
                "CREATE TABLE outbox (
                    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
                    aggregatetype varchar(255) NOT NULL,
                    aggregateid varchar(255) NOT NULL,
                    type varchar(255) NOT NULL,
                    payload jsonb)"
            }
        }
    }

    /// The relation that holds the rows.
    pub fn relation(self) -> &'static str {
        match self {
            Table::Event => "outbox_log",
            Table::Textbook | Table::Router => "outbox",
        }
    }

    /// The column that names the aggregate's type.
    pub fn aggregate_type(self) -> &'static str {
        match self {
            Table::Event | Table::Textbook => "aggregate_type",
            Table::Router => "aggregatetype",
        }
    }

    fn target(self) -> &'static str {
        match self {
            Table::Event => "outbox_event (aggregate_type, aggregate_id, event_type, payload",
            Table::Textbook => "outbox (aggregate_type, aggregate_id, event_type, payload",
            Table::Router => "outbox (aggregatetype, aggregateid, type, payload",
        }
    }

    fn id(self) -> &'static str {
        match self {
            Table::Event => "event_id",
            Table::Textbook | Table::Router => "id",
        }
    }

    /// Inserts an event for each `n` of this set.
    pub fn insert_select(self, aggregate_type: &str, size: Size, set: &str) -> String {
        format!(
            "INSERT INTO {})
             SELECT '{aggregate_type}', 'customer-' || n % {AGGREGATES}, '{EVENT_TYPE}', {} FROM {set}",
            self.target(),
            payload_sql(size)
        )
    }

    /// One event with its parameters: aggregate type, aggregate id, event type, payload as text, id.
    pub fn insert_one(self) -> String {
        match self {
            Table::Event => "SELECT outbox_emit($1, $2, $3, $4::text::jsonb, event_id => $5)".to_owned(),
            Table::Textbook | Table::Router => {
                format!(
                    "INSERT INTO {}, {}) VALUES ($1, $2, $3, $4::text::jsonb, $5)",
                    self.target(),
                    self.id()
                )
            }
        }
    }
}
