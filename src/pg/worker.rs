//! Registration of background workers.

use pgrx::pg_sys::{self, Oid};
use std::ffi::c_char;

const LIBRARY: &str = "outbox_ext";

fn describe(name: &str, kind: &str, function: &str) -> pg_sys::BackgroundWorker {
    // SAFETY: a plain C struct for which all zeroes is a valid value.
    let mut worker: pg_sys::BackgroundWorker = unsafe { std::mem::zeroed() };
    copy(&mut worker.bgw_name, name);
    copy(&mut worker.bgw_type, kind);
    copy(&mut worker.bgw_library_name, LIBRARY);
    copy(&mut worker.bgw_function_name, function);
    worker.bgw_flags = (pg_sys::BGWORKER_SHMEM_ACCESS | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION) as i32;
    worker.bgw_start_time = pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished;
    worker
}

/// Copies into a fixed C array, cut at a character's edge and always closed by a NUL.
fn copy(into: &mut [c_char], text: &str) {
    let mut end = text.len().min(into.len() - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in into.iter_mut().zip(text[..end].bytes()) {
        *to = from as c_char;
    }
}

/// Registers a worker that the postmaster keeps running, restarted `restart_seconds` after it ends with a non-zero code. Only while
/// shared_preload_libraries are loaded.
pub fn register_static(name: &str, function: &str, restart_seconds: i32) {
    let mut worker = describe(name, name, function);
    worker.bgw_restart_time = restart_seconds;
    // SAFETY: the struct is copied by the postmaster.
    unsafe { pg_sys::RegisterBackgroundWorker(&mut worker) };
}

/// Asks the postmaster to start a worker once; false when max_worker_processes are in use. The postmaster signals this process when the worker
/// starts or ends. `argument` is handed to the worker's main function.
pub fn start_once(name: &str, kind: &str, function: &str, argument: usize) -> bool {
    let mut worker = describe(name, kind, function);
    worker.bgw_restart_time = pg_sys::BGW_NEVER_RESTART;
    worker.bgw_main_arg = pg_sys::Datum::from(argument);
    // SAFETY: the struct is copied into shared memory; the handle is palloc'd in the current context and not needed: shared memory
    // tells what became of the worker.
    unsafe {
        worker.bgw_notify_pid = pg_sys::MyProcPid;
        let mut handle: *mut pg_sys::BackgroundWorkerHandle = std::ptr::null_mut();
        let started = pg_sys::RegisterDynamicBackgroundWorker(&mut worker, &mut handle);
        if !handle.is_null() {
            pg_sys::pfree(handle.cast());
        }
        started
    }
}

/// Connects this worker to a database as the bootstrap superuser; Oid::INVALID connects to the shared catalogs only. Ends the process when the
/// database does not exist.
pub fn connect(database: Oid) {
    // SAFETY: called once, before anything else touches the catalogs.
    unsafe {
        if database == Oid::INVALID {
            pg_sys::BackgroundWorkerInitializeConnection(std::ptr::null(), std::ptr::null(), 0);
        } else {
            pg_sys::BackgroundWorkerInitializeConnectionByOid(database, Oid::INVALID, 0);
        }
    }
}

/// Whether a process with this pid is a backend or worker of this server.
pub fn is_alive(pid: i32) -> bool {
    // SAFETY: looks the pid up in shared memory.
    pid != 0 && unsafe { !pg_sys::BackendPidGetProc(pid).is_null() }
}
