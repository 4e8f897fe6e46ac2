//! The checked reader against an ordinary JSON library.
//!
//! Apart for its length. Must not know: wire formats.

use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::*;

/// What a library makes of the same bytes.
fn library_takes(json: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(json).is_ok() && json.trim_ascii_start().starts_with(b"{")
}

/// Rebuilds a value by the reader, for a comparison.
fn rebuilt(reader: &mut Reader<'_>) -> Value {
    match reader.peek() {
        Some(b'{') => {
            let mut members = serde_json::Map::new();
            let mut reader_of_keys = *reader;
            let mut keys = Vec::new();
            if let Ok(Value::Object(known)) = serde_json::from_slice::<Value>(rest_of(&mut reader_of_keys)) {
                keys.extend(known.keys().cloned());
            }
            let mut next = 0;
            reader.members(|key, value| {
                // Keys that are too long to be resolved come as empty.
                let known = &keys[next];
                assert!(key == known.as_bytes() || key.is_empty(), "{key:?} for {known}");
                members.insert(known.clone(), rebuilt(value));
                next += 1;
            });
            Value::Object(members)
        }
        Some(b'[') => {
            let mut items = Vec::new();
            reader.items(|value| items.push(rebuilt(value)));
            Value::Array(items)
        }
        Some(b'"') => Value::String(String::from_utf8(reader.text().unwrap().bytes().collect()).unwrap()),
        Some(b'n') => {
            assert!(!reader.present());
            Value::Null
        }
        Some(byte @ (b't' | b'f')) => {
            assert!(reader.present());
            Value::Bool(byte == b't')
        }
        _ => serde_json::Number::from_f64(reader.number().unwrap()).map_or(Value::Null, Value::Number),
    }
}

fn rest_of<'a>(reader: &mut Reader<'a>) -> &'a [u8] {
    let from = reader.value_start();
    reader.skip();
    &reader.json[from..reader.at]
}

/// Numbers as floats, so that 1 and 1.0 compare equal.
fn as_floats(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::from(number.as_f64()),
        Value::Array(items) => items.into_iter().map(as_floats).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(key, value)| (key, as_floats(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other,
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1e9..1e9).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[a\"\\\\\n\u{1}😀é]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map("[a-c\"\\\\\n]{0,4}", inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn what_a_library_writes_is_read_back(members in proptest::collection::btree_map("[a-d]{0,3}", value(), 0..5), spaced in any::<bool>()) {
        let object = Value::Object(members.into_iter().collect());
        let text = if spaced { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) }.unwrap();
        let mut reader = super::object(text.as_bytes()).unwrap();
        let read = rebuilt(&mut reader);
        prop_assert_eq!(as_floats(read), as_floats(object));
        prop_assert_eq!(reader.at, text.len());
    }

    #[test]
    fn what_a_library_refuses_is_refused(members in proptest::collection::btree_map("[a-d]{0,3}", value(), 0..4), place in any::<prop::sample::Index>(), byte in prop_oneof![Just(b'"'), Just(b'{'), Just(b'}'), Just(b'['), Just(b']'), Just(b','), Just(b':'), Just(b'\\'), Just(b'0'), Just(b'-'), Just(b'.'), Just(b'e'), Just(b' '), Just(b'\n'), Just(b'u'), Just(b't')], how in 0..3) {
        let object = Value::Object(members.into_iter().collect());
        let mut json = serde_json::to_vec(&object).unwrap();
        let place = place.index(json.len());
        match how {
            0 => json[place] = byte,
            1 => json.insert(place, byte),
            _ => json.truncate(place),
        }
        if std::str::from_utf8(&json).is_ok() {
            prop_assert_eq!(super::object(&json).is_ok(), library_takes(&json), "{}", String::from_utf8_lossy(&json));
        }
    }

    #[test]
    fn no_bytes_panic_or_hang(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'"'), Just(b'{'), Just(b'}'), Just(b'['), Just(b'\\'), Just(b',')], 0..60)) {
        // Even unchecked, the reader ends.
        let mut reader = Reader { json: &bytes, at: 0 };
        reader.members(|_, value| value.items(|item| item.members(|_, inner| { inner.text(); })));
        let mut reader = Reader { json: &bytes, at: 0 };
        reader.items(|item| { item.number(); });
        prop_assert!(reader.find(b"a").is_none() || bytes.contains(&b'a'));
        let taken = super::object(&bytes).is_ok();
        prop_assert!(!taken || std::str::from_utf8(&bytes).is_err() || library_takes(&bytes));
    }
}

#[test]
fn counts() {
    for (text, expected) in [
        ("12", Count::Known(12)),
        ("12.0", Count::Known(12)),
        ("1e2", Count::Known(100)),
        ("0", Count::Known(0)),
        ("9007199254740992", Count::Known(1 << 53)),
        ("9007199254740994", Count::Absurd),
        ("18446744073709551615", Count::Absurd),
        ("1e300", Count::Absurd),
        ("1e999", Count::Absurd),
        ("-1", Count::Absent),
        ("0.5", Count::Absent),
        ("null", Count::Absent),
        ("\"7\"", Count::Absent),
        ("[7]", Count::Absent),
    ] {
        let json = format!("{{\"a\": {text} , \"b\":1}}");
        let reader = object(json.as_bytes()).unwrap();
        assert_eq!(reader.find(b"a").unwrap().count(), expected, "{text}");
        assert_eq!(reader.find(b"b").unwrap().count(), Count::Known(1), "{text}");
    }
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(object(nested(127).as_bytes()).is_ok());
    assert!(object(nested(128).as_bytes()).is_err());
    assert!(object(nested(1_000_000).as_bytes()).is_err());
}

#[test]
fn escapes() {
    for (json, expected) in [
        (r#"{"a":"\u003cthink\u003E"}"#, "<think>"),
        (r#"{"a":"\ud83d\ude00\u00e9\n\/"}"#, "😀é\n/"),
        (r#"{"a":"\ud83dx"}"#, "\u{fffd}x"),
        (r#"{"a":"\ude00\ud83d"}"#, "\u{fffd}\u{fffd}"),
        (r#"{"\u0061":"x"}"#, "x"),
    ] {
        let text = object(json.as_bytes()).unwrap().find(b"a").unwrap().text().unwrap();
        assert_eq!(String::from_utf8(text.bytes().collect()).unwrap(), expected, "{json}");
    }
}
