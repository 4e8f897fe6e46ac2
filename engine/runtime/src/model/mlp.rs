//! The second half of a layer: one gated projection, or a few of many for each token.
//!
//! Apart from attention, with which it shares only rows of activations. Must not know: sequences, caches.

use pitot_kernels::{Activation, Device, DeviceError};

use super::config::{Config, ExpertWeights, Experts, LayerConfig, Mlp};
use super::layer::{Gated, MlpWeights};

/// Activations of the widths that the layers have.
pub(super) struct MlpRoom<D: Device> {
    dense: Option<GatedRoom<D>>,
    experts: Option<ExpertsRoom<D>>,
}

struct GatedRoom<D: Device> {
    /// (rows, 2 * intermediate).
    gate_up: D::Activations,
    /// (rows, intermediate).
    gated: D::Activations,
}

struct ExpertsRoom<D: Device> {
    /// (rows, experts).
    router: D::Activations,
    /// (rows, hidden), those of one expert's tokens.
    input: D::Activations,
    output: D::Activations,
    inside: GatedRoom<D>,
    logits: Vec<f32>,
}

impl<D: Device> MlpRoom<D> {
    pub fn new(device: &D, config: &Config, rows: usize) -> Result<MlpRoom<D>, DeviceError> {
        let gated = |intermediate: usize| {
            let gate_up = device.activations(rows, 2 * intermediate)?;
            Ok::<_, DeviceError>(GatedRoom { gate_up, gated: device.activations(rows, intermediate)? })
        };
        let dense = config.layers.iter().find_map(|layer: &LayerConfig| match layer.mlp {
            Mlp::Dense { intermediate } => Some(intermediate),
            Mlp::Experts(_) => None,
        });
        let experts = config.layers.iter().find_map(|layer| match layer.mlp {
            Mlp::Dense { .. } => None,
            Mlp::Experts(experts) => Some(experts),
        });
        let experts = experts.map(|experts| {
            Ok::<_, DeviceError>(ExpertsRoom {
                router: device.activations(rows, experts.count)?,
                input: device.activations(rows, config.hidden)?,
                output: device.activations(rows, config.hidden)?,
                inside: gated(experts.intermediate)?,
                logits: Vec::new(),
            })
        });
        Ok(MlpRoom { dense: dense.map(gated).transpose()?, experts: experts.transpose()? })
    }

    /// out = mlp(x).
    pub fn run(
        &mut self,
        device: &D,
        activation: Activation,
        weights: &MlpWeights<D>,
        rows: usize,
        x: &D::Activations,
        out: &mut D::Activations,
    ) {
        match weights {
            MlpWeights::Dense(gated) => {
                let room = self.dense.as_mut().expect("there is room for each kind of layer");
                run_gated(device, activation, gated, rows, x, room, out);
            }
            MlpWeights::Experts { shape, router, experts } => {
                let room = self.experts.as_mut().expect("there is room for each kind of layer");
                device.matmul(rows, x, router, &mut room.router);
                device.read(rows, &room.router, &mut room.logits);
                device.clear(rows, out);
                let routes = routes(&room.logits, *shape);
                for (expert, Route { rows, weights }) in experts.iter().zip(&routes) {
                    if rows.is_empty() {
                        continue;
                    }
                    let ExpertsRoom { input, output, inside, .. } = room;
                    device.gather(rows, x, input);
                    run_gated(device, activation, expert, rows.len(), input, inside, output);
                    device.scatter_add(rows, weights, output, out);
                }
            }
        }
    }
}

fn run_gated<D: Device>(
    device: &D,
    activation: Activation,
    weights: &Gated<D>,
    rows: usize,
    x: &D::Activations,
    room: &mut GatedRoom<D>,
    out: &mut D::Activations,
) {
    device.matmul(rows, x, &weights.gate_up, &mut room.gate_up);
    device.gate(rows, activation, &room.gate_up, &mut room.gated);
    device.matmul(rows, &room.gated, &weights.down, out);
}

/// The rows of one expert and their weights.
#[derive(Debug, Clone, Default, PartialEq)]
struct Route {
    rows: Vec<u32>,
    weights: Vec<f32>,
}

/// For each expert its rows: softmax over all experts, then the most probable of each row, of equal ones the first.
fn routes(logits: &[f32], shape: Experts) -> Vec<Route> {
    let mut routes = vec![Route::default(); shape.count];
    for (row, logits) in (0_u32..).zip(logits.chunks_exact(shape.count)) {
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f32> = logits.iter().map(|logit| (logit - highest).exp()).collect();
        let mut order: Vec<usize> = (0..shape.count).collect();
        order.sort_by(|a, b| powers[*b].total_cmp(&powers[*a]).then(a.cmp(b)));
        order.truncate(shape.used);
        let whole: f32 = match shape.weights {
            ExpertWeights::Probabilities => powers.iter().sum(),
            ExpertWeights::Shares => order.iter().map(|expert| powers[*expert]).sum(),
        };
        for expert in order {
            routes[expert].rows.push(row);
            routes[expert].weights.push(powers[expert] / whole);
        }
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_goes_to_its_most_probable_experts() {
        // Probabilities 1/8, 4/8, 1/8, 2/8 of the first row; the second prefers the last, then, of equal ones, the
        // first.
        let logits = [1.0_f32, 4.0, 1.0, 2.0, 1.0, 1.0, 1.0, 5.0].map(f32::ln);
        let shape = |weights| Experts { count: 4, used: 2, intermediate: 1, weights };
        let check = |weights, expected: [(&[u32], &[f32]); 4]| {
            let found = routes(&logits, shape(weights));
            for (found, (rows, weights)) in found.iter().zip(expected) {
                assert_eq!(found.rows, rows);
                assert!(found.weights.iter().zip(weights).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
            }
        };
        check(
            ExpertWeights::Probabilities,
            [(&[1], &[0.125]), (&[0], &[0.5]), (&[], &[]), (&[0, 1], &[0.25, 0.625])],
        );
        check(
            ExpertWeights::Shares,
            [(&[1], &[1.0 / 6.0]), (&[0], &[2.0 / 3.0]), (&[], &[]), (&[0, 1], &[1.0 / 3.0, 5.0 / 6.0])],
        );
    }
}
