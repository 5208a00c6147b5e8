//! SQL through SPI with plans that are kept for the life of the process. pgrx's own client assigns a transaction id before any statement that
//! may write and converts every row; the relay needs neither.
//!
//! Errors are raised as PostgreSQL errors (Rust panics on this side of pgrx's guard).

use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::c_int;
use std::marker::PhantomData;
use std::slice;

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
pub struct Plan {
    kept: pg_sys::SPIPlanPtr,
    argument_types: Vec<Oid>,
}

impl Drop for Plan {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: kept, so it is still there, and freed once. Needs no connection to SPI.
            unsafe { pg_sys::SPI_freeplan(self.kept) };
        }
    }
}

/// Argument types that our statements use.
pub mod types {
    use super::{Oid, pg_sys};
    pub const UUID: Oid = pg_sys::UUIDOID;
    pub const TEXT: Oid = pg_sys::TEXTOID;
    pub const JSONB: Oid = pg_sys::JSONBOID;
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
        Plan {
            kept: plan,
            argument_types: argument_types.to_vec(),
        }
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
        self.execute_plan(plan.kept, values, access)
    }

    fn execute_plan(&self, plan: pg_sys::SPIPlanPtr, values: &[Option<Datum>], access: Access) -> Rows<'_> {
        let (mut datums, nulls) = split(values);
        // SAFETY: the plan is kept, or lives as long as this connection; values match its argument types by the callers' statements.
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

    /// Runs a read in the transaction's snapshot and hands each row to `take` as the executor comes to it: no row is copied on the way. Ends when
    /// `take` answers false.
    ///
    /// `take` must not use this connection to SPI: the end of another statement would free the memory that this one runs in. It runs in the
    /// executor's memory for the whole query: what it pallocs and does not free stays until the read ends.
    pub fn for_each(&self, plan: &Plan, values: &[Option<Datum>], mut take: impl FnMut(&Row<'_>) -> bool) {
        assert!(values.len() == plan.argument_types.len());
        let mut receiver = Receiver {
            base: pg_sys::DestReceiver {
                receiveSlot: Some(receive),
                rStartup: Some(begin_receiving),
                rShutdown: Some(end_receiving),
                rDestroy: Some(end_receiving),
                // None of PostgreSQL's own: SPI looks at it only to tell DestSPI and DestNone.
                mydest: pg_sys::CommandDest::DestTuplestore,
            },
            take: &mut take,
        };
        // SAFETY: the plan is kept and has as many arguments; the receiver and the parameters outlive the call.
        let code = unsafe {
            let options = pg_sys::SPIExecuteOptions {
                params: parameters(&plan.argument_types, values),
                read_only: true,
                dest: (&raw mut receiver).cast(),
                ..Default::default()
            };
            pg_sys::SPI_execute_plan_extended(plan.kept, &options)
        };
        if code < 0 {
            pgrx::error!("could not execute a statement: SPI result {code}");
        }
    }
}

/// The values as the executor takes them; NULL where there are none.
///
/// # Safety
/// The values have these types.
unsafe fn parameters(types: &[Oid], values: &[Option<Datum>]) -> pg_sys::ParamListInfo {
    if values.is_empty() {
        return std::ptr::null_mut();
    }
    // SAFETY: the list has room for as many parameters as it is made for.
    unsafe {
        let list = pg_sys::makeParamList(values.len() as c_int);
        let parameters = (*list).params.as_mut_slice(values.len());
        for ((parameter, value), type_of) in parameters.iter_mut().zip(values).zip(types) {
            *parameter = pg_sys::ParamExternData {
                value: value.unwrap_or(Datum::from(0)),
                isnull: value.is_none(),
                pflags: pg_sys::PARAM_FLAG_CONST as u16,
                ptype: *type_of,
            };
        }
        list
    }
}

/// Where the executor puts a read's rows. PostgreSQL knows its head only.
#[repr(C)]
struct Receiver<'a> {
    base: pg_sys::DestReceiver,
    take: &'a mut dyn FnMut(&Row<'_>) -> bool,
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn receive(slot: *mut pg_sys::TupleTableSlot, receiver: *mut pg_sys::DestReceiver) -> bool {
    // SAFETY: for_each made the receiver and waits for us; a slot that was taken apart has all columns of its descriptor.
    unsafe {
        let receiver: &mut Receiver<'_> = &mut *receiver.cast();
        let columns = (*(*slot).tts_tupleDescriptor).natts as usize;
        if ((*slot).tts_nvalid as usize) < columns {
            pg_sys::slot_getsomeattrs_int(slot, columns as c_int);
        }
        (receiver.take)(&Row {
            values: slice::from_raw_parts((*slot).tts_values, columns),
            nulls: slice::from_raw_parts((*slot).tts_isnull, columns),
        })
    }
}

unsafe extern "C-unwind" fn begin_receiving(_: *mut pg_sys::DestReceiver, _operation: c_int, _: pg_sys::TupleDesc) {}

unsafe extern "C-unwind" fn end_receiving(_: *mut pg_sys::DestReceiver) {}

/// A row that the executor shows; by-reference datums live until the next one.
pub struct Row<'a> {
    values: &'a [Datum],
    nulls: &'a [bool],
}

impl Row<'_> {
    /// None for NULL. Columns count from 0.
    #[inline]
    pub fn datum(&self, column: usize) -> Option<Datum> {
        (!self.nulls[column]).then(|| self.values[column])
    }

    /// A bigint, timestamptz or xid8, all of which are passed by value.
    #[inline]
    pub fn i64(&self, column: usize) -> Option<i64> {
        self.datum(column).map(|datum| datum.value() as i64)
    }

    /// False for NULL.
    pub fn bool(&self, column: usize) -> bool {
        self.datum(column).is_some_and(|datum| datum.value() & 1 == 1)
    }

    pub fn text(&self, column: usize) -> Option<String> {
        self.datum(column).map(super::call::text_of)
    }

    /// Whether a column has this text. NULL has none.
    pub fn text_is(&self, column: usize, text: &str) -> bool {
        self.datum(column)
            .is_some_and(|datum| super::call::with_varlena(datum, |bytes| bytes == text.as_bytes()))
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

/// Rows of a finished statement; freed on drop.
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

    /// A bigint, timestamptz or xid8, all of which are passed by value.
    pub fn i64(&self, row: usize, column: usize) -> Option<i64> {
        self.datum(row, column).map(|datum| datum.value() as i64)
    }

    pub fn bool(&self, row: usize, column: usize) -> Option<bool> {
        self.datum(row, column).map(|datum| datum.value() & 1 == 1)
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
