//! The row of a BEFORE INSERT ... FOR EACH ROW trigger.

use pgrx::pg_sys::{self, Datum, FunctionCallInfo};
use std::ffi::CStr;

/// The row about to be inserted.
pub struct InsertedRow {
    tuple: pg_sys::HeapTuple,
    descriptor: pg_sys::TupleDesc,
    owner: pg_sys::Oid,
}

impl InsertedRow {
    /// Raises when the function was not called as such a trigger.
    pub fn of(fcinfo: FunctionCallInfo) -> InsertedRow {
        // SAFETY: the call's context node says whether it is a trigger call; then it is TriggerData.
        unsafe {
            if !pgrx::trigger_support::called_as_trigger(fcinfo) {
                pgrx::error!("this function can only be called as a trigger");
            }
            let data: *mut pg_sys::TriggerData = (*fcinfo).context.cast();
            let event = (*data).tg_event;
            if !(pgrx::trigger_support::trigger_fired_by_insert(event)
                && pgrx::trigger_support::trigger_fired_before(event)
                && pgrx::trigger_support::trigger_fired_for_row(event))
            {
                pgrx::error!("this function can only be called BEFORE INSERT FOR EACH ROW");
            }
            InsertedRow {
                tuple: (*data).tg_trigtuple,
                descriptor: (*(*data).tg_relation).rd_att,
                owner: (*(*(*data).tg_relation).rd_rel).relowner,
            }
        }
    }

    /// Owner of the table that the row goes into.
    pub fn table_owner(&self) -> pg_sys::Oid {
        self.owner
    }

    fn column(&self, name: &CStr) -> i32 {
        // SAFETY: looks a name up in the descriptor.
        let number = unsafe { pg_sys::SPI_fnumber(self.descriptor, name.as_ptr()) };
        if number <= 0 {
            pgrx::error!("column {} does not exist", name.to_string_lossy());
        }
        number
    }

    /// A bigint column, or another 64-bit type passed by value.
    pub fn i64(&self, name: &CStr) -> Option<i64> {
        let mut is_null = false;
        // SAFETY: the column exists.
        let datum = unsafe { pg_sys::SPI_getbinval(self.tuple, self.descriptor, self.column(name), &mut is_null) };
        (!is_null).then_some(datum.value() as i64)
    }

    /// An xid8 column.
    pub fn u64(&self, name: &CStr) -> Option<u64> {
        self.i64(name).map(|value| value as u64)
    }

    /// The trigger's result: this row as it is.
    pub fn unchanged(&self) -> Datum {
        Datum::from(self.tuple)
    }

    /// The trigger's result: this row with another value in a column of a 64-bit by-value type.
    pub fn with_u64(&self, name: &CStr, value: u64) -> Datum {
        let (mut column, mut datum, mut is_null) = (self.column(name), Datum::from(value), false);
        // SAFETY: one existing column is replaced; the new tuple lives in the per-tuple context as the trigger manager expects.
        unsafe {
            Datum::from(pg_sys::heap_modify_tuple_by_cols(
                self.tuple,
                self.descriptor,
                1,
                &mut column,
                &mut datum,
                &mut is_null,
            ))
        }
    }
}
