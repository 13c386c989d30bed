"""What the checks are made at: networks whose derivatives are written out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from hessence.papers.claims.attention_layers import Attention, attention_draws
from hessence.papers.claims.dense_hessians import (
    characteristic,
    curvature,
    dense_hessian,
    gradient,
    gradients,
    smooth_hessian,
    without,
)
from hessence.papers.claims.linear_networks import (
    Linear,
    jacobian_of,
    padded_gap,
    random_weights,
    solved_draws,
    tangent_kernel,
)
from hessence.papers.claims.paper_000_pairs import pairs_near
from hessence.papers.claims.scalar_networks import relu_draws
from hessence.papers.claims.tiny_transformers import draw
from hessence.papers.claims.trained_networks import NetworkBatch, batched


def test_both_ways_to_a_hessian_agree():
    def loss(points):
        return (points[:, 0] * points[:, 1] * points[:, 2] - 0.3) ** 2

    point = np.array([0.3, -0.7, 1.1])
    assert np.allclose(dense_hessian(loss, point), smooth_hessian(loss, point), atol=1e-12)
    assert np.allclose(dense_hessian(loss, point, 0.1), smooth_hessian(loss, point), atol=1e-12)


def test_curvature_is_a_quadratic_form_of_the_hessian():
    net = next(attention_draws(3))
    direction = np.random.default_rng(0).normal(size=len(net.point))
    direction /= np.linalg.norm(direction)
    expected = direction @ net.hessian() @ direction
    assert curvature(net.loss, net.point, direction) == pytest.approx(expected, rel=1e-9)


def test_gradients_at_many_points_are_those_at_each():
    net = next(attention_draws(4))
    points = net.point + np.linspace(0, 1, 3)[:, None]
    assert np.allclose(gradients(net.loss, points), [gradient(net.loss, p) for p in points])


def test_a_characteristic_polynomial_has_the_eigenvalues_for_roots():
    matrix = np.array([[2.0, 1.0, 0.0], [1.0, -1.0, 0.5], [0.0, 0.5, 3.0]])
    roots = np.roots([float(c) for c in characteristic(matrix)])
    assert np.allclose(np.sort(roots), np.linalg.eigvalsh(matrix))


def test_attention_scores_are_softmax():
    net = Attention(2.0, np.zeros(3), np.zeros(3), np.array([1.0, 3.0]), np.zeros(2))
    assert net.loss(net.point[None, :]) == pytest.approx(8.0)


def test_attention_weights_are_what_outputs_are_made_with():
    net = next(attention_draws(6))
    assert np.allclose(net.weights().sum(axis=1), 1)
    assert np.allclose(net.w_v * net.weights() @ net.x, net.outputs(net.point[None])[0])


def test_eigenvalues_are_taken_out_once_each():
    assert without([2.0, -1.0, 1.0, 1.0], [1.1, -0.9]).tolist() == [2.0, 1.0]
    assert without([1.0, 2.0], []).tolist() == [1.0, 2.0]


def test_a_cells_vector_is_zero_for_the_other_cell():
    net = next(relu_draws(7))
    for _, cell in net.cells():
        vector = net.outlier_vector(cell, 2.0).reshape(2, -1)
        own = net.v > 0 if cell.v[0] > 0 else net.v <= 0
        assert not vector[:, ~own].any()
        assert np.allclose(vector[0, own], 2 * cell.w + cell.residual * cell.v)
        assert np.allclose(vector[1, own], 2 * cell.v + cell.residual * cell.w)


def test_a_sink_takes_all_attention():
    net = replace(next(attention_draws(5)), sink=60.0)
    assert np.allclose(net.outputs(net.point[None])[0], net.w_v * net.x[0])


def test_the_kernel_shares_its_trace_with_the_hessian_at_zero_loss():
    for net, _ in solved_draws(1):
        jacobian = jacobian_of(net)
        assert jacobian.shape == (net.Y.size, len(net.point))
        assert np.trace(tangent_kernel(net)) == pytest.approx(np.trace(net.hessian()))


def test_values_are_filled_up_with_zeros_and_keep_their_signs():
    matrix = np.diag([2.0, 0.0, 1.0])
    assert padded_gap([1.0, 2.0], matrix) == 0
    assert padded_gap([1.0, 0.0, 2.0, 0.0], matrix) == 0
    assert padded_gap([1.0, -2.0], matrix) == 1
    assert padded_gap([1.0, 2.0, 0.5], matrix) == 0.25
    assert padded_gap([1.0, 2.0, 0.5, 0.5], matrix) == np.inf


def _differences(loss, value, step=1e-5):
    return (loss(value + step) - loss(value - step)) / (2 * step)


@pytest.mark.parametrize("activation", ["linear", "relu", "tanh"])
def test_stacks_differentiate_their_losses(activation):
    rng = np.random.default_rng(1)
    nets = [random_weights(rng, (3, 4, 4, 2)) for _ in range(3)]
    x, y = rng.normal(size=(3, 7)), rng.normal(size=(2, 7))
    batch = NetworkBatch(batched(nets), x, y, activation)
    for layer, found in enumerate(batch.gradients()):

        def moved(step, layer=layer):
            weights = [w.copy() for w in batch.weights]
            weights[layer][:, 1, 2] += step
            return replace(batch, weights=tuple(weights)).losses()

        assert np.allclose(found[:, 1, 2], _differences(moved, 0.0), atol=1e-8)


def test_hessians_of_stacks_are_those_of_each_network():
    rng = np.random.default_rng(2)
    nets = [random_weights(rng, (2, 3, 2)) for _ in range(2)]
    X, Y = rng.normal(size=(2, 2, 6))
    batch = NetworkBatch(batched(nets), X, Y)
    for net, hessian in zip(nets, batch.hessians(), strict=True):
        assert np.allclose(hessian, Linear(net, X, Y).hessian(), atol=1e-10)


def test_networks_of_a_stack_may_have_data_of_their_own():
    rng = np.random.default_rng(4)
    nets = [random_weights(rng, (2, 3, 2)) for _ in range(2)]
    X, Y = rng.normal(size=(2, 2, 2, 6))
    together = NetworkBatch(batched(nets), X, Y)
    for i, net in enumerate(nets):
        alone = NetworkBatch(batched([net]), X[i], Y[i])
        assert together.losses()[i] == pytest.approx(alone.losses()[0])
        assert np.allclose(together.hessians()[i], alone.hessians()[0])


def test_descent_of_stacks_takes_a_rate_for_each_layer():
    rng = np.random.default_rng(3)
    batch = NetworkBatch(batched([random_weights(rng, (2, 3, 2))]), *rng.normal(size=(2, 2, 6)))
    first, second = batch.descend(0.1, 1, (1.0, 0.0)).weights
    assert np.allclose(first, batch.weights[0] - 0.1 * batch.gradients()[0])
    assert np.array_equal(second, batch.weights[1])


@pytest.mark.parametrize("sink", [0.0, 1.5])
def test_transformers_differentiate_their_losses(sink):
    net = replace(draw(0, ("attention", "layers", "attention")), sink=sink)
    for place, slope in enumerate(net.gradients()):

        def moved(step, place=place):
            weights = [w.copy() for w in net.weights]
            weights[place][1, 2] += step
            return replace(net, weights=tuple(weights)).loss()

        assert slope[1, 2] == pytest.approx(_differences(moved, 0.0), abs=1e-9)


def test_transformers_have_the_curvature_that_autodiff_finds():
    torch = pytest.importorskip("torch")
    net = draw(1, ("layers",))
    shapes = [w.shape for w in net.weights]
    sizes = [w.size for w in net.weights]

    def logits(flat):
        parts = [p.reshape(s) for p, s in zip(flat.split(sizes), shapes, strict=True)]
        state = parts[0][torch.as_tensor(net.tokens)] + parts[1]
        state = state + torch.nn.functional.silu(state @ parts[2]) @ parts[3]
        return (state @ parts[4]).flatten(0, 1)

    def loss(flat):
        return torch.nn.functional.cross_entropy(
            logits(flat), torch.as_tensor(net.targets).flatten()
        )

    point = torch.as_tensor(np.concatenate([w.ravel() for w in net.weights]))
    hessian = torch.autograd.functional.hessian(loss, point)
    assert net.sharpness() == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]))
    jacobian = torch.autograd.functional.jacobian(logits, point)
    shares = torch.softmax(logits(point), dim=1)
    middle = torch.diag_embed(shares) - shares[:, :, None] * shares[:, None, :]
    ggn = torch.einsum("bki,bkl,blj->ij", jacobian, middle, jacobian) / len(shares)
    assert net.gauss_newton() == pytest.approx(float(torch.linalg.eigvalsh(ggn)[-1]))


def test_descent_of_transformers_learns():
    net = draw(2, ("attention", "layers"))
    assert net.descend(0.1, 30).loss() < 0.8 * net.loss()
    assert 0 < net.attended() < replace(net, sink=5.0).attended() <= 1


def test_pairs_are_all_looked_at():
    values = np.array([-1.0, 0.5, 3.0, 3.2])
    assert pairs_near(values, 2.1) == pytest.approx((0.1, 0.1))
