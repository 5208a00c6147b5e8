//! outbox_ext as a peer among the others.

use outbox_e2e::Db;

use super::Peer;
use crate::stand::Stand;

pub struct Outbox;

impl Peer for Outbox {
    fn stop(&mut self, stand: &Stand) {
        stand.publish(&mut stand.db(), false);
    }

    fn go(&mut self, stand: &Stand) {
        stand.cluster.configure(&[("outbox_ext.enabled", "on")]);
        stand.cluster.reload();
    }

    /// The server is its process.
    fn end(&mut self, stand: &Stand) {
        self.stop(stand);
    }

    fn processes(&self, db: &mut Db) -> Vec<i32> {
        vec![db.relay()]
    }
}
