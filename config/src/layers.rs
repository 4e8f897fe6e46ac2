//! The layers: defaults, one file, variables, flags, laid over each other with the origin of each value kept.
//!
//! Apart because what the keys mean is decided after the layers are one. figment merges and remembers which
//! layer a value came from; names are checked here, layer by layer, since a wrong name is wrong even where a
//! later layer says the right one. Must not know: any key's type or range.

use std::path::{Path, PathBuf};

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use crate::environment::Environment;
use crate::flags::Flag;
use crate::problem::{Origin, Problem, Wrong};
use crate::said::written;

/// Largest configuration file that is read, in bytes; the default files have a hundredth of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

const VARIABLE_PREFIX: &str = "PITOT_";

/// Below this similarity (0 to 1) a name is no plausible slip of the pen for another.
const SIMILARITY_MIN: f64 = 0.6;

/// Everything from which settings are resolved.
#[derive(Debug, Clone)]
pub struct Sources {
    pub environment: Environment,
    /// The file of `--config`; without one the usual places are searched.
    pub file: Option<PathBuf>,
    /// In the order of the command line.
    pub flags: Vec<Flag>,
}

impl Sources {
    /// Takes the surroundings from this process.
    pub fn of_process(file: Option<PathBuf>, flags: Vec<Flag>) -> Self {
        Sources { environment: Environment::of_process(), file, flags }
    }
}

/// One of the two programs: its default file, and that of the other, whose variables it must tolerate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    pub defaults: &'static str,
    pub file_name: &'static str,
    pub other_defaults: &'static str,
    pub other_file_name: &'static str,
}

/// The layers as one.
pub(crate) struct Merged {
    pub figment: Figment,
    pub problems: Vec<Problem>,
}

/// Lays all layers over each other. Values with wrong names are left out and reported.
pub(crate) fn merge(product: &Product, sources: &Sources) -> Merged {
    let mut layers = Layers {
        own: key_names(product.defaults),
        other: key_names(product.other_defaults),
        other_file_name: product.other_file_name,
        figment: Figment::new(),
        problems: Vec::new(),
    };
    layers.lay(Origin::Default, compiled(product.defaults));
    layers.lay_file(product, sources);
    layers.lay_variables(&sources.environment);
    layers.lay_flags(&sources.flags);
    Merged { figment: layers.figment, problems: layers.problems }
}

/// The compiled defaults as a tree.
pub(crate) fn compiled(text: &str) -> Dict {
    parse(text).expect("the compiled defaults are TOML, which a test checks")
}

/// Every `section.key` of a default file.
pub(crate) fn key_names(defaults: &str) -> Vec<String> {
    let sections = compiled(defaults);
    let keys = |(section, value): (&String, &Value)| {
        let keys: Vec<String> =
            value.as_dict().into_iter().flatten().map(|(key, _)| format!("{section}.{key}")).collect();
        keys
    };
    sections.iter().flat_map(keys).collect()
}

/// Name of the variable that sets a key.
pub(crate) fn variable_name(key: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", key.replacen('.', "__", 1).to_uppercase())
}

struct Layers {
    own: Vec<String>,
    other: Vec<String>,
    other_file_name: &'static str,
    figment: Figment,
    problems: Vec<Problem>,
}

impl Layers {
    fn lay_file(&mut self, product: &Product, sources: &Sources) {
        let path = match &sources.file {
            Some(path) => path.clone(),
            None => match search(product.file_name, &sources.environment) {
                Some(path) => path,
                None => return,
            },
        };
        match read(&path).and_then(|text| parse(&text)) {
            Ok(sections) => self.lay(Origin::File(path), sections),
            Err(wrong) => self.problems.push(Problem { origin: Origin::File(path), wrong }),
        }
    }

    /// Lays a tree of sections over what is there, without the keys that do not exist.
    fn lay(&mut self, origin: Origin, sections: Dict) {
        let mut known = Dict::new();
        for (section, value) in sections {
            let keys = match value {
                Value::Dict(_, keys) => keys,
                other => {
                    let wrong = self.not_a_section(&section, &other);
                    self.problems.push(Problem { origin: origin.clone(), wrong });
                    continue;
                }
            };
            if keys.is_empty() && !self.is_section(&section) {
                let wrong = self.unknown(&section, &origin);
                self.problems.push(Problem { origin: origin.clone(), wrong });
            }
            let mut kept = Dict::new();
            for (key, value) in keys {
                let name = format!("{section}.{key}");
                if self.own.contains(&name) {
                    kept.insert(key, value);
                } else {
                    let wrong = self.unknown(&name, &origin);
                    self.problems.push(Problem { origin: origin.clone(), wrong });
                }
            }
            known.insert(section, Value::from(kept));
        }
        self.over(origin, known);
    }

