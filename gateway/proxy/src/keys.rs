//! API keys → the names that callers go by in rates and records.
//!
//! Apart so that no other part of the gateway ever sees a key: what leaves this file is an alias. Must not know:
//! requests, records.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use pitot_config::gateway::KeyAlias;
use sha2::{Digest, Sha256};

/// The aliases of the configuration.
#[derive(Debug)]
pub struct Keys(Vec<KeyAlias>);

impl Keys {
    pub fn new(aliases: &[KeyAlias]) -> Self {
        Keys(aliases.to_vec())
    }

    /// The alias of the key in a request's head: a bearer token, or `x-api-key` as the Messages format has it.
    /// None if there are no aliases, no key, or it is none of theirs.
    pub fn alias_of(&self, headers: &HeaderMap) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let bearer = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim().as_bytes())
        });
        let key = bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()))?;
        let digest: [u8; 32] = Sha256::digest(key).into();
        self.0.iter().find(|alias| alias.key_sha256 == digest).map(|alias| alias.alias.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_by_its_digest() {
        // FIPS 180-2, appendix B.1: the digest of the three letters "abc".
        let digest = [
            0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23,
            0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad,
        ];
        let keys = Keys::new(&[KeyAlias { alias: "team-a".into(), key_sha256: digest }]);
        let check = |name: &'static str, value: &'static str, expected: Option<&str>| {
            let headers =
                HeaderMap::from_iter([(http::HeaderName::from_static(name), value.parse().unwrap())]);
            assert_eq!(keys.alias_of(&headers).as_deref(), expected, "{name}: {value}");
        };
        check("authorization", "Bearer abc", Some("team-a"));
        check("authorization", "bearer  abc", Some("team-a"));
        check("x-api-key", "abc", Some("team-a"));
        check("authorization", "Bearer abd", None);
        check("authorization", "abc", None);
        check("x-other", "abc", None);
    }
}
