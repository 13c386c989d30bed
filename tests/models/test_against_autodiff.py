"""Hessian and Gauss–Newton matrices of all kinds of models, against plain autograd and a peer."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hessence as hs
from tests.models.market import MODELS, numbers, problem
from tests.models.oracle import assert_same, dense_ggn, dense_hessian, finite_differences
from tests.models.peer import peer


@pytest.mark.parametrize("name", MODELS)
def test_the_hessian(name):
    case = problem(name)
    expected = dense_hessian(case.value, case.model.parameters())
    H = hs.hessian(case.model, case.data, case.loss)
    assert H.shape == expected.shape
    assert_same(H.dense(), expected)
    v = torch.linspace(-1, 1, H.shape[0], dtype=torch.float64)
    assert_same(H @ v, expected @ v)


@pytest.mark.parametrize("name", MODELS)
def test_the_gauss_newton_matrix(name):
    case = problem(name)
    parameters = list(case.model.parameters())
    expected = dense_ggn(case.predict, lambda f: case.loss(f, case.y), parameters)
    G = hs.ggn(case.model, case.data, case.loss)
    dense = G.dense()
    assert_same(dense, expected)
    assert_same(dense, dense.T)
    assert torch.linalg.eigvalsh(dense).min() > -1e-12 * dense.norm()
    H = hs.hessian(case.model, case.data, case.loss)
    v = torch.linspace(-1, 1, G.shape[0], dtype=torch.float64)
    assert_same(H.ggn @ v, expected @ v)
    whole = dense_hessian(case.value, parameters)
    assert float((H.functional @ v - (whole - expected) @ v).norm()) <= 1e-11 * whole.norm()


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradient(name):
    case = problem(name)
    value = case.value()
    slopes = torch.autograd.grad(value, list(case.model.parameters()), materialize_grads=True)
    for operator in (hs.hessian, hs.ggn):
        H = operator(case.model, case.data, case.loss)
        assert H.loss() == pytest.approx(value.item(), rel=1e-13)
        assert_same(H.gradient(), torch.cat([s.reshape(-1) for s in slopes]))


PEER_GGN = {
    "tanh_mlp", "relu_mlp", "conv_net", "layer_norm", "group_norm", "batch_norm", "embedding",
    "lstm", "gru", "linear",
}  # fmt: skip
"""Without several inputs, unused parameters and fused attention."""

PEER_HESSIAN = PEER_GGN - {"conv_net", "group_norm", "layer_norm"}
"""Forward-over-reverse products do not exist for all layers, and are wrong for layer norms."""


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize("name", sorted(PEER_GGN))
def test_a_peer_agrees(name):
    case = problem(name)
    G = hs.ggn(case.model, case.data, case.loss)
    v = torch.linspace(-1, 1, G.shape[0], dtype=torch.float64)
    theirs = case.model, case.loss, [case.data]
    assert_same(G @ v, peer("GGN", *theirs) @ v, 1e-11)
    if name in PEER_HESSIAN:
        H = hs.hessian(case.model, case.data, case.loss)
        assert_same(H @ v, peer("Hessian", *theirs) @ v, 1e-11)


def classes(n):
    return torch.arange(n) % 3


PEER_LOSSES = {
    "squares": (nn.MSELoss, lambda n: numbers(n, 3)),
    "cross-entropy": (nn.CrossEntropyLoss, classes),
    "binary cross-entropy": (nn.BCEWithLogitsLoss, lambda n: (numbers(n, 3) > 0).double()),
}

PEER_DATA = {
    "one batch": lambda x, y: [(x, y)],
    "equal batches": lambda x, y: list(zip(x.split(8), y.split(8), strict=True)),
    "ragged batches": lambda x, y: list(zip(x.split(7), y.split(7), strict=True)),
    "a loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=5),
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script")
@pytest.mark.parametrize("data", PEER_DATA)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loss", PEER_LOSSES)
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU, nn.GELU, None])
def test_a_peer_agrees_on_losses_and_data(activation, loss, reduction, data):
    with torch.random.fork_rng():
        torch.manual_seed(6)
        between = [] if activation is None else [activation()]
        model = nn.Sequential(nn.Linear(4, 5), *between, nn.Linear(5, 3)).double()
    make, targets = PEER_LOSSES[loss]
    x, criterion = numbers(24, 4), make(reduction=reduction)
    batches = PEER_DATA[data](x, targets(24))
    for kind, operator in (("GGN", hs.ggn), ("Hessian", hs.hessian)):
        found = operator(model, batches, criterion)
        v = torch.linspace(-1, 1, found.shape[0], dtype=torch.float64)
        assert_same(found @ v, peer(kind, model, criterion, batches) @ v, 1e-11)


def test_layer_norms_against_finite_differences():
    """Where forward over reverse mode goes wrong: PyTorch's, and with it a peer's."""
    case = problem("layer_norm")
    expected = finite_differences(case.value, case.model.parameters())
    assert_same(hs.hessian(case.model, case.data, case.loss).dense(), expected, 1e-9)


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("dim", [0, 1, -1, None])
@pytest.mark.parametrize("normalise", [nn.utils.parametrizations.weight_norm,
                                       nn.utils.weight_norm])  # fmt: skip
def test_weight_norm_against_finite_differences(normalise, dim):
    """PyTorch's own second derivative of it is wrong."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
        x, y = numbers(7, 3), numbers(7, 2)
    normalise(model[0], dim=dim)
    data, loss = (x, y), nn.MSELoss()
    expected = finite_differences(lambda: loss(model(x), y), model.parameters())
    H = hs.hessian(model, data, loss)
    assert_same(H.dense(), expected, 1e-9)
    assert H.check().passed
    assert H.loss() == pytest.approx(loss(model(x), y).item(), rel=1e-13)


