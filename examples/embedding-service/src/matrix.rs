//! Vectors as they travel in `EmbedBatchResponse`.
//!
//! Owns both ends of its `data`: [`encode`] lends a server's floats to the message and pads it so that a reader finds
//! them aligned; [`Embeddings`] is the reader, a view of the bytes where they landed. Invariant: a view has exactly
//! rows × dimensions floats. Never: trusts a peer's alignment, order of fields or shape.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use prost::Message;

use crate::pb::byway::embedding::v1::{DataType, EmbedBatchResponse};

/// Bytes of a float on the wire, and what a view needs memory to be a multiple of.
const FLOAT: usize = 4;

/// Why a response holds no embeddings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatrixError {
    /// The numbers are stored in a way that this version does not know.
    DataType(i32),
    /// There are more or fewer bytes than the shape says.
    Shape {
        /// Rows announced.
        rows: u32,
        /// Columns announced.
        dimensions: u32,
        /// Bytes there.
        bytes: usize,
    },
}

impl fmt::Display for MatrixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DataType(number) => write!(
                f,
                "the embeddings have data type {number}, this client knows only {} (little-endian f32): update it",
                DataType::F32Le as i32
            ),
            Self::Shape { rows, dimensions, bytes } => write!(
                f,
                "the embeddings have {bytes} bytes, but {rows} × {dimensions} numbers take 4 each: the server is broken"
            ),
        }
    }
}

impl std::error::Error for MatrixError {}

/// Embeddings that were received, one row for each text.
///
/// The bytes stay where the message landed. Where they are aligned for floats, as byway's server makes them, reading them
/// copies nothing.
#[derive(Debug, Clone)]
pub struct Embeddings {
    rows: usize,
    dimensions: usize,
    data: Bytes,
}

impl TryFrom<EmbedBatchResponse> for Embeddings {
    type Error = MatrixError;

    fn try_from(response: EmbedBatchResponse) -> Result<Self, MatrixError> {
        let EmbedBatchResponse { rows, dimensions, dtype, data, .. } = response;
        if dtype != DataType::F32Le as i32 {
            return Err(MatrixError::DataType(dtype));
        }
        // Two u32 and a small factor always fit.
        if u128::from(rows) * u128::from(dimensions) * FLOAT as u128 != data.len() as u128 {
            return Err(MatrixError::Shape { rows, dimensions, bytes: data.len() });
        }
        Ok(Self { rows: rows as usize, dimensions: dimensions as usize, data })
    }
}

impl Embeddings {
    /// Number of texts.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers in each row.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// All numbers, row by row: borrowed where they landed if that memory is aligned for floats, else a copy.
    pub fn as_slice(&self) -> Cow<'_, [f32]> {
        floats(&self.data)
    }

    /// One row, in the order of the texts.
    ///
    /// # Panics
    /// There is no row `index`.
    pub fn row(&self, index: usize) -> Cow<'_, [f32]> {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        let length = self.dimensions * FLOAT;
        floats(&self.data[index * length..(index + 1) * length])
    }

    /// The bytes as they arrived.
    pub fn as_bytes(&self) -> &Bytes {
        &self.data
    }
}

fn floats(bytes: &[u8]) -> Cow<'_, [f32]> {
    if cfg!(target_endian = "little")
        && let Ok(floats) = bytemuck::try_cast_slice(bytes)
    {
        return Cow::Borrowed(floats);
    }
    let chunks = bytes.chunks_exact(FLOAT);
    Cow::Owned(chunks.map(|chunk| f32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]])).collect())
}

