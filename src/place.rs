//! Where the extension's objects are in this database. What is found is looked at again in each read step: DROP and CREATE EXTENSION give new OIDs.

use crate::pg::catalog::{self, Schema};
use crate::pg::spi::{Access, Spi};
use pgrx::pg_sys::Oid;

/// Where the extension's objects are, looked up when the session began and compared in every step.
pub struct Place {
    pub schema: Schema,
    pub log: Oid,
    pub sequence: Oid,
    pub owner: Oid,
}

impl Place {
    /// None when the extension is not there. Inside a transaction that may take a snapshot.
    pub fn find(spi: &Spi) -> Option<Place> {
        let schema = Schema::of(extension_schema(spi)?);
        let log = schema.relation(c"outbox_log")?;
        let sequence = schema.relation(c"outbox_log_seq")?;
        Some(Place {
            schema,
            log,
            sequence,
            owner: catalog::relation_owner(log),
        })
    }

    /// Whether the table is still the one that was found.
    pub fn is_current(&self) -> bool {
        self.schema.relation(c"outbox_log") == Some(self.log)
    }
}

fn extension_schema(spi: &Spi) -> Option<Oid> {
    let sql = "SELECT extnamespace FROM pg_catalog.pg_extension WHERE extname = 'outbox_ext'";
    let rows = spi.run(sql, &[], &[], Access::Read);
    if rows.count() == 0 {
        None
    } else {
        rows.datum(0, 0).map(|datum| Oid::from(datum.value() as u32))
    }
}
