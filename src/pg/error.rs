//! Errors as PostgreSQL shows them: SQLSTATE, primary message, detail, hint. Modules raise through [`raise`]; workers catch into
//! [`ServerError`].

use pgrx::pg_sys::panic::CaughtError;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};

/// Raises an ERROR in the current transaction. Never returns.
pub fn raise(code: PgSqlErrorCode, message: String, detail: Option<String>, hint: &str) -> ! {
    let mut report = ErrorReport::new(code, message, "outbox_ext");
    if let Some(detail) = detail {
        report = report.set_detail(detail);
    }
    if !hint.is_empty() {
        report = report.set_hint(hint);
    }
    report.report(PgLogLevel::ERROR);
    unreachable!("an ERROR does not return");
}

/// Raises that an argument of a function is NULL and must not be.
pub fn raise_null(argument: &str, hint: &str) -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
        format!("{argument} must not be NULL"),
        None,
        hint,
    )
}

/// Writes a WARNING with a hint.
pub fn warn(message: &str, hint: &str) {
    ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, message.to_owned(), "outbox_ext")
        .set_hint(hint)
        .report(PgLogLevel::WARNING);
}

/// What a failed transaction of a worker left behind: its message, already rolled back.
#[derive(Debug)]
pub struct ServerError {
    pub message: String,
    code: PgSqlErrorCode,
}

impl ServerError {
    /// Nothing is wrong with what was asked: a lock, a full disk or the like was in the way, and the same may succeed later.
    pub fn may_pass(&self) -> bool {
        use PgSqlErrorCode as Code;
        matches!(
            self.code,
            Code::ERRCODE_LOCK_NOT_AVAILABLE
                | Code::ERRCODE_T_R_DEADLOCK_DETECTED
                | Code::ERRCODE_QUERY_CANCELED
                | Code::ERRCODE_INSUFFICIENT_RESOURCES
                | Code::ERRCODE_DISK_FULL
                | Code::ERRCODE_OUT_OF_MEMORY
        )
    }
}

impl From<&CaughtError> for ServerError {
    fn from(caught: &CaughtError) -> Self {
        let report = match caught {
            CaughtError::PostgresError(e) | CaughtError::ErrorReport(e) | CaughtError::RustPanic { ereport: e, .. } => {
                e
            }
        };
        let mut message = report.message().to_owned();
        if let Some(detail) = report.detail() {
            message.push_str(": ");
            message.push_str(detail);
        }
        ServerError {
            message,
            code: report.sql_error_code(),
        }
    }
}
