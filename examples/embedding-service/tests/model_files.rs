//! The model's files: those that are part of the program, and directories of the same shape.

use std::fs;
use std::path::{Path, PathBuf};

use embedding_service::engine::{Admission, EmbedInput, Engine, Settings};
use embedding_service::model::{EMBEDDED_MODEL_ID, LoadError, open};
use sha2::{Digest, Sha256};

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/all-MiniLM-L6-v2-int8")
}

#[test]
fn files_are_those_that_their_checksums_were_made_of() {
    let sums = fs::read_to_string(model().join("SHA256SUMS")).expect("the checksums");
    let mut checked = 0;
    for line in sums.lines() {
        let (sum, name) = line.split_once("  ").expect("a sum and a name");
        let bytes = fs::read(model().join(name)).expect("the file");
        let actual: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(actual, sum, "{name} was changed");
        checked += 1;
    }
    assert_eq!(checked, 6, "every file of the model has a checksum");
}

/// A copy of the model's directory whose files are changed.
struct Copy(tempfile::TempDir);

impl Copy {
    fn new() -> Self {
        let copy = Self(tempfile::tempdir().expect("a directory"));
        fs::create_dir(copy.path("1_Pooling")).expect("a directory");
        for name in ["config.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json"] {
            fs::copy(model().join(name), copy.path(name)).expect("a copy");
        }
        for name in ["model.onnx", "tokenizer.json"] {
            std::os::unix::fs::symlink(model().join(name), copy.path(name)).expect("a link");
        }
        copy
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> &Self {
        fs::write(self.path(name), text).expect("a file");
        self
    }

    fn remove(&self, name: &str) -> &Self {
        fs::remove_file(self.path(name)).expect("it was there");
        self
    }

    fn id(&self) -> &str {
        self.0.path().to_str().expect("UTF-8")
    }

    fn engine(&self) -> Engine {
        let (backend, prompts) = open(self.id()).expect("a model");
        Engine::start(backend, prompts, Settings::default()).expect("it starts")
    }

    fn refused(&self) -> String {
        match open(self.id()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it was opened"),
        }
    }
}

async fn embed(engine: &Engine, text: &str) -> Vec<f32> {
    let input = EmbedInput { texts: vec![text.to_owned()], ..EmbedInput::default() };
    engine.embed(input, Admission::Refuse).await.expect("a vector").values
}

#[tokio::test]
async fn a_directory_is_read_as_the_model_that_is_part_of_the_program() {
    let (backend, prompts) = open(EMBEDDED_MODEL_ID).expect("it is part of the program");
    let embedded = Engine::start(backend, prompts, Settings::default()).expect("it starts");
    let copy = Copy::new();
    let expected = embed(&embedded, "a text").await;
    assert_eq!(embed(&copy.engine(), "a text").await, expected);
    // Where exporters put it.
    fs::create_dir(copy.path("onnx")).expect("a directory");
    fs::rename(copy.path("model.onnx"), copy.path("onnx/model.onnx")).expect("it moves");
    let moved = copy.engine();
    assert_eq!(embed(&moved, "a text").await, expected);
    assert_eq!((moved.description().dtype, moved.description().model_id.as_str()), ("int8", copy.id()));
}

#[tokio::test]
async fn settings_of_the_directory_change_vectors() {
    let copy = Copy::new();
    let mean = embed(&copy.engine(), "a text").await;
    copy.write(
        "1_Pooling/config.json",
        r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#,
    );
    let cls = embed(&copy.engine(), "a text").await;
    assert_ne!(cls, mean);
    copy.remove("1_Pooling/config.json");
    assert_eq!(embed(&copy.engine(), "a text").await, cls, "models of this kind without the file pool so");

    let prompts = r#"{"prompts": {"q": "query: "}, "default_prompt_name": "q"}"#;
    let prompted = embed(&copy.write("config_sentence_transformers.json", prompts).engine(), "a text").await;
    copy.remove("config_sentence_transformers.json");
    assert_eq!(prompted, embed(&copy.engine(), "query: a text").await);

    assert_eq!(copy.engine().max_tokens(), 256);
    assert_eq!(copy.remove("sentence_bert_config.json").engine().max_tokens(), 512);
}

#[test]
fn what_cannot_be_served_is_refused_with_the_reason() {
    let cases = [
        ("1_Pooling/config.json", r#"{"pooling_mode_max_tokens": true}"#, "pooling_mode_max_tokens"),
        (
            "1_Pooling/config.json",
            r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}"#,
            "pooling_mode_mean_tokens or pooling_mode_cls_token alone",
        ),
        ("modules.json", r#"[{"type": "sentence_transformers.models.Dense"}]"#, "models.Dense"),
        ("config.json", "{", "config.json is not understood"),
        (
            "config.json",
            r#"{"architectures": ["BertForSequenceClassification"], "hidden_size": 384, "max_position_embeddings": 512}"#,
            "it is a classifier",
        ),
        ("config.json", r#"{"hidden_size": 383, "max_position_embeddings": 512}"#, "cannot embed a text"),
        (
            "config_sentence_transformers.json",
            r#"{"prompts": {"a": "b"}, "default_prompt_name": "c"}"#,
            "no prompt `c`; it has a",
        ),
    ];
    for (name, text, reason) in cases {
        let error = Copy::new().write(name, text).refused();
        assert!(error.contains(reason), "{error}");
    }
    for name in ["tokenizer.json", "model.onnx"] {
        let copy = Copy::new();
        // A link leads to the model itself, which must not be written.
        copy.remove(name).write(name, "{}");
        let error = copy.refused();
        let what = if name == "tokenizer.json" { "tokenizer" } else { "graph" };
        assert!(error.contains(&format!("the model's {what} cannot be used")), "{error}");
        let error = copy.remove(name).refused();
        assert!(error.contains(name) && error.contains("cannot be read"), "{error}");
    }
}

#[test]
fn names_that_stand_for_nothing_say_what_would_do() {
    let Err(error) = open("sentence-transformers/all-MiniLM-L6-v2") else { panic!("it was opened") };
    assert!(matches!(error, LoadError::NotFound(_)));
    assert!(error.to_string().contains("models are not downloaded"), "{error}");
    for id in ["null:", "null:0", "null:many", "null:65537"] {
        let Err(error) = open(id) else { panic!("{id} was opened") };
        assert!(error.to_string().contains("1 to 65536"), "{error}");
    }
}
