//! A table seen through the relation cache: whether a row may be appended to it without the executor, and doing so.
//!
//! Appending is what PostgreSQL does to its own catalogs (CatalogTupleInsert in catalog/indexing.c): heap_insert, then an entry in each index,
//! unique ones checked; WAL, TOAST, serializable reads and logical decoding are heap_insert's as for any INSERT. What the executor would do
//! besides is left out: privileges, defaults, checks, NOT NULL, triggers, rules, row security, routing to partitions, indexes on expressions
//! or with a predicate. So the caller asks [`Table::is_plain_but_for`] first, and answers for the values.

use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::CStr;
use std::slice;

/// A table open for writing. It is closed on drop; its lock stays until the transaction ends, as after any INSERT.
pub struct Table(pg_sys::Relation);

/// A column as the table has it.
pub struct TableColumn<'a> {
    /// A dropped one has a name of PostgreSQL's.
    pub name: &'a CStr,
    pub type_of: Oid,
    /// The type has no modifier, as in timestamptz(0).
    pub is_unmodified: bool,
    pub is_not_null: bool,
    pub default: Default,
}

/// What a column is filled with when a statement does not name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Default {
    Null,
    /// The result of this function without arguments.
    Call(Oid),
    Other,
}

impl Table {
    /// Waits for the lock that INSERT takes. None when no such table is there any more.
    pub fn open_for_insert(table: Oid) -> Option<Table> {
        // SAFETY: try_table_open returns NULL for a relation that is gone, and raises for one that is no table.
        let relation = unsafe { pg_sys::try_table_open(table, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE) };
        (!relation.is_null()).then(|| Table(relation))
    }

    pub fn owner(&self) -> Oid {
        // SAFETY: the relation is open.
        unsafe { (*(*self.0).rd_rel).relowner }
    }

    /// Whether it has this name, in this schema.
    pub fn is_named(&self, schema: Oid, name: &CStr) -> bool {
        // SAFETY: the relation is open, so its cached description is there and complete.
        let class = unsafe { &*(*self.0).rd_rel };
        // SAFETY: a name ends with a zero byte.
        class.relnamespace == schema && unsafe { CStr::from_ptr(class.relname.data.as_ptr()) } == name
    }

    /// Whether appending leaves nothing out but these: INSERT triggers and checks of these names, and what defaults fill in.
    pub fn is_plain_but_for(&self, insert_triggers: &[&CStr], checks: &[&CStr]) -> bool {
        // SAFETY: the relation is open, so its cached description is there and complete.
        let ordinary = unsafe {
            let class = &*(*self.0).rd_rel;
            class.relkind as u8 == pg_sys::RELKIND_RELATION
                && class.relam == pg_sys::HEAP_TABLE_AM_OID
                && !class.relispartition
                && !class.relrowsecurity
                && (*self.0).rd_rules.is_null()
        };
        ordinary
            && self.insert_triggers() == insert_triggers
            && self.checks().is_some_and(|found| found == checks)
            && self.indexes_are_plain()
    }

    fn insert_triggers(&self) -> Vec<&CStr> {
        // SAFETY: as in is_plain_but_for; the array has numtriggers entries.
        unsafe {
            let Some(description) = (*self.0).trigdesc.as_ref() else {
                return Vec::new();
            };
            slice::from_raw_parts(description.triggers, description.numtriggers as usize)
                .iter()
                .filter(|trigger| i32::from(trigger.tgtype) & pg_sys::TRIGGER_TYPE_INSERT as i32 != 0)
                .map(|trigger| CStr::from_ptr(trigger.tgname))
                .collect()
        }
    }

    /// Names of its checks; None where it has generated columns, which only the executor computes.
    fn checks(&self) -> Option<Vec<&CStr>> {
        // SAFETY: as in is_plain_but_for; the array has num_check entries.
        unsafe {
            let Some(constraints) = (*(*self.0).rd_att).constr.as_ref() else {
                return Some(Vec::new());
            };
            if constraints.has_generated_stored {
                return None;
            }
            if constraints.num_check == 0 {
                return Some(Vec::new());
            }
            let checks = slice::from_raw_parts(constraints.check, constraints.num_check.into());
            Some(checks.iter().map(|check| CStr::from_ptr(check.ccname)).collect())
        }
    }

