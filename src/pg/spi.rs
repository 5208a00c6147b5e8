//! SQL through SPI with plans that are kept for the life of the process. pgrx's own client assigns a transaction id before any statement that
//! may write and converts every row; the relay needs neither.
//!
//! Errors are raised as PostgreSQL errors (Rust panics on this side of pgrx's guard).

use pgrx::pg_sys::{self, Datum, Oid};
use std::marker::PhantomData;

/// Runs `body` connected to SPI. Memory that rows point into ends with it.
pub fn connected<R>(body: impl FnOnce(&Spi) -> R) -> R {
    // SAFETY: connect and finish pair up; when `body` raises, the transaction's abort cleans SPI up.
    unsafe {
        if pg_sys::SPI_connect() != pg_sys::SPI_OK_CONNECT as i32 {
            pgrx::error!("could not connect to the SPI manager");
        }
        let result = body(&Spi(()));
        pg_sys::SPI_finish();
        result
    }
}

/// Proof of being connected.
pub struct Spi(());

/// A prepared statement kept in the process until it is dropped. The server re-plans it when what it leans on changes.
pub struct Plan(pg_sys::SPIPlanPtr);

impl Drop for Plan {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: kept, so it is still there, and freed once. Needs no connection to SPI.
            unsafe { pg_sys::SPI_freeplan(self.0) };
        }
    }
}

/// Argument types that our statements use.
pub mod types {
    use super::{Oid, pg_sys};
    pub const UUID: Oid = pg_sys::UUIDOID;
    pub const TEXT: Oid = pg_sys::TEXTOID;
    pub const JSONB: Oid = pg_sys::JSONBOID;
    pub const BOOL: Oid = pg_sys::BOOLOID;
    pub const INT4: Oid = pg_sys::INT4OID;
    pub const INT8: Oid = pg_sys::INT8OID;
    pub const OID: Oid = pg_sys::OIDOID;
    pub const XID8: Oid = pg_sys::XID8OID;
    pub const TIMESTAMPTZ: Oid = pg_sys::TIMESTAMPTZOID;
}

impl Spi {
    /// Prepares a statement and keeps it for the life of the process.
    pub fn prepare(&self, sql: &str, argument_types: &[Oid]) -> Plan {
        let plan = self.prepare_once(sql, argument_types);
        // SAFETY: moves the plan out of the memory that SPI_finish frees.
        let code = unsafe { pg_sys::SPI_keepplan(plan) };
        if code != 0 {
            pgrx::error!("could not keep a statement: SPI result {code}");
        }
        Plan(plan)
    }

    /// Runs a statement that is not worth keeping.
    pub fn run(&self, sql: &str, argument_types: &[Oid], values: &[Option<Datum>], access: Access) -> Rows<'_> {
        self.execute_plan(self.prepare_once(sql, argument_types), values, access)
    }

    /// Prepares a statement that is gone when this connection to SPI is.
    fn prepare_once(&self, sql: &str, argument_types: &[Oid]) -> pg_sys::SPIPlanPtr {
        let text = super::catalog::c_string(sql);
        let mut types = argument_types.to_vec();
        // SAFETY: SPI is connected (self).
        unsafe {
            let plan = pg_sys::SPI_prepare(text.as_ptr(), types.len() as i32, types.as_mut_ptr());
            if plan.is_null() {
                let code = pg_sys::SPI_result;
                pgrx::error!("could not prepare a statement: SPI result {code}");
            }
            plan
        }
    }

    /// Runs a plan that changes data or whose rows are few; returns the rows.
    pub fn execute(&self, plan: &Plan, values: &[Option<Datum>], access: Access) -> Rows<'_> {
        self.execute_plan(plan.0, values, access)
    }

    fn execute_plan(&self, plan: pg_sys::SPIPlanPtr, values: &[Option<Datum>], access: Access) -> Rows<'_> {
        let (mut datums, nulls) = split(values);
        // SAFETY: the plan is kept; values match its argument types by the callers' statements.
        unsafe {
            let code = pg_sys::SPI_execute_plan(plan, datums.as_mut_ptr(), nulls.as_ptr(), access == Access::Read, 0);
            if code < 0 {
                pgrx::error!("could not execute a statement: SPI result {code}");
            }
            Rows {
                table: pg_sys::SPI_tuptable,
                count: pg_sys::SPI_processed as usize,
                _spi: PhantomData,
            }
        }
    }

    /// Opens a read-only cursor on a plan, in the transaction's snapshot.
    pub fn cursor(&self, plan: &Plan, values: &[Option<Datum>]) -> Cursor<'_> {
        let (mut datums, nulls) = split(values);
        // SAFETY: as in execute.
        let portal =
            unsafe { pg_sys::SPI_cursor_open(std::ptr::null(), plan.0, datums.as_mut_ptr(), nulls.as_ptr(), true) };
        if portal.is_null() {
            pgrx::error!("could not open a cursor");
        }
        Cursor {
            portal,
            _spi: PhantomData,
        }
    }
}

