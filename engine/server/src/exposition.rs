//! `/metrics`: what the engine did, under the names that dashboards and load balancers of other servers look for.
//!
//! Apart as the only importer of the prometheus library. Every family is kept once, and written once for each
//! prefix that is on. Must not know: how the engine schedules, HTTP.
//!
//! Times are differences of the engine's own stamps, so that they agree with the `metrics` object of a response;
//! only those from a request's arrival begin before the engine knew of it.

mod catalogue;

use std::sync::{Mutex, PoisonError};

use pitot_runtime::{EngineState, Finish, Stamps, Usage};
use prometheus::core::Collector;
use prometheus::{Encoder, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry, TextEncoder};

use catalogue::{Counter, Gauge, Histogram};

/// Whose names are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    Vllm,
    Aphrodite,
}

impl Prefix {
    fn text(self) -> &'static str {
        match self {
            Prefix::Vllm => "vllm:",
            Prefix::Aphrodite => "aphrodite:",
        }
    }
}

/// What stays the same while the engine runs.
#[derive(Debug, Clone)]
pub struct About {
    /// Label of every family.
    pub model: String,
    pub prefixes: Vec<Prefix>,
    pub prefix_cache: bool,
    /// At the start.
    pub state: EngineState,
}

/// The end of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    pub arrived_ns: u64,
    pub max_tokens: u32,
    pub stamps: Stamps,
    pub usage: Usage,
    pub finish: &'a Finish,
}

/// All families, registered.
#[derive(Debug)]
pub struct Exposition {
    registry: Registry,
    prefixes: Vec<Prefix>,
    prefix_cache: bool,
    gauges: Vec<prometheus::Gauge>,
    counters: Vec<IntCounter>,
    histograms: Vec<prometheus::Histogram>,
    success: IntCounterVec,
    prompt_sources: IntCounterVec,
    /// The sums of the engine that were counted so far.
    counted: Mutex<EngineState>,
}

impl Exposition {
    /// Registers every family.
    ///
    /// # Errors
    /// When a name is registered twice.
    pub fn new(about: &About) -> prometheus::Result<Exposition> {
        let registry = Registry::new();
        let options = |(name, help): (&str, &str)| {
            Opts::new(name, help).const_label("model_name", about.model.clone()).const_label("engine", "0")
        };
        let gauge =
            |gauge: &Gauge| register(&registry, prometheus::Gauge::with_opts(options(gauge.about()))?);
        let counter =
            |counter: &Counter| register(&registry, IntCounter::with_opts(options(counter.about()))?);
        let histogram = |histogram: &Histogram| {
            let buckets = histogram.buckets(about.state.context_max);
            let common_opts = options(histogram.about());
            register(&registry, prometheus::Histogram::with_opts(HistogramOpts { common_opts, buckets })?)
        };
        let success = ("request_success_total", "Sequences that ended, by why; aborted and failed ones too.");
        let success = register(&registry, IntCounterVec::new(options(success), &["finished_reason"])?)?;
        let sources = ("prompt_tokens_by_source_total", "Prompt tokens, by where their keys came from.");
        let prompt_sources = register(&registry, IntCounterVec::new(options(sources), &["source"])?)?;
        let exposition = Exposition {
            gauges: Gauge::ALL.iter().map(gauge).collect::<Result<_, _>>()?,
            counters: Counter::ALL.iter().map(counter).collect::<Result<_, _>>()?,
            histograms: Histogram::ALL.iter().map(histogram).collect::<Result<_, _>>()?,
            success,
            prompt_sources,
            prefixes: about.prefixes.clone(),
            prefix_cache: about.prefix_cache,
            counted: Mutex::default(),
            registry,
        };
        for reason in ["stop", "length", "abort", "error"] {
            // A series that is there from the start has a rate from the first request on.
            exposition.success.with_label_values(&[reason]);
        }
        register(&exposition.registry, cache_config(about)?)?;
        Ok(exposition)
    }

    /// Tells the engine's load after a step.
    pub fn state(&self, state: &EngineState) {
        self.gauge(Gauge::Running, state.running as f64);
        self.gauge(Gauge::Waiting, state.waiting as f64);
        // An engine has at least one block.
        self.gauge(Gauge::KvCacheUsage, state.blocks_used as f64 / state.blocks_total.max(1) as f64);
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let found = state.prefix_counts.found - counted.prefix_counts.found;
        let queried = state.prefix_counts.queried - counted.prefix_counts.queried;
        self.count(Counter::Preemptions, state.preemptions - counted.preemptions);
        self.count(Counter::PromptTokens, queried);
        self.count(Counter::PromptTokensCached, found);
        self.prompt_sources.with_label_values(&["local_compute"]).inc_by(queried - found);
        self.prompt_sources.with_label_values(&["local_cache_hit"]).inc_by(found);
        if self.prefix_cache {
            self.count(Counter::PrefixCacheQueries, queried);
            self.count(Counter::PrefixCacheHits, found);
        }
        *counted = *state;
    }

