//! What one step computes: for each sequence the tokens to run, where they lie and which logits are wanted.
//!
//! Apart because it is the whole language between the scheduler and a runner. Must not know: requests, stamps, text.

/// Which rows of a sequence's chunk are turned into logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None: a prefill chunk that does not reach the end of the known tokens.
    None,
    /// The last row: the next token is sampled from it.
    Last,
    /// Every row: teacher forcing, which scores known tokens.
    All,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchSequence {
    /// Tokens to run, in order; never empty.
    pub tokens: Vec<u32>,
    /// Tokens in the cache once these are stored, these included.
    pub context: usize,
    /// Blocks that hold the sequence, in order; they cover `context`.
    pub blocks: Vec<u32>,
    /// Logits wanted.
    pub logits: LogitRows,
}

/// One step's work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The sequences, in order of admission.
    pub sequences: Vec<BatchSequence>,
}

impl Batch {
    /// Rows of activations the step needs.
    pub fn rows(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.tokens.len()).sum()
    }

    /// Indices of the rows whose logits are wanted, in batch order.
    pub fn logit_rows(&self) -> Vec<u32> {
        let mut wanted = Vec::new();
        let mut row = 0u32;
        for sequence in &self.sequences {
            let rows = sequence.tokens.len() as u32;
            match sequence.logits {
                LogitRows::None => {}
                LogitRows::Last => wanted.push(row + rows - 1),
                LogitRows::All => wanted.extend(row..row + rows),
            }
            row += rows;
        }
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(tokens: usize, logits: LogitRows) -> BatchSequence {
        BatchSequence { tokens: vec![7; tokens], context: tokens, blocks: vec![0], logits }
    }

    #[test]
    fn rows_to_sample_are_counted_over_the_batch() {
        let batch = Batch {
            sequences: vec![
                part(1, LogitRows::Last),
                part(3, LogitRows::None),
                part(2, LogitRows::All),
                part(4, LogitRows::Last),
            ],
        };
        assert_eq!(batch.rows(), 10);
        assert_eq!(batch.logit_rows(), [0, 4, 5, 9]);
    }
}
