//! A model folder brought into memory.
//!
//! Apart because this is where files become the bytes that the runtime takes. Must not know: file formats, HTTP.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use pitot_config::engine::{Model, ModelSource, Settings};
use pitot_runtime::kernels::cpu::Cpu;
use pitot_runtime::{
    ChatTemplate, Engine, EngineOptions, GenerationDefaults, ModelFiles, PrefixCache, Tokenizer, load,
};

use crate::mapped::Mapped;
use crate::pull;

/// Largest file besides the weights; tokenizers have some ten MB.
const FILE_BYTES_MAX: u64 = 1 << 28;

/// A model that is ready to serve.
pub struct Parts {
    pub engine: Engine,
    pub tokenizer: Arc<Tokenizer>,
    pub chat: ChatTemplate,
    pub generation: GenerationDefaults,
    /// Whether plain prompts get what the tokenizer puts in front.
    pub add_bos: bool,
    /// Names under which it is served; not empty.
    pub names: Vec<String>,
}

/// Finds the model of the settings and loads it. Shows that it does on a terminal.
///
/// # Errors
/// When it is not there, naming the command that brings it; when its files are not what they should be.
pub fn open(settings: &Settings) -> anyhow::Result<Parts> {
    let folder = find(&settings.model)?;
    let spinner = ProgressBar::new_spinner().with_message(format!("loading {}", folder.display()));
    // Draws on a terminal only.
    spinner.enable_steady_tick(Duration::from_millis(100));
    let parts =
        load_folder(&folder, settings).with_context(|| format!("loading the model in {}", folder.display()));
    spinner.finish_and_clear();
    parts
}

fn find(model: &Model) -> anyhow::Result<PathBuf> {
    match &model.source {
        ModelSource::Name(name) => Ok(pull::locate_in(&model.directory, name)?),
        ModelSource::Folder(folder) => {
            let path = folder.to_str().with_context(|| format!("{} is not UTF-8", folder.display()))?;
            Ok(pull::locate_in(&model.directory, path)?)
        }
    }
}

fn names(model: &Model, folder: &Path) -> Vec<String> {
    if !model.served_model_name.is_empty() {
        return model.served_model_name.clone();
    }
    let own = match &model.source {
        ModelSource::Name(name) => name.clone(),
        ModelSource::Folder(_) => {
            let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
            folder.file_name().map_or("model".to_owned(), |name| name.to_string_lossy().into_owned())
        }
    };
    vec![own]
}

fn load_folder(folder: &Path, settings: &Settings) -> anyhow::Result<Parts> {
    let weights: Vec<Mapped> =
        weights(folder)?.iter().map(|path| Mapped::open(path)).collect::<Result<_, _>>()?;
    let config = required(folder, "config.json")?;
    let tokenizer = required(folder, "tokenizer.json")?;
    let generation_config = optional(folder, "generation_config.json")?;
    let tokenizer_config = optional(folder, "tokenizer_config.json")?;
    let special_tokens_map = optional(folder, "special_tokens_map.json")?;
    let chat_template = optional(folder, "chat_template.jinja")?;
    let chat_template =
        chat_template.map(String::from_utf8).transpose().context("chat_template.jinja is not UTF-8")?;
    let files = ModelFiles {
        config: &config,
        generation_config: generation_config.as_deref(),
        tokenizer: &tokenizer,
        tokenizer_config: tokenizer_config.as_deref(),
        special_tokens_map: special_tokens_map.as_deref(),
        chat_template: chat_template.as_deref(),
        tensors: weights.iter().map(Mapped::bytes).collect(),
    };
    let loaded = load(&files, Cpu::new(Some(settings.compute.threads.get()))?)?;
    let tokenizer = Arc::new(loaded.tokenizer);
    let options = options(settings, &loaded.generation);
    Ok(Parts {
        engine: Engine::new(Box::new(loaded.runner), Arc::clone(&tokenizer), options)?,
        tokenizer,
        chat: loaded.chat,
        generation: loaded.generation,
        add_bos: loaded.add_bos,
        names: names(&settings.model, folder),
    })
}

/// The engine's sizes.
pub fn options(settings: &Settings, generation: &GenerationDefaults) -> EngineOptions {
    EngineOptions {
        block_tokens: settings.memory.block_tokens,
        kv_bytes: settings.memory.kv_cache_bytes,
        batch_tokens_max: settings.scheduler.batch_tokens_max,
        sequences_max: settings.scheduler.sequences_max,
        waiting_max: settings.scheduler.waiting_max,
        prefix_cache: if settings.memory.prefix_cache { PrefixCache::On } else { PrefixCache::Off },
        context_max: None,
        eos_token_ids: generation.eos_token_ids.clone(),
        // The lower half of such an id is random.
        seed: uuid::Uuid::now_v7().as_u64_pair().1,
    }
}

fn required(folder: &Path, name: &str) -> anyhow::Result<Vec<u8>> {
    optional(folder, name)?.with_context(|| format!("{name} is missing"))
}

fn optional(folder: &Path, name: &str) -> anyhow::Result<Option<Vec<u8>>> {
    let path = folder.join(name);
    let bytes = match std::fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading {name}")),
    };
    if bytes > FILE_BYTES_MAX {
        bail!("{name} has {bytes} bytes, over the limit of {FILE_BYTES_MAX}");
    }
    std::fs::read(&path).map(Some).with_context(|| format!("reading {name}"))
}

/// All safetensors files, in the order of their names.
fn weights(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).context("reading the folder")? {
        let path = entry.context("reading the folder")?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        bail!("there is no file *.safetensors");
    }
    paths.sort();
    Ok(paths)
}
