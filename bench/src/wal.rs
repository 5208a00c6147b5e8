//! What was written to the WAL besides the events themselves.

use outbox_e2e::Db;

use crate::table::Table;

/// Smaller numbers are those of catalogs (FirstNormalObjectId).
const FIRST_OF_USERS: u32 = 16_384;

/// The end of the WAL now.
pub fn position(db: &mut Db) -> String {
    db.one("SELECT pg_current_wal_insert_lsn()::text")
}

/// Bytes written since then, whoever wrote them.
pub fn since(db: &mut Db, position: &str) -> f64 {
    db.one(&format!("SELECT (pg_current_wal_insert_lsn() - '{position}')::float8"))
}

/// Bytes of all records since then that are not of a transaction which inserted events. Left out is what the server writes whatever
/// runs on it: checkpoints, its list of running transactions, and what autovacuum writes of any table that only grows, which is in Heap2
/// (visibility, freezing) and in the catalogs (statistics).
pub fn beyond_inserts(db: &mut Db, position: &str, table: Table) -> f64 {
    db.run("CREATE EXTENSION IF NOT EXISTS pg_walinspect");
    db.one(&format!(
        "WITH records AS MATERIALIZED (
             SELECT xid::text::bigint AS xid, resource_manager, record_type, record_length, block_ref,
                    substring(block_ref FROM ' rel [0-9]+/[0-9]+/([0-9]+) ')::bigint AS filenode
               FROM pg_get_wal_records_info('{position}', pg_current_wal_flush_lsn())),
         inserting AS (
             SELECT DISTINCT xid FROM records
              WHERE resource_manager = 'Heap' AND record_type LIKE 'INSERT%'
                AND block_ref LIKE '%/' || pg_relation_filenode('{relation}') || ' %')
         SELECT COALESCE(sum(record_length), 0)::float8 FROM records
          WHERE resource_manager NOT IN ('XLOG', 'Standby', 'Heap2') AND COALESCE(filenode, {FIRST_OF_USERS}) >= {FIRST_OF_USERS}
            AND xid NOT IN (SELECT xid FROM inserting WHERE xid <> 0)",
        relation = table.relation()
    ))
}
