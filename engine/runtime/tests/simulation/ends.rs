//! How sequences end, what is refused, and what the stamps say.
//!
//! Apart from the random lives to keep each file one idea. Must not know: schedulers, pools.

use super::*;

/// The toy's greedy continuation, from its logits alone.
fn continuation(prompt: &str, count: usize) -> Vec<u32> {
    let mut tokens = toy_tokenizer().encode(prompt).expect("text encodes");
    let length = tokens.len();
    for _ in 0..count {
        tokens.push(toy_next(&tokens));
    }
    tokens.split_off(length)
}

fn endless(sampling: Sampling) -> Life {
    let mut engine = engine(ToyRunner::new(128), options());
    engine.apply(Command::Add(request(1, "start", sampling)), 0).expect("there is room");
    run_out(&mut engine, &mut 0).remove(&1).expect("it lived")
}

#[test]
fn greedy_follows_the_likeliest_token_to_the_limit() {
    let expected = continuation("start", 12);
    let life = endless(greedy(12));
    assert_eq!(life.tokens, expected);
    assert_eq!(life.finish, Some(Finish::Length));
    assert_eq!(life.text, toy_tokenizer().decode(&expected).expect("tokens decode"));
}

#[test]
fn a_stop_token_counts_and_has_no_text() {
    let expected = continuation("start", 5);
    let stop = expected[4];
    assert!(!expected[..4].contains(&stop), "the continuation says it once");
    let life = endless(Sampling { stop_token_ids: vec![stop], ..greedy(50) });
    assert_eq!(life.tokens, expected);
    assert_eq!(life.finish, Some(Finish::Stop { stop: Some(StopCause::TokenId(stop)) }));
    assert_eq!(life.text, toy_tokenizer().decode(&expected[..4]).expect("tokens decode"));
}

#[test]
fn a_stop_string_is_cut_from_the_text() {
    let text = toy_tokenizer().decode(&continuation("start", 9)).expect("tokens decode");
    let stop = text[6..9].to_owned();
    let life = endless(Sampling { stop: vec![stop.clone()], ..greedy(50) });
    assert_eq!(life.text, text[..6]);
    assert_eq!(life.tokens.len(), 9);
    assert_eq!(life.finish, Some(Finish::Stop { stop: Some(StopCause::Text(stop)) }));
}

#[test]
fn held_text_comes_out_at_the_limit() {
    let text = toy_tokenizer().decode(&continuation("start", 9)).expect("tokens decode");
    let stop = format!("{}\u{1}", &text[7..9]);
    let life = endless(Sampling { stop: vec![stop], ..greedy(9) });
    assert_eq!((life.text, life.finish), (text, Some(Finish::Length)));
}

#[test]
fn the_context_ends_a_sequence() {
    let mut engine = engine(ToyRunner::new(10), options());
    engine.apply(Command::Add(request(1, "1234567", greedy(50))), 0).expect("there is room");
    let life = run_out(&mut engine, &mut 0).remove(&1).expect("it lived");
    assert_eq!((life.tokens.len(), life.finish), (3, Some(Finish::Length)));
}

#[test]
fn the_end_token_ends_unless_ignored_or_too_early() {
    // The likeliest first token is the model's end token.
    let end = continuation("start", 1)[0];
    let ends = EngineOptions { eos_token_ids: vec![end], ..options() };
    let run = |sampling| {
        let mut engine = engine(ToyRunner::new(128), ends.clone());
        engine.apply(Command::Add(request(1, "start", sampling)), 0).expect("there is room");
        run_out(&mut engine, &mut 0).remove(&1).expect("it lived")
    };
    let life = run(greedy(8));
    assert_eq!((life.tokens.len(), life.text.as_str()), (1, ""));
    assert_eq!(life.finish, Some(Finish::Stop { stop: None }));
    let life = run(Sampling { ignore_eos: true, ..greedy(8) });
    assert_eq!((life.tokens.len(), life.finish), (8, Some(Finish::Length)));
    let life = run(Sampling { min_tokens: 3, ..greedy(8) });
    assert!(life.tokens.len() >= 3 && !life.tokens[..3].contains(&end));
}

