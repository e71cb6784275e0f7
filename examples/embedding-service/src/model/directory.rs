//! A model's files, in the shape that Text Embeddings Inference reads.
//!
//! Owns which files there are, what is read from each, and what is refused. Invariant: a setting that would change vectors
//! and is not understood is an error, never ignored. Never: downloads anything.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rten::ModelOptions;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokenizers::Tokenizer;

use crate::error::EmbedError;
use crate::model::bert::Bert;
use crate::model::pooling::Pooling;
use crate::model::{Description, EMBEDDED_MODEL_ID, MAX_NULL_DIMENSIONS, PromptError, Prompts};

/// Why there is no model.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The name stands for nothing.
    NotFound(PathBuf),
    /// A null model cannot have so many dimensions.
    NullDimensions(String),
    /// A file cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file does not hold what it should.
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The tokenizer cannot be used.
    Tokenizer(String),
    /// The graph cannot be used.
    Graph(rten::LoadError),
    /// The model needs something that is not built.
    Unsupported(String),
    /// The default prompt is not there.
    Prompt(PromptError),
    /// The model could not embed a text.
    Trial(EmbedError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(path) => write!(
                f,
                "there is no directory {}: models are not downloaded; name a directory with config.json, tokenizer.json and \
                 model.onnx, or {EMBEDDED_MODEL_ID}, which is part of this program, or null:384",
                path.display()
            ),
            Self::NullDimensions(text) => {
                write!(f, "null:{text} is no model: use null: and a number from 1 to {MAX_NULL_DIMENSIONS}")
            }
            Self::Read { path, source } => write!(f, "{} cannot be read: {source}", path.display()),
            Self::Parse { path, source } => write!(f, "{} is not understood: {source}", path.display()),
            Self::Tokenizer(text) => write!(f, "the model's tokenizer cannot be used: {text}"),
            Self::Graph(source) => write!(f, "the model's graph cannot be used: {source}"),
            Self::Unsupported(what) => write!(f, "this model cannot be served: {what}"),
            Self::Prompt(source) => source.fmt(f),
            Self::Trial(source) => write!(f, "the model was loaded, but cannot embed a text: {source}"),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            Self::Parse { source, .. } => Some(source),
            Self::Graph(source) => Some(source),
            Self::Prompt(source) => Some(source),
            Self::Trial(source) => Some(source),
            Self::NotFound(_) | Self::NullDimensions(_) | Self::Tokenizer(_) | Self::Unsupported(_) => None,
        }
    }
}

/// The files of one model. Those that are optional may be missing.
struct Files<'a> {
    directory: &'a Path,
    read: &'a dyn Fn(&Path) -> io::Result<Cow<'static, [u8]>>,
}

