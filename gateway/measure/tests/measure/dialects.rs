//! What differs between the wire formats, and several sequences in one reply.
//!
//! Apart because the rules are the same for all of them. Must not know: the parsers.

use pitot_measure::OutcomeKind::{Interrupted, Success};
use pitot_measure::definitions::Metric::*;
use pitot_measure::{Absent, BodyKind, Endpoint, Finish, Flag, Reason};

use crate::play::Expect::{Count, Ms, NoFlags, Null, Outcome};
use crate::play::{DONE, Expect, Play, at, check, content, end_of, finish, usage};

fn text(index: u32, text: &str, finish: &str) -> String {
    format!(
        "data: {{\"object\":\"text_completion\",\"choices\":[{{\"index\":{index},\"text\":\"{text}\",\"finish_reason\":{finish}}}]}}\n\n"
    )
}

fn choice(index: u32, delta: &str, finish: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":{index},\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n")
}

#[test]
fn completions_stream() {
    let play = Play::new(Endpoint::Completions, true)
        .sent(10)
        .head(15, 200, BodyKind::EventStream)
        .read(20, &text(0, "", "null"))
        .read(60, &text(0, "a", "null"))
        .read(160, &text(0, "b", "\"length\""))
        .read(170, &[usage(4, 2), DONE.into()].concat())
        .ended(180);
    let record = check(
        "completions",
        &play,
        &[
            Ms(FirstTokenTime, 50),
            Ms(ContentTime, 100),
            Ms(FullResponseTime, 150),
            Expect::Float(TimePerToken, 100e6),
            Count(TotalTokens, 6),
            Outcome(Success),
            NoFlags,
        ],
    );
    assert_eq!(record.finish, Some(Finish::Length));
    assert_eq!(record.timeline.finish, Some(at(160)));
}

#[test]
fn completions_whole_with_two_prompts() {
    let body = "{\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"stop\"},\
                {\"index\":1,\"text\":\"b\",\"finish_reason\":\"length\"}],\
                \"usage\":{\"prompt_tokens\":8,\"completion_tokens\":4,\"total_tokens\":12}}";
    let play = Play::new(Endpoint::Completions, false)
        .facts(|facts| facts.prompts = 2)
        .sent(10)
        .head(15, 200, BodyKind::Json)
        .read(100, body)
        .ended(110);
    let record = check(
        "two prompts",
        &play,
        &[Outcome(Success), Count(OutputTokens, 4), Ms(FullResponseTime, 90), NoFlags],
    );
    assert_eq!(record.finish, Some(Finish::Length));
}

#[test]
fn several_choices_share_a_stream() {
    let two = || Play::chat().facts(|facts| facts.choices = 2);
    let begun = || {
        two()
            .read(50, &choice(0, "{\"content\":\"a\"}", "null"))
            .read(70, &choice(1, "{\"content\":\"b\"}", "null"))
            .read(90, &choice(0, "{}", "\"stop\""))
    };
    let full =
        begun().read(130, &choice(1, "{\"content\":\"c\"}", "\"stop\"")).read(140, &usage(5, 6)).ended(150);
    check(
        "no [DONE]",
        &full,
        &[
            Outcome(Success),
            Ms(FirstTokenTime, 40),
            Ms(FullResponseTime, 120),
            Ms(ContentTime, 80),
            Null(TimePerToken, Absent::SeveralSequences),
            Count(OutputTokens, 6),
            NoFlags,
        ],
    );
    check(
        "one never finishes",
        &begun().ended(150),
        &[Outcome(Interrupted), Expect::Reason(Reason::NoTerminal)],
    );
    // The usage on the first choice's finish is not the end of the reply while the other goes on.
    let counted = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\
                   \"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\n";
    let cut = two()
        .read(50, &choice(0, "{\"content\":\"a\"}", "null"))
        .read(60, counted)
        .read(70, &choice(1, "{\"content\":\"b\"}", "null"))
        .ended(80);
    check("cut in the second choice", &cut, &[Outcome(Interrupted), Null(OutputTokens, Absent::NotReported)]);
    let ignored = two().read(50, &content("a")).read(60, &end_of("stop", 5, 1)).ended(70);
    check("an upstream that ignores n", &ignored, &[Outcome(Success), Count(OutputTokens, 1)]);
}

