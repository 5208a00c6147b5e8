//! The polling relays (`bench/src/bin/polling-relay.rs`), each in a process of its own as it would be in production.

use std::process::{Child, Command, Stdio};

use outbox_e2e::cluster::DATABASE;
use outbox_e2e::{Db, seconds};

use super::Peer;
use crate::stand::Stand;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    OneByOne,
    Batch,
}

pub struct Polling {
    way: Way,
    child: Option<Child>,
}

impl Polling {
    pub fn start(stand: &Stand, way: Way) -> Polling {
        let mut relay = Polling { way, child: None };
        relay.go(stand);
        stand.db().wait_true(
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'polling-relay'",
            seconds(10),
        );
        relay
    }
}

impl Peer for Polling {
    fn stop(&mut self, stand: &Stand) {
        self.end(stand);
        stand.db().wait_true(
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'polling-relay'",
            seconds(10),
        );
    }

    fn go(&mut self, stand: &Stand) {
        let program = std::env::current_exe().expect("this program has a path");
        let child = Command::new(program.with_file_name("polling-relay"))
            .arg(match self.way {
                Way::OneByOne => "one-by-one",
                Way::Batch => "batch",
            })
            .arg(stand.cluster.folder())
            .arg(DATABASE)
            .arg(stand.broker.address())
            .stdin(Stdio::piped())
            .spawn()
            .expect("start the polling relay");
        self.child = Some(child);
    }

    fn end(&mut self, _: &Stand) {
        if let Some(mut child) = self.child.take() {
            // It ends with its standard input.
            drop(child.stdin.take());
            child.wait().expect("wait for the relay");
        }
    }

    fn processes(&self, db: &mut Db) -> Vec<i32> {
        let mut processes = db.all::<i32>("SELECT pid FROM pg_stat_activity WHERE application_name = 'polling-relay'");
        processes.extend(self.child.as_ref().map(|child| child.id() as i32));
        processes
    }
}