/// Floats that a message borrows its bytes from.
struct Lent(Vec<f32>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// Puts `values`, row by row, into `response`, and pads it so that they begin at a multiple of four bytes.
///
/// To be called when everything else is set. The values are not copied.
pub(crate) fn encode(response: &mut EmbedBatchResponse, values: Vec<f32>) {
    response.dtype = DataType::F32Le as i32;
    response.data = if cfg!(target_endian = "little") {
        Bytes::from_owner(Lent(values))
    } else {
        values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
    };
    response.padding = Bytes::new();
    let begin = data_offset(response);
    // A field of its own costs a tag and a length.
    const HEADER: usize = 2;
    let missing = begin.next_multiple_of(FLOAT) - begin;
    response.padding = match missing {
        0 => Bytes::new(),
        _ => {
            // An empty field is not sent at all, so that its two bytes alone cannot be had.
            let filler = (missing + FLOAT - HEADER) % FLOAT;
            Bytes::from_static(&[0; FLOAT]).slice(..if filler == 0 { FLOAT } else { filler })
        }
    };
}

/// Where `data`, the last field, begins in the encoded message.
fn data_offset(response: &EmbedBatchResponse) -> usize {
    response.encoded_len() - response.data.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::byway::embedding::v1::Metadata;

    fn response(rows: usize, dimensions: usize, total_time_ns: u64) -> (EmbedBatchResponse, Vec<f32>) {
        let values: Vec<f32> = (0..rows * dimensions).map(|index| index as f32 - 0.5).collect();
        let metadata = Metadata { total_time_ns, ..Default::default() };
        let mut response = EmbedBatchResponse {
            rows: u32::try_from(rows).expect("small"),
            dimensions: u32::try_from(dimensions).expect("small"),
            metadata: Some(metadata),
            ..Default::default()
        };
        encode(&mut response, values.clone());
        (response, values)
    }

    #[test]
    fn data_begins_at_a_multiple_of_four_whatever_is_before_it() {
        let mut paddings = [0; FLOAT + 1];
        for rows in [1, 2, 31, 127, 128, 200] {
            for dimensions in [1, 3, 127, 128, 384, 1000] {
                for digits in 0..9 {
                    let (response, values) = response(rows, dimensions, 1 << (7 * digits));
                    paddings[response.padding.len()] += 1;
                    let wire = response.encode_to_vec();
                    let first = values[0].to_le_bytes();
                    let offset = wire.len() - response.data.len();
                    assert_eq!(wire[offset..offset + FLOAT], first, "data is last");
                    assert_eq!(offset % FLOAT, 0, "{rows} × {dimensions}, {digits} digits");
                }
            }
        }
        assert!([0, 1, 3, 4].iter().all(|&length| paddings[length] > 0), "all are tried: {paddings:?}");
        assert_eq!(paddings[2], 0, "never of use");
    }

    #[test]
    fn aligned_memory_is_viewed_where_it_is_and_other_memory_is_copied() {
        let (response, values) = response(300, 5, 1);
        let wire = response.encode_to_vec();
        for shift in 0..FLOAT {
            // A vector of u64 is aligned; the message is put `shift` bytes behind its beginning.
            let mut memory = vec![0u64; wire.len() / 8 + 2];
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
            bytes[shift..shift + wire.len()].copy_from_slice(&wire);
            let landed = Bytes::from_owner(Landed(memory)).slice(shift..shift + wire.len());
            let embeddings =
                Embeddings::try_from(EmbedBatchResponse::decode(landed.clone()).expect("a message"))
                    .expect("valid");
            assert_eq!(*embeddings.as_slice(), values);
            assert_eq!(*embeddings.row(299), values[299 * 5..]);
            match embeddings.as_slice() {
                Cow::Borrowed(view) => {
                    assert_eq!(shift, 0);
                    assert_eq!(
                        view.as_ptr() as usize,
                        landed.as_ptr() as usize + wire.len() - values.len() * FLOAT
                    );
                }
                Cow::Owned(_) => assert_ne!(shift, 0, "aligned memory needs no copy"),
            }
        }
    }

    struct Landed(Vec<u64>);

    impl AsRef<[u8]> for Landed {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(&self.0)
        }
    }

    #[test]
    fn the_servers_floats_are_lent_not_copied() {
        let values = vec![1.5f32; 1000];
        let address = values.as_ptr() as usize;
        let mut response = EmbedBatchResponse { rows: 10, dimensions: 100, ..Default::default() };
        encode(&mut response, values);
        assert_eq!(response.data.as_ptr() as usize, address);
    }

    #[test]
    fn other_types_and_wrong_shapes_are_refused() {
        let refused = |change: fn(&mut EmbedBatchResponse)| {
            let (mut response, _) = response(2, 3, 0);
            change(&mut response);
            Embeddings::try_from(response).expect_err("refused")
        };
        assert_eq!(refused(|response| response.dtype = 7), MatrixError::DataType(7));
        assert_eq!(refused(|response| response.dtype = 0), MatrixError::DataType(0));
        let shape = |rows, dimensions, bytes| MatrixError::Shape { rows, dimensions, bytes };
        assert_eq!(refused(|response| response.rows = 3), shape(3, 3, 24));
        assert_eq!(refused(|response| response.data.truncate(23)), shape(2, 3, 23));
        let most = refused(|response| (response.rows, response.dimensions) = (u32::MAX, u32::MAX));
        assert_eq!(most, shape(u32::MAX, u32::MAX, 24));
    }

    #[test]
    fn no_rows_are_a_matrix_too() {
        let (response, _) = response(0, 3, 0);
        let embeddings = Embeddings::try_from(response).expect("valid");
        assert_eq!((embeddings.rows(), embeddings.dimensions(), embeddings.as_slice().len()), (0, 3, 0));
    }
}