    /// Tells how many tokens a step computed.
    pub fn step(&self, tokens: usize) {
        self.observe(Histogram::IterationTokens, tokens as f64);
    }

    /// Tells an output token; `last_ns` is the stamp of the one before it.
    pub fn token(&self, arrived_ns: u64, last_ns: Option<u64>, at_ns: u64) {
        self.count(Counter::GenerationTokens, 1);
        match last_ns {
            Some(last_ns) => self.observe(Histogram::InterTokenLatency, seconds(last_ns, at_ns)),
            None => self.observe(Histogram::TimeToFirstToken, seconds(arrived_ns, at_ns)),
        }
    }

    /// Tells the end of a sequence.
    pub fn ended(&self, ended: &Ended<'_>) {
        self.success.with_label_values(&[reason(ended.finish)]).inc();
        let Ended { arrived_ns, max_tokens, stamps, usage, finish } = *ended;
        match finish {
            Finish::Stop { .. } | Finish::Length => {}
            Finish::Abort | Finish::Error(_) => return,
        }
        let Stamps { queued, scheduled, first, last } = stamps;
        let (Some(queued), Some(scheduled), Some(first), Some(last)) = (queued, scheduled, first, last)
        else {
            return;
        };
        self.observe(Histogram::EndToEnd, seconds(arrived_ns, last));
        self.observe(Histogram::QueueTime, seconds(queued, scheduled));
        self.observe(Histogram::InferenceTime, seconds(scheduled, last));
        self.observe(Histogram::PrefillTime, seconds(scheduled, first));
        self.observe(Histogram::DecodeTime, seconds(first, last));
        let later = usage.tokens_output.saturating_sub(1);
        let each = if later == 0 { 0.0 } else { seconds(first, last) / f64::from(later) };
        self.observe(Histogram::TimePerOutputToken, each);
        self.observe(Histogram::PromptTokens, f64::from(usage.tokens_prompt));
        self.observe(Histogram::GenerationTokens, f64::from(usage.tokens_output));
        self.observe(Histogram::MaxTokens, f64::from(max_tokens));
        let computed = usage.tokens_prompt.saturating_sub(usage.tokens_cached);
        self.observe(Histogram::PrefillComputed, f64::from(computed));
    }

    /// Tells the end of a request: its choices, and the output tokens of its longest sequence.
    pub fn request(&self, choices: usize, tokens_output_most: u32) {
        self.observe(Histogram::Choices, choices as f64);
        self.observe(Histogram::GenerationTokensMost, f64::from(tokens_output_most));
    }

    /// The text that a scraper reads.
    ///
    /// # Errors
    /// When a family cannot be written, which its registration rules out.
    pub fn text(&self) -> prometheus::Result<String> {
        let families = self.registry.gather();
        let mut bytes = Vec::new();
        for prefix in &self.prefixes {
            let mut named = families.clone();
            for family in &mut named {
                let name = format!("{}{}", prefix.text(), family.name());
                family.set_name(name);
            }
            TextEncoder::new().encode(&named, &mut bytes)?;
        }
        String::from_utf8(bytes).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }

    fn gauge(&self, gauge: Gauge, value: f64) {
        self.gauges[gauge as usize].set(value);
    }

    fn count(&self, counter: Counter, more: u64) {
        self.counters[counter as usize].inc_by(more);
    }

    fn observe(&self, histogram: Histogram, value: f64) {
        self.histograms[histogram as usize].observe(value);
    }
}

/// Sizes of the cache, as labels of a gauge that is always 1.
fn cache_config(about: &About) -> prometheus::Result<prometheus::GaugeVec> {
    let EngineState { block_tokens, blocks_total, context_max, .. } = about.state;
    let tokens = blocks_total * block_tokens;
    let labels = [
        ("block_size", block_tokens.to_string()),
        ("num_gpu_blocks", blocks_total.to_string()),
        ("cache_dtype", "float32".to_owned()),
        ("enable_prefix_caching", if about.prefix_cache { "True" } else { "False" }.to_owned()),
        ("prefix_caching_hash_algo", "sha256".to_owned()),
        ("kv_cache_size_tokens", tokens.to_string()),
        ("kv_cache_max_concurrency", (tokens as f64 / context_max.max(1) as f64).to_string()),
        ("engine", "0".to_owned()),
    ];
    let names: Vec<&str> = labels.iter().map(|(name, _)| *name).collect();
    let values: Vec<&str> = labels.iter().map(|(_, value)| value.as_str()).collect();
    let info = prometheus::GaugeVec::new(Opts::new("cache_config_info", "Sizes of the cache."), &names)?;
    info.with_label_values(&values).set(1.0);
    Ok(info)
}

fn reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop { .. } => "stop",
        Finish::Length => "length",
        Finish::Abort => "abort",
        Finish::Error(_) => "error",
    }
}

