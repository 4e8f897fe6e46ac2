//! `faults`: the fault corpus against any OpenAI gateway, with a scoreboard.
//!
//! Apart from the test of the same name, which starts the gateways that it needs. Must not know: cases.

use std::io::{ErrorKind, IsTerminal, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;

use pitot_tests::faults::board;
use pitot_tests::faults::case::{Case, Protocol};
use pitot_tests::faults::cases;
use pitot_tests::faults::gateway::Profile;
use pitot_tests::faults::player::Player;
use pitot_tests::faults::run::{self, Place, Turn};

/// Plays faults of an LLM server behind a gateway and checks what its callers get.
///
/// The program is both ends: it listens as the upstream and sends requests through the gateway between. Each case has
/// a name, which is the model's name in its request; the upstream plays that case byte for byte, and the caller
/// compares every byte, the framing, and how the connection ends.
#[derive(Parser)]
#[command(after_help = AFTER_HELP)]
struct Arguments {
    /// The gateway under test, such as http://127.0.0.1:2242
    #[arg(long, value_name = "URL", required_unless_present = "list")]
    against: Option<String>,
    /// Admin listener of a gateway that is a Pitot: the record of each request is checked too
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// Where to listen as the upstream
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:2299")]
    upstream_listen: SocketAddr,
    /// Run only cases whose name contains this
    #[arg(long, value_name = "PATTERN", default_value = "")]
    only: String,
    /// The configuration that the gateway runs with; cases for others are left out
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = profile)]
    profile: Profile,
    /// Call in HTTP/2 without TLS in place of HTTP/1.1
    #[arg(long)]
    h2c: bool,
    /// List the cases of the profile and stop
    #[arg(long)]
    list: bool,
    /// Show passes too
    #[arg(long)]
    verbose: bool,
    /// Print the verdicts as JSON
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
How to point a gateway at the upstream: give it http://127.0.0.1:2299 (or what --upstream-listen says) as its one
OpenAI-compatible server, with no key, no retries and every model name passed on as it is. For a Pitot:

  pitot serve --upstream http://127.0.0.1:2299
  faults --against http://127.0.0.1:2242 --admin http://127.0.0.1:2243

Cases that need another configuration have a profile: start the gateway with its settings and name it.

  deadlines      first token 600 ms, idle 400 ms, whole request 2000 ms
  metrics        --enable-per-request-metrics
  forced         the same and --enable-force-include-usage
  strict         measure.case2=strict
  assembling     measure.stream_upstream=true
  small-body     limits.request_body_bytes=65536
  usage-never, usage-always    upstream.usage
  observing      measure.observe_deadline_ms=300
  inline-think   measure.inline_think=true
  from-400       measure.http_error_from=400
  alone          the default; cases one after another, about the pool of connections
  refusing       the default; the upstream refuses stream_options
  no-upstream    the default, with nobody listening upstream

The exit code is 1 if a case fails, and 2 if the run could not begin.";

fn profile(name: &str) -> Result<Profile, String> {
    Profile::of(name).ok_or_else(|| {
        let names: Vec<_> = Profile::ALL.iter().map(|profile| profile.name()).collect();
        format!("there are {}", names.join(", "))
    })
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("faults: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// True if every case passed.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let fits = |case: &Case| case.profile == arguments.profile && case.name.contains(&arguments.only);
    let cases: Vec<Case> = cases::all().into_iter().filter(fits).collect();
    if arguments.list {
        let names: String = cases.iter().map(|case| format!("{}\n", case.name)).collect();
        return print(&names).map(|()| true);
    }
    let protocol = if arguments.h2c { Protocol::H2c } else { Protocol::Http11 };
    let turns: Vec<Turn<'_>> = run::turns(&cases, &[protocol])
        .into_iter()
        .map(|(index, protocol)| Turn { case: &cases[index], protocol })
        .collect();
    if turns.is_empty() {
        bail!("no case of the profile {} contains {:?}", arguments.profile.name(), arguments.only);
    }
    let gateway = address(arguments.against.as_deref().unwrap_or_default())?;
    let admin = arguments.admin.as_deref().map(address).transpose()?;
    let player = Player::listen(arguments.upstream_listen)
        .with_context(|| format!("cannot listen on {} (--upstream-listen)", arguments.upstream_listen))?;
    let place = Place { gateway, admin, player: &player, profile: arguments.profile };
    let bar = board::bar(turns.len());
    let verdicts = run::run(&place, &turns, &|_| bar.inc(1));
    bar.finish_and_clear();
    let strays = player.strays();
    let shown = match arguments.json {
        true => format!("{}\n", board::json(&verdicts)),
        false => {
            let strays: String = strays.iter().map(|stray| format!("at the upstream: {stray}\n")).collect();
            board::text(&verdicts, arguments.verbose, std::io::stdout().is_terminal()) + &strays
        }
    };
    print(&shown)?;
    Ok(strays.is_empty() && verdicts.iter().all(|verdict| verdict.complaints.is_empty()))
}

/// Prints. A reader that has seen enough and closed the pipe is no error.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => Ok(printed?),
    }
}

/// The address in `http://host:port`, with a path that does not matter.
fn address(url: &str) -> anyhow::Result<SocketAddr> {
    let rest = url.strip_prefix("http://").with_context(|| format!("{url:?} does not begin with http://"))?;
    let host = rest.split('/').next().unwrap_or_default();
    let host = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let mut found = host.to_socket_addrs().with_context(|| format!("{host} has no address"))?;
    found.next().with_context(|| format!("{host} has no address"))
}
