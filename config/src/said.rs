//! Reads one key at a time from the merged layers into a type that cannot be wrong.
//!
//! Apart from the settings, which say only which keys there are, of which type and range. Every reader states in
//! words what the key takes; the same words stand in the default file (a test compares) and in the error. Must
//! not know: which program it reads for.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::Figment;
use figment::value::{Dict, Value};
use serde_json::Value as Json;

use crate::Resolved;
use crate::environment::Environment;
use crate::layers::{Merged, Product, Sources, compiled, merge};
use crate::problem::{Origin, Problem, Problems, Wrong};
use crate::show::{Row, Shown};

/// Longest value quoted in a message, in characters.
const QUOTED_CHARS_MAX: usize = 120;

/// Longest path of a Unix socket: macOS has 104 bytes with the closing zero, Linux 108.
const SOCKET_PATH_BYTES_MAX: usize = 103;

/// A value as its layer gave it: typed by TOML, or text of a variable or a flag.
pub(crate) enum Given<'a> {
    Typed(&'a Value),
    Text(&'a str),
}

impl<'a> Given<'a> {
    pub fn integer(&self) -> Option<u64> {
        match self {
            Given::Typed(value) => match value.to_u128() {
                Some(number) => u64::try_from(number).ok(),
                None => u64::try_from(value.to_i128()?).ok(),
            },
            Given::Text(text) => text.trim().replace('_', "").parse().ok(),
        }
    }

    pub fn switch(&self) -> Option<bool> {
        match self {
            Given::Typed(value) => value.to_bool(),
            Given::Text(text) => text.trim().parse().ok(),
        }
    }

    pub fn text(&self) -> Option<&'a str> {
        match self {
            Given::Typed(value) => value.as_str(),
            Given::Text(text) => Some(text.trim()),
        }
    }

    /// Items of a list; in text they are parted by commas, and empty ones do not count.
    pub fn list(&self) -> Option<Vec<Given<'a>>> {
        match self {
            Given::Typed(value) => Some(value.as_array()?.iter().map(Given::Typed).collect()),
            Given::Text(text) => Some(
                text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(Given::Text).collect(),
            ),
        }
    }

    pub fn is_word(&self, word: &str) -> bool {
        self.text() == Some(word)
    }
}

/// The merged layers, read key by key; gathers problems and the rows of `config show`.
pub(crate) struct Said<'a> {
    pub environment: &'a Environment,
    figment: Figment,
    values: Value,
    defaults: Dict,
    problems: Vec<Problem>,
    rows: Vec<Row>,
}

impl<'a> Said<'a> {
    pub fn new(product: &Product, sources: &'a Sources) -> Self {
        let Merged { figment, problems } = merge(product, sources);
        let values = figment
            .find_value("")
            .expect("each layer is data already, and to lay data over data cannot fail");
        let defaults = compiled(product.defaults);
        Said { environment: &sources.environment, figment, values, defaults, problems, rows: Vec::new() }
    }

    /// Ends the reading: the settings, or everything that was wrong.
    pub fn finish<S>(self, settings: S) -> Result<Resolved<S>, Problems> {
        if self.problems.is_empty() {
            Ok(Resolved { settings, shown: Shown(self.rows) })
        } else {
            Err(Problems(self.problems))
        }
    }

    /// Reads a key. A value that does not parse is reported and the default stands in, so that reading goes on
    /// and the rest is judged too; [`Said::finish`] then gives no settings.
    pub fn read<T>(&mut self, key: &str, takes: &str, parse: impl Fn(&Given) -> Option<T>) -> T {
        let default = find(&self.defaults, key).expect("each key that is read stands in the default file");
        let value = self.values.find_ref(key).unwrap_or(default);
        let metadata = self.figment.get_metadata(value.tag());
        let origin = metadata.map_or(Origin::Default, Origin::from_metadata);
        let given = match (&origin, value) {
            (Origin::Variable(_) | Origin::Flag(_), Value::String(_, text)) => Given::Text(text),
            _ => Given::Typed(value),
        };
        self.rows.push(Row {
            key: key.to_owned(),
            said: json(value),
            resolved: None,
            origin: origin.clone(),
            takes: takes.to_owned(),
        });
        if let Some(parsed) = parse(&given) {
            return parsed;
        }
        let (key, expected, found) = (key.to_owned(), takes.to_owned(), written(value));
        let fallback = parse(&Given::Typed(default));
        self.problems.push(Problem { origin, wrong: Wrong::Value { key, expected, found } });
        fallback.expect("the defaults parse in every environment, which a test checks")
    }

    /// A whole number in a unit.
    pub fn number<T: TryFrom<u64>>(&mut self, key: &str, unit: &str, range: RangeInclusive<u64>) -> T {
        let takes = format!("{unit}, {} to {}", range.start(), range.end());
        self.read(key, &takes, |given| T::try_from(in_range(given, &range)?).ok())
    }

