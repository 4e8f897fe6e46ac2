//! Frames of an event stream: the same for any cut, byte-exact, bounded.
//!
//! Apart because the rewriter stands on it too. Must not know: what the frames hold.

use pitot_measure::sse::{self, PieceKind, Splitter};
use proptest::prelude::*;

fn split(stream: &[u8], cut: usize, frame_bytes_max: usize) -> (Vec<Vec<u8>>, Vec<u8>, u64) {
    let mut splitter = Splitter::new(frame_bytes_max);
    let (mut frames, mut all) = (Vec::new(), Vec::new());
    let mut take = |piece: &sse::Piece<'_>| {
        all.extend_from_slice(piece);
        if piece.kind == PieceKind::Frame {
            frames.push(piece.to_vec());
        }
    };
    for read in stream.chunks(cut) {
        splitter.push(read).iter().for_each(&mut take);
        assert!(splitter.held_bytes() <= (frame_bytes_max + cut) as u64);
    }
    splitter.finish().iter().for_each(&mut take);
    (frames, all, splitter.frames_over_cap())
}

#[track_caller]
fn check(stream: &str, expected: &[&str]) {
    for cut in 1..=stream.len() {
        let (frames, all, over) = split(stream.as_bytes(), cut, 1000);
        assert_eq!(
            frames,
            expected.iter().map(|frame| frame.as_bytes().to_vec()).collect::<Vec<_>>(),
            "cut {cut}"
        );
        assert_eq!((all, over), (stream.as_bytes().to_vec(), 0), "cut {cut}");
    }
    let mut rest = stream.as_bytes();
    let mut found = Vec::new();
    while let Some(end) = sse::frame_end(rest) {
        found.push(&rest[..end]);
        rest = &rest[end..];
    }
    let whole = if rest.is_empty() { expected } else { &expected[..expected.len() - 1] };
    assert_eq!(found, whole.iter().map(|frame| frame.as_bytes()).collect::<Vec<_>>());
}

#[test]
fn any_line_end_ends_a_line() {
    check("data: a\n\ndata: b\n\n", &["data: a\n\n", "data: b\n\n"]);
    check("data: a\r\n\r\ndata: b\r\n\r\n", &["data: a\r\n\r\n", "data: b\r\n\r\n"]);
    check("data: a\r\rdata: b\r\r", &["data: a\r\r", "data: b\r\r"]);
    check("data: a\n\r\ndata: b\r\n\n", &["data: a\n\r\n", "data: b\r\n\n"]);
    check("a\nb\r\nc\rd\n\ne\n\n", &["a\nb\r\nc\rd\n\n", "e\n\n"]);
    check("\n\ndata: a\n\n", &["\n", "\n", "data: a\n\n"]);
    check("data: ü€😀\n\ndata: cut", &["data: ü€😀\n\n", "data: cut"]);
    check(": ping\n\n:\n\ndata: x\n\n", &[": ping\n\n", ":\n\n", "data: x\n\n"]);
}

#[test]
fn fields() {
    let data =
        |frame: &str| sse::data(frame.as_bytes()).map(|data| String::from_utf8(data.into_owned()).unwrap());
    for (frame, expected) in [
        ("data: a\n\n", Some("a")),
        ("data:a\r\n\r\n", Some("a")),
        ("data:  a\r\r", Some(" a")),
        ("data: a\ndata: b\n\n", Some("a\nb")),
        ("data: a\r\ndata: b\r\ndata:\r\n\r\n", Some("a\nb\n")),
        ("data\n\n", Some("")),
        ("event: x\nid: 1\ndata: y\nretry: 3\n\n", Some("y")),
        ("\u{feff}data: a\n\n", Some("a")),
        ("\ndata: a\n\n", Some("a")),
        (": data: a\n\n", None),
        ("database: a\n\n", None),
        (" data: a\n\n", None),
        ("\n", None),
    ] {
        assert_eq!(data(frame).as_deref(), expected, "{frame:?}");
    }
    assert_eq!(sse::fields(b"event: a\nevent:b\ndata: c\n\n").event, Some(b"b".as_slice()));
}

#[test]
fn a_frame_over_the_cap_passes_for_any_cut() {
    // "data: " and 14 letters and two line feeds are 22 bytes; the other frames are 9.
    for line_end in ["\n", "\r\n", "\r"] {
        let long = format!("data: {}\n\n", "x".repeat(14));
        let stream = format!("data: a\n\n{long}data: b\n\n").replace('\n', line_end);
        let sizes: Vec<usize> = vec![0, 9, long.len(), long.len() + 2];
        for cut in 1..=stream.len() {
            for cap in [12, 21] {
                let (frames, all, over) = split(stream.as_bytes(), cut, cap);
                assert_eq!((frames.len(), over), (2, 1), "cut {cut}, cap {cap}, {line_end:?}");
                assert_eq!(all, stream.as_bytes());
            }
            let (frames, _, over) = split(stream.as_bytes(), cut, sizes[3]);
            assert_eq!((frames.len(), over), (3, 0), "cut {cut}, {line_end:?}");
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_any_cut(
        bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'a'), Just(b':')], 0..60),
        cut in 1_usize..61,
        cap in 1_usize..40,
    ) {
        let (whole, all, over) = split(&bytes, bytes.len().max(1), cap);
        let (frames, joined, over_cut) = split(&bytes, cut, cap);
        prop_assert_eq!(&joined, &bytes);
        prop_assert_eq!(&all, &bytes);
        prop_assert_eq!(whole, frames);
        prop_assert_eq!(over, over_cut);
    }
}
