//! A link between a client and one broker that can be hindered: cut, held, delayed, throttled, each direction by itself;
//! and that can refuse requests in the broker's place.
//!
//! A link listens on a port of its own and passes what comes on to the broker's. Held is what a black hole looks like
//! from both ends: connections are taken, nothing is passed, nothing is refused. What was held is passed on when the
//! link is healed, as TCP would send it again; so a request may arrive long after its sender has given up.
//!
//! Each direction of a connection has two threads, one that reads and one that passes on: a delay then costs time and
//! not throughput. All of them end with the connection.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::refusal::refuse;

/// What one direction does with the bytes that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Free,
    /// Nothing is passed until this changes.
    Held,
    Delayed(Duration),
    /// Bytes a second, for each connection.
    Throttled(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToBroker,
    ToClient,
}

/// Bytes read at once.
const CHUNK: usize = 16 * 1024;
/// Chunks between reader and passer of a direction; beyond them the sender's own buffers fill.
const CHUNKS_MAX: usize = 64;
/// Pieces a second when throttled.
const PIECES: u64 = 20;
/// How often a write that cannot go on looks whether the link was cut.
const WRITE_LOOK: Duration = Duration::from_millis(100);

/// A handle: clones are of the same link.
#[derive(Clone)]
pub struct Link {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    to_broker: Flow,
    to_client: Flow,
    is_cut: bool,
    /// Codes with which the next produce requests are refused.
    refusals: VecDeque<i16>,
    /// Counts the cuts: a connection of an earlier count is over.
    cuts: u64,
    /// Open connections, by number, client's and broker's end.
    open: Vec<(u64, TcpStream, TcpStream)>,
    taken: u64,
}

impl Link {
    /// A link to a port of the loopback, which need not be open yet. It listens until the process ends.
    pub fn to(port: u16) -> Link {
        Link::start(port, read_some)
    }

    /// The same for Kafka's protocol: passes whole requests and answers, and so can refuse some.
    pub fn to_kafka(port: u16) -> Link {
        Link::start(port, read_frame)
    }

    fn start(port: u16, cut_up: CutUp) -> Link {
        let listener = TcpListener::bind(("127.0.0.1", crate::port::free())).expect("a free port");
        let link = Link {
            port: listener.local_addr().expect("it is bound").port(),
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    to_broker: Flow::Free,
                    to_client: Flow::Free,
                    is_cut: false,
                    refusals: VecDeque::new(),
                    cuts: 0,
                    open: Vec::new(),
                    taken: 0,
                }),
                changed: Condvar::new(),
            }),
        };
        let shared = Arc::clone(&link.shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                shared.take(client, port, cut_up);
            }
        });
        link
    }

    /// Where clients connect.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set(&self, direction: Direction, flow: Flow) {
        let mut state = self.shared.lock();
        match direction {
            Direction::ToBroker => state.to_broker = flow,
            Direction::ToClient => state.to_client = flow,
        }
        self.shared.changed.notify_all();
    }

    pub fn set_both(&self, flow: Flow) {
        self.set(Direction::ToBroker, flow);
        self.set(Direction::ToClient, flow);
    }

    /// Resets every connection, and each new one, until the link is healed.
    pub fn cut(&self) {
        let mut state = self.shared.lock();
        state.is_cut = true;
        state.cuts += 1;
        for (_, client, broker) in state.open.drain(..) {
            reset_on_close(&client);
            reset_on_close(&broker);
        }
        self.shared.changed.notify_all();
    }

    /// The next so many produce requests are refused with this code of the protocol; the broker never sees them.
    pub fn refuse(&self, code: i16, times: usize) {
        self.shared.lock().refusals.extend(std::iter::repeat_n(code, times));
    }

    /// Everything passes again, what was held first.
    pub fn heal(&self) {
        let mut state = self.shared.lock();
        state.is_cut = false;
        state.refusals.clear();
        (state.to_broker, state.to_client) = (Flow::Free, Flow::Free);
        self.shared.changed.notify_all();
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.shared.lock().open.len()
    }
}

/// The last handle that is closed sends a reset; readers wake up now.
fn reset_on_close(stream: &TcpStream) {
    // The other side may have gone first.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
    let _ = stream.shutdown(Shutdown::Read);
}

