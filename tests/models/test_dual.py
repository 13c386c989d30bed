"""The Gauss–Newton matrix by its dual, and the neural tangent kernel, against dense matrices."""

import copy

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import hessence as hs
from hessence.models import _dual, _gram
from hessence.models._gram_plan import Whole, lots
from hessence.models._outer_products import Extent
from tests.models.layered import CASES, case
from tests.models.market import MODELS, numbers, problem
from tests.models.oracle import assert_same, dense_ggn, jacobian

EVERYTHING = {**dict.fromkeys(MODELS, problem), **dict.fromkeys(CASES, case)}


def dense(made):
    return dense_ggn(made.predict, lambda f: made.loss(f, made.y), made.model.parameters())


def dense_kernel(made):
    with sdpa_kernel(SDPBackend.MATH):
        J = jacobian(made.predict(), list(made.model.parameters()))
    return J @ J.T


def assert_whole(spectrum, matrix):
    """Compare all eigenvalues with those of a dense matrix, within 1e-13 of its norm."""
    expected = torch.linalg.eigvalsh(matrix).flip(0)
    assert (spectrum.exact, spectrum.method, len(spectrum)) == (True, "dual", len(matrix))
    gap = (spectrum.eigenvalues - expected).abs().max()
    assert gap <= 1e-13 * expected.abs().max()


@pytest.mark.parametrize("name", EVERYTHING)
def test_all_eigenvalues_and_eigenvectors(name):
    made = EVERYTHING[name](name)
    G = hs.ggn(made.model, made.data, made.loss)
    spectrum = G.spectrum()
    assert_whole(spectrum, dense(made))
    assert spectrum.verify(G).worst < 1e-13
    assert sum(space.multiplicity for space in spectrum["flat"]) == len(spectrum) - spectrum.rank()
    assert_same(G.kernel(), dense_kernel(made), 1e-14)


@pytest.mark.parametrize("name", ["lstm", "conv2d_groups", "tied", "coupled", "time_first"])
@pytest.mark.parametrize("bytes_", [1.0, 3000.0])
def test_little_memory(name, bytes_, monkeypatch):
    monkeypatch.setattr(_gram, "CHUNK_BYTES", bytes_)
    made = EVERYTHING[name](name)
    G = hs.ggn(made.model, made.data, made.loss)
    assert_same(G.kernel(), dense_kernel(made), 1e-14)


@pytest.mark.parametrize("way", ["factored", "written"])
@pytest.mark.parametrize("bytes_", [3000.0, 2.0**26])
@pytest.mark.parametrize("name", [*CASES, "conv_net", "tanh_mlp"])
def test_either_way_to_inner_products(name, bytes_, way, monkeypatch):
    monkeypatch.setattr(_gram, "CHUNK_BYTES", bytes_)
    monkeypatch.setattr(Extent, way, 0.0)
    made = EVERYTHING[name](name)
    assert_same(hs.ggn(made.model, made.data, made.loss).kernel(), dense_kernel(made), 1e-14)


@pytest.mark.parametrize("name", [n for n in CASES if "conv" in n or "transposed" in n] + ["words"])
def test_layers_take_no_backward_pass_for_each_sample(name, monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(_gram.Reader, "read_one_by_one", refuse)
    made = case(name)
    assert len(hs.ggn(made.model, made.data, made.loss).kernel())


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(0, 50)), max_size=6),
    st.integers(1, 7),
    st.integers(1, 900),
)
def test_lots_have_every_unit_once_and_fit(sizes, rows, room):
    wholes = [Whole(i, *size) for i, size in enumerate(sizes)]
    found = list(lots(wholes, rows, room))
    units = [
        (part.leaf, unit) for lot in found for part in lot for unit in range(part.low, part.high)
    ]
    assert units == [(whole.leaf, unit) for whole in wholes for unit in range(whole.length)]
    for lot in found:
        kept = [wholes[p.leaf].fixed + rows * p.numbers for p in lot]
        assert sum(kept) <= room or [p.high - p.low for p in lot] == [1]


