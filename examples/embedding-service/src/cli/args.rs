//! Flags, and the environment variables of the same names.
//!
//! Owns names and defaults, which are those of Text Embeddings Inference. Invariant: every flag here does what it says;
//! those that are not built are in `refused`.

use std::path::PathBuf;

use byway::Transport;
use clap::{Args, Parser, Subcommand};

use crate::cli::refused::Refused;
use embedding_service::engine::Settings;
use embedding_service::model::{EMBEDDED_MODEL_ID, PromptChoice};

/// Embeddings over byway and gRPC, with the protocol of Text Embeddings Inference.
#[derive(Parser)]
#[command(version, about, args_conflicts_with_subcommands = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    #[command(flatten)]
    pub(super) serve: ServeArgs,
}

#[derive(Subcommand)]
pub(super) enum Command {
    /// Serve embeddings (what happens without a command).
    Serve(Box<ServeArgs>),
    /// Embed texts, in this process or by a server.
    Embed(EmbedArgs),
    /// Serve and call over every path that this machine has, and print what each costs.
    Demo(DemoArgs),
}

#[derive(Args)]
pub(super) struct ServeArgs {
    /// A directory with config.json, tokenizer.json and model.onnx; the model that is part of the program; or null:N, which
    /// makes up vectors of N dimensions, to measure everything but a model.
    #[arg(long, env, default_value = EMBEDDED_MODEL_ID)]
    pub(super) model_id: String,
    /// Name of the model in Info; its model id unless given.
    #[arg(long, env)]
    served_model_name: Option<String>,
    /// Address to listen on.
    #[arg(long, env, default_value = "0.0.0.0")]
    pub(super) hostname: String,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, short, env, default_value_t = 3000)]
    pub(super) port: u16,
    /// Unix socket to listen on, instead of a port.
    #[arg(long, env)]
    pub(super) uds_path: Option<PathBuf>,
    /// Port that metrics are read from; 0 takes a free one.
    #[arg(long, env, default_value_t = 9000)]
    pub(super) prometheus_port: u16,
    /// Requests under way at once; single ones beyond that are refused, those of streams wait.
    #[arg(long, env, default_value_t = 512)]
    max_concurrent_requests: usize,
    /// Texts in one request.
    #[arg(long, env, default_value_t = 32)]
    max_client_batch_size: usize,
    /// Tokens that the model is given at once. Texts run one at a time, so that this limits a text.
    #[arg(long, env, default_value_t = 16_384)]
    max_batch_tokens: usize,
    /// Whether a model that takes longer texts than --max-batch-tokens is served with that limit, instead of refused.
    #[arg(long, env, default_value_t = true, num_args = 0..=1, default_missing_value = "true",
        action = clap::ArgAction::Set)]
    auto_truncate: bool,
    /// Threads that tokenize; one less than there are processors unless given.
    #[arg(long, env)]
    tokenization_workers: Option<usize>,
    /// Name of the model's prompt that is put before texts whose request names none.
    #[arg(long, env, conflicts_with = "default_prompt")]
    default_prompt_name: Option<String>,
    /// Text that is put before texts whose request names no prompt.
    #[arg(long, env)]
    default_prompt: Option<String>,
    /// Key that callers must send, as `authorization: Bearer KEY`.
    #[arg(long, env, hide_env_values = true)]
    api_key: Option<String>,
    /// Log lines are JSON.
    #[arg(long, env)]
    pub(super) json_output: bool,
    #[command(flatten)]
    pub(super) refused: Refused,
}

impl ServeArgs {
    pub(super) fn settings(&self) -> Settings {
        let default = Settings::default();
        Settings {
            max_concurrent_requests: self.max_concurrent_requests,
            max_client_batch_size: self.max_client_batch_size,
            max_batch_tokens: self.max_batch_tokens,
            auto_truncate: self.auto_truncate,
            tokenization_workers: self.tokenization_workers.unwrap_or(default.tokenization_workers),
            ..default
        }
    }

    pub(super) fn prompt(&self) -> PromptChoice {
        match (&self.default_prompt_name, &self.default_prompt) {
            (Some(name), _) => PromptChoice::Named(name.clone()),
            (None, Some(text)) => PromptChoice::Text(text.clone()),
            (None, None) => PromptChoice::None,
        }
    }

    pub(super) fn options(&self) -> embedding_service::service::Options {
        embedding_service::service::Options {
            served_model_name: self.served_model_name.clone(),
            api_key: self.api_key.clone(),
        }
    }
}

#[derive(Args)]
pub(super) struct EmbedArgs {
    /// Texts to embed.
    #[arg(required = true)]
    pub(super) text: Vec<String>,
    /// A server: byway://host:port, grpc://host:port or unix:///path. Without it the text is embedded in this process.
    #[arg(long)]
    pub(super) url: Option<String>,
    /// How to reach the server: auto, rdma, tcp or grpc.
    #[arg(long, requires = "url", value_parser = transport, default_value = "auto")]
    pub(super) transport: Transport,
    /// Model to use in this process, as for `serve`.
    #[arg(long, conflicts_with = "url", default_value = EMBEDDED_MODEL_ID)]
    pub(super) model_id: String,
    /// Key that the server asks for.
    #[arg(long, env, hide_env_values = true, requires = "url")]
    pub(super) api_key: Option<String>,
    /// Print whole vectors, as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

fn transport(text: &str) -> Result<Transport, &'static str> {
    text.parse().map_err(|()| "it is none of auto, rdma, tcp and grpc")
}

#[derive(Args)]
pub(super) struct DemoArgs {
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(super) json: bool,
    /// Write the JSON to a file too.
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serving_needs_no_command_and_defaults_are_those_of_tei() {
        let cli = Cli::try_parse_from(["embedding-service", "-p", "0"]).expect("understood");
        assert!(cli.command.is_none());
        assert_eq!((cli.serve.port, cli.serve.prometheus_port), (0, 9000));
        assert_eq!(cli.serve.hostname, "0.0.0.0");
        let settings = cli.serve.settings();
        assert_eq!((settings.max_concurrent_requests, settings.max_client_batch_size), (512, 32));
        assert_eq!((settings.max_batch_tokens, settings.auto_truncate), (16_384, true));
        let cli = Cli::try_parse_from(["embedding-service", "serve", "--auto-truncate", "false"]);
        let Some(Command::Serve(args)) = cli.expect("understood").command else { panic!("serve") };
        assert!(!args.settings().auto_truncate);
    }

    #[test]
    fn what_makes_no_sense_together_is_refused() {
        for line in [
            &["embed"][..],
            &["embed", "--transport", "tcp", "a"],
            &["embed", "--url", "byway://a:1", "--transport", "pigeon", "a"],
            &["--default-prompt", "a", "--default-prompt-name", "b"],
        ] {
            let line = ["embedding-service"].iter().chain(line);
            assert!(Cli::try_parse_from(line.clone()).is_err(), "{line:?}");
        }
    }
}
