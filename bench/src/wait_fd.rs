//! Waiting until a descriptor is readable, as the relay does for its producer's.

#![allow(unsafe_code)] // poll(2) has no safe binding in the standard library.

use std::os::fd::RawFd;
use std::time::Duration;

pub fn wait_readable(fd: RawFd, at_most: Duration) {
    let mut wanted = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout_ms = i32::try_from(at_most.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one valid pollfd, alive for the call. What it answers does not matter: the caller looks again.
    unsafe { libc::poll(&raw mut wanted, 1, timeout_ms) };
}
