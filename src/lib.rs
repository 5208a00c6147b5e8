//! outbox_ext: the transactional outbox for PostgreSQL, published to Apache Kafka from inside the server.
//!
//! The way of an event: [`emit`] inserts the row, and drawing its seq marks the transaction; at commit [`wakeup`] sets the relay's latch; the
//! [`relay`] reads a step, flushes WAL, sends through the crate outbox-kafka, and settles what Kafka acknowledged. [`launcher`] keeps one relay for
//! each database that has the extension. What is decided without PostgreSQL and Kafka lives in the crate outbox-core.

mod admin;
mod emit;
mod foreign;
mod guc;
mod inbox;
mod install;
mod janitor;
mod launcher;
mod pg;
mod place;
mod relay;
mod rules;
mod shmem;
mod status;
mod wakeup;

pgrx::pg_module_magic!();

/// Called once in each process that loads the library: in the postmaster by shared_preload_libraries, otherwise in a session.
#[allow(unsafe_code, reason = "the symbol's name is PostgreSQL's contract")]
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    guc::define();
    if install::loading_at_server_start() {
        shmem::request();
        launcher::register();
    }
}
