//! Ports for servers of ours that are stopped and started again.
//!
//! They lie below the range from which the kernel gives ports to clients: a client that tries a port of that range
//! while its server is down can be given the very port, and then even connects to itself.

use std::net::TcpListener;

use crate::random::Random;

const FIRST: u64 = 20_000;
const COUNT: u64 = 6_000;
const ATTEMPTS: usize = 100;

/// A port on which nothing listens now.
pub fn free() -> u16 {
    let mut random = Random::from_clock();
    let mut ports = (0..ATTEMPTS).map(|_| (FIRST + random.below(COUNT)) as u16);
    ports
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}
