//! A composite result of a function with OUT parameters.

use pgrx::pg_sys::{self, Datum, FunctionCallInfo};

/// Builds the function's row; `values` in the order of its OUT parameters, None for NULL.
pub fn build(fcinfo: FunctionCallInfo, values: &[Option<Datum>]) -> Datum {
    let mut datums: Vec<Datum> = values.iter().map(|value| value.unwrap_or(Datum::from(0))).collect();
    let mut nulls: Vec<bool> = values.iter().map(Option::is_none).collect();
    // SAFETY: the descriptor comes from the function's own declaration and is checked to have as many columns.
    unsafe {
        let mut descriptor: pg_sys::TupleDesc = std::ptr::null_mut();
        let class = pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut descriptor);
        if class != pg_sys::TypeFuncClass::TYPEFUNC_COMPOSITE || (*descriptor).natts as usize != values.len() {
            pgrx::error!(
                "the function's declaration and its library do not fit: was one of them upgraded without the other?"
            );
        }
        pg_sys::BlessTupleDesc(descriptor);
        let tuple = pg_sys::heap_form_tuple(descriptor, datums.as_mut_ptr(), nulls.as_mut_ptr());
        pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data)
    }
}

pub fn int4(value: i32) -> Datum {
    value.into()
}

/// bigint and timestamptz.
pub fn int8(value: i64) -> Datum {
    value.into()
}

pub fn text(value: &str) -> Datum {
    super::spi::text_datum(value)
}

pub fn interval_ms(ms: u64) -> Datum {
    // SAFETY: an interval is a 16-byte struct passed by reference.
    unsafe {
        let interval: *mut pg_sys::Interval = pg_sys::palloc0(std::mem::size_of::<pg_sys::Interval>()).cast();
        (*interval).time = ms as i64 * 1000;
        Datum::from(interval)
    }
}
