//! How close the gateway's stamps come to the engine's own, and what the gateway itself costs: a benchmark.
//!
//! Apart from the tests, since its figures are of a machine and a day. Starts nothing: it asks a Pitot that runs
//! (`deploy/up`) and reads the records of what it asked. Must not know: how anything is measured.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use serde_json::{Value, json};

/// Measures a running Pitot by the records of streamed requests.
#[derive(Debug, Parser)]
#[command(
    about,
    long_about = "\
Sends streamed chats to a Pitot that runs, one after another, and prints medians and 99th percentiles over their \
records:

  first token   the gateway's stamp of the read less the engine's stamp of the step that made the token
  last token    the same for the end of the answer
  own work      the gateway's own work on a request, and on one chunk

  deploy/up                                                    in one terminal
  cargo run --release -p pitot-tests --bin stamps              in another"
)]
struct Arguments {
    /// The endpoint for applications.
    #[arg(long, default_value = "127.0.0.1:2242")]
    address: String,
    /// The admin listener.
    #[arg(long, default_value = "127.0.0.1:2243")]
    admin: String,
    /// The model to ask.
    #[arg(long, default_value = "SmolLM2-135M-Instruct")]
    model: String,
    /// How many requests.
    #[arg(long, default_value_t = 50)]
    requests: usize,
    /// Tokens of each answer.
    #[arg(long, default_value_t = 32)]
    tokens: u32,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stamps: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let progress = indicatif::ProgressBar::new(arguments.requests as u64);
    let mut records = Vec::new();
    for _ in 0..arguments.requests {
        records.push(ask(arguments)?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let between = |from: &'static str, to: &'static str| {
        move |record: &Value| Some(record[to].as_f64()? - record[from].as_f64()?)
    };
    println!("{} requests, microseconds                 median       p99", records.len());
    show("first token, read less engine's stamp", &records, between("engine_first_ns", "first_token_ns"));
    show("answer's end, read less engine's stamp", &records, between("engine_last_ns", "finish_ns"));
    show("own work on a request", &records, |record| record["own_request_ns"].as_f64());
    show("own work on a chunk", &records, |record| {
        Some(record["own_chunks_ns"].as_f64()? / record["own_chunks"].as_f64()?)
    });
    Ok(())
}

fn show(what: &str, records: &[Value], value: impl Fn(&Value) -> Option<f64>) {
    let mut values: Vec<f64> = records.iter().filter_map(value).collect();
    values.sort_by(f64::total_cmp);
    let at =
        |share: f64| values.get(((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1)));
    match (at(0.5), at(0.99)) {
        (Some(median), Some(high)) => println!("  {what:<40} {:>9.1} {:>9.1}", median / 1e3, high / 1e3),
        (None, _) | (_, None) => println!("  {what:<40} not reported"),
    }
}

fn ask(arguments: &Arguments) -> anyhow::Result<Value> {
    let body = json!({
        "model": arguments.model, "stream": true, "temperature": 0, "max_tokens": arguments.tokens,
        "messages": [{"role": "user", "content": "Tell a story."}],
    })
    .to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let reply = exchange(&arguments.address, &format!("{head}content-length: {}\r\n\r\n{body}", body.len()))?;
    if !reply.starts_with("HTTP/1.1 200") {
        bail!("the gateway answered: {}", reply.lines().next().unwrap_or_default());
    }
    let id = reply
        .lines()
        .find_map(|line| line.strip_prefix("x-request-id: ").or(line.strip_prefix("X-Request-Id: ")));
    let id = id.context("the reply has no x-request-id")?;
    let get = format!("GET /requests/{id} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n");
    // The record is made when the connection has ended, which may be a moment after we saw its end.
    for _ in 0..100 {
        let page = exchange(&arguments.admin, &get)?;
        if page.starts_with("HTTP/1.1 200") {
            let (_, body) = page.split_once("\r\n\r\n").context("the admin listener's reply has no body")?;
            return serde_json::from_str(body).context("the record is not JSON");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("the record of {id} did not appear")
}

fn exchange(address: &str, request: &str) -> anyhow::Result<String> {
    let mut stream =
        TcpStream::connect(address).with_context(|| format!("{address}; is deploy/up running?"))?;
    stream.write_all(request.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}
