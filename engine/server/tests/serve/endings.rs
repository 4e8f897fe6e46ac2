//! Callers that go away, queues that are full, and the engine's own end.
//!
//! Apart because these requests do not run to their end. Must not know: bodies.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use pitot_control::FromGateway;
use pitot_runtime::testing::{ToyRunner, toy_tokenizer};
use pitot_runtime::{Batch, Engine, EngineOptions, Logits, Reservation, RunError, Runner, Sampling};
use pitot_server::engine_thread::{self, Job, JobError, Wanted};
use pitot_server::hub::Hub;
use pitot_server::serve::Stop;
use serde_json::json;

use crate::harness::{Gateway, Started, chat_body, read_answer, start};

/// A request that would run for very long.
fn long(toy: &Started, stream: bool) -> UnixStream {
    toy.send("POST", "/v1/chat/completions", "", &chat_body(json!({ "stream": stream, "ignore_eos": true })))
}

fn endless(sets: &[&str]) -> Started {
    start(ToyRunner::new(100_000), sets)
}

/// Ends the server and checks that nothing of it is left.
fn ended(toy: Started) {
    let paths = [toy.http_path(), toy.control_path()];
    toy.runtime.block_on(toy.done).unwrap().unwrap();
    assert!(paths.iter().all(|path| !path.exists()), "the sockets are gone");
}

#[test]
fn a_caller_that_goes_away_frees_its_blocks() {
    let toy = endless(&[]);
    for stream in [true, false] {
        let mut caller = long(&toy, stream);
        toy.wait_for(|state| state.running == 1 && state.blocks_used > 0);
        if stream {
            let mut first = [0; 16];
            caller.read_exact(&mut first).unwrap();
        }
        drop(caller);
        toy.wait_for(|state| state.running == 0 && state.blocks_used == 0);
    }
}

/// A caller of the storm: what it asks for, and whether it leaves early, hang on its number alone.
fn storm_caller(toy: &Started, number: usize) -> Option<u16> {
    let prompt = "ab".repeat(1 + number % 4 * 7) + &"c".repeat(number % 5);
    let more = json!({
        "prompt": prompt, "max_tokens": 1 + number % 40, "ignore_eos": true, "priority": number % 3,
        "n": 1 + number % 2, "stream": number.is_multiple_of(4) || !number.is_multiple_of(3),
    });
    if !number.is_multiple_of(3) {
        return Some(toy.complete(more).status);
    }
    let mut caller = toy.send("POST", "/v1/completions", "", &more.to_string());
    let mut first = [0; 1];
    if number.is_multiple_of(2) {
        caller.read_exact(&mut first).unwrap();
    }
    None
}

#[test]
fn a_storm_of_callers_leaves_nothing_behind() {
    // 64 callers at once for as many places, some asking for two; a third of them leaves early.
    let toy = Arc::new(endless(&["memory.block_tokens=4"]));
    let callers: Vec<_> = (0..64)
        .map(|caller| {
            let toy = Arc::clone(&toy);
            std::thread::spawn(move || {
                let answers = (0..20).filter_map(|round| storm_caller(&toy, caller * 20 + round));
                answers.for_each(|status| assert_eq!(status, 200));
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    toy.wait_for(|state| state.running + state.waiting + state.blocks_used == 0);
    assert!(toy.engine.state().prefix_counts.found > 0, "prompts were shared");
    let stops = toy.stops.clone();
    stops.blocking_send(Stop::Signal).unwrap();
    ended(Arc::into_inner(toy).unwrap());
}

#[test]
fn a_full_queue_is_refused() {
    let toy = endless(&["scheduler.sequences_max=1", "scheduler.waiting_max=1"]);
    let several = toy.complete(json!({ "n": 2 }));
    assert_eq!((several.status, &several.json()["error"]["param"]), (400, &json!("n")));
    let _running = long(&toy, true);
    toy.wait_for(|state| state.running == 1);
    let _waiting = long(&toy, true);
    toy.wait_for(|state| state.waiting == 1);
    let answer = toy.chat(json!({}));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("queue_full")));
    assert!(answer.head.contains("retry-after: 1"));
}

#[test]
fn a_stop_finishes_what_runs_and_refuses_what_comes() {
    let toy = start(ToyRunner::new(4000), &[]);
    let running = toy.send(
        "POST",
        "/v1/chat/completions",
        "",
        &chat_body(json!({ "max_tokens": 3000, "ignore_eos": true })),
    );
    toy.wait_for(|state| state.running == 1);
    let (mut gateway, _) = Gateway::greet(&toy);
    gateway.say(&FromGateway::Drain);
    toy.wait_for(|state| state.draining);
    let answer = toy.chat(json!({}));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("draining")));
    assert_eq!(toy.ask("GET", "/health", "", "").status, 503);
    toy.stops.blocking_send(Stop::Signal).unwrap();
    let finished = read_answer(running).json();
    assert_eq!(finished["usage"]["completion_tokens"], 3000);
    ended(toy);
}

#[test]
fn what_takes_too_long_is_aborted() {
    let toy = endless(&["shutdown.drain_timeout_ms=20"]);
    let running = long(&toy, false);
    toy.wait_for(|state| state.running == 1);
    toy.stops.blocking_send(Stop::StandardInputEnded).unwrap();
    assert_eq!(read_answer(running).json()["choices"][0]["finish_reason"], "abort");
    ended(toy);
}

#[test]
fn the_second_signal_stops_at_once() {
    let toy = endless(&["shutdown.drain_timeout_ms=3600000"]);
    let _running = long(&toy, false);
    toy.wait_for(|state| state.running == 1);
    for stop in [Stop::Signal, Stop::StandardInputEnded, Stop::Signal] {
        toy.stops.blocking_send(stop).unwrap();
    }
    ended(toy);
}

/// A runner with a bug.
struct Broken;

impl Runner for Broken {
    fn name(&self) -> String {
        "broken".to_owned()
    }

    fn vocabulary(&self) -> usize {
        300
    }

    fn context_max(&self) -> usize {
        16
    }

    fn block_bytes(&self, block_tokens: usize) -> usize {
        block_tokens
    }

    fn reserve(&mut self, _: Reservation) -> Result<(), RunError> {
        Ok(())
    }

    fn run(&mut self, _: &Batch) -> Result<Logits, RunError> {
        panic!("a bug")
    }
}

#[tokio::test]
async fn an_engine_that_broke_down_is_known_to_have_ended() {
    let engine = Engine::new(Box::new(Broken), Arc::new(toy_tokenizer()), EngineOptions::default()).unwrap();
    let (engine, thread) = engine_thread::start(engine, Arc::new(Hub::default()), None).unwrap();
    assert!(!engine.has_ended());
    let job = || Job {
        request_id: None,
        sequences: vec![Wanted { prompt: vec![1], sampling: Sampling::default() }],
        choices: 1,
        tokens_prompt: 1,
        arrived_ns: 0,
        priority: 0,
        cache_salt: None,
    };
    // It may break down before it answers, or after.
    if let Ok(mut events) = engine.submit(job()).await {
        assert!(events.recv().await.is_none());
    }
    engine.ended().await;
    assert!(engine.has_ended());
    assert_eq!(engine.submit(job()).await.err(), Some(JobError::Stopped));
    assert!(thread.join().is_err());
}
