//! The fault corpus against gateways of our own, in every configuration that a case needs, over HTTP/1.1 and h2c.
//!
//! Apart from the program of the same name, which runs against a gateway that is there already. Must not know: cases.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::{LazyLock, Mutex};

use pitot_tests::faults::board;
use pitot_tests::faults::case::{Case, Protocol};
use pitot_tests::faults::cases;
use pitot_tests::faults::gateway::{Gateway, Profile};
use pitot_tests::faults::player::Player;
use pitot_tests::faults::run::{self, Place, Turn, Verdict};

#[path = "hostile.rs"]
mod hostile;
#[path = "multiplexed.rs"]
mod multiplexed;
#[path = "operation.rs"]
mod operation;

/// Address on which nobody listens: the port of the discard service, which is below those given out freely.
const NOBODY: &str = "http://127.0.0.1:9";

/// The table is large, and made once.
static CASES: LazyLock<Vec<Case>> = LazyLock::new(cases::all);

/// A part of the names of the cases to run, for work on one of them.
const ONLY: &str = "PITOT_TEST_FAULTS";

#[test]
fn the_corpus_is_green() {
    let only = std::env::var(ONLY).unwrap_or_default();
    let cases: Vec<Case> = CASES.iter().filter(|case| case.name.contains(&only)).cloned().collect();
    let verdicts = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for profile in Profile::ALL {
            let (cases, verdicts) = (&cases, &verdicts);
            scope.spawn(move || verdicts.lock().unwrap().extend(under(profile, cases)));
        }
    });
    let verdicts = verdicts.into_inner().unwrap();
    println!("{}", board::text(&verdicts, false, false));
    let failed = verdicts.iter().filter(|verdict| !verdict.complaints.is_empty()).count();
    assert_eq!(failed, 0, "of {} runs of cases {failed} failed", verdicts.len());
}

/// Runs the cases of one profile over both protocols.
fn under(profile: Profile, cases: &[Case]) -> Vec<Verdict> {
    let turns: Vec<Turn<'_>> = run::turns(cases, &[Protocol::Http11, Protocol::H2c])
        .into_iter()
        .map(|(index, protocol)| Turn { case: &cases[index], protocol })
        .filter(|turn| turn.case.profile == profile)
        .collect();
    if turns.is_empty() {
        return Vec::new();
    }
    let player = Player::listen("127.0.0.1:0").unwrap();
    let upstream = match profile {
        Profile::NoUpstream => NOBODY.to_owned(),
        _ => format!("http://{}", player.address),
    };
    let gateway = match Gateway::start(&upstream, profile, &[]) {
        Ok(gateway) => gateway,
        Err(why) => return turns.iter().map(|turn| not_begun(turn, &why)).collect(),
    };
    let place = Place { gateway: gateway.address, admin: Some(gateway.admin), player: &player, profile };
    let mut verdicts = run::run(&place, &turns, &|_| {});
    if let Some(first) = verdicts.first_mut() {
        // What arrived at the upstream and was no request fails the profile, since nobody can say which case sent it.
        first.complaints.extend(player.strays().into_iter().map(|stray| format!("at the upstream: {stray}")));
    }
    verdicts
}

fn not_begun(turn: &Turn<'_>, why: &str) -> Verdict {
    Verdict {
        name: turn.case.name.clone(),
        section: turn.case.section,
        profile: turn.case.profile,
        protocol: turn.protocol,
        complaints: vec![why.to_owned()],
        took: std::time::Duration::ZERO,
    }
}

/// The upstream itself, with no gateway between: what a case expects of the bytes is what the script sends.
#[test]
fn cases_expect_what_their_upstream_sends() {
    let only = std::env::var(ONLY).unwrap_or_default();
    let passing = |case: &&Case| {
        case.profile == Profile::Default
            && case.name.contains(&only)
            && case.exchanges.iter().all(|exchange| exchange.needs_no_gateway())
    };
    let turns: Vec<Turn<'_>> =
        CASES.iter().filter(passing).map(|case| Turn { case, protocol: Protocol::Http11 }).collect();
    let player = Player::listen("127.0.0.1:0").unwrap();
    let place = Place { gateway: player.address, admin: None, player: &player, profile: Profile::Default };
    let verdicts = run::run(&place, &turns, &|_| {});
    let failed = verdicts.iter().any(|verdict| !verdict.complaints.is_empty());
    assert!(!failed, "{}", board::text(&verdicts, false, false));
    assert!(!only.is_empty() || verdicts.len() > 100, "only {} cases", verdicts.len());
}

#[test]
fn names_are_unique() {
    let mut names: Vec<String> = CASES.iter().map(|case| case.name.clone()).collect();
    names.sort();
    let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).collect();
    assert!(twice.is_empty(), "{twice:?}");
}
