//! The scoreboard: progress while cases run, then what failed and why, then totals.
//!
//! Apart from running so that the same verdicts go to a terminal, a pipe or JSON. Colours and the bar are for
//! terminals only. Must not know: how verdicts came about.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::case::Section;
use super::run::Verdict;

/// Complaints shown of one case.
const SHOWN_MAX: usize = 4;

/// A bar on a terminal, nothing elsewhere.
pub fn bar(cases: usize) -> ProgressBar {
    let target = match std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(cases as u64), target);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} cases, {elapsed}  {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Ink for a terminal that wants it.
struct Ink {
    on: bool,
}

impl Ink {
    fn of(terminal: bool) -> Ink {
        Ink { on: terminal && std::env::var_os("NO_COLOR").is_none() }
    }

    fn red(&self, text: &str) -> String {
        if self.on { format!("\x1b[31m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn green(&self, text: &str) -> String {
        if self.on { format!("\x1b[32m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The scoreboard as text: what failed and why, then totals. `every` shows the passes too.
pub fn text(verdicts: &[Verdict], every: bool, terminal: bool) -> String {
    let ink = Ink::of(terminal);
    let mut out = String::new();
    for section in Section::ALL {
        let mut of: Vec<_> = verdicts.iter().filter(|verdict| verdict.section == section).collect();
        of.sort_by(|a, b| a.name.cmp(&b.name));
        for verdict in of {
            let name = format!("{} ({}, {})", verdict.name, verdict.profile.name(), verdict.protocol.name());
            if verdict.complaints.is_empty() {
                if every {
                    out.push_str(&format!("{} {name} {} ms\n", ink.green("pass"), verdict.took.as_millis()));
                }
                continue;
            }
            out.push_str(&format!("{} {name}\n", ink.red("FAIL")));
            for complaint in verdict.complaints.iter().take(SHOWN_MAX) {
                out.push_str(&format!("     {complaint}\n"));
            }
            let more = verdict.complaints.len().saturating_sub(SHOWN_MAX);
            if more > 0 {
                out.push_str(&format!("     and {more} more\n"));
            }
        }
    }
    out.push_str(&totals(verdicts, &ink));
    out
}

fn totals(verdicts: &[Verdict], ink: &Ink) -> String {
    let mut out = format!("\n{:<28}{:>8}{:>8}\n", "section", "passed", "failed");
    let row = |title: &str, of: &[&Verdict]| {
        let failed = of.iter().filter(|verdict| !verdict.complaints.is_empty()).count();
        let count = format!("{failed:>8}");
        let count = if failed > 0 { ink.red(&count) } else { count };
        format!("{title:<28}{:>8}{count}\n", of.len() - failed)
    };
    for section in Section::ALL {
        let of: Vec<_> = verdicts.iter().filter(|verdict| verdict.section == section).collect();
        if !of.is_empty() {
            out.push_str(&row(section.title(), &of));
        }
    }
    out.push_str(&row("all", &verdicts.iter().collect::<Vec<_>>()));
    out
}

/// The verdicts as one JSON text.
pub fn json(verdicts: &[Verdict]) -> String {
    let cases: Vec<_> = verdicts
        .iter()
        .map(|verdict| {
            json!({
                "name": verdict.name,
                "section": verdict.section.title(),
                "profile": verdict.profile.name(),
                "protocol": verdict.protocol.name(),
                "passed": verdict.complaints.is_empty(),
                "complaints": verdict.complaints,
                "took_ms": verdict.took.as_millis() as u64,
            })
        })
        .collect();
    let failed = verdicts.iter().filter(|verdict| !verdict.complaints.is_empty()).count();
    json!({ "passed": verdicts.len() - failed, "failed": failed, "cases": cases }).to_string()
}
