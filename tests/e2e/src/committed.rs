//! The committed events as the database holds them, for the judge.

use crate::db::Db;
use crate::judge::Committed;

/// Every event of `outbox_log`.
pub fn committed(db: &mut Db) -> Vec<Committed> {
    committed_where(db, "true")
}

/// The events of one aggregate type.
pub fn committed_of(db: &mut Db, aggregate_type: &str) -> Vec<Committed> {
    committed_where(db, &format!("aggregate_type = '{aggregate_type}'"))
}

fn committed_where(db: &mut Db, condition: &str) -> Vec<Committed> {
    let rows = db.rows(&format!(
        "SELECT event_id::text, aggregate_type, aggregate_id, seq, payload::text
           FROM outbox_log WHERE {condition} ORDER BY seq"
    ));
    rows.iter()
        .map(|row| Committed {
            id: row.get(0),
            aggregate_type: row.get(1),
            aggregate_id: row.get(2),
            seq: row.get(3),
            payload: row.get(4),
        })
        .collect()
}
