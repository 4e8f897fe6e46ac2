//! A DDSketch of few values: sparse buckets while it is filled, the library's sketch when it is asked.
//!
//! Apart because a rolling window keeps hundreds of sketches, most of them of a handful of values, and the
//! library's dense store would take a kilobyte for each. Bucket boundaries are the library's own, so nothing is
//! lost. Must not know: what is sketched.
//!
//! Source: Masson, Rim, Lee, "DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees"
//! (2019). A quantile is off by at most [`RELATIVE_ERROR`] of its value.

use sketches_ddsketch::{Config, DDSketch};

/// Largest error of a quantile, as a share of its value.
pub const RELATIVE_ERROR: f64 = 0.01;

/// More buckets than times between 1 ns and 100 years fall into at this error (about 2150).
const BUCKETS_MAX: u32 = 2304;

/// Lowest value that is told from 0, in nanoseconds.
const VALUE_MIN: f64 = 1.0;

/// How values are put into buckets.
#[derive(Debug, Clone, Copy)]
pub struct Mapping(Config);

impl Default for Mapping {
    fn default() -> Self {
        Mapping(Config::new(RELATIVE_ERROR, BUCKETS_MAX, VALUE_MIN))
    }
}

/// Values in nanoseconds, counted in buckets of relative width.
#[derive(Debug, Clone, Default)]
pub struct Sketch {
    /// Values below 1 ns, which have no logarithm.
    zeros: u64,
    /// Sorted by bucket.
    buckets: Vec<(i32, u64)>,
    count: u64,
    sum: f64,
    range: Option<(f64, f64)>,
}

impl Sketch {
    /// Adds a value; one that is no finite number of at least 0 is left out.
    pub fn add(&mut self, mapping: Mapping, value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        self.count += 1;
        self.sum += value;
        let (least, most) = self.range.unwrap_or((value, value));
        self.range = Some((least.min(value), most.max(value)));
        if value < VALUE_MIN {
            self.zeros += 1;
        } else {
            self.bucket(mapping.0.key(value), 1);
        }
    }

    fn bucket(&mut self, key: i32, count: u64) {
        match self.buckets.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(place) => self.buckets[place].1 += count,
            Err(place) => self.buckets.insert(place, (key, count)),
        }
    }

    /// Adds what another sketch holds.
    pub fn merge(&mut self, other: &Sketch) {
        self.zeros += other.zeros;
        self.count += other.count;
        self.sum += other.sum;
        self.range = match (self.range, other.range) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
        for (key, count) in &other.buckets {
            self.bucket(*key, *count);
        }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Least and most value, exact.
    pub fn range(&self) -> Option<(f64, f64)> {
        self.range
    }

    /// Quantiles, each within [`RELATIVE_ERROR`] and within the exact range. All None if nothing was added.
    pub fn quantiles<const N: usize>(&self, mapping: Mapping, shares: [f64; N]) -> [Option<f64>; N] {
        let Some((least, most)) = self.range else { return [None; N] };
        let mut dense = DDSketch::new(mapping.0);
        dense.add_with_count(0.0, self.zeros);
        for (key, count) in &self.buckets {
            dense.add_with_count(mapping.0.value(*key), *count);
        }
        shares.map(|share| Some(dense.quantile(share).ok()??.clamp(least, most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_keep_the_stated_error() {
        let mapping = Mapping::default();
        let (mut whole, mut even, mut odd) = (Sketch::default(), Sketch::default(), Sketch::default());
        for value in 1..=10_001_u32 {
            let ns = f64::from(value) * 1e6;
            whole.add(mapping, ns);
            if value % 2 == 0 { even.add(mapping, ns) } else { odd.add(mapping, ns) }
        }
        even.merge(&odd);
        for sketch in [whole, even] {
            assert_eq!((sketch.count(), sketch.mean()), (10_001, Some(5001e6)));
            // Of 1..=10001 ms the share q lies at 1 + 10000·q.
            for (share, exact) in [(0.0, 1e6), (0.5, 5001e6), (0.9, 9001e6), (0.99, 9901e6), (1.0, 10_001e6)]
            {
                let [found] = sketch.quantiles(mapping, [share]);
                let found = found.unwrap();
                assert!((found / exact - 1.0).abs() <= RELATIVE_ERROR + 1e-9, "{share}: {found} for {exact}");
            }
        }
    }

    #[test]
    fn zero_is_a_value_and_nothing_is_none() {
        let mapping = Mapping::default();
        let mut sketch = Sketch::default();
        assert_eq!(sketch.quantiles(mapping, [0.5]), [None]);
        sketch.add(mapping, f64::NAN);
        sketch.add(mapping, -1.0);
        assert_eq!(sketch.count(), 0);
        sketch.add(mapping, 0.0);
        assert_eq!(sketch.quantiles(mapping, [0.0, 1.0]), [Some(0.0), Some(0.0)]);
    }
}
