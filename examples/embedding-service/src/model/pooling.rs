//! From a vector for each token to one for the text.
//!
//! Owns the arithmetic: sums are f64, as Text Embeddings Inference normalizes. Never: knows a model.

/// How a text's vector is made from those of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooling {
    /// The first token's.
    Cls,
    /// Their mean. Texts run alone, so there is no padding to leave out of it.
    Mean,
}

impl Pooling {
    /// Pools `tokens`, vector after vector of `dimensions` numbers each; at least one.
    pub(super) fn pool(self, tokens: &[f32], dimensions: usize) -> Vec<f32> {
        match self {
            Self::Cls => tokens[..dimensions].to_vec(),
            Self::Mean => {
                let mut sums = vec![0f64; dimensions];
                for token in tokens.chunks_exact(dimensions) {
                    for (sum, value) in sums.iter_mut().zip(token) {
                        *sum += f64::from(*value);
                    }
                }
                let count = (tokens.len() / dimensions) as f64;
                sums.into_iter().map(|sum| (sum / count) as f32).collect()
            }
        }
    }
}

/// Scales a vector to length 1. One of length zero has no direction, and stays as it is.
pub(crate) fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        for value in vector {
            *value = (f64::from(*value) / length) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_over_tokens_and_cls_is_the_first() {
        let tokens = [1.0, 2.0, 3.0, 6.0, 5.0, 1.0];
        assert_eq!(Pooling::Mean.pool(&tokens, 2), [3.0, 3.0]);
        assert_eq!(Pooling::Cls.pool(&tokens, 2), [1.0, 2.0]);
        assert_eq!(Pooling::Mean.pool(&tokens[..2], 2), [1.0, 2.0]);
    }

    #[test]
    fn normalized_vectors_have_length_one() {
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        // Squares of these are infinite as f32.
        let mut large = [1e30, 0.0];
        normalize(&mut large);
        assert_eq!(large, [1.0, 0.0]);
        let mut zero = [0.0, 0.0];
        normalize(&mut zero);
        assert_eq!(zero, [0.0, 0.0]);
    }
}
