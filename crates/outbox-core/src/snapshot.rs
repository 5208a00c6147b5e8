//! PostgreSQL's snapshot as `pg_current_snapshot()` prints it, and its visibility rule.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// A full transaction id, PostgreSQL's `xid8`: with the epoch, so it never wraps.
pub type Xid = u64;

/// Which transactions had ended when it was taken.
///
/// `xmax` is one past the newest *completed* transaction, not the next one to be given out: a
/// transaction at or above it may well be running and is in no list (procarray.c,
/// GetSnapshotData).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Every transaction below it has ended.
    pub xmin: Xid,
    /// No transaction at or above it had ended.
    pub xmax: Xid,
    /// The running ones of `xmin..xmax`, ascending.
    pub xip: Vec<Xid>,
}

impl Snapshot {
    /// Whether the transaction had ended for this snapshot, as `pg_visible_in_snapshot` answers.
    /// Of an aborted one it says true as well; such a one has no rows.
    pub fn sees(&self, xid: Xid) -> bool {
        xid < self.xmin || (xid < self.xmax && self.xip.binary_search(&xid).is_err())
    }
}

/// Why a text is not a `pg_snapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    /// Not of the form `xmin:xmax:xip,xip`.
    Shape,
    Number(ParseIntError),
    /// xmin above xmax, or a listed transaction outside of them, or the list not ascending.
    Order,
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Shape => f.write_str("snapshot is not of the form xmin:xmax:xip_list"),
            SnapshotError::Number(error) => write!(f, "snapshot has an invalid number: {error}"),
            SnapshotError::Order => f.write_str("snapshot has its transactions out of order"),
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<ParseIntError> for SnapshotError {
    fn from(error: ParseIntError) -> Self {
        SnapshotError::Number(error)
    }
}

impl FromStr for Snapshot {
    type Err = SnapshotError;

    fn from_str(text: &str) -> Result<Self, SnapshotError> {
        let mut parts = text.split(':');
        let (Some(xmin), Some(xmax), Some(list), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(SnapshotError::Shape);
        };
        let (xmin, xmax): (Xid, Xid) = (xmin.parse()?, xmax.parse()?);
        let xip = if list.is_empty() {
            Vec::new()
        } else {
            list.split(',').map(str::parse).collect::<Result<Vec<Xid>, _>>()?
        };
        let ascending = xip.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = xip.iter().all(|xid| (xmin..xmax).contains(xid));
        if xmin > xmax || !ascending || !inside {
            return Err(SnapshotError::Order);
        }
        Ok(Snapshot { xmin, xmax, xip })
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.xmin, self.xmax)?;
        for (place, xid) in self.xip.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            write!(f, "{comma}{xid}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_is_postgresqls() {
        for text in [
            "10:20:10,14,15",
            "795:795:",
            "3:9:3",
            "4294967300:4294967310:4294967305",
        ] {
            assert_eq!(text.parse::<Snapshot>().unwrap().to_string(), text);
        }
        for text in ["", "1:2", "1:2:3:4", "1:2:,", "a:2:", "1:2:-1", "1: 2:"] {
            assert!(text.parse::<Snapshot>().is_err(), "{text}");
        }
        for text in ["20:10:", "10:20:15,14", "10:20:14,14", "10:20:9", "10:20:20"] {
            assert_eq!(text.parse::<Snapshot>(), Err(SnapshotError::Order), "{text}");
        }
    }

    #[test]
    fn it_sees_what_had_ended() {
        let snapshot: Snapshot = "10:20:10,14,15".parse().unwrap();
        for seen in [0, 9, 11, 13, 16, 19] {
            assert!(snapshot.sees(seen), "{seen}");
        }
        for unseen in [10, 14, 15, 20, 21, Xid::MAX] {
            assert!(!snapshot.sees(unseen), "{unseen}");
        }
    }
}
