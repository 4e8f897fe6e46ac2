//! Rotations from config.json: which pairs of a head turn how fast, and how the model stretches them.
//!
//! Apart because it is arithmetic that all families share, on few keys with many spellings. Must not know: layers,
//! tensors.
//!
//! Source: RoFormer (Su et al. 2021); the scalings as `modeling_rope_utils` of Hugging Face transformers defines
//! them: linear, llama3, yarn (Peng et al. 2023), longrope (Ding et al. 2024).

use std::f64::consts::PI;

use pitot_kernels::Rope;
use serde_json::Value as Json;

use super::LoadError;
use super::json::{invalid, optional_size, positive, positives, required};

/// Pairs of dimensions that turn, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pairs(usize);

impl Pairs {
    /// All of the head, or the part that `partial_rotary_factor` says.
    pub fn of(json: &Json, head_dim: usize) -> Result<Pairs, LoadError> {
        let key = "partial_rotary_factor";
        let place = if json[key].is_null() { &json["rope_parameters"] } else { json };
        let part = positive(place, key)?.unwrap_or(1.0);
        let dimensions = (head_dim as f64 * part) as usize;
        if dimensions == 0 || dimensions > head_dim || !dimensions.is_multiple_of(2) {
            return Err(invalid(place, key, "an even number of a head's dimensions must turn"));
        }
        Ok(Pairs(dimensions / 2))
    }

    /// Radians a position of each pair before scaling: theta^(-i/n) for n pairs.
    fn frequencies(self, theta: f64) -> impl Iterator<Item = f64> {
        (0..self.0).map(move |pair| theta.powf(-(pair as f64) / self.0 as f64))
    }
}

/// A rotation and the context that it serves.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scaled {
    pub rope: Rope,
    pub context_max: usize,
}

/// The rotation of a model with one; `theta` where the file does not say.
pub(super) fn of_model(
    json: &Json,
    theta: f64,
    pairs: Pairs,
    context_max: usize,
) -> Result<Scaled, LoadError> {
    // Newer files keep theta beside the scaling, under another key.
    let nested = &json["rope_parameters"];
    let theta = match positive(json, "rope_theta")? {
        Some(theta) => theta,
        None => positive(nested, "rope_theta")?.unwrap_or(theta),
    };
    let scaling = if json["rope_scaling"].is_null() { nested } else { &json["rope_scaling"] };
    // Phi-3 keeps this key outside of the scaling.
    let trained = match optional_size(scaling, "original_max_position_embeddings")? {
        Some(trained) => Some(trained),
        None => optional_size(json, "original_max_position_embeddings")?,
    };
    scaled(scaling, theta, pairs, context_max, trained)
}

/// A rotation under one object of scaling keys; null means none. `trained` is the context before it was stretched.
pub(super) fn scaled(
    scaling: &Json,
    theta: f64,
    pairs: Pairs,
    context_max: usize,
    trained: Option<usize>,
) -> Result<Scaled, LoadError> {
    let kind = scaling["rope_type"].as_str().or_else(|| scaling["type"].as_str()).unwrap_or("default");
    let plain = |frequencies: Vec<f64>| Scaled { rope: rope(&frequencies, 1.0), context_max };
    let key = "original_max_position_embeddings";
    match kind {
        "default" => Ok(plain(pairs.frequencies(theta).collect())),
        "linear" => {
            let factor = required(scaling, "factor")?;
            Ok(plain(pairs.frequencies(theta).map(|frequency| frequency / factor).collect()))
        }
        "llama3" => {
            let scaling = Llama3::from_json(scaling)?;
            Ok(plain(pairs.frequencies(theta).map(|frequency| scaling.apply(frequency)).collect()))
        }
        "yarn" => {
            let trained = trained.ok_or(LoadError::Missing { key })?;
            let rope = yarn(scaling, theta, pairs, trained, context_max)?;
            Ok(Scaled { rope, context_max })
        }
        "longrope" | "su" => {
            long(scaling, theta, pairs, trained.ok_or(LoadError::Missing { key })?, context_max)
        }
        other => Err(LoadError::Unsupported { key: "rope_type", value: other.to_owned() }),
    }
}