@pytest.mark.parametrize("samples", [1, 4])
def test_batches_whose_samples_differ_in_length(samples, seeded):
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Tanh(), nn.AdaptiveAvgPool1d(2), nn.Flatten())
    model = nn.Sequential(model, nn.Linear(6, 2)).double()
    batches = [(numbers(samples, 2, length), numbers(samples, 2)) for length in (5, 5, 9, 3)]
    J = jacobian(torch.cat([model(x) for x, _ in batches]), list(model.parameters()))
    assert_same(hs.ggn(model, batches, nn.MSELoss()).kernel(), J @ J.T, 1e-14)


@pytest.mark.parametrize("shapes", [[(1, 4), (4, 4)], [(3, 1), (3, 4)], [(1, 5), (2, 4), (1, 4)]])
def test_batches_that_do_not_tell_where_samples_are(shapes):
    # In the first batch, time first and samples first are the same.
    model = case("time_first").model
    batches = [(numbers(*shape, 2), numbers(*shape, 2)) for shape in shapes]
    predictions = torch.cat([model(x).flatten() for x, _ in batches])
    J = jacobian(predictions, list(model.parameters()))
    assert_same(hs.ggn(model, batches, nn.MSELoss()).kernel(), J @ J.T, 1e-14)


@pytest.mark.parametrize("hidden", [[(3, 0)], [(3, 0), (2, ...)], [(2, slice(3)), (3, 0)]])
def test_layers_that_take_more_of_some_samples(hidden):
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 3).double(), nn.Linear(3, 2).double()

        def forward(self, x):
            seen = x[..., 0] > 0
            h = x.new_zeros(*x.shape[:-1], 3)
            h[seen] = torch.tanh(self.a(x[seen]))
            return self.b(h.sum(1))

    model, x = Masked(), numbers(4, 5, 2)
    x[..., 0] = x[..., 0].abs()
    for sample, places in hidden:
        x[sample, places, 0] *= -1
    J = jacobian(model(x), list(model.parameters()))
    assert_same(hs.ggn(model, (x, numbers(4, 2)), nn.MSELoss()).kernel(), J @ J.T, 1e-14)


def test_samples_whose_prediction_is_a_constant():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(numbers(3, 2))

        def forward(self, x):
            return x @ self.w if x.sum() > 0 else x[:, :2]

    model, x = Gated(), torch.eye(3).double()
    x[1] *= -1
    G = hs.ggn(model, [(row[None], numbers(1, 2)) for row in x], nn.MSELoss())
    shown = torch.tensor([1.0, 1, 0, 0, 1, 1]).double()
    assert_same(G.kernel(), torch.diag(shown), 1e-14)


def test_a_kernel_that_does_not_fit(monkeypatch):
    made = case("twice")
    G = hs.ggn(made.model, made.data, made.loss)
    monkeypatch.setattr(_dual, "available", lambda reference: 100.0)
    with pytest.raises(ValueError, match="the kernel of all of them would take"):
        G.kernel()


def test_all_eigenvectors_are_a_basis():
    made = case("twice")
    s = hs.ggn(made.model, made.data, made.loss).spectrum()
    Z = s.eigenvectors
    assert_same(Z.mT @ Z, torch.eye(len(s)), 1e-13)
    assert_same(Z * s.eigenvalues @ Z.mT, dense(made), 1e-13)


def test_parts_of_the_parameters_and_the_part_of_a_hessian():
    made = problem("gpt")
    names = [name for name, _ in made.model.named_parameters()]
    H = hs.hessian(made.model, made.data, made.loss)
    whole = dense(made)
    assert_whole(H.ggn.spectrum(), whole)
    sizes = np.cumsum([0, *(p.numel() for p in made.model.parameters())])
    wanted = ["embedding.weight", "positions", "blocks.0.ln1.weight"]
    places = np.concatenate([np.arange(*sizes[names.index(n) :][:2]) for n in wanted])
    assert_whole(H.ggn.restrict(wanted).spectrum(), whole[np.ix_(places, places)])