impl Files<'_> {
    fn required(&self, name: &str) -> Result<Cow<'static, [u8]>, LoadError> {
        let path = self.directory.join(name);
        (self.read)(&path).map_err(|source| LoadError::Read { path, source })
    }

    fn optional(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>, LoadError> {
        match self.required(name) {
            Err(LoadError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    fn parse<T: DeserializeOwned>(&self, name: &str, bytes: &[u8]) -> Result<T, LoadError> {
        let error = |source| LoadError::Parse { path: self.directory.join(name), source };
        serde_json::from_slice(bytes).map_err(error)
    }

    /// Settings, or their defaults when the file is missing.
    fn settings<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, LoadError> {
        self.optional(name)?.map_or_else(|| Ok(T::default()), |bytes| self.parse(name, &bytes))
    }

    fn graph(&self) -> Result<Cow<'static, [u8]>, LoadError> {
        match self.optional("model.onnx")? {
            Some(bytes) => Ok(bytes),
            None => self.required("onnx/model.onnx"),
        }
    }
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(default)]
    model_type: String,
    hidden_size: usize,
    max_position_embeddings: usize,
    #[serde(default)]
    pad_token_id: usize,
}

impl Config {
    /// Positions of tokens, less those that models of this family leave out.
    fn max_positions(&self) -> usize {
        let family = ["roberta", "xlm-roberta", "camembert"];
        let offset = if family.contains(&self.model_type.as_str()) { self.pad_token_id + 1 } else { 0 };
        self.max_position_embeddings.saturating_sub(offset)
    }
}

#[derive(Deserialize, Default)]
struct SentenceConfig {
    max_seq_length: Option<usize>,
}

#[derive(Deserialize)]
struct PoolingConfig {
    #[serde(flatten)]
    all: BTreeMap<String, serde_json::Value>,
}

impl PoolingConfig {
    fn pooling(&self) -> Result<Pooling, LoadError> {
        let modes =
            self.all.iter().filter(|(name, value)| name.starts_with("pooling_mode") && **value == true);
        let modes: Vec<&str> = modes.map(|(name, _)| name.as_str()).collect();
        match modes[..] {
            ["pooling_mode_cls_token"] => Ok(Pooling::Cls),
            ["pooling_mode_mean_tokens"] => Ok(Pooling::Mean),
            _ => Err(LoadError::Unsupported(format!(
                "1_Pooling/config.json asks for {modes:?}; pooling_mode_mean_tokens or pooling_mode_cls_token alone can be served"
            ))),
        }
    }
}

#[derive(Deserialize, Default)]
struct PromptsConfig {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
}

#[derive(Deserialize)]
struct Module {
    #[serde(rename = "type")]
    kind: String,
}

/// The model in `directory`, named `id`.
pub(super) fn load(id: &str, directory: &Path) -> Result<(Bert, Prompts), LoadError> {
    if !directory.is_dir() {
        return Err(LoadError::NotFound(directory.to_owned()));
    }
    let files = Files { directory, read: &|path| std::fs::read(path).map(Cow::Owned) };
    assemble(id, &files)
}

/// The model that is part of the program.
pub(super) fn embedded() -> Result<(Bert, Prompts), LoadError> {
    macro_rules! files {
        ($($name:literal)*) => {
            [$(($name, include_bytes!(concat!("../../models/all-MiniLM-L6-v2-int8/", $name)))),*]
        };
    }
    static FILES: [(&str, &[u8]); 6] = files!("config.json" "model.onnx" "modules.json"
        "sentence_bert_config.json" "tokenizer.json" "1_Pooling/config.json");
    let read = |path: &Path| {
        let found = FILES.iter().find(|(name, _)| Path::new(name) == path);
        found.map(|(_, bytes)| Cow::Borrowed(*bytes)).ok_or_else(|| io::ErrorKind::NotFound.into())
    };
    assemble(EMBEDDED_MODEL_ID, &Files { directory: Path::new(""), read: &read })
}

fn assemble(id: &str, files: &Files<'_>) -> Result<(Bert, Prompts), LoadError> {
    let config: Config = files.parse("config.json", &files.required("config.json")?)?;
    if let Some(other) = config.architectures.iter().find(|name| name.ends_with("Classification")) {
        return Err(LoadError::Unsupported(format!(
            "it is a classifier ({other}), only embedding models are served"
        )));
    }
    for Module { kind } in files.settings::<Vec<Module>>("modules.json")? {
        let known = ["Transformer", "Pooling", "Normalize"];
        if !kind.rsplit('.').next().is_some_and(|name| known.contains(&name)) {
            return Err(LoadError::Unsupported(format!(
                "modules.json lists {kind}; known are {}",
                known.join(", ")
            )));
        }
    }
    let pooling = match files.optional("1_Pooling/config.json")? {
        Some(bytes) => files.parse::<PoolingConfig>("1_Pooling/config.json", &bytes)?.pooling()?,
        None => Pooling::Cls,
    };
    let sentence: SentenceConfig = files.settings("sentence_bert_config.json")?;
    let prompts: PromptsConfig = files.settings("config_sentence_transformers.json")?;
    let prompts =
        Prompts::new(prompts.prompts, prompts.default_prompt_name.as_deref()).map_err(LoadError::Prompt)?;
    let tokenizer = Tokenizer::from_bytes(files.required("tokenizer.json")?)
        .map_err(|error| LoadError::Tokenizer(error.to_string()))?;
    let bytes = files.graph()?;
    let size = bytes.len();
    let mut options = ModelOptions::with_all_ops();
    // Costs a tenth of a second now and saves half of the time of every short text.
    options.prepack_weights(true);
    let graph = match bytes {
        Cow::Borrowed(bytes) => options.load_static_slice(bytes),
        Cow::Owned(bytes) => options.load(bytes),
    };
    let graph = graph.map_err(LoadError::Graph)?;
    let description = Description {
        model_id: id.to_owned(),
        dtype: dtype(size, graph.total_params()),
        dimensions: config.hidden_size,
        max_tokens: sentence.max_seq_length.unwrap_or_else(|| config.max_positions()),
    };
    let bert = Bert::new(tokenizer, graph, pooling, description)?;
    Ok((bert, prompts))
}

/// What weights are stored as, by the bytes that each takes in the file, which holds little else.
fn dtype(bytes: usize, weights: usize) -> &'static str {
    match 2 * bytes / weights.max(1) {
        0..3 => "int8",
        3..6 => "float16",
        _ => "float32",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_told_by_their_size() {
        assert_eq!(dtype(90_900_000, 22_700_000), "float32");
        assert_eq!(dtype(45_500_000, 22_700_000), "float16");
        assert_eq!(dtype(22_900_000, 22_700_000), "int8");
        assert_eq!(dtype(100, 0), "float32");
    }
}
