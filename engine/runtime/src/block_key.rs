//! What a full block of the cache holds, as a short name that no two contents share.
//!
//! Apart so that the rule for what may be shared stands in one place. Must not know: blocks, sequences.
//!
//! A key is the SHA-256 of the key before it and the block's own tokens, so it stands for every token from the
//! start of the sequence on; the first one is made of the request's salt. A hash that an attacker cannot collide
//! is needed, since two contents under one key would give a caller another caller's context.

use sha2::{Digest, Sha256};

/// Names the tokens of a sequence up to the end of one block, under one salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey([u8; 32]);

impl BlockKey {
    /// The key before any token. Sequences with different salts share nothing.
    pub fn first(salt: Option<&str>) -> BlockKey {
        let mut hash = Sha256::new();
        match salt {
            None => hash.update([0]),
            Some(salt) => {
                hash.update([1]);
                hash.update(salt.as_bytes());
            }
        }
        BlockKey(hash.finalize().into())
    }

    /// The key of the block that follows, which holds these tokens.
    pub fn next(&self, tokens: &[u32]) -> BlockKey {
        let mut hash = Sha256::new_with_prefix(self.0);
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        BlockKey(hash.finalize().into())
    }
}

/// Keys of a sequence's full blocks, made as far as they were asked for.
#[derive(Debug, Clone)]
pub(crate) struct BlockKeys {
    first: BlockKey,
    made: Vec<BlockKey>,
}

impl BlockKeys {
    pub fn new(salt: Option<&str>) -> BlockKeys {
        BlockKeys { first: BlockKey::first(salt), made: Vec::new() }
    }

    /// The keys of the first `blocks` blocks, which `tokens` must fill.
    pub fn up_to(&mut self, blocks: usize, tokens: &[u32], block_tokens: usize) -> &[BlockKey] {
        for tokens in tokens.chunks_exact(block_tokens).take(blocks).skip(self.made.len()) {
            let last = self.made.last().unwrap_or(&self.first);
            self.made.push(last.next(tokens));
        }
        &self.made[..blocks]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_for_salt_and_all_tokens_so_far() {
        let key = |salt, blocks: &[&[u32]]| {
            blocks.iter().fold(BlockKey::first(salt), |key, tokens| key.next(tokens))
        };
        assert_eq!(key(None, &[&[1, 2], &[3, 4]]), key(None, &[&[1, 2], &[3, 4]]));
        let different = [
            key(None, &[&[1, 2], &[3, 4]]),
            key(Some(""), &[&[1, 2], &[3, 4]]),
            key(Some("a"), &[&[1, 2], &[3, 4]]),
            key(None, &[&[2, 1], &[3, 4]]),
            key(None, &[&[3, 4]]),
            key(None, &[&[1, 2]]),
            key(None, &[&[1, 2], &[3, 5]]),
        ];
        let distinct: std::collections::HashSet<BlockKey> = different.into_iter().collect();
        assert_eq!(distinct.len(), different.len());
    }

    #[test]
    fn the_first_key_is_sha_256() {
        // SHA-256 of one zero byte, as `printf '\0' | sha256sum` prints it.
        let expected = "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d";
        let BlockKey(bytes) = BlockKey::first(None);
        assert_eq!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), expected);
    }

    #[test]
    fn keys_grow_with_the_sequence() {
        let mut keys = BlockKeys::new(None);
        let early = keys.up_to(1, &[1, 2, 3], 2).to_vec();
        let late = keys.up_to(2, &[1, 2, 3, 4, 5], 2).to_vec();
        assert_eq!(early, late[..1]);
        assert_eq!(late, BlockKeys::new(None).up_to(2, &[1, 2, 3, 4], 2));
    }
}
