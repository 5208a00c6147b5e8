//! Reads a produce request of Kafka's protocol and makes the answer that refuses all of it.
//!
//! With it a link answers in the broker's place: the broker never sees the request, and checks the sequence numbers of
//! those that follow, as it does in earnest. Knows the flexible versions only, which today's clients use; other requests
//! are none of its business.

const PRODUCE: i16 = 0;
const FLEXIBLE_FROM: i16 = 9;
/// From here on topics have numbers in place of names.
const UNKNOWN_FROM: i16 = 13;

/// The answer to a frame (without its length), as a frame with its length; none if it is no produce request.
pub fn refuse(request: &[u8], code: i16) -> Option<Vec<u8>> {
    let mut input = Input(request);
    let (api, version, correlation) = (input.i16()?, input.i16()?, input.i32()?);
    if api != PRODUCE || !(FLEXIBLE_FROM..UNKNOWN_FROM).contains(&version) {
        return None;
    }
    let client_id = input.i16()?;
    input.skip(usize::try_from(client_id).unwrap_or(0))?;
    input.tags()?;
    // The transaction's name, what acknowledgement is asked for, the time-out.
    input.compact_bytes()?;
    input.skip(2 + 4)?;

    let mut answer = Output(Vec::new());
    answer.bytes(&correlation.to_be_bytes());
    answer.number(0);
    let topics = input.compact_length()?;
    answer.number(topics + 1);
    for _ in 0..topics {
        let name = input.compact_bytes()?;
        answer.number(name.len() + 1);
        answer.bytes(name);
        let partitions = input.compact_length()?;
        answer.number(partitions + 1);
        for _ in 0..partitions {
            let partition = input.i32()?;
            input.compact_bytes()?;
            input.tags()?;
            answer.bytes(&partition.to_be_bytes());
            answer.bytes(&code.to_be_bytes());
            // Offset, time of the append, start of the log: none.
            for _ in 0..3 {
                answer.bytes(&(-1_i64).to_be_bytes());
            }
            // No record is named, nothing is explained, no tags.
            answer.number(1);
            answer.number(0);
            answer.number(0);
        }
        input.tags()?;
        answer.number(0);
    }
    // No throttling, no tags.
    answer.bytes(&0_i32.to_be_bytes());
    answer.number(0);
    let length = (answer.0.len() as i32).to_be_bytes();
    Some([&length, &answer.0[..]].concat())
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.take(bytes).map(|_| ())
    }

    fn i16(&mut self) -> Option<i16> {
        self.take(2)
            .and_then(|bytes| bytes.try_into().ok())
            .map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take(4)
            .and_then(|bytes| bytes.try_into().ok())
            .map(i32::from_be_bytes)
    }

    /// Seven bits a byte, the lowest first.
    fn number(&mut self) -> Option<usize> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.take(1)?[0];
            value |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Of an array or of bytes; what is absent is empty.
    fn compact_length(&mut self) -> Option<usize> {
        self.number().map(|length| length.saturating_sub(1))
    }

    fn compact_bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.compact_length()?;
        self.take(length)
    }

    fn tags(&mut self) -> Option<()> {
        for _ in 0..self.number()? {
            self.number()?;
            let length = self.number()?;
            self.skip(length)?;
        }
        Some(())
    }
}

struct Output(Vec<u8>);

impl Output {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, mut value: usize) {
        while value >= 0x80 {
            self.0.push(value as u8 & 0x7f | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request of version 10 for one partition of one topic.
    fn request(records: &[u8]) -> Vec<u8> {
        let mut request = Output(Vec::new());
        request.bytes(&[0, 0, 0, 10, 0, 0, 0, 7]);
        request.bytes(&[0, 2, b'm', b'e', 0]);
        // No transaction, all replicas, a second.
        request.bytes(&[0, 0xff, 0xff, 0, 0, 3, 0xe8]);
        request.bytes(&[2, 6]);
        request.bytes(b"topic");
        request.bytes(&[2, 0, 0, 0, 5]);
        request.number(records.len() + 1);
        request.bytes(records);
        request.bytes(&[0, 0, 0]);
        request.0
    }

    #[test]
    fn answers_for_each_partition_with_the_code() {
        let answer = refuse(&request(&[1; 300]), 45).expect("it is a produce request");
        assert_eq!(
            answer.len() as i32 - 4,
            i32::from_be_bytes(answer[..4].try_into().unwrap())
        );
        assert_eq!(answer[4..9], [0, 0, 0, 7, 0], "the request's number");
        assert_eq!(answer[9..16], [2, 6, b't', b'o', b'p', b'i', b'c']);
        assert_eq!(answer[16..23], [2, 0, 0, 0, 5, 0, 45], "partition and code");
        assert_eq!(answer[23..47], [0xff; 24]);
        assert_eq!(answer[47..], [1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn leaves_other_requests_alone() {
        let mut other = request(&[1; 3]);
        other[1] = 3;
        assert!(refuse(&other, 45).is_none());
        assert!(refuse(&request(&[1; 3])[..20], 45).is_none(), "cut short");
        assert!(refuse(&[], 45).is_none());
    }
}
