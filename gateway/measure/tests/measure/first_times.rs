//! What others call time to first token, and counts where the upstream says none.
//!
//! Apart because both are about names that are easily mixed up. Must not know: rules.

use pitot_measure::OutcomeKind::{Interrupted, Success};
use pitot_measure::definitions::Metric::*;
use pitot_measure::first_times::{FirstTime, first_time};
use pitot_measure::{Absent, Endpoint, Flag, Quantity, Source, UsageAsked, families};

use crate::play::Expect::{self, Count, Ms, NoFlags, Null, Outcome};
use crate::play::{DONE, MS, Play, ROLE, check, content, end_of, engine, finish, reasoning};

#[test]
fn each_first_time_waits_for_something_else() {
    // Sent at 10 ms, the head at 15.
    let record = Play::chat()
        .read(20, "data: {\"choices\":[],\"prompt_progress\":{\"total\":9}}\n\n")
        .read(30, ROLE)
        .read(50, &reasoning("a"))
        .read(80, &content("b"))
        .read(90, &end_of("stop", 5, 2))
        .ended(95)
        .run();
    for (which, ms) in [
        (FirstTime::Headers, 5),
        (FirstTime::OpenTelemetryFirstChunk, 10),
        (FirstTime::VllmBenchTtft, 20),
        (FirstTime::AiperfTtft, 40),
        (FirstTime::AiperfTtfo, 70),
        (FirstTime::AnswerToken, 70),
    ] {
        assert_eq!(first_time(&record, which), Quantity::measured(ms * MS), "{which}");
    }
    let whole = Play::whole().read(90, "{\"choices\":[{\"message\":{\"content\":\"a\"}}]}").ended(95).run();
    for which in FirstTime::ALL.iter().copied().filter(|which| *which != FirstTime::Headers) {
        assert_eq!(first_time(&whole, which), Quantity::Absent(Absent::NotStreamed), "{which}");
    }
    assert_eq!(first_time(&whole, FirstTime::Headers), Quantity::measured(5 * MS));
    let reasons_only =
        Play::chat().read(50, &[reasoning("a"), end_of("length", 5, 1)].concat()).ended(60).run();
    assert_eq!(first_time(&reasons_only, FirstTime::AiperfTtfo), Quantity::Absent(Absent::NoBody));
}

fn silent() -> Play {
    Play::chat().facts(|facts| facts.usage = UsageAsked::Not)
}

#[test]
fn events_stand_for_tokens_where_nothing_is_reported() {
    let play = silent()
        .read(50, &reasoning("a"))
        .read(60, &content("b"))
        .read(80, &content("c"))
        .read(90, &[finish("stop"), DONE.into()].concat())
        .ended(95);
    let estimated = |metric| Expect::Source(metric, Source::Estimated);
    let record = check(
        "a stream without usage",
        &play,
        &[
            Outcome(Success),
            Count(OutputTokens, 3),
            estimated(OutputTokens),
            Count(ReasoningTokens, 1),
            Count(ContentTokens, 2),
            estimated(ContentTokens),
            Null(InputTokens, Absent::NotReported),
            Null(TotalTokens, Absent::NotReported),
            Expect::Float(TimePerToken, 15e6), // (80 − 50) ms / 2
            estimated(TimePerToken),
            Count(ContentSpeed, 100), // 2 in 20 ms
            estimated(ContentSpeed),
            Ms(ReasoningTime, 0),
            Expect::Source(ReasoningTime, Source::Inferred),
            Expect::Flag(Flag::TokensEstimated),
        ],
    );
    // An estimate is in no sum and breaks no law.
    let summed = families::samples(&record);
    assert!(summed.iter().all(|sample| sample.family != families::Family::OutputTokens));
    let counted = play.clone().engine(85, engine(20, 30, 45, 75, 5, 4)).run();
    assert_eq!(counted.violations, []);
}

#[test]
fn nothing_is_estimated_of_what_is_not_complete() {
    let broken = silent().read(50, &content("a")).ended(60);
    check(
        "no terminal event",
        &broken,
        &[Outcome(Interrupted), Null(OutputTokens, Absent::NotReported), NoFlags],
    );
    let unread =
        silent().read(50, "data: {\n\n").read(60, &[content("a"), finish("stop")].concat()).ended(70);
    check("a frame that was not read", &unread, &[Null(OutputTokens, Absent::NotReported)]);
    let whole = Play::whole()
        .read(90, "{\"choices\":[{\"message\":{\"content\":\"a b c\"},\"finish_reason\":\"stop\"}]}")
        .ended(95);
    check("a whole reply", &whole, &[Outcome(Success), Null(OutputTokens, Absent::NotReported)]);
    let other = Play::new(Endpoint::Other, true).sent(10).head(15, 200, pitot_measure::BodyKind::EventStream);
    check(
        "another path",
        &other.read(50, &content("a")).ended(60),
        &[Null(OutputTokens, Absent::NotReported)],
    );
}