def channels(*layers):
    """Put layers for two channels of two numbers in between."""
    return nn.Sequential(nn.Unflatten(1, (2, 2)), *layers, nn.Tanh(), nn.Flatten())


LAYERS = {
    "RMSNorm": lambda: nn.RMSNorm(4),
    "InstanceNorm1d": lambda: channels(nn.InstanceNorm1d(2, affine=True)),
    "LocalResponseNorm": lambda: channels(nn.LocalResponseNorm(2)),
    "Conv1d": lambda: channels(nn.Conv1d(2, 3, 2, padding=1), nn.AvgPool1d(2)),
    "ConvTranspose1d": lambda: channels(nn.ConvTranspose1d(2, 1, 3)),
    "Upsample": lambda: channels(nn.Upsample(5, mode="linear")),
    "GLU": lambda: nn.Sequential(nn.Linear(4, 8), nn.GLU()),
    "GELU tanh": lambda: nn.GELU("tanh"),
    "Softmax": lambda: nn.Softmax(-1),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
} | {kind.__name__: kind for kind in (
    nn.PReLU, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.SELU, nn.CELU, nn.Softplus, nn.Softsign,
    nn.Hardswish, nn.LeakyReLU, nn.LogSigmoid, nn.Tanhshrink,
)}  # fmt: skip


def test_embeddings_with_sparse_gradients():
    case = problem("embedding")
    expected = hs.hessian(case.model, case.data, case.loss)
    case.model[0].sparse = True
    for operator in (hs.hessian, hs.ggn):
        assert operator(case.model, case.data, case.loss).check().passed
    H = hs.hessian(case.model, case.data, case.loss)
    assert_same(H.dense(), expected.dense())
    assert_same(H.gradient(), expected.gradient())
    assert case.model[0].sparse


@pytest.mark.parametrize("name", LAYERS)
def test_other_layers_against_finite_differences(name):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), LAYERS[name](), nn.Tanh(),
                              nn.Flatten(), nn.LazyLinear(1)).double()  # fmt: skip
        x, y = numbers(5, 2), numbers(5, 1)
        model(x)
    data, loss = (x, y), nn.MSELoss()
    model.eval()
    expected = finite_differences(lambda: loss(model(x), y), model.parameters())
    assert_same(hs.hessian(model, data, loss).dense(), expected, 1e-8)
