//! What the relay decides, without PostgreSQL and without Kafka.
//!
//! The crate owns the rules that the promises lean on: which committed events a read must still
//! bring ([`cursor`]), what may be sent when, what waits, what is parked and when a step may be
//! settled ([`window`]), how topics are named ([`topic`]), where a key goes ([`partition`]), and
//! what an error means ([`failure`]). It does no input or output and reads no clock: times are
//! milliseconds of a monotonic clock that the caller passes in. So all of it is tested in seconds
//! against a simulated server and a simulated broker.

pub mod backoff;
pub mod cursor;
pub mod failure;
pub mod partition;
pub mod record;
pub mod snapshot;
pub mod topic;
pub mod window;