#[test]
fn absurd_numbers_of_choices_are_bounded() {
    let many: String = (0..3000).map(|index| choice(index, "{\"content\":\"a\"}", "\"stop\"")).collect();
    let play = Play::chat()
        .facts(|facts| facts.choices = u32::MAX)
        .read(50, &many)
        .read(60, &choice(u32::MAX, "{\"content\":\"a\"}", "\"stop\""))
        .read(70, &[usage(5, 3001), DONE.into()].concat())
        .ended(80);
    check("3001 choices", &play, &[Outcome(Success), Expect::Flag(Flag::ChoicesOverCap)]);
}

#[test]
fn odd_types_cost_nothing_but_themselves() {
    for odd in [
        "{\"choices\":[{\"index\":\"0\",\"delta\":{\"content\":\"a\",\"reasoning\":{\"x\":1},\"refusal\":7},\"finish_reason\":null,\"logprobs\":[1,{}]}],\"usage\":null}",
        "{\"id\":1,\"choices\":[{\"delta\":{\"content\":\"\\u00e9\\n\"}}],\"created\":1.5,\"x\":[[],{}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{\"content\":[{\"type\":\"text\",\"text\":\"a\"}],\"tool_calls\":null}}]}",
        "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":false}],\"error\":null}",
    ] {
        let play =
            Play::chat().read(50, &format!("data: {odd}\n\n")).read(60, &end_of("stop", 5, 1)).ended(70);
        check(odd, &play, &[Outcome(Success), Ms(FirstTokenTime, 40), NoFlags]);
    }
    for malformed in ["{\"choices\":{}}", "[]", "1", "null", "{", "{\"choices\":[1]}", "\u{fffd}"] {
        let play = Play::chat()
            .read(50, &format!("data: {malformed}\n\n"))
            .read(60, &[content("a"), end_of("stop", 5, 1)].concat())
            .ended(70);
        check(
            malformed,
            &play,
            &[Outcome(Success), Ms(FirstTokenTime, 50), Expect::Flag(Flag::FrameMalformed)],
        );
    }
}

#[test]
fn parts_of_content_may_be_reasoning() {
    let thinking =
        "{\"content\":[{\"type\":\"thinking\",\"thinking\":[{\"type\":\"text\",\"text\":\"hm\"}]}]}";
    let play = Play::chat()
        .read(50, &choice(0, thinking, "null"))
        .read(80, &choice(0, thinking, "null"))
        .read(90, &[content("a"), end_of("stop", 5, 9)].concat())
        .ended(99);
    check("thinking parts", &play, &[Ms(ReasoningTime, 30), Ms(FirstTokenTime, 40), Ms(ContentTime, 0)]);
}

#[test]
fn what_comes_is_read_as_what_it_is_not_as_what_was_asked() {
    let body = "{\"choices\":[{\"message\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}],\
                \"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}";
    let asked_for_a_stream =
        Play::new(Endpoint::ChatCompletions, true).sent(10).head(15, 200, BodyKind::Json);
    check(
        "JSON for a stream",
        &asked_for_a_stream.read(100, body).ended(110),
        &[Outcome(Success), Null(FirstTokenTime, Absent::NotStreamed), Ms(FullResponseTime, 90)],
    );
    let asked_for_none =
        Play::new(Endpoint::ChatCompletions, false).sent(10).head(15, 200, BodyKind::EventStream);
    let stream = [content("a"), finish("stop"), DONE.into()].concat();
    check(
        "a stream for JSON",
        &asked_for_none.read(100, &stream).ended(110),
        &[Outcome(Success), Ms(FirstTokenTime, 90)],
    );
    let unnamed = Play::new(Endpoint::ChatCompletions, true).sent(10).head(15, 200, BodyKind::Other);
    check(
        "a stream without its type",
        &unnamed.read(100, &[content("a"), end_of("stop", 3, 1)].concat()).ended(110),
        &[Outcome(Success), Ms(FirstTokenTime, 90)],
    );
}