    /// A span of time in milliseconds; the key ends in `_ms`.
    pub fn milliseconds(&mut self, key: &str, range: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.number(key, "milliseconds", range))
    }

    /// A span of time in milliseconds, or "none".
    pub fn milliseconds_or_none(&mut self, key: &str, range: RangeInclusive<u64>) -> Option<Duration> {
        let takes = format!("milliseconds, {} to {}, or \"none\"", range.start(), range.end());
        self.read(key, &takes, |given| match given.is_word("none") {
            true => Some(None),
            false => Some(Some(Duration::from_millis(in_range(given, &range)?))),
        })
    }

    pub fn switch(&mut self, key: &str) -> bool {
        self.read(key, "true or false", |given| given.switch())
    }

    /// One of a closed set of words.
    pub fn choice<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> T {
        let quoted: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let (last, others) = quoted.split_last().expect("a choice has words");
        let takes = format!("{} or {last}", others.join(", "));
        self.read(key, &takes, |given| {
            words.iter().find(|(word, _)| given.is_word(word)).map(|(_, meaning)| *meaning)
        })
    }

    pub fn address(&mut self, key: &str) -> SocketAddr {
        self.read(key, "address:port", |given| given.text()?.parse().ok())
    }

    pub fn address_or_none(&mut self, key: &str) -> Option<SocketAddr> {
        self.read(key, "address:port, or \"none\"", |given| match given.text()? {
            "none" => Some(None),
            text => Some(Some(text.parse().ok()?)),
        })
    }

    /// Threads; "auto" is one for each processor.
    pub fn threads(&mut self, key: &str) -> std::num::NonZeroUsize {
        let processors = self.environment.processors;
        let threads =
            self.read(key, "threads, 1 to 1024, or \"auto\"", |given| match given.is_word("auto") {
                true => Some(processors),
                false => std::num::NonZeroUsize::new(usize::try_from(in_range(given, &(1..=1024))?).ok()?),
            });
        self.came_to(threads.to_string());
        threads
    }

    /// A path; "auto" is the one given.
    pub fn path_or_auto(&mut self, key: &str, auto: PathBuf) -> PathBuf {
        let environment = self.environment;
        let path = self.read(key, "a path, or \"auto\"", |given| match given.text()? {
            "auto" => Some(auto.clone()),
            text => environment.expand(text),
        });
        self.came_to(path.display().to_string());
        path
    }

    pub fn path_or_none(&mut self, key: &str) -> Option<PathBuf> {
        let environment = self.environment;
        let path = self.read(key, "a path, or \"none\"", |given| match given.text()? {
            "none" => Some(None),
            text => environment.expand(text).map(Some),
        });
        if let Some(path) = &path {
            self.came_to(path.display().to_string());
        }
        path
    }

    /// The path of a Unix socket; "auto" is the name in the folder for sockets.
    pub fn socket(&mut self, key: &str, name: &str) -> PathBuf {
        let environment = self.environment;
        let path =
            self.read(key, "a path of at most 103 bytes, or \"auto\"", |given| match given.text()? {
                "auto" => Some(environment.socket_folder().join(name)),
                text => fits_socket(environment.expand(text)?),
            });
        self.came_to(path.display().to_string());
        self.refuse_long_socket(&path);
        path
    }

    /// Reports an "auto" that came to a path no socket can be bound to. Said outright, such a path does not parse.
    pub fn refuse_long_socket(&mut self, path: &Path) {
        let Some(row) = self.rows.last().filter(|_| path.as_os_str().len() > SOCKET_PATH_BYTES_MAX) else {
            return;
        };
        let (key, expected, origin) = (row.key.clone(), row.takes.clone(), row.origin.clone());
        let found = format!("{} that came to {}", row.said, path.display());
        self.problems.push(Problem { origin, wrong: Wrong::Value { key, expected, found } });
    }

    /// Notes what the key that was read last came to, for `config show`.
    pub fn came_to(&mut self, resolved: String) {
        if let Some(row) = self.rows.last_mut() {
            row.resolved = (row.said != resolved.as_str()).then_some(resolved);
        }
    }

    /// Where the key that was read earlier was said, and as what.
    pub fn said(&self, key: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.key == key)
    }

    /// Reports two keys that contradict each other, with where each was said. The later of the two origins is
    /// the one that the message stands under.
    pub fn contradict(&mut self, left: &str, right: &str, why: &str) {
        let (Some(left), Some(right)) = (self.said(left), self.said(right)) else { return };
        let phrase = |row: &Row| format!("`{}` = {} ({})", row.key, row.said, row.origin);
        let message = format!("{} and {} contradict each other: {why}", phrase(left), phrase(right));
        let origin = left.origin.clone().max(right.origin.clone());
        self.problems.push(Problem { origin, wrong: Wrong::Contradiction(message) });
    }
}

/// None for a path that no socket can be bound to.
pub(crate) fn fits_socket(path: PathBuf) -> Option<PathBuf> {
    (path.as_os_str().len() <= SOCKET_PATH_BYTES_MAX).then_some(path)
}

/// A value as it would be written, cut where it is long.
pub(crate) fn written(value: &Value) -> String {
    let text = match value {
        Value::Dict(..) => "a table".to_owned(),
        value => json(value).to_string(),
    };
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn in_range(given: &Given, range: &RangeInclusive<u64>) -> Option<u64> {
    given.integer().filter(|number| range.contains(number))
}

fn json(value: &Value) -> Json {
    serde_json::to_value(value).unwrap_or(Json::Null)
}

fn find<'d>(sections: &'d Dict, key: &str) -> Option<&'d Value> {
    let (section, key) = key.split_once('.')?;
    sections.get(section)?.as_dict()?.get(key)
}
