//! Named tensors over the bytes of one or several safetensors files.
//!
//! Apart so that a missing or misshapen tensor is found and named in one place. Must not know: layers, devices'
//! layouts.

use pitot_kernels::WeightBytes;
use safetensors::{Dtype, SafeTensors};

use super::LoadError;

/// The tensors of a model.
pub(super) struct Weights<'a> {
    files: Vec<SafeTensors<'a>>,
}

impl<'a> Weights<'a> {
    /// # Errors
    /// When a file is not safetensors.
    pub fn new(files: &[&'a [u8]]) -> Result<Weights<'a>, LoadError> {
        let parse = |bytes: &&'a [u8]| {
            SafeTensors::deserialize(bytes).map_err(|error| LoadError::Safetensors(error.to_string()))
        };
        Ok(Weights { files: files.iter().map(parse).collect::<Result<_, _>>()? })
    }

    /// The values of a tensor, which has to have that shape.
    ///
    /// # Errors
    /// Names the tensor when it is missing, of another shape, or of a type that is not supported.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<WeightBytes<'a>, LoadError> {
        let found = self.files.iter().find_map(|file| file.tensor(name).ok());
        let view = found.ok_or_else(|| LoadError::MissingTensor { name: name.to_owned() })?;
        if view.shape() != shape {
            return Err(LoadError::TensorShape {
                name: name.to_owned(),
                found: view.shape().to_vec(),
                expected: shape.to_vec(),
            });
        }
        match view.dtype() {
            Dtype::BF16 => Ok(WeightBytes::Bf16(view.data())),
            Dtype::F16 => Ok(WeightBytes::F16(view.data())),
            Dtype::F32 => Ok(WeightBytes::F32(view.data())),
            other => Err(LoadError::TensorType { name: name.to_owned(), found: format!("{other:?}") }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::tensor::TensorView;

    fn file(name: &str, dtype: Dtype, bytes: usize) -> Vec<u8> {
        let data = vec![0u8; bytes];
        let view = TensorView::new(dtype, vec![2, 3], &data).expect("bytes fit the shape");
        safetensors::serialize([(name, view)], None).expect("it serialises")
    }

    #[test]
    fn tensors_are_found_in_any_file_and_misfits_are_named() {
        let files = [file("a", Dtype::BF16, 12), file("b", Dtype::F32, 24), file("c", Dtype::I8, 6)];
        let slices: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
        let weights = Weights::new(&slices).expect("the files are well formed");
        assert!(matches!(weights.tensor("a", &[2, 3]), Ok(WeightBytes::Bf16(bytes)) if bytes.len() == 12));
        assert!(matches!(weights.tensor("b", &[2, 3]), Ok(WeightBytes::F32(bytes)) if bytes.len() == 24));
        let message = |name, shape: &[usize]| weights.tensor(name, shape).expect_err("a misfit").to_string();
        assert_eq!(message("d", &[2, 3]), "the weights lack the tensor d");
        assert_eq!(message("a", &[3, 2]), "the tensor a has the shape [2, 3], but [3, 2] is needed");
        assert_eq!(message("c", &[2, 3]), "the tensor c is of type I8; supported: BF16, F16, F32");
        assert!(matches!(Weights::new(&[b"no"]), Err(LoadError::Safetensors(_))));
    }
}