fn seconds(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e9
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exposition() -> Exposition {
        let state =
            EngineState { block_tokens: 16, blocks_total: 10, context_max: 80, ..EngineState::default() };
        let about = About { model: "m".to_owned(), prefixes: vec![Prefix::Vllm], prefix_cache: true, state };
        Exposition::new(&about).unwrap()
    }

    #[track_caller]
    fn check(exposition: &Exposition, line: &str) {
        let text = exposition.text().unwrap();
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }

    #[test]
    fn an_enum_is_the_place_in_its_list() {
        assert!(Gauge::ALL.iter().enumerate().all(|(place, gauge)| *gauge as usize == place));
        assert!(Counter::ALL.iter().enumerate().all(|(place, counter)| *counter as usize == place));
        assert!(Histogram::ALL.iter().enumerate().all(|(place, histogram)| *histogram as usize == place));
    }

    #[test]
    fn times_follow_their_definitions() {
        let exposition = exposition();
        let stamp = |ms: u64| Some(ms * 1_000_000);
        // Arrived at 1 s, queued at 1.25, scheduled at 1.5, first token at 2, last of five at 4.
        let stamps =
            Stamps { queued: stamp(1250), scheduled: stamp(1500), first: stamp(2000), last: stamp(4000) };
        let usage = Usage { tokens_prompt: 48, tokens_cached: 32, tokens_output: 5 };
        let ended =
            Ended { arrived_ns: 1_000_000_000, max_tokens: 5, stamps, usage, finish: &Finish::Length };
        exposition.token(1_000_000_000, None, 2_000_000_000);
        exposition.token(1_000_000_000, stamp(2000), 2_500_000_000);
        exposition.ended(&ended);
        let sums = [
            ("time_to_first_token_seconds", "1"),
            ("inter_token_latency_seconds", "0.5"),
            ("e2e_request_latency_seconds", "3"),
            ("request_queue_time_seconds", "0.25"),
            ("request_prefill_time_seconds", "0.5"),
            ("request_decode_time_seconds", "2"),
            ("request_inference_time_seconds", "2.5"),
            ("request_time_per_output_token_seconds", "0.5"),
            ("request_prompt_tokens", "48"),
            ("request_generation_tokens", "5"),
            ("request_prefill_kv_computed_tokens", "16"),
        ];
        for (name, sum) in sums {
            check(&exposition, &format!("vllm:{name}_sum{{engine=\"0\",model_name=\"m\"}} {sum}"));
        }
        // Neither an abort nor a failure has times; one token has no time per token.
        exposition.ended(&Ended { finish: &Finish::Abort, ..ended });
        exposition.ended(&Ended { finish: &Finish::Error(String::new()), ..ended });
        let usage = Usage { tokens_output: 1, ..usage };
        exposition.ended(&Ended { usage, finish: &Finish::Stop { stop: None }, ..ended });
        let count = "vllm:request_time_per_output_token_seconds_count{engine=\"0\",model_name=\"m\"} 2";
        check(&exposition, count);
        check(
            &exposition,
            "vllm:request_time_per_output_token_seconds_sum{engine=\"0\",model_name=\"m\"} 0.5",
        );
        for reason in ["stop", "length", "abort", "error"] {
            let line = format!(
                "vllm:request_success_total{{engine=\"0\",finished_reason=\"{reason}\",model_name=\"m\"}} 1"
            );
            check(&exposition, &line);
        }
    }

    #[test]
    fn the_load_is_told_as_it_is_and_sums_by_what_they_grew() {
        let exposition = exposition();
        let counts = |queried, found| pitot_runtime::PrefixCounts { queried, found };
        let state = EngineState {
            running: 2,
            waiting: 3,
            blocks_total: 10,
            blocks_used: 4,
            preemptions: 1,
            prefix_counts: counts(40, 0),
            ..EngineState::default()
        };
        exposition.state(&state);
        exposition.state(&EngineState { prefix_counts: counts(80, 32), ..state });
        let labels = "{engine=\"0\",model_name=\"m\"}";
        for (name, value) in [
            ("num_requests_running", "2"),
            ("num_requests_waiting", "3"),
            ("kv_cache_usage_perc", "0.4"),
            ("num_preemptions_total", "1"),
            ("prefix_cache_queries_total", "80"),
            ("prefix_cache_hits_total", "32"),
            ("prompt_tokens_total", "80"),
            ("prompt_tokens_cached_total", "32"),
        ] {
            check(&exposition, &format!("vllm:{name}{labels} {value}"));
        }
        let by_source = |source: &str| {
            format!("vllm:prompt_tokens_by_source_total{{engine=\"0\",model_name=\"m\",source=\"{source}\"}}")
        };
        check(&exposition, &format!("{} 48", by_source("local_compute")));
        check(&exposition, &format!("{} 32", by_source("local_cache_hit")));
        let text = exposition.text().unwrap();
        let info = text.lines().find(|line| line.starts_with("vllm:cache_config_info{")).unwrap();
        for part in ["block_size=\"16\"", "num_gpu_blocks=\"10\"", "kv_cache_max_concurrency=\"2\"", "} 1"] {
            assert!(info.contains(part), "{info}");
        }
    }
}
