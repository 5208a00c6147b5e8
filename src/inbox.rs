//! `inbox_try_consume`: the consumer's side of at-least-once delivery.

use crate::pg::call::Args;
use crate::pg::catalog::Schema;
use crate::pg::error::{raise, raise_null};
use crate::pg::spi::{self, Access, Plan, types};
use pgrx::PgSqlErrorCode;
use pgrx::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// Longest consumer name, in bytes; the table has the same limit as a check.
const CONSUMER_BYTES_MAX: usize = 255;

thread_local! {
    static INSERT: RefCell<Option<(Schema, Rc<Plan>)>> = const { RefCell::new(None) };
}

/// SQL `inbox_try_consume(consumer_name, event_id)`: true for the first, false for everybody after it, in the caller's transaction.
///
/// Leans on INSERT ... ON CONFLICT DO NOTHING: it waits for a concurrent transaction that inserted the same key; at READ COMMITTED it then
/// answers by what that one did, at REPEATABLE READ and above a key committed after the snapshot raises 40001.
#[pg_extern(sql = false)]
fn inbox_try_consume(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    let args = Args::new(fcinfo);
    let consumer = args.text(0).unwrap_or_else(|| null("consumer_name"));
    if args.datum(1).is_none() {
        null("event_id");
    }
    if consumer.is_empty() {
        raise(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "consumer_name must not be empty".to_owned(),
            None,
            "Give each consumer a name of its own.",
        );
    }
    if consumer.len() > CONSUMER_BYTES_MAX {
        raise(
            PgSqlErrorCode::ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
            "consumer_name is too long".to_owned(),
            Some(format!(
                "It has {} bytes; the limit is {CONSUMER_BYTES_MAX} bytes.",
                consumer.len()
            )),
            "Choose a shorter name.",
        );
    }
    let schema = args.schema();
    spi::connected(|spi| {
        // Not borrowed while it runs: a trigger of somebody's may call this function in its turn.
        let plan = INSERT.with_borrow_mut(|cached| match cached {
            Some((known, plan)) if *known == schema => Rc::clone(plan),
            _ => {
                let sql = format!(
                    "INSERT INTO {}.consumed_event (consumer_name, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                    schema.quoted
                );
                let plan = Rc::new(spi.prepare(&sql, &[types::TEXT, types::UUID]));
                *cached = Some((schema, Rc::clone(&plan)));
                plan
            }
        });
        spi.execute(&plan, &[args.datum(0), args.datum(1)], Access::Write)
            .count()
            == 1
    })
}

fn null(argument: &str) -> ! {
    raise_null(argument, "Both arguments are needed.")
}
