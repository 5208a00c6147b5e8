//! Catalog look-ups: the extension's schema and relations by OID, and the databases of the cluster.
//!
//! Invariant: no OID found here is kept beyond the transaction that found it without being looked at again; DROP and CREATE EXTENSION give new ones.

use pgrx::pg_sys::{self, Oid};
use std::ffi::{CStr, CString};

unsafe extern "C-unwind" {
    // commands/sequence.h, which pgrx does not bind. Builtins of every supported server.
    fn nextval_internal(relid: Oid, check_permissions: bool) -> i64;
    fn pg_sequence_last_value(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum;
}

/// A schema as it is named now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schema {
    pub oid: Oid,
    /// Quoted where it must be: ready to stand in SQL text.
    pub quoted: String,
}

impl Schema {
    pub fn of(oid: Oid) -> Schema {
        // SAFETY: system cache look-up; the palloc'd name is copied. quote_identifier returns its argument or a palloc'd copy.
        let quoted = unsafe {
            let name = pg_sys::get_namespace_name(oid);
            if name.is_null() {
                pgrx::error!("schema with OID {} does not exist", oid.to_u32());
            }
            CStr::from_ptr(pg_sys::quote_identifier(name))
                .to_string_lossy()
                .into_owned()
        };
        Schema { oid, quoted }
    }

    /// OID of a relation in this schema.
    pub fn relation(&self, name: &CStr) -> Option<Oid> {
        // SAFETY: system cache look-up.
        let oid = unsafe { pg_sys::get_relname_relid(name.as_ptr(), self.oid) };
        (oid != Oid::INVALID).then_some(oid)
    }
}

/// Draws the next number of a sequence without asking for a privilege on it.
pub fn next_value(sequence: Oid) -> i64 {
    // SAFETY: pgrx's guard turns an ERROR of the C function into a panic that unwinds these Rust frames.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) }
}

/// A sequence's last_value as it is this moment (sequences know no snapshots), None when it was never drawn from.
/// Asks for USAGE or SELECT on it. Needs a transaction but no snapshot.
pub fn sequence_last_value(sequence: Oid) -> Option<i64> {
    unsafe fn call(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
        // SAFETY: fcinfo comes from direct_function_call with one argument.
        unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| pg_sequence_last_value(fcinfo)) }
    }
    // SAFETY: pg_sequence_last_value(regclass) returns bigint or NULL and does not look at flinfo.
    unsafe { pgrx::direct_function_call::<i64>(call, &[Some(sequence.into())]) }
}

/// pg_catalog.
pub const SERVERS_SCHEMA: Oid = Oid::from_u32(pg_sys::PG_CATALOG_NAMESPACE);

/// Whether a function has this schema and name.
pub fn is_function(function: Oid, schema: Oid, name: &CStr) -> bool {
    // SAFETY: system cache look-ups; the name is palloc'd, or NULL for a function that is gone.
    unsafe {
        let found = pg_sys::get_func_name(function);
        !found.is_null() && CStr::from_ptr(found) == name && pg_sys::get_func_namespace(function) == schema
    }
}

/// Owner of a relation.
pub fn relation_owner(relation: Oid) -> Oid {
    // SAFETY: the tuple of pg_class is released after its owner is read.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::RELOID as i32, relation.into());
        if tuple.is_null() {
            pgrx::error!("relation with OID {} does not exist", relation.to_u32());
        }
        let class: *mut pg_sys::FormData_pg_class = pg_sys::GETSTRUCT(tuple).cast();
        let owner = (*class).relowner;
        pg_sys::ReleaseSysCache(tuple);
        owner
    }
}

/// Whether the current user may SELECT from a relation.
pub fn may_select(relation: Oid) -> bool {
    // SAFETY: a privilege check without side effects.
    unsafe {
        pg_sys::pg_class_aclcheck(relation, pg_sys::GetUserId(), pg_sys::ACL_SELECT as pg_sys::AclMode)
            == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Takes ACCESS SHARE on a relation; waits for it as long as lock_timeout allows.
pub fn lock_access_share(relation: Oid) {
    // SAFETY: the lock is released at the end of the transaction.
    unsafe { pg_sys::LockRelationOid(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE) }
}

/// Takes ACCESS SHARE on a relation if that needs no waiting.
pub fn lock_access_share_if_free(relation: Oid) -> bool {
    // SAFETY: the lock is released at the end of the transaction.
    unsafe { pg_sys::ConditionalLockRelationOid(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE) }
}

/// A database that one may connect to and that is no template.
pub struct Database {
    pub oid: Oid,
    pub name: String,
}

/// All databases a relay could serve. Works without being connected to a database (shared catalogs only), inside a transaction, as
/// autovacuum's get_database_list does. An invalid database (datconnlimit -2: a DROP that was cut short) is left out.
pub fn databases() -> Vec<Database> {
    let mut found = Vec::new();
    // SAFETY: a systable scan over pg_database with the catalog snapshot; tuples are copied from before the next call.
    unsafe {
        let relation = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let scan = pg_sys::systable_beginscan(
            relation,
            Oid::INVALID,
            false,
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
        );
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let row: *mut pg_sys::FormData_pg_database = pg_sys::GETSTRUCT(tuple).cast();
            if (*row).datallowconn && !(*row).datistemplate && (*row).datconnlimit != -2 {
                found.push(Database {
                    oid: (*row).oid,
                    name: CStr::from_ptr((*row).datname.data.as_ptr())
                        .to_string_lossy()
                        .into_owned(),
                });
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
    }
    found
}

/// OID of the database this process is connected to.
pub fn my_database() -> Oid {
    // SAFETY: set once at connection.
    unsafe { pg_sys::MyDatabaseId }
}

/// Its name; outside any transaction.
pub fn my_database_name() -> String {
    super::txn::run(super::txn::Isolation::ReadCommitted, |_| {
        // SAFETY: a catalog look-up in a transaction; the palloc'd name is copied.
        unsafe {
            let name = pg_sys::get_database_name(my_database());
            if name.is_null() {
                String::new()
            } else {
                CStr::from_ptr(name).to_string_lossy().into_owned()
            }
        }
    })
    .unwrap_or_default()
}

/// Whether this database's encoding is UTF8.
pub fn database_is_utf8() -> bool {
    // SAFETY: reads a process-wide constant.
    unsafe { pg_sys::GetDatabaseEncoding() == pg_sys::pg_enc::PG_UTF8 as i32 }
}

/// A NUL-free copy of `text` for C; an interior NUL cannot come from PostgreSQL's text.
pub fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_else(|_| pgrx::error!("text with a zero byte"))
}