fn split(values: &[Option<Datum>]) -> (Vec<Datum>, Vec<std::ffi::c_char>) {
    values
        .iter()
        .map(|value| {
            (
                value.unwrap_or(Datum::from(0)),
                if value.is_some() { b' ' } else { b'n' } as std::ffi::c_char,
            )
        })
        .unzip()
}

/// Whether a statement may write. A read uses the transaction's snapshot and assigns no transaction id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Rows of a finished statement or fetch; freed on drop.
pub struct Rows<'spi> {
    table: *mut pg_sys::SPITupleTable,
    count: usize,
    _spi: PhantomData<&'spi Spi>,
}

impl Rows<'_> {
    /// Rows returned, or changed where none are returned.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The datum in `row` and `column`, both from 0; None for NULL. By-reference datums live until the rows are dropped.
    #[inline]
    pub fn datum(&self, row: usize, column: usize) -> Option<Datum> {
        assert!(row < self.count && !self.table.is_null());
        let mut is_null = false;
        // SAFETY: row is within count; SPI_getbinval checks the column against the descriptor.
        let datum = unsafe {
            pg_sys::SPI_getbinval(
                *(*self.table).vals.add(row),
                (*self.table).tupdesc,
                column as i32 + 1,
                &mut is_null,
            )
        };
        (!is_null).then_some(datum)
    }

    /// The first columns of a row in one go, None for NULL: taking them one by one walks the row from its start for each.
    pub fn values<const COLUMNS: usize>(&self, row: usize) -> [Option<Datum>; COLUMNS] {
        const MOST: usize = 16;
        assert!(row < self.count && !self.table.is_null());
        let (mut values, mut nulls) = ([Datum::from(0); MOST], [true; MOST]);
        // SAFETY: row is within count; heap_deform_tuple writes as many values as the descriptor has columns.
        unsafe {
            let descriptor = (*self.table).tupdesc;
            let columns = (*descriptor).natts as usize;
            assert!((COLUMNS..=MOST).contains(&columns));
            let tuple = *(*self.table).vals.add(row);
            pg_sys::heap_deform_tuple(tuple, descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
        }
        std::array::from_fn(|column| (!nulls[column]).then_some(values[column]))
    }

    /// A bigint, timestamptz or xid8, all of which are passed by value.
    pub fn i64(&self, row: usize, column: usize) -> Option<i64> {
        self.datum(row, column).map(|datum| datum.value() as i64)
    }

    pub fn bool(&self, row: usize, column: usize) -> Option<bool> {
        self.datum(row, column).map(|datum| datum.value() & 1 == 1)
    }

    pub fn uuid(&self, row: usize, column: usize) -> Option<[u8; 16]> {
        self.datum(row, column).map(super::call::uuid_bytes)
    }

    pub fn text(&self, row: usize, column: usize) -> Option<String> {
        self.datum(row, column).map(super::call::text_of)
    }
}

impl Drop for Rows<'_> {
    fn drop(&mut self) {
        // After an ERROR the memory is gone with the transaction; freeing is only for the good path.
        if !self.table.is_null() && !std::thread::panicking() {
            // SAFETY: made by SPI in this connection and freed once.
            unsafe { pg_sys::SPI_freetuptable(self.table) }
        }
    }
}

/// An open cursor; closed on drop.
pub struct Cursor<'spi> {
    portal: pg_sys::Portal,
    _spi: PhantomData<&'spi Spi>,
}

impl<'spi> Cursor<'spi> {
    /// The next rows, at most `count`; none at the end.
    pub fn fetch(&mut self, count: usize) -> Rows<'spi> {
        // SAFETY: the portal is open; the table of this fetch becomes ours.
        unsafe {
            pg_sys::SPI_cursor_fetch(self.portal, true, count as std::ffi::c_long);
            Rows {
                table: pg_sys::SPI_tuptable,
                count: pg_sys::SPI_processed as usize,
                _spi: PhantomData,
            }
        }
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: open and closed once.
            unsafe { pg_sys::SPI_cursor_close(self.portal) }
        }
    }
}

/// A text datum in the current memory context.
pub fn text_datum(text: &str) -> Datum {
    // SAFETY: copies the bytes into a new varlena.
    unsafe { pg_sys::cstring_to_text_with_len(text.as_ptr().cast(), text.len() as i32).into() }
}

/// A uuid datum in the current memory context.
pub fn uuid_datum(uuid: &[u8; 16]) -> Datum {
    // SAFETY: 16 bytes are allocated and written.
    unsafe {
        let copy: *mut [u8; 16] = pg_sys::palloc(16).cast();
        *copy = *uuid;
        copy.into()
    }
}
