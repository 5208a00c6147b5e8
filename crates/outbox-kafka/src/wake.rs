#![allow(unsafe_code)] // eventfd(2) and pthread_sigmask(3) have no safe binding here.
//! Waking whoever waits, and starting threads that PostgreSQL's signals never reach.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::thread::{self, JoinHandle};

/// A non-blocking, close-on-exec eventfd: readable once somebody signalled it, until drained.
#[derive(Debug)]
pub(crate) struct EventFd(File);

impl EventFd {
    pub(crate) fn new() -> io::Result<EventFd> {
        // SAFETY: eventfd takes no pointers; a result of -1 is handled below.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was opened just now and nobody else knows it.
        Ok(EventFd(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes it readable. Fails only when the counter is full, and then it is readable already.
    pub(crate) fn signal(&self) {
        let _ = (&self.0).write_all(&1_u64.to_ne_bytes());
    }

    /// Makes it unreadable. "Would block" means that it was unreadable already.
    pub(crate) fn drain(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

/// Starts a thread with every signal blocked.
///
/// PostgreSQL's handlers set a latch and must run on the main thread only. A new thread inherits
/// the mask of its creator, so the mask is closed around the spawn and restored after it.
pub(crate) fn spawn_without_signals(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are valid to write; sigfillset initialises `all` before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(body);
    // SAFETY: `before` was initialised by the call above, which cannot fail with these arguments.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
    }
    spawned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(fd: &EventFd) -> bool {
        let mut poll = libc::pollfd {
            fd: fd.raw(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd, no waiting.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn an_eventfd_is_readable_from_signal_to_drain() {
        let fd = EventFd::new().unwrap();
        assert!(!is_readable(&fd));
        fd.signal();
        fd.signal();
        assert!(is_readable(&fd));
        fd.drain();
        assert!(!is_readable(&fd));
        fd.drain();
    }

    #[test]
    fn a_thread_has_all_signals_blocked_and_its_creator_keeps_its_own_mask() {
        fn is_blocked(signal: i32) -> bool {
            let mut set = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: a null new set only queries the mask, which initialises `set`.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set.as_mut_ptr());
                libc::sigismember(set.as_ptr(), signal) == 1
            }
        }
        let signals = [libc::SIGTERM, libc::SIGUSR1, libc::SIGHUP, libc::SIGURG];
        let before = signals.map(is_blocked);
        spawn_without_signals("test", move || assert!(signals.into_iter().all(is_blocked)))
            .unwrap()
            .join()
            .unwrap();
        assert_eq!(signals.map(is_blocked), before);
    }
}
