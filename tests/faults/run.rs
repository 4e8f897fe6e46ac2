//! Cases played through a gateway: many at once, each by a caller of its own, each with a verdict.
//!
//! Apart from starting gateways: here one is an address. Must not know: what is right (judging does).

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::admin;
use super::caller::{Caller, Errand, find};
use super::case::{Callers, Case, Exchange, Protocol, Section, Weight};
use super::gateway::Profile;
use super::judge::{self, Seen};
use super::lag;
use super::player::{Arrival, Player, Run};

/// Heavy cases at once.
const HEAVY_AT_ONCE: usize = 2;
/// Complaints kept of one case.
const COMPLAINTS_MAX: usize = 12;
/// Longest wait for the upstream to have noted the end of its script.
const SETTLE_MAX: Duration = Duration::from_secs(2);

/// A gateway and the upstream behind it.
pub struct Place<'p> {
    pub gateway: SocketAddr,
    /// Of a Pitot.
    pub admin: Option<SocketAddr>,
    pub player: &'p Player,
    pub profile: Profile,
}

/// A case with the protocol of its caller.
#[derive(Debug, Clone, Copy)]
pub struct Turn<'c> {
    pub case: &'c Case,
    pub protocol: Protocol,
}

#[derive(Debug, Clone)]
pub struct Verdict {
    pub name: String,
    pub section: Section,
    pub profile: Profile,
    pub protocol: Protocol,
    /// Empty for a pass.
    pub complaints: Vec<String>,
    pub took: Duration,
}

/// Every case with each protocol that it is for.
pub fn turns(cases: &[Case], protocols: &[Protocol]) -> Vec<(usize, Protocol)> {
    let all = cases.iter().enumerate().flat_map(|(index, case)| {
        let fits = |protocol: &&Protocol| case.callers == Callers::Both || **protocol == Protocol::Http11;
        protocols.iter().filter(fits).map(move |protocol| (index, *protocol))
    });
    all.collect()
}

/// Runs turns, those of megabytes first and few at once. `done` hears of each verdict.
pub fn run(place: &Place<'_>, turns: &[Turn<'_>], done: &(dyn Fn(&Verdict) + Sync)) -> Vec<Verdict> {
    lag::start();
    let of = |weight: Weight| -> Vec<Turn<'_>> {
        turns.iter().copied().filter(|turn| turn.case.weight == weight).collect()
    };
    let at_once = place.profile.at_once();
    let mut verdicts = lanes(place, &of(Weight::Heavy), HEAVY_AT_ONCE.min(at_once), done);
    verdicts.extend(lanes(place, &of(Weight::Light), at_once, done));
    verdicts
}

fn lanes(
    place: &Place<'_>,
    turns: &[Turn<'_>],
    at_once: usize,
    done: &(dyn Fn(&Verdict) + Sync),
) -> Vec<Verdict> {
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(turns.len()) {
            scope.spawn(|| {
                while let Some(turn) = turns.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = play(place, *turn);
                    done(&verdict);
                    verdicts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(verdict);
                }
            });
        }
    });
    verdicts.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Plays one case.
pub fn play(place: &Place<'_>, turn: Turn<'_>) -> Verdict {
    let began = Instant::now();
    let case = turn.case;
    let mut complaints = Vec::new();
    match Caller::new(place.gateway, turn.protocol) {
        Ok(mut caller) => {
            for (index, exchange) in case.exchanges.iter().enumerate() {
                let wrong = play_exchange(place, turn, index, exchange, &mut caller);
                let several = case.exchanges.len() > 1;
                let place =
                    |why: String| if several { format!("exchange {}: {why}", index + 1) } else { why };
                complaints.extend(wrong.into_iter().map(place));
                if complaints.len() >= COMPLAINTS_MAX {
                    complaints.truncate(COMPLAINTS_MAX);
                    break;
                }
            }
        }
        Err(error) => complaints.push(format!("the caller could not begin: {error}")),
    }
    Verdict {
        name: case.name.clone(),
        section: case.section,
        profile: case.profile,
        protocol: turn.protocol,
        complaints,
        took: began.elapsed(),
    }
}

/// The model's name in a turn: the case's, told apart where callers of both protocols run at once.
pub fn model(case: &Case, protocol: Protocol) -> String {
    match protocol {
        Protocol::Http11 => case.name.clone(),
        Protocol::H2c => format!("{}~h2", case.name),
    }
}

fn play_exchange(
    place: &Place<'_>,
    turn: Turn<'_>,
    index: usize,
    exchange: &Exchange,
    caller: &mut Caller,
) -> Vec<String> {
    std::thread::sleep(exchange.pause_before);
    let model = match index {
        0 => model(turn.case, turn.protocol),
        _ => format!("{}~{index}", model(turn.case, turn.protocol)),
    };
    let run = place.player.expect(&model, exchange.plays.clone());
    let id = unique_id();
    let body = named(&exchange.request.body, &model);
    let errand = Errand {
        request: &exchange.request,
        body: body.clone(),
        id: &id,
        model: &model,
        pace: &exchange.pace,
        leaves: &exchange.leaves,
    };
    let began = Instant::now();
    let called = caller.call(&errand);
    let complaints = match called {
        Err(error) => vec![format!("the caller failed: {error}")],
        Ok(reply) => {
            let wanted = place.admin.filter(|_| exchange.record.is_some());
            let record = wanted.map(|admin| admin::record(admin, &id));
            let arrivals = settled(&run, exchange);
            let seen = Seen {
                exchange,
                profile: place.profile,
                protocol: turn.protocol,
                id: &id,
                sent: &body,
                reply: &reply,
                arrivals: &arrivals,
                lag: lag::since(began),
                record,
                pitot: place.admin.is_some(),
            };
            judge::complaints(&seen)
        }
    };
    place.player.forget(&model);
    complaints
}

/// What arrived, once the upstream has had its time to note that its connection closed.
fn settled(run: &Run, exchange: &Exchange) -> Vec<Arrival> {
    let until = Instant::now() + SETTLE_MAX;
    loop {
        let arrivals = run.arrivals();
        let noted = arrivals.last().is_some_and(|arrival| arrival.closed.is_some());
        if exchange.upstream.closed_within.is_none() || noted || Instant::now() > until {
            return arrivals;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn unique_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("fault-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The body with the model's name in its place.
fn named(body: &Bytes, model: &str) -> Bytes {
    let mark = b"@MODEL@";
    match find(&body[..body.len().min(4096)], mark) {
        Some(at) => Bytes::from([&body[..at], model.as_bytes(), &body[at + mark.len()..]].concat()),
        None => body.clone(),
    }
}