fn rope(frequencies: &[f64], scale: f64) -> Rope {
    Rope {
        inverse_frequencies: frequencies.iter().map(|frequency| *frequency as f32).collect(),
        scale: scale as f32,
    }
}

struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    context: f64,
}

impl Llama3 {
    fn from_json(json: &Json) -> Result<Llama3, LoadError> {
        let scaling = Llama3 {
            factor: required(json, "factor")?,
            low: required(json, "low_freq_factor")?,
            high: required(json, "high_freq_factor")?,
            context: required(json, "original_max_position_embeddings")?,
        };
        if scaling.high <= scaling.low {
            return Err(invalid(json, "high_freq_factor", "it is not above low_freq_factor"));
        }
        Ok(scaling)
    }

    /// Long waves are divided by the factor, short ones kept, those between interpolated.
    fn apply(&self, frequency: f64) -> f64 {
        let wavelength = 2.0 * PI / frequency;
        if wavelength > self.context / self.low {
            frequency / self.factor
        } else if wavelength < self.context / self.high {
            frequency
        } else {
            let smooth = (self.context / wavelength - self.low) / (self.high - self.low);
            (1.0 - smooth) * frequency / self.factor + smooth * frequency
        }
    }
}

/// Pairs that turn often within the trained context keep their frequency, those that turn seldom are divided by the
/// factor, between them a ramp over the index of the pair.
fn yarn(
    json: &Json,
    theta: f64,
    pairs: Pairs,
    trained: usize,
    context_max: usize,
) -> Result<Rope, LoadError> {
    let factor = positive(json, "factor")?.unwrap_or(context_max as f64 / trained as f64);
    let fast = positive(json, "beta_fast")?.unwrap_or(32.0);
    let slow = positive(json, "beta_slow")?.unwrap_or(1.0);
    let dimensions = 2.0 * pairs.0 as f64;
    // The dimension whose pair turns so many times within the trained context.
    let dimension = |turns: f64| dimensions * (trained as f64 / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let (mut low, mut high) = (dimension(fast), dimension(slow));
    if json["truncate"].as_bool().unwrap_or(true) {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, high) = (low.max(0.0), high.min(dimensions - 1.0));
    // As transformers does it, so that the ramp has a slope.
    let high = if low == high { high + 0.001 } else { high };
    let frequencies = pairs.frequencies(theta).enumerate().map(|(pair, frequency)| {
        let divided = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
        frequency / factor * divided + frequency * (1.0 - divided)
    });
    let frequencies: Vec<f64> = frequencies.collect();
    let stretch = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
    let scale = match positive(json, "attention_factor")? {
        Some(scale) => scale,
        None => match (positive(json, "mscale")?, positive(json, "mscale_all_dim")?) {
            (Some(one), Some(all)) => stretch(one) / stretch(all),
            (Some(_) | None, Some(_) | None) => stretch(1.0),
        },
    };
    Ok(rope(&frequencies, scale))
}

/// The rotation for contexts up to the trained one. Beyond it the model wants other frequencies, for keys that are
/// in the cache already too, so a sequence could not grow across; the context ends there instead.
fn long(
    json: &Json,
    theta: f64,
    pairs: Pairs,
    trained: usize,
    context_max: usize,
) -> Result<Scaled, LoadError> {
    let divisors = positives(json, "short_factor", pairs.0)?;
    let frequencies = pairs.frequencies(theta).zip(divisors).map(|(frequency, divisor)| frequency / divisor);
    let frequencies: Vec<f64> = frequencies.collect();
    let factor = positive(json, "factor")?.unwrap_or(context_max as f64 / trained as f64);
    let scale = match positive(json, "attention_factor")? {
        Some(scale) => scale,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / (trained as f64).ln()).sqrt(),
    };
    Ok(Scaled { rope: rope(&frequencies, scale), context_max: context_max.min(trained) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FOUR: Pairs = Pairs(4);

    #[track_caller]
    fn check(scaling: Json, expected: [f32; 4], scale: f32) {
        let found = scaled(&scaling, 10_000.0, FOUR, 8192, Some(2048)).expect("it is well formed").rope;
        let close = |(a, b): (&f32, &f32)| (a / b - 1.0).abs() < 1e-5;
        let all = found.inverse_frequencies.iter().zip(&expected).all(close);
        assert!(all && close((&found.scale, &scale)), "{found:?}, expected {expected:?} and {scale}");
    }

    #[test]
    fn each_scaling_stretches_what_it_says() {
        // 10000^(-i/4).
        check(Json::Null, [1.0, 0.1, 0.01, 0.001], 1.0);
        check(json!({ "type": "linear", "factor": 4.0 }), [0.25, 0.025, 0.0025, 0.00025], 1.0);
        // Within 2048 positions the pairs turn 326, 33, 3.3 and 0.33 times. With 33 and 1 turns as the bounds the
        // dimensions are 8 ln(2048 / 33 / 2π) / 2 ln 10000 = 0.995 and 8 ln(2048 / 2π) / 2 ln 10000 = 2.51, so
        // that the ramp goes from 0 to 3: the parts divided by 4 are 0, 1/3, 2/3 and 1 of each.
        let yarn = json!({ "rope_type": "yarn", "factor": 4.0, "beta_fast": 33.0 });
        check(yarn, [1.0, 0.1 * 0.75, 0.01 * 0.5, 0.001 * 0.25], 1.0 + 0.1 * 4.0_f32.ln());
        let factor =
            json!({ "rope_type": "yarn", "factor": 4.0, "beta_fast": 33.0, "attention_factor": 1.5 });
        check(factor, [1.0, 0.075, 0.005, 0.00025], 1.5);
        // 8192 is 4 times 2048: sqrt(1 + ln 4 / ln 2048) = sqrt(1 + 2 / 11).
        let long = json!({ "type": "longrope", "short_factor": [1, 2, 4, 5], "long_factor": [9, 9, 9, 9] });
        check(long, [1.0, 0.05, 0.0025, 0.0002], (13.0_f32 / 11.0).sqrt());
    }

    #[test]
    fn a_long_rotation_serves_the_trained_context() {
        let long = json!({ "type": "su", "short_factor": [1, 1, 1, 1] });
        assert_eq!(scaled(&long, 1e4, FOUR, 8192, Some(2048)).expect("well formed").context_max, 2048);
    }

    #[test]
    fn llama3_scaling_divides_long_waves_only() {
        let scaling = Llama3 { factor: 8.0, low: 1.0, high: 4.0, context: 8192.0 };
        let turn = 2.0 * PI;
        assert_eq!(scaling.apply(1.0), 1.0);
        assert_eq!(scaling.apply(turn / 10_000.0), turn / 10_000.0 / 8.0);
        // Wavelength 4096: smooth = (2 - 1) / 3, so 2/3 · f/8 + 1/3 · f = 5/12 · f.
        let between = turn / 4096.0;
        assert!((scaling.apply(between) / between - 5.0 / 12.0).abs() < 1e-12);
    }

    #[test]
    fn part_of_a_head_may_turn() {
        let pairs = |json| Pairs::of(&json, 16);
        assert_eq!(pairs(json!({})).expect("all of it"), Pairs(8));
        assert_eq!(pairs(json!({ "partial_rotary_factor": 0.75 })).expect("a part"), Pairs(6));
        let nested = json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } });
        assert_eq!(pairs(nested).expect("a part"), Pairs(4));
        for wrong in [json!(0), json!(0.01), json!(1.5), json!("half")] {
            assert!(pairs(json!({ "partial_rotary_factor": wrong })).is_err());
        }
    }
}