@pytest.mark.parametrize("cuts", [[2, 5, 4], [1] * 11, [10, 1]])
def test_several_batches_are_the_data_in_one(cuts):
    made = problem("conv_net")
    parts = zip(made.x.split(cuts), made.y.split(cuts), strict=True)
    G = hs.ggn(made.model, list(parts), made.loss)
    assert_whole(G.spectrum(), dense(made))
    assert_same(G.kernel(), dense_kernel(made), 1e-14)


LOSSES = {
    "cross-entropy with weights": (nn.CrossEntropyLoss(torch.tensor([1.0, 0.2, 3.0]).double(),
                                   ignore_index=1), 3),
    "soft margin": (nn.SoftMarginLoss(reduction="sum"), 2),
    "Poisson": (nn.PoissonNLLLoss(), 2),
    "a function that couples samples": (lambda f, y: torch.logsumexp((f - y).flatten(), 0), 2),
    "no dependence": (lambda f, y: (0 * f).sum(), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_any_convex_loss(name, seeded):
    loss, outputs = LOSSES[name]
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
    x = numbers(6, 3)
    y = torch.randint(3, (6,)) if outputs == 3 else numbers(6, 2).sign()
    spectrum = hs.ggn(model, (x, y), loss).spectrum()
    assert_whole(spectrum, dense_ggn(lambda: model(x), lambda f: loss(f, y), model.parameters()))


@given(
    seed=st.integers(0, 2**32 - 1),
    unit=st.sampled_from([1e-8, 1e-3, 1.0, 1e4, 1e9]),
    scale=st.sampled_from([1e-20, 1.0, 1e20]),
    samples=st.integers(1, 5),
    width=st.integers(1, 6),
    outputs=st.integers(1, 3),
)
def test_units_of_inputs_and_of_the_loss(seed, unit, scale, samples, width, outputs):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(3, width), nn.Softplus(), nn.Linear(width, width, bias=False), nn.Tanh(),
            nn.Linear(width, outputs),
        ).double()  # fmt: skip
        x, y = numbers(samples, 3), numbers(samples, outputs)
    x[:, 1] *= unit
    model[0].weight.data[:, 1] /= unit

    def loss(f, target):
        return scale * (f - target).square().sum()

    spectrum = hs.ggn(model, (x, y), loss).spectrum()
    assert_whole(spectrum, dense_ggn(lambda: model(x), lambda f: loss(f, y), model.parameters()))


def test_a_loss_that_is_not_convex_is_estimated_and_told_of():
    made = problem("tanh_mlp")
    G = hs.ggn(made.model, made.data, lambda f, y: torch.cos(f - y).mean())
    estimate = G.spectrum()
    assert not estimate.exact
    assert "not convex" in estimate.reason


def test_a_number_of_eigenvalues_is_estimated_as_asked(monkeypatch):
    made = problem("tanh_mlp")
    G = hs.ggn(made.model, made.data, made.loss)
    assert len(G.spectrum(k=3)) == len(G.spectrum(3)) == 3
    assert G.spectrum(3).reason.startswith("an estimate was asked for; spectrum() without")
    monkeypatch.setattr(_dual, "LARGEST", 21)
    assert "22 predicted numbers" in G.spectrum().reason


def test_another_thread_may_join_the_batches_meanwhile(monkeypatch):
    right = _dual.Rows

    def joined(problem, *arguments, **options):
        rows = right(problem, *arguments, **options)
        problem.batches.regrouped(100)
        return rows

    made = problem("tanh_mlp")
    x, y = made.data
    monkeypatch.setattr(_dual, "Rows", joined)
    G = hs.ggn(made.model, [(x[:1], y[:1]), (x[1:], y[1:])], made.loss)
    assert_whole(G.spectrum(), dense(made))


def test_one_product_is_not_compiled(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError

    monkeypatch.setattr(torch, "compile", refuse)
    made = problem("tanh_mlp")
    assert_whole(hs.ggn(made.model, made.data, made.loss, compile=True).spectrum(), dense(made))


def test_a_kernel_takes_operations_that_are_differentiable_once_and_products_refuse_them(
    monkeypatch,
):
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return 2 * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(_, given):
            return 2 * given

    class Twice(nn.Module):
        def forward(self, x):
            return 2 * x

    def model(between):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 3), between, nn.Linear(3, 2)).double()

    class Opaque(nn.Module):
        def forward(self, x):
            return Once.apply(x)

    data = numbers(4, 2), numbers(4, 2)
    G, known = (hs.ggn(model(between), data) for between in (Opaque(), Twice()))
    assert_same(G.kernel(), known.kernel(), 1e-14)
    with pytest.raises(NotImplementedError, match="differentiable once"):
        G.spectrum()
    # A product in the last parameters does not speak for the others.
    monkeypatch.setattr(_dual, "CHUNK_BYTES", 1.0)
    found = G.spectrum()
    assert_same(found.eigenvalues, known.spectrum().eigenvalues, 1e-14)
    with pytest.raises(NotImplementedError, match="differentiable once"):
        G @ torch.ones(G.shape[0]).double()
    with pytest.raises(NotImplementedError, match="differentiable once"):
        found.space(1).vectors()