    fn lay_variables(&mut self, environment: &Environment) {
        for (name, value) in &environment.variables {
            let Some(key) = name.strip_prefix(VARIABLE_PREFIX).filter(|rest| rest.contains("__")) else {
                continue;
            };
            let key = key.replacen("__", ".", 1).to_lowercase();
            let origin = Origin::Variable(name.clone());
            let spelled = variable_name(&key) == *name;
            if spelled && !self.own.contains(&key) && self.other.contains(&key) {
                continue;
            }
            let wrong = match value.to_str() {
                _ if !spelled || !self.own.contains(&key) => self.unknown(&key, &origin),
                None => Wrong::NotUtf8 { key },
                Some(value) => {
                    self.over(origin, single(&key, value));
                    continue;
                }
            };
            self.problems.push(Problem { origin, wrong });
        }
    }

    fn lay_flags(&mut self, flags: &[Flag]) {
        for flag in flags {
            let origin = flag.origin();
            let wrong = match flag.assignment() {
                Ok((key, value)) if self.own.iter().any(|own| own == key) => {
                    self.over(origin, single(key, value));
                    continue;
                }
                Ok((key, _)) => self.unknown(key, &origin),
                Err(wrong) => wrong,
            };
            self.problems.push(Problem { origin, wrong });
        }
    }

    fn over(&mut self, origin: Origin, sections: Dict) {
        let below = std::mem::take(&mut self.figment);
        self.figment = below.merge(Layer { origin, sections });
    }

    fn is_section(&self, name: &str) -> bool {
        self.own.iter().any(|key| key.split_once('.').is_some_and(|(section, _)| section == name))
    }

    fn not_a_section(&self, name: &str, found: &Value) -> Wrong {
        if self.is_section(name) {
            Wrong::NotASection { key: name.to_owned(), found: written(found) }
        } else {
            let hint = self.nearest(name).map(|key| format!("; did you mean `{key}`, inside its section?"));
            Wrong::UnknownKey { key: name.to_owned(), hint: hint.unwrap_or_default() }
        }
    }

    fn unknown(&self, key: &str, origin: &Origin) -> Wrong {
        let is_key_of = |keys: &[String]| keys.iter().any(|known| known == key);
        let hint = if is_key_of(&self.other) && !is_key_of(&self.own) {
            format!("; it is a key of {}", self.other_file_name)
        } else {
            match (self.nearest(key), origin) {
                (Some(near), Origin::Variable(_)) => format!("; did you mean `{}`?", variable_name(near)),
                (Some(near), Origin::Default | Origin::File(_) | Origin::Flag(_)) => {
                    format!("; did you mean `{near}`?")
                }
                (None, _) => String::new(),
            }
        };
        Wrong::UnknownKey { key: key.to_owned(), hint }
    }

    /// The known key most like this name: alike as a whole, or alike in its last part under another section.
    fn nearest(&self, name: &str) -> Option<&str> {
        let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let likeness = |key: &String| {
            let whole = strsim::normalized_damerau_levenshtein(name, key);
            let part = strsim::normalized_damerau_levenshtein(&last(name), &last(key));
            whole.max(0.9 * part)
        };
        let (key, likeness) = self
            .own
            .iter()
            .map(|key| (key, likeness(key)))
            .max_by(|(_, left), (_, right)| left.total_cmp(right))?;
        (likeness >= SIMILARITY_MIN).then_some(key.as_str())
    }
}

/// One layer in figment's terms.
struct Layer {
    origin: Origin,
    sections: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        self.origin.to_metadata()
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Profile::Default.collect(self.sections.clone()))
    }
}

/// A tree of one key, `section.key`.
fn single(name: &str, value: &str) -> Dict {
    let (section, key) = name.split_once('.').unwrap_or((name, ""));
    let keys = Dict::from([(key.to_owned(), Value::from(value))]);
    Dict::from([(section.to_owned(), Value::from(keys))])
}

/// The first of the usual places where the file exists.
fn search(file_name: &str, environment: &Environment) -> Option<PathBuf> {
    let folders = [
        Some(environment.working_folder.clone()),
        environment.config_folder(),
        Some(environment.system_folder.clone()),
    ];
    folders.into_iter().flatten().map(|folder| folder.join(file_name)).find(|path| path.exists())
}

fn read(path: &Path) -> Result<String, Wrong> {
    use std::io::Read as _;

    let unreadable = |error: std::io::Error| Wrong::Unreadable { reason: error.to_string() };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Wrong::Unreadable { reason: format!("larger than {FILE_BYTES_MAX} bytes") });
    }
    Ok(text)
}

fn parse(text: &str) -> Result<Dict, Wrong> {
    let data = Toml::string(text).data().map_err(|error| Wrong::Syntax { reason: error.to_string() })?;
    Ok(data.into_values().flatten().collect())
}
