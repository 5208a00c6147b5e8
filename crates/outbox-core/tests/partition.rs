//! The partition of a key must be the one that Kafka's Java clients choose, or consumers that join
//! topics by key break. The vectors come from them: see Murmur2Vectors.java.

use outbox_core::partition::{murmur2, partition_for};

fn bytes_of_hex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .map(|c| c.to_digit(16).expect("a hex digit") as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn hash_and_partition_are_javas() {
    let mut vectors = 0;
    for line in include_str!("murmur2_vectors.txt").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let key = bytes_of_hex(fields[0].strip_prefix('x').expect("the key is marked by an x"));
        let number = |place: usize| fields[place].parse::<u32>().expect("a number");
        assert_eq!(murmur2(&key), number(1), "{line}");
        for (place, partitions) in [1, 3, 15, 1000].into_iter().enumerate() {
            assert_eq!(partition_for(&key, partitions), number(2 + place), "{line}");
        }
        vectors += 1;
    }
    assert!(vectors > 50, "only {vectors} vectors");
}