#[test]
fn a_failing_runner_ends_its_sequences_with_the_error() {
    let mut engine = engine(ToyRunner::new(128).failing_from(2), options());
    engine.apply(Command::Add(request(1, "start", greedy(50))), 0).expect("there is room");
    let life = run_out(&mut engine, &mut 0).remove(&1).expect("it lived");
    assert_eq!(life.tokens.len(), 2);
    assert!(matches!(life.finish, Some(Finish::Error(error)) if error.contains("told to fail")));
    assert_eq!(engine.state().blocks_used, 0);
}

#[test]
fn what_cannot_run_is_refused() {
    let mut engine = engine(ToyRunner::new(128), EngineOptions { kv_bytes: 16, waiting_max: 2, ..options() });
    let mut check = |request: Request, expected: Refusal| {
        assert_eq!(engine.apply(Command::Add(request), 0), Err(expected));
    };
    // 16 bytes are 16 tokens, of which one has to be output.
    check(request(1, "1234567890123456", greedy(1)), Refusal::PromptTooLong { tokens: 16, max: 15 });
    check(request(1, "", greedy(1)), Refusal::EmptyPrompt);
    let unknown = Request { prompt: vec![261], ..request(1, "a", greedy(1)) };
    check(unknown, Refusal::UnknownToken { token: 261, vocabulary: TOY_VOCABULARY });
    let mut add = |id| engine.apply(Command::Add(request(id, "a", greedy(1))), 0);
    assert_eq!(add(1), Ok(()));
    assert_eq!(add(1), Err(Refusal::DuplicateId { id: SequenceId(1) }));
    assert_eq!(add(2), Ok(()));
    assert_eq!(add(3), Err(Refusal::QueueFull { waiting: 2 }));
    assert_eq!(engine.apply(Command::Drain, 0), Ok(()));
    assert_eq!(engine.apply(Command::Add(request(4, "a", greedy(1))), 0), Err(Refusal::Draining));
    let lives = run_out(&mut engine, &mut 0);
    assert!(
        lives.values().all(|life| life.finish.is_some()) && lives.len() == 2,
        "those taken in are finished"
    );
}

#[test]
fn stamps_are_of_the_steps_that_made_them() {
    // One token a step: a prompt of 3 takes steps at 100, 102, 104; its end is each step's second reading.
    let mut engine = engine(ToyRunner::new(128), EngineOptions { batch_tokens_max: 1, ..options() });
    engine.apply(Command::Add(request(1, "abc", greedy(2))), 7).expect("there is room");
    engine.apply(Command::Add(request(2, "a", greedy(1))), 8).expect("there is room");
    let mut now = 99;
    let mut stamps = Vec::new();
    while engine.has_work() {
        for output in engine.step(&mut || {
            now += 1;
            now
        }) {
            if let Output::Finished { stamps: found, .. } = output {
                stamps.push(
                    [found.queued, found.scheduled, found.first, found.last].map(|at| at.expect("set")),
                );
            }
        }
    }
    // Chunks without logits read the clock at their end too.
    assert_eq!(stamps, [[7, 100, 105, 107], [8, 108, 109, 109]]);
}

#[test]
fn an_aborted_sequence_ends_in_the_next_step() {
    let mut engine = engine(ToyRunner::new(128), options());
    engine.apply(Command::Add(request(1, "abc", greedy(9))), 7).expect("there is room");
    engine.apply(Command::Abort(SequenceId(1)), 8).expect("never refused");
    engine.apply(Command::Abort(SequenceId(5)), 8).expect("never refused");
    assert!(engine.has_work());
    let lives = run_out(&mut engine, &mut 9);
    assert_eq!(lives.len(), 1);
    assert_eq!(lives[&1].finish, Some(Finish::Abort));
}

#[test]
fn a_prompt_that_opens_reasoning_is_continued_in_it() {
    let mut engine = engine(ToyRunner::new(128), options());
    let request = request(1, "q<think>", greedy(3));
    assert_eq!(request.prompt.last(), Some(&TOY_THINK));
    engine.apply(Command::Add(request), 0).expect("there is room");
    let mut channels = Vec::new();
    while engine.has_work() {
        for output in engine.step(&mut || 1) {
            match output {
                Output::Token { channel, .. } => channels.push(channel),
                Output::Prompt { .. } => {}
                Output::Finished { split, .. } => assert_eq!(split.reasoning.tokens, 3),
            }
        }
    }
    assert_eq!(channels, [Channel::Reasoning; 3]);
}
