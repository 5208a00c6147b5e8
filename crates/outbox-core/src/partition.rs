//! Which partition a key goes to: the rule of Kafka's Java clients.

/// Kafka's own variant of murmur2, `org.apache.kafka.common.utils.Utils.murmur2`.
pub fn murmur2(key: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    // Java's lengths are ints; a key beyond that cannot be in a message.
    let mut hash = SEED ^ key.len() as u32;
    let mut words = key.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> R;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (place, &byte) in rest.iter().enumerate() {
            hash ^= u32::from(byte) << (8 * place);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

/// The partition of a key, as Java's default partitioner chooses it for a key that is not null. An
/// empty key is a key like any other.
pub fn partition_for(key: &[u8], partitions: u32) -> u32 {
    partition_of_hash(murmur2(key), partitions)
}

/// As [`partition_for`], for a key whose hash is kept. `partitions` must not be 0.
pub fn partition_of_hash(hash: u32, partitions: u32) -> u32 {
    (hash & 0x7fff_ffff) % partitions
}
