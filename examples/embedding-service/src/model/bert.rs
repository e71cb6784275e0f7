//! A transformer that reads tokens, run by rten.
//!
//! Owns the tokenizer and the graph of one model. Invariant: each text runs alone and without padding, so that its vector
//! depends on nothing but the text. Models that quantize activations choose a scale from the whole tensor, where
//! neighbours and padding would change it; and on a processor a batch is no faster than its texts one after the other.
//! Never: normalizes.

use rten::{Model as Graph, NodeId, ValueOrView};
use rten_tensor::prelude::*;
use rten_tensor::{NdTensor, NdTensorView};
use tokenizers::{PostProcessor, Tokenizer, TruncationDirection};

use crate::error::EmbedError;
use crate::model::pooling::Pooling;
use crate::model::{Description, LoadError, Model, Side, Tokens};

pub(super) struct Bert {
    tokenizer: Tokenizer,
    /// Tokens that the tokenizer puts around every text.
    added_tokens: usize,
    graph: Graph,
    nodes: Nodes,
    pooling: Pooling,
    description: Description,
}

/// Where texts go in and vectors come out.
struct Nodes {
    ids: NodeId,
    mask: Option<NodeId>,
    type_ids: Option<NodeId>,
    output: NodeId,
}

impl Nodes {
    fn find(graph: &Graph) -> Result<Self, LoadError> {
        let ids = graph
            .find_node("input_ids")
            .ok_or_else(|| LoadError::Unsupported("its graph has no input `input_ids`".to_owned()))?;
        // Models name their outputs alike; those that do not put the tokens' vectors first.
        let output =
            ["last_hidden_state", "token_embeddings"].into_iter().find_map(|name| graph.find_node(name));
        let output = output
            .or_else(|| graph.output_ids().first().copied())
            .ok_or_else(|| LoadError::Unsupported("its graph has no output".to_owned()))?;
        Ok(Self {
            ids,
            mask: graph.find_node("attention_mask"),
            type_ids: graph.find_node("token_type_ids"),
            output,
        })
    }
}

impl Bert {
    /// Joins the parts, and tries them out: what cannot work is found now and not by a caller.
    pub(super) fn new(
        mut tokenizer: Tokenizer,
        graph: Graph,
        pooling: Pooling,
        description: Description,
    ) -> Result<Self, LoadError> {
        // Files carry the padding and the limit that their author trained with.
        tokenizer.with_padding(None);
        let tokenizer_error = |error: tokenizers::Error| LoadError::Tokenizer(error.to_string());
        tokenizer.with_truncation(None).map_err(tokenizer_error)?;
        let added_tokens =
            tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
        let nodes = Nodes::find(&graph)?;
        let bert = Self { tokenizer, added_tokens, graph, nodes, pooling, description };
        let trial = bert.tokenize("a", usize::MAX, None).and_then(|tokens| bert.embed(&tokens));
        match trial {
            Ok(_) => Ok(bert),
            Err(error) => Err(LoadError::Trial(error)),
        }
    }

    fn run(&self, tokens: &Tokens) -> Result<NdTensor<f32, 3>, String> {
        let shape = [1, tokens.ids.len()];
        let mask = vec![1; tokens.ids.len()];
        let view = |data| ValueOrView::from(NdTensorView::<i32, 2>::from_data(shape, data));
        let mut inputs = vec![(self.nodes.ids, view(&tokens.ids[..]))];
        inputs.extend(self.nodes.mask.map(|node| (node, view(&mask[..]))));
        inputs.extend(self.nodes.type_ids.map(|node| (node, view(&tokens.type_ids[..]))));
        let [output] =
            self.graph.run_n(inputs, [self.nodes.output], None).map_err(|error| error.to_string())?;
        output.try_into().map_err(|_| "its output is not a tensor of floats with three dimensions".to_owned())
    }
}

impl Model for Bert {
    fn description(&self) -> &Description {
        &self.description
    }

    fn tokenize(&self, text: &str, limit: usize, cut: Option<Side>) -> Result<Tokens, EmbedError> {
        let failed = |error: tokenizers::Error| EmbedError::Tokenizer(error.to_string());
        let mut encoding = self.tokenizer.encode_fast(text, false).map_err(failed)?;
        if let Some(side) = cut {
            let direction = match side {
                Side::Left => TruncationDirection::Left,
                Side::Right => TruncationDirection::Right,
            };
            encoding.truncate(limit.saturating_sub(self.added_tokens), 0, direction);
            // What was cut off is kept, and would be processed too.
            drop(encoding.take_overflowing());
        }
        let encoding = self.tokenizer.post_process(encoding, None, true).map_err(failed)?;
        let signed = |numbers: &[u32]| {
            let numbers = numbers.iter().map(|&number| i32::try_from(number));
            numbers.collect::<Result<Vec<i32>, _>>()
        };
        let out_of_range = |_| EmbedError::Tokenizer("a token's number is out of range".to_owned());
        let ids = signed(encoding.get_ids()).map_err(out_of_range)?;
        let type_ids = signed(encoding.get_type_ids()).map_err(out_of_range)?;
        Ok(Tokens { ids, type_ids })
    }

    fn embed(&self, tokens: &Tokens) -> Result<Vec<f32>, EmbedError> {
        let output = self.run(tokens).map_err(EmbedError::Backend)?;
        let [texts, vectors, dimensions] = output.shape();
        let expected = (1, tokens.ids.len(), self.description.dimensions);
        if (texts, vectors, dimensions) != expected || vectors == 0 {
            return Err(EmbedError::Backend(format!(
                "the model's output has shape {texts} × {vectors} × {dimensions}, not {} × {} × {}",
                expected.0, expected.1, expected.2
            )));
        }
        let vector = self.pooling.pool(&output.to_vec(), dimensions);
        if !vector.iter().all(|value| value.is_finite()) {
            return Err(EmbedError::Backend("the model's output is not finite".to_owned()));
        }
        Ok(vector)
    }
}