impl State {
    fn flow(&self, direction: Direction) -> Flow {
        match direction {
            Direction::ToBroker => self.to_broker,
            Direction::ToClient => self.to_client,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics holding it")
    }

    fn take(self: &Arc<Shared>, client: TcpStream, port: u16, cut_up: CutUp) {
        if self.lock().is_cut {
            return reset_on_close(&client);
        }
        // A broker that is down refuses: so does its link.
        let Ok(broker) = TcpStream::connect(("127.0.0.1", port)) else {
            return reset_on_close(&client);
        };
        for stream in [&client, &broker] {
            stream.set_nodelay(true).expect("a connected socket");
            stream.set_write_timeout(Some(WRITE_LOOK)).expect("not zero");
        }
        let copy = |stream: &TcpStream| stream.try_clone().expect("a second handle");
        let mut state = self.lock();
        if state.is_cut {
            reset_on_close(&broker);
            return reset_on_close(&client);
        }
        state.taken += 1;
        let (number, cuts) = (state.taken, state.cuts);
        state.open.push((number, copy(&client), copy(&broker)));
        drop(state);
        // The connection is over when both directions are.
        let both = Arc::new(());
        let (requests, to_broker) = sync_channel(CHUNKS_MAX);
        let (answers, to_client) = sync_channel(CHUNKS_MAX);
        let (shared, own_answers, input) = (Arc::clone(self), answers.clone(), copy(&client));
        thread::spawn(move || {
            read(input, cut_up, |request| match shared.refusal(&request) {
                Some(answer) => own_answers.send((Instant::now(), answer)),
                None => requests.send((Instant::now(), request)),
            });
        });
        let input = copy(&broker);
        thread::spawn(move || {
            read(input, cut_up, |answer| answers.send((Instant::now(), answer)));
            // We may still have answers of our own: this one says that the broker has no more. Failing, nobody waits.
            let _ = answers.send((Instant::now(), Vec::new()));
        });
        for (direction, chunks, from, to) in [
            (Direction::ToBroker, to_broker, copy(&client), copy(&broker)),
            (Direction::ToClient, to_client, broker, client),
        ] {
            let (shared, both) = (Arc::clone(self), Arc::clone(&both));
            thread::spawn(move || {
                shared.pass(direction, cuts, &chunks, &to);
                if shared.lock().cuts == cuts {
                    // Failing means that it is closed already.
                    let _ = to.shutdown(Shutdown::Write);
                    let _ = from.shutdown(Shutdown::Read);
                }
                if Arc::into_inner(both).is_some() {
                    shared.lock().open.retain(|(open, ..)| *open != number);
                }
            });
        }
    }

    /// Our own answer to a request, if it is to be refused. A frame begins with four bytes of length.
    fn refusal(&self, request: &[u8]) -> Option<Vec<u8>> {
        let mut state = self.lock();
        let answer = refuse(request.get(4..)?, *state.refusals.front()?)?;
        state.refusals.pop_front();
        Some(answer)
    }

    /// Passes on what was read, as the link's state at that moment says, until either end closes or the link is cut.
    fn pass(&self, direction: Direction, cuts: u64, chunks: &Receiver<(Instant, Vec<u8>)>, to: &TcpStream) {
        for (read_at, chunk) in chunks {
            if chunk.is_empty() {
                return;
            }
            let mut rest = &chunk[..];
            while !rest.is_empty() {
                let Some(allowed) = self.allowance(direction, cuts, read_at, rest.len()) else {
                    return;
                };
                match (&mut &*to).write(&rest[..allowed]) {
                    Ok(written) => rest = &rest[written..],
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                    Err(_) => return,
                }
            }
        }
    }

    /// Waits until some of these bytes may be passed and says how many; nothing when the link was cut.
    fn allowance(&self, direction: Direction, cuts: u64, read_at: Instant, bytes: usize) -> Option<usize> {
        let asked_at = Instant::now();
        let mut state = self.lock();
        loop {
            if state.cuts != cuts {
                return None;
            }
            let (due, allowed) = match state.flow(direction) {
                Flow::Free => return Some(bytes),
                Flow::Held => {
                    state = self.changed.wait(state).expect("nobody panics holding it");
                    continue;
                }
                Flow::Delayed(delay) => (read_at + delay, bytes),
                Flow::Throttled(rate) => {
                    let piece = bytes.min((rate / PIECES).max(1) as usize);
                    (asked_at + Duration::from_secs_f64(piece as f64 / rate as f64), piece)
                }
            };
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(allowed);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.expect("nobody panics holding it").0;
        }
    }
}

/// Reads what is passed on as one piece; nothing at the end.
type CutUp = fn(&mut TcpStream) -> Option<Vec<u8>>;

fn read_some(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut buffer = vec![0; CHUNK];
    let read = from.read(&mut buffer).ok().filter(|read| *read > 0)?;
    buffer.truncate(read);
    Some(buffer)
}

/// A request or an answer of Kafka's protocol, with its length at its head.
fn read_frame(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).ok()?;
    let mut frame = length.to_vec();
    let bytes = u64::from(u32::from_be_bytes(length));
    let read = from.take(bytes).read_to_end(&mut frame).ok()?;
    (read as u64 == bytes).then_some(frame)
}

/// Until the end, or until nobody takes it.
fn read<E>(mut from: TcpStream, cut_up: CutUp, mut give: impl FnMut(Vec<u8>) -> Result<(), E>) {
    while let Some(chunk) = cut_up(&mut from) {
        if give(chunk).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