class Shifted(nn.Module):
    """Classes whose logits are all shifted by the same number, which cross-entropy does not see."""

    def __init__(self, scale):
        super().__init__()
        self.logits, self.shift, self.scale = nn.Linear(3, 3), nn.Linear(3, 1), scale

    def forward(self, x):
        return self.logits(x) + self.scale * self.shift(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e3, 1e4])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_errors_count_what_cancels_between_the_jacobian_and_the_loss(n, scale, dtype):
    for seed in range(5):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model, data = (
                Shifted(scale).to(dtype),
                (torch.randn(n, 3).to(dtype), torch.arange(n) % 3),
            )
        logits, (x, y) = copy.deepcopy(model.logits).double(), data
        without = hs.ggn(logits, (x.double(), y), nn.CrossEntropyLoss()).dense()
        truth = torch.cat([torch.linalg.eigvalsh(without).flip(0), torch.zeros(4)])
        s = hs.ggn(model, data, nn.CrossEntropyLoss()).spectrum()
        assert s.method == "dual"
        assert bool(((s.eigenvalues.double() - truth).abs() <= s.errors).all())
        zero = hs.ggn(model, data, nn.CrossEntropyLoss(), params="shift").spectrum()
        assert zero.method == "dual"
        assert zero.rank() == 0


def test_single_precision():
    made = problem("conv_net", torch.float32)
    double = problem("conv_net")
    found = hs.ggn(made.model, made.data, made.loss).spectrum()
    expected = torch.linalg.eigvalsh(dense(double)).flip(0)
    assert found.eigenvalues.dtype == torch.float32
    assert (found.eigenvalues - expected).abs().max() < 3e-6 * expected.max()


def test_a_model_that_does_not_depend_on_its_parameters():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.idle = nn.Linear(2, 3)

        def forward(self, x):
            return x.sum(1, keepdim=True)

    x = numbers(4, 2)
    spectrum = hs.ggn(Constant().double(), (x, x[:, :1])).spectrum()
    assert [(s.label, float(s.value), s.multiplicity) for s in spectrum.spaces] == [("flat", 0, 9)]


def test_in_inference_mode_and_with_gradients_off():
    made = case("conv2d_groups")
    G, expected = hs.ggn(made.model, made.data, made.loss), dense(made)
    for off in (torch.inference_mode, torch.no_grad):
        with off():
            assert_whole(G.spectrum(), expected)
            assert G.kernel().shape == (6, 6)
