//! A broker that takes connections and never answers: what a client sees of a machine behind a dropped link.

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

pub struct SilentBroker {
    address: String,
    /// Open until the scenario ends: closing one would be an answer.
    taken: Arc<Mutex<Vec<TcpStream>>>,
}

impl SilentBroker {
    pub fn start() -> SilentBroker {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let taken = Arc::new(Mutex::new(Vec::new()));
        let mine = Arc::clone(&taken);
        // Ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                mine.lock().expect("nobody panics holding it").push(stream);
            }
        });
        SilentBroker { address, taken }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// How many connections have come.
    pub fn connections(&self) -> usize {
        self.taken.lock().expect("nobody panics holding it").len()
    }
}