    fn indexes_are_plain(&self) -> bool {
        // SAFETY: the list is ours to free; each index is open while it is looked at, under the weakest lock.
        unsafe {
            let list = pg_sys::RelationGetIndexList(self.0);
            let count = list.as_ref().map_or(0, |list| list.length);
            let plain = (0..count).all(|position| {
                let oid = (*(*list).elements.add(position as usize)).oid_value;
                let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
                let form = &*(*index).rd_index;
                let plain = form.indimmediate
                    && !form.indisexclusion
                    && pg_sys::RelationGetIndexExpressions(index).is_null()
                    && pg_sys::RelationGetIndexPredicate(index).is_null();
                pg_sys::relation_close(index, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
                plain
            });
            pg_sys::list_free(list);
            plain
        }
    }

    /// Its columns, in order, dropped ones among them.
    pub fn columns(&self) -> Vec<TableColumn<'_>> {
        // SAFETY: as in is_plain_but_for; attributes are natts many, behind the descriptor's head.
        unsafe {
            let descriptor = &*(*self.0).rd_att;
            descriptor
                .attrs
                .as_slice(descriptor.natts as usize)
                .iter()
                .map(|column| TableColumn {
                    name: CStr::from_ptr(column.attname.data.as_ptr()),
                    type_of: column.atttypid,
                    is_unmodified: column.atttypmod == -1,
                    is_not_null: column.attnotnull,
                    default: self.default_of(column.attnum),
                })
                .collect()
        }
    }

    fn default_of(&self, column: i16) -> Default {
        // SAFETY: the relation cache holds the expression as text of a node tree, which stringToNode makes anew.
        unsafe {
            let Some(constraints) = (*(*self.0).rd_att).constr.as_ref() else {
                return Default::Null;
            };
            if constraints.num_defval == 0 {
                return Default::Null;
            }
            let defaults = slice::from_raw_parts(constraints.defval, constraints.num_defval.into());
            let Some(default) = defaults.iter().find(|default| default.adnum == column) else {
                return Default::Null;
            };
            let node: *mut pg_sys::Node = pg_sys::stringToNode(default.adbin).cast();
            if (*node).type_ != pg_sys::NodeTag::T_FuncExpr {
                return Default::Other;
            }
            let call: *mut pg_sys::FuncExpr = node.cast();
            if (*call).args.is_null() {
                Default::Call((*call).funcid)
            } else {
                Default::Other
            }
        }
    }

    /// Appends a row of these values, one for each column, in order; visible to the next command of the transaction. Raises on a duplicate key.
    ///
    /// The values have the columns' types, and none is missing where the column is NOT NULL: nobody else looks.
    pub fn append(&self, values: &mut [Datum], nulls: &mut [bool]) {
        // SAFETY: one value for each column is asserted; types are the caller's promise. The tuple lives in the current memory context.
        unsafe {
            let descriptor = (*self.0).rd_att;
            let columns = (*descriptor).natts as usize;
            assert!(values.len() == columns && nulls.len() == columns);
            let tuple = pg_sys::heap_form_tuple(descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            pg_sys::CatalogTupleInsert(self.0, tuple);
            pg_sys::CommandCounterIncrement();
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // After an ERROR the transaction's abort has closed it.
        if !std::thread::panicking() {
            // SAFETY: opened once and closed once.
            unsafe { pg_sys::table_close(self.0, pg_sys::NoLock as pg_sys::LOCKMODE) }
        }
    }
}

/// Refuses what may not write: a read-only transaction, a standby, a parallel worker. `command` is named in the error.
pub fn refuse_unless_writable(command: &CStr) {
    // SAFETY: both raise or return.
    unsafe {
        pg_sys::PreventCommandIfReadOnly(command.as_ptr());
        pg_sys::PreventCommandIfParallelMode(command.as_ptr());
    }
}

/// Has `forget` called with a relation's OID, or with none for all of them, when what is cached of it may have changed. Called once a process.
/// `forget` must not raise.
pub fn on_change(forget: fn(Option<Oid>)) {
    // SAFETY: one thread; registered once. The function pointer travels as the callback's argument.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(changed), Datum::from(forget as usize)) }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn changed(forget: Datum, relation: Oid) {
    // SAFETY: the argument is what on_change registered.
    let forget: fn(Option<Oid>) = unsafe { std::mem::transmute(forget.value()) };
    forget((relation != Oid::INVALID).then_some(relation));
}
