//! Vectors out of nothing.
//!
//! Owns [`NullModel`]: vectors that depend on the text alone, are the same on every machine, mean nothing and cost next to
//! nothing, so that what is measured with them is everything else.

use crate::model::{Description, LoadError};

/// Most dimensions of a null model, so that a typing error does not ask for all memory: rows of 256 KiB.
pub const MAX_NULL_DIMENSIONS: usize = 65_536;

/// Numbers that are hashed; longer vectors repeat them, since copying is several times cheaper than hashing.
const PERIOD: usize = 64;

/// Makes up vectors.
#[derive(Debug, Clone)]
pub struct NullModel {
    description: Description,
}

impl NullModel {
    /// A model of so many dimensions.
    ///
    /// # Errors
    /// None, or more than [`MAX_NULL_DIMENSIONS`].
    pub fn new(dimensions: usize) -> Result<Self, LoadError> {
        if dimensions == 0 || dimensions > MAX_NULL_DIMENSIONS {
            return Err(LoadError::NullDimensions(dimensions.to_string()));
        }
        let model_id = format!("null:{dimensions}");
        // It counts no tokens, so that no text has too many.
        Ok(Self {
            description: Description { model_id, dtype: "float32", dimensions, max_tokens: usize::MAX },
        })
    }

    /// What is known of it.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Appends the first `dimensions` numbers of the vector of `text` to `row`, scaled to length 1 if asked for.
    pub(crate) fn embed(&self, text: &str, dimensions: usize, normalize: bool, row: &mut Vec<f32>) {
        let mut pattern = pattern(text);
        if normalize {
            let length = |part: &[f32]| part.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
            let (whole, rest) = (dimensions / PERIOD, dimensions % PERIOD);
            let scale = (whole as f64 * length(&pattern) + length(&pattern[..rest])).sqrt().recip();
            pattern = pattern.map(|value| (f64::from(value) * scale) as f32);
        }
        row.reserve(dimensions);
        let end = row.len() + dimensions;
        while row.len() < end {
            row.extend_from_slice(&pattern[..PERIOD.min(end - row.len())]);
        }
    }
}

/// Numbers between -1 and 1, none of them zero.
fn pattern(text: &str) -> [f32; PERIOD] {
    // FNV-1a of the text, then splitmix64 from there.
    let seed = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let mut state = seed;
    std::array::from_fn(|_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // 23 bits, and a half so that none is zero: exact as f32.
        ((mixed >> 41) as f32 + 0.5) / (1 << 22) as f32 - 1.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embed(text: &str, dimensions: usize, normalize: bool) -> Vec<f32> {
        let mut row = Vec::new();
        NullModel::new(dimensions).expect("a model").embed(text, dimensions, normalize, &mut row);
        row
    }

    #[test]
    fn vectors_depend_on_the_text_alone() {
        let vector = embed("a text", 384, false);
        assert_eq!(vector, embed("a text", 384, false));
        assert_ne!(vector, embed("A text", 384, false));
        assert!(vector.iter().all(|value| *value != 0.0 && value.abs() < 1.0), "{vector:?}");
        // Computed by other means: other machines and later versions must give the same.
        assert_eq!(vector[..3], [-0.834_213_14, 0.540_844_56, 0.666_155_7]);
        assert_eq!(vector[..64], vector[64..128], "what is hashed is repeated");
    }

    #[test]
    fn normalized_vectors_have_length_one_whatever_their_dimensions() {
        for dimensions in [1, 63, 64, 65, 384, 8192] {
            let vector = embed("a text", dimensions, true);
            assert_eq!(vector.len(), dimensions);
            let length = vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
            assert!((length - 1.0).abs() < 1e-5, "{dimensions}: {length}");
        }
    }

    #[test]
    fn dimensions_are_bounded() {
        for dimensions in [0, MAX_NULL_DIMENSIONS + 1] {
            let error = NullModel::new(dimensions).expect_err("refused").to_string();
            assert!(error.contains("1 to 65536"), "{error}");
        }
        assert_eq!(embed("a", MAX_NULL_DIMENSIONS, true).len(), MAX_NULL_DIMENSIONS);
    }
}
