//! Thin safe wrappers over PostgreSQL's C functions: together with the few lines that declare shared memory, settings and entry points, the
//! only place with `unsafe`.
//!
//! Each module owns one concern and says which PostgreSQL behaviour it leans on. Everything here runs on a server process's main thread;
//! nothing here knows of events or Kafka.
#![allow(unsafe_code)]

pub mod call;
pub mod catalog;
pub mod error;
pub mod jsonb;
pub mod record;
pub mod runtime;
pub mod spi;
pub mod table;
pub mod trigger;
pub mod txn;
pub mod wal;
pub mod worker;
pub mod xact;
