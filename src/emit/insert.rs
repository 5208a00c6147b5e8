//! The insert of `outbox_emit`.
//!
//! While outbox_log is as the install script made it, its row is appended without the executor: of what an INSERT costs (opening a plan, firing
//! our own trigger and check on what is right already) nothing is of use there. Where somebody added a trigger, a check, NOT NULL, a column, a default,
//! a rule, row security or an unusual index, the row goes through an INSERT statement, so that all of it takes effect.
//!
//! Invariant: both ways leave the same row. Our trigger and check would find nothing: the xid is this transaction's and the caller has
//! checked the rest.

use crate::pg::call::Args;
use crate::pg::catalog::{self, Schema};
use crate::pg::error::raise;
use crate::pg::spi::{self, Access, Plan, types};
use crate::pg::table::{self, Default, Table};
use crate::pg::{txn, xact};
use crate::wakeup;
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::{Datum, Oid};
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::rc::Rc;

/// Values of event_id, aggregate_type, aggregate_id, event_type, payload, headers, topic and available_at.
pub type Given = [Option<Datum>; 8];

/// What fills a column.
#[derive(Clone, Copy)]
enum Source {
    /// The value at this index of [`Given`].
    Given(usize),
    Seq,
    Xid,
    TransactionStart,
}

/// A column as the install script makes it: its type, whether it may be NULL, the function that is its default and whether that one is ours, its source here.
struct Column {
    name: &'static CStr,
    type_of: Oid,
    is_not_null: bool,
    default: Option<(&'static CStr, Whose)>,
    source: Source,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Ours,
    Servers,
}

const LOG: &CStr = c"outbox_log";

const COLUMNS: [Column; 11] = {
    const fn column(
        name: &'static CStr,
        type_of: Oid,
        default: Option<(&'static CStr, Whose)>,
        source: Source,
    ) -> Column {
        Column {
            name,
            type_of,
            is_not_null: true,
            default,
            source,
        }
    }
    const fn nullable(name: &'static CStr, type_of: Oid, source: Source) -> Column {
        Column {
            is_not_null: false,
            ..column(name, type_of, None, source)
        }
    }
    use Source::{Given, Seq, TransactionStart, Xid};
    use Whose::{Ours, Servers};
    [
        column(c"event_id", types::UUID, Some((c"outbox_new_event_id", Ours)), Given(0)),
        column(c"seq", types::INT8, Some((c"outbox_next_seq", Ours)), Seq),
        column(c"xid", types::XID8, Some((c"pg_current_xact_id", Servers)), Xid),
        column(
            c"created_at",
            types::TIMESTAMPTZ,
            Some((c"now", Servers)),
            TransactionStart,
        ),
        nullable(c"available_at", types::TIMESTAMPTZ, Given(7)),
        column(c"aggregate_type", types::TEXT, None, Given(1)),
        column(c"aggregate_id", types::TEXT, None, Given(2)),
        column(c"event_type", types::TEXT, None, Given(3)),
        nullable(c"topic", types::TEXT, Given(6)),
        nullable(c"headers", types::JSONB, Given(5)),
        column(c"payload", types::JSONB, None, Given(4)),
    ]
};

/// What is known of outbox_log in this session.
#[derive(Clone, Copy)]
struct Known {
    /// The running function, by which it was found: DROP and CREATE EXTENSION make another one.
    function: Oid,
    table: Oid,
    sequence: Oid,
    /// None: somebody may have altered it since it was looked at.
    as_installed: Option<bool>,
}

thread_local! {
    static KNOWN: Cell<Option<Known>> = const { Cell::new(None) };
    static LISTENING: Cell<bool> = const { Cell::new(false) };
    static STATEMENT: RefCell<Option<(Schema, Rc<Plan>)>> = const { RefCell::new(None) };
}

/// Inserts the event into outbox_log, and has the transaction's commit wake the relay.
pub fn insert(args: &Args, given: &Given) {
    if !append(args, given) {
        by_statement(&args.schema(), given);
    }
}

/// False where outbox_log is not as it was installed: nothing was done then.
fn append(args: &Args, given: &Given) -> bool {
    table::refuse_unless_writable(c"outbox_emit()");
    let Some(known) = find(args) else { return false };
    let Some(table) = Table::open_for_insert(known.table) else {
        return false;
    };
    // Only now: the lock takes in what others have changed until then. The table may have another name by now.
    if !is_as_installed(args, &table) {
        return false;
    }
    wakeup::relay_at_commit();
    let mut values = [Datum::from(0); COLUMNS.len()];
    let mut nulls = [false; COLUMNS.len()];
    for ((column, value), null) in COLUMNS.iter().zip(&mut values).zip(&mut nulls) {
        let filled = match column.source {
            Source::Given(index) => given[index],
            Source::Seq => Some(catalog::next_value(known.sequence).into()),
            Source::Xid => Some(xact::top_xid().into()),
            Source::TransactionStart => Some(xact::start().into()),
        };
        *null = filled.is_none();
        *value = filled.unwrap_or(*value);
    }
    // As the owner, so that the error of a duplicate key names it.
    txn::as_user(table.owner(), || table.append(&mut values, &mut nulls));
    true
}

fn find(args: &Args) -> Option<Known> {
    let function = args.function();
    let known = KNOWN.get();
    if known.is_some_and(|known| known.function == function) {
        return known;
    }
    // Once a process: PostgreSQL keeps few places for such callbacks, and gives none back.
    if !LISTENING.replace(true) {
        table::on_change(forget);
    }
    let schema = args.schema();
    let found = Known {
        function,
        table: schema.relation(LOG)?,
        sequence: schema.relation(c"outbox_log_seq")?,
        as_installed: None,
    };
    KNOWN.set(Some(found));
    Some(found)
}

/// It may have another name now, and another one its name.
fn forget(relation: Option<Oid>) {
    if let Some(known) = KNOWN.get()
        && relation.is_none_or(|relation| relation == known.table || relation == known.sequence)
    {
        KNOWN.set(None);
    }
}

fn is_as_installed(args: &Args, table: &Table) -> bool {
    let Some(known) = KNOWN.get() else { return false };
    known.as_installed.unwrap_or_else(|| {
        let keep = |found| {
            KNOWN.set(Some(Known {
                as_installed: Some(found),
                ..known
            }));
        };
        keep(false);
        let found = look(args, table);
        // Looking opens indexes, which may take in a change of the table: then it is looked at again the next time.
        if KNOWN.get().is_some_and(|known| known.as_installed.is_some()) {
            keep(found);
        }
        found
    })
}

fn look(args: &Args, table: &Table) -> bool {
    let installed_default = |expected: &Column, found: Default| match (expected.default, found) {
        (None, Default::Null) => true,
        (Some((name, whose)), Default::Call(function)) => {
            let schema = match whose {
                Whose::Ours => args.schema_oid(),
                Whose::Servers => catalog::SERVERS_SCHEMA,
            };
            catalog::is_function(function, schema, name)
        }
        _ => false,
    };
    let columns = table.columns();
    // A rename that came in while its OID was looked up went unnoticed.
    table.is_named(args.schema_oid(), LOG)
        && columns.len() == COLUMNS.len()
        && columns.iter().zip(&COLUMNS).all(|(found, expected)| {
            found.name == expected.name
                && found.type_of == expected.type_of
                && found.is_unmodified
                && found.is_not_null == expected.is_not_null
                && installed_default(expected, found.default)
        })
        && table.is_plain_but_for(&[c"outbox_log_restamp"], &[c"outbox_log_event_is_sound"])
}

/// As the table's owner: EXECUTE on the function is all that a caller needs, and a trigger that leans on the search_path does not find what the
/// caller put there.
fn by_statement(schema: &Schema, given: &Given) {
    let Some(table) = schema.relation(LOG) else {
        raise(
            PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
            format!("table {}.outbox_log does not exist", schema.quoted),
            None,
            "Re-create the extension outbox_ext.",
        );
    };
    txn::as_user_on_safe_path(catalog::relation_owner(table), || {
        spi::connected(|spi| {
            // Not borrowed while it runs: a trigger of somebody's may emit in its turn.
            let plan = STATEMENT.with_borrow_mut(|cached| plan(spi, schema, cached));
            spi.execute(&plan, given, Access::Write);
        });
    });
}

/// Prepared once a session, and again when the extension was re-created or its schema renamed.
fn plan(spi: &spi::Spi, schema: &Schema, cached: &mut Option<(Schema, Rc<Plan>)>) -> Rc<Plan> {
    if let Some((known, plan)) = cached
        && known == schema
    {
        return Rc::clone(plan);
    }
    let sql = format!(
        "INSERT INTO {}.outbox_log (event_id, aggregate_type, aggregate_id, event_type, payload, headers, topic, available_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        schema.quoted
    );
    let arguments = [
        types::UUID,
        types::TEXT,
        types::TEXT,
        types::TEXT,
        types::JSONB,
        types::JSONB,
        types::TEXT,
        types::TIMESTAMPTZ,
    ];
    let plan = Rc::new(spi.prepare(&sql, &arguments));
    *cached = Some((schema.clone(), Rc::clone(&plan)));
    plan
}
