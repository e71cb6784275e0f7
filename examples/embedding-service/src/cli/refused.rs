//! Flags of Text Embeddings Inference that this server does not have.
//!
//! Owns why. Invariant: whoever sets one learns that it does nothing here; none is ignored. The environment variables of
//! the model hub alone are left alone: they are often set for other programs, and mean nothing where nothing is downloaded.

use clap::Args;

use crate::cli::Failure;

macro_rules! refused {
    ($($field:ident $(($env:ident))? $flag:literal $reason:literal)*) => {
        #[derive(Args, Default)]
        pub(super) struct Refused {
            $(
                #[arg(long = $flag, hide = true, num_args = 0..=1, default_missing_value = "" $(, $env)?)]
                $field: Option<String>,
            )*
        }

        impl Refused {
            /// Says why, if one is set.
            pub(super) fn check(&self) -> Result<(), Failure> {
                $(
                    if self.$field.is_some() {
                        return Err(format!("--{} (or its environment variable) is set, but {}", $flag, $reason).into());
                    }
                )*
                Ok(())
            }

            /// The flags.
            #[cfg(test)]
            const FLAGS: &[&str] = &[$($flag),*];
        }
    };
}

refused! {
    revision (env) "revision" "models are not downloaded, so there is nothing to choose a revision of: name a directory with --model-id"
    dtype (env) "dtype" "a model runs as its file has it: choose the file"
    pooling (env) "pooling" "pooling is what the model's 1_Pooling/config.json says: change it there"
    max_batch_requests (env) "max-batch-requests" "the model is given one text at a time: leave it out"
    dense_path (env) "dense-path" "dense modules are not built"
    hf_token "hf-token" "models are not downloaded: leave it out"
    hf_api_token "hf-api-token" "models are not downloaded: leave it out"
    huggingface_hub_cache "huggingface-hub-cache" "models are not downloaded: name a directory with --model-id"
    payload_limit (env) "payload-limit" "it limits HTTP requests, which are not served; messages have 4 MiB at most"
    disable_spans (env) "disable-spans" "there are no spans to disable: leave it out"
    otlp_endpoint (env) "otlp-endpoint" "traces are not exported; metrics are, see --prometheus-port"
    otlp_service_name (env) "otlp-service-name" "traces are not exported: leave it out"
    cors_allow_origin (env) "cors-allow-origin" "it is for HTTP, which is not served"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::Parser;

    #[test]
    fn each_is_understood_and_refused_with_its_reason() {
        for flag in Refused::FLAGS {
            for line in [vec![format!("--{flag}"), "x".to_owned()], vec![format!("--{flag}")]] {
                let cli = Cli::try_parse_from(["embedding-service".to_owned()].into_iter().chain(line));
                let error = cli.expect("understood").serve.refused.check().expect_err("refused").to_string();
                assert!(error.starts_with(&format!("--{flag} ")), "{error}");
            }
        }
        assert!(Refused::default().check().is_ok());
    }
}
