//! What happens when the library is loaded and the extension is created: is this server and this database fit for it.

use crate::pg::{catalog, error};
use crate::{shmem, wakeup};
use pgrx::PgSqlErrorCode;
use pgrx::prelude::*;

/// Whether the library is being loaded by the postmaster, by shared_preload_libraries. Not under pg_upgrade (binary upgrade mode), where nothing
/// may run beside it.
#[allow(unsafe_code, reason = "reads two flags of the server")]
pub fn loading_at_server_start() -> bool {
    // SAFETY: both are plain flags set before libraries are loaded.
    unsafe { pgrx::pg_sys::process_shared_preload_libraries_in_progress && !pgrx::pg_sys::IsBinaryUpgrade }
}

/// SQL `outbox_announce()`, called by CREATE EXTENSION: refuses a database whose text is not UTF-8, and has the launcher look at this database
/// when the transaction commits. Without shared_preload_libraries events can be emitted, and wait: a WARNING says so.
#[pg_extern(sql = false)]
fn outbox_announce() {
    if !catalog::database_is_utf8() {
        error::raise(
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "outbox_ext needs a database with encoding UTF8".to_owned(),
            Some("Keys, headers and payloads are published as UTF-8 bytes.".to_owned()),
            "Create the database with ENCODING 'UTF8'.",
        );
    }
    if shmem::board().is_some() {
        wakeup::launcher_at_commit();
    } else {
        error::warn(
            "outbox_ext is not in shared_preload_libraries: events can be emitted, and wait until it is",
            "Add outbox_ext to shared_preload_libraries and restart the server.",
        );
    }
}
