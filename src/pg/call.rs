//! Arguments of SQL-callable functions, read without converting what is not looked at: a jsonb argument stays a datum.

use super::catalog::Schema;
use super::error::raise;
use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::pg_sys::{Datum, FunctionCallInfo, Oid};
use pgrx::pgrx_sql_entity_graph::metadata::{
    ArgumentError, ReturnsError, ReturnsRef, SqlMappingRef, SqlTranslatable, TypeOrigin,
};
use pgrx::varlena::{varatt_is_1b, varatt_is_1b_e, varatt_is_4b_u, varlena_to_byte_slice};
use pgrx::{FromDatum, PgSqlErrorCode, pg_sys};

/// The arguments of the function call in progress.
#[derive(Clone, Copy)]
pub struct Args {
    fcinfo: FunctionCallInfo,
}

impl Args {
    /// `fcinfo` is what PostgreSQL handed to the function that is running.
    pub fn new(fcinfo: FunctionCallInfo) -> Self {
        assert!(!fcinfo.is_null());
        Args { fcinfo }
    }

    /// The datum of argument `index`, None for NULL.
    pub fn datum(&self, index: usize) -> Option<Datum> {
        // SAFETY: fcinfo is valid while the call runs, and pgrx checks the index against nargs.
        unsafe { pgrx::fcinfo::pg_getarg_datum(self.fcinfo, index) }
    }

    /// Argument `index` as text, None for NULL.
    pub fn text(&self, index: usize) -> Option<&str> {
        // SAFETY: the callers' SQL declarations say text; the memory lives as long as the call.
        self.datum(index)
            .and_then(|datum| unsafe { <&str>::from_datum(datum, false) })
    }

    /// The running function.
    pub fn function(&self) -> Oid {
        // SAFETY: flinfo is set for every call through fmgr.
        unsafe { (*(*self.fcinfo).flinfo).fn_oid }
    }

    /// The schema of the running function, which is the extension's.
    pub fn schema(&self) -> Schema {
        Schema::of(self.schema_oid())
    }

    /// The same by its OID alone. Raises when the function was dropped since it was called, as DROP EXTENSION of another session does while we
    /// wait for a lock.
    pub fn schema_oid(&self) -> Oid {
        // SAFETY: a system cache look-up.
        let schema = unsafe { pg_sys::get_func_namespace(self.function()) };
        if schema == Oid::INVALID {
            raise(
                PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION,
                "the function was dropped while it was running".to_owned(),
                None,
                "Somebody dropped the extension outbox_ext. If it was re-created, try again.",
            );
        }
        schema
    }
}

/// A function's result as a datum of the type that its SQL declaration says.
pub struct Returned(pub Datum);

// SAFETY: hands the datum on as it is.
unsafe impl BoxRet for Returned {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> pgrx::datum::Datum<'fcx> {
        // SAFETY: the caller returns it to PostgreSQL at once.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}

// SAFETY: no SQL is generated from these functions; the install script is written by hand.
unsafe impl SqlTranslatable for Returned {
    const TYPE_IDENT: &'static str = "outbox_ext::pg::call::Returned";
    const TYPE_ORIGIN: TypeOrigin = TypeOrigin::External;
    const ARGUMENT_SQL: Result<SqlMappingRef, ArgumentError> = Ok(SqlMappingRef::Skip);
    const RETURN_SQL: Result<ReturnsRef, ReturnsError> = Ok(ReturnsRef::One(SqlMappingRef::Skip));
}

/// Shows the text or bytea of a varlena datum.
pub fn with_varlena<R>(datum: Datum, look: impl FnOnce(&[u8]) -> R) -> R {
    // SAFETY: the caller selected a text column; a detoasted copy, if one is made, is freed when it was looked at.
    unsafe {
        let stored: *mut pg_sys::varlena = datum.cast_mut_ptr();
        let varlena = if stands_as_it_is(stored) {
            stored
        } else {
            pg_sys::pg_detoast_datum_packed(stored)
        };
        let seen = look(varlena_to_byte_slice(varlena));
        if varlena != stored {
            pg_sys::pfree(varlena.cast());
        }
        seen
    }
}

/// The text or bytea of a varlena datum, copied to the end of `out`; returns how many bytes.
pub fn append_varlena(datum: Datum, out: &mut Vec<u8>) -> usize {
    with_varlena(datum, |bytes| {
        out.extend_from_slice(bytes);
        bytes.len()
    })
}

/// Whether a varlena is neither compressed nor stored elsewhere, as nearly all are. Asked here because the way into PostgreSQL costs more than the look.
///
/// # Safety
/// It is a varlena.
unsafe fn stands_as_it_is(varlena: *const pg_sys::varlena) -> bool {
    // SAFETY: reads its first bytes.
    unsafe { varatt_is_4b_u(varlena) || (varatt_is_1b(varlena) && !varatt_is_1b_e(varlena)) }
}

/// A text datum.
pub fn text_of(datum: Datum) -> String {
    with_varlena(datum, |bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// Bytes of a text datum, without reading it from where it is stored.
pub fn byte_len(datum: Datum) -> usize {
    // SAFETY: the callers' SQL declarations say text. VARHDRSZ is counted in.
    unsafe { pg_sys::toast_raw_datum_size(datum) - pg_sys::VARHDRSZ }
}

/// The 16 bytes of a uuid datum.
pub fn uuid_bytes(datum: Datum) -> [u8; 16] {
    // SAFETY: the caller selected a uuid column: a pointer to 16 bytes.
    unsafe { *datum.cast_mut_ptr::<[u8; 16]>() }
}
