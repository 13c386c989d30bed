"""Errors count what rounding does inside of a model, against derivatives in extended precision."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hessence as hs
from hessence.models.recognition.recognise import _defect, recognise
from hessence.spectra.estimating import estimate
from tests import extended as ex
from tests.linear_exact import Families, exact_parts


class Abs(nn.Module):
    def forward(self, x):
        return x.abs()


def in_jets(model, parameters, h):
    """Run a chain of layers on jets (n, d); the inputs are numbers."""
    t = ex.variables(parameters)
    h = ex.Jet(h, np.zeros((*h.shape, len(t.a)), ex.LONG), np.zeros((*h.shape, *(len(t.a),) * 2)))
    start = 0
    for layer in model:
        if isinstance(layer, nn.Linear):
            rows, columns = layer.weight.shape
            weight = t[start : start + rows * columns].reshape(rows, columns)
            bias = t[start + rows * columns : start + rows * (columns + 1)]
            start += rows * (columns + 1)
            h = ex.stack([(h * weight[k]).sum() + bias[k] for k in range(rows)])
        elif isinstance(layer, nn.LayerNorm):
            size = layer.normalized_shape[0]
            scale, shift = t[start : start + size], t[start + size : start + 2 * size]
            start += 2 * size
            mean = h.sum() * (ex.LONG(1) / size)
            apart = ex.stack([h[:, k] - mean for k in range(size)])
            variance = (apart * apart).sum() * (ex.LONG(1) / size) + ex.LONG(layer.eps)
            root = np.sqrt(variance.a)
            inverse = variance.of(1 / root, -1 / (2 * root**3), 3 / (4 * root**5))
            h = ex.stack([apart[:, k] * inverse * scale[k] + shift[k] for k in range(size)])
        elif isinstance(layer, Abs):
            h = h * np.sign(h.a)
        else:
            value = np.tanh(h.a)
            h = h.of(value, 1 - value**2, -2 * value * (1 - value**2))
    return h


def exact_eigenvalues(model, x, y):
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    f = in_jets(model, parameters, x.numpy().astype(ex.LONG))
    return ex.eigenvalues(ex.squared(f, y.numpy()).h / len(x))


class Case:
    """A small model in which rounding shows, with data."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        middle = [nn.Tanh(), Abs()][rng.integers(2)]
        wide = int(rng.choice([2, 3, 7]))
        layers = [nn.Linear(2, wide), middle]
        if rng.integers(4):
            # Two features with a variance of any size beside a mean.
            layers += [
                nn.Linear(wide, 2),
                nn.LayerNorm(2, eps=float(10.0 ** rng.integers(-12, -4))),
            ]
            with torch.no_grad():
                layers[-2].bias += float(10.0 ** rng.integers(0, 6))
                layers[-2].weight *= float(10.0 ** rng.integers(-3, 1))
        else:
            # Large weights that cancel.
            layers += [nn.Linear(wide, 2), nn.Linear(2, 2)]
            with torch.no_grad():
                size = float(10.0 ** rng.integers(2, 8))
                layers[-2].weight[1] = layers[-2].weight[0]
                layers[-1].weight[:] = size * torch.tensor([[1.0, -1.0], [1.0, -1.0]])
                layers[-1].weight[:] += torch.randn(2, 2)
        self.model = nn.Sequential(*layers, nn.Linear(2, 1)).double()
        with torch.no_grad():
            for p in self.model.parameters():
                p += torch.rand_like(p) * 1e-3 * p
        n = int(rng.integers(2, 5))
        self.x, self.y = (torch.as_tensor(rng.normal(size=(n, d))) for d in (2, 1))

    @property
    def data(self):
        return self.x, self.y

    @property
    def eigenvalues(self):
        return exact_eigenvalues(self.model, self.x, self.y).astype(float)


def assert_within(found, values):
    """Each eigenvalue of a spectrum is as close to one in extended precision as it claims."""
    assert len(found) == len(values)
    gaps = np.abs(found.eigenvalues.numpy() - values)
    errors = found.errors.numpy()
    assert (gaps <= errors).all(), (found.method, gaps.max(), errors[gaps.argmax()])


@given(st.integers(0, 2**32 - 1))
def test_errors_hold_whatever_a_model_rounds(seed):
    case = Case(seed)
    H = hs.hessian(case.model, case.data)
    found = H.spectrum(None)
    assert_within(found, case.eigenvalues)
    if isinstance(found, hs.Spectrum):
        assert_within(estimate(H, None), case.eigenvalues)


def test_the_normalisation_of_two_features_is_seen():
    # What is left of two features that differ by 1e-3 of their mean has lost three digits.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.LayerNorm(2, eps=1e-12), nn.Linear(2, 1))
    model = model.double()
    with torch.no_grad():
        model[0].weight *= 1e-3
        model[0].bias[:] = 0.7
    x, y = torch.randn(4, 2).double(), torch.randn(4, 1).double()
    found = hs.spectrum(model, (x, y), k=None)
    values = exact_eigenvalues(model, x, y).astype(float)
    gaps, norm = np.abs(found.eigenvalues.numpy() - values), np.abs(values).max()
    assert gaps.max() > 1e-13 * norm  # or there would be nothing to see
    assert_within(found, values)
    assert float(found.errors.max()) < 1e-6 * norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_in_which_nothing_cancels_has_small_errors(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)
    H = hs.hessian(model, (torch.randn(20, 3, dtype=dtype), torch.randn(20, 2, dtype=dtype)))
    assert 0 < H.rounding() < 100 * torch.finfo(dtype).eps * float(H.dense().norm())


def test_masks_and_choices_round_nothing():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("mask", torch.tensor([1.0, 1.0, 0.0, 1.0]))

        def forward(self, x):
            scores = self.layer(x) + (1 - self.mask) * torch.finfo(x.dtype).min
            peak = scores.amax(-1, keepdim=True)
            return (scores - peak).exp() / (scores - peak).exp().sum(-1, keepdim=True)

    torch.manual_seed(0)
    model = Masked().double()
    H = hs.hessian(model, (torch.randn(5, 4).double(), torch.rand(5, 4).double()))
    assert H.rounding() < 1e-13 * float(H.dense().norm())


def test_the_users_random_numbers_stay_where_they_are():
    torch.manual_seed(0)
    H = hs.hessian(nn.Linear(3, 1), (torch.randn(5, 3), torch.randn(5, 1)))
    before = torch.get_rng_state()
    assert H.rounding() == H.rounding()
    assert torch.equal(before, torch.get_rng_state())


LOSSES = {
    "huber": lambda f, y: nn.functional.huber_loss(f, y, reduction="sum") / len(y),
    "cross-entropy": nn.functional.cross_entropy,
}


@pytest.mark.parametrize("family", ["units", "cancelling", "degenerate"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", [0, 1, 16, 58, 68])
def test_errors_of_chains_hold_for_losses_that_pytorch_differentiates(family, loss, seed):
    families = Families(seed)
    families.loss = loss
    net, x, y, *_ = families.case(family)
    layers = [nn.Linear(*reversed(w.shape), bias=False).double() for w in net.weights]
    with torch.no_grad():
        for layer, w in zip(layers, net.weights, strict=True):
            layer.weight[:] = torch.as_tensor(w)
    data = torch.as_tensor(x), torch.as_tensor(y)
    H = hs.hessian(nn.Sequential(*layers), data, LOSSES[loss], reduction="mean")
    found = recognise(H).spectrum
    matrix, *_ = exact_parts(net, x, y, loss)
    values = np.linalg.eigvalsh(matrix)[::-1]
    # The oracle's eigenvalues are rounded, too.
    gaps = np.abs(found.eigenvalues.numpy() - values) - len(values) * 2.3e-16 * np.abs(values).max()
    assert (gaps <= found.errors.numpy()).all(), (found.method, gaps.max())


@pytest.mark.parametrize("bias", [-3.0, -5.0, -8.0, -12.0])
def test_the_tail_of_gelu_is_seen(bias):
    """PyTorch's GELU adds 1 to an error function close to −1: there its digits are gone."""
    model = nn.Sequential(nn.Linear(1, 1), nn.GELU(), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), (0.7, bias, 1.3), strict=True):
            parameter.fill_(value)
    x, y = torch.tensor([[0.5]]).double(), torch.tensor([[-1.0]]).double()

    def cost(weight, shift, last):
        z = weight / 2 + shift
        return (last * z * (1 + mpmath.erf(z / mpmath.sqrt(2))) / 2 + 1) ** 2 / 2

    with mpmath.workdps(60):
        at = [mpmath.mpf(p.item()) for p in model.parameters()]
        orders = [tuple((i == k) + (j == k) for k in range(3)) for i in range(3) for j in range(3)]
        exact = mpmath.matrix(3, 3)
        for place, order in enumerate(orders):
            exact[place // 3, place % 3] = mpmath.diff(cost, at, order)
        values = np.asarray(sorted(mpmath.eigsy(exact, eigvals_only=True))[::-1], dtype=float)
    for found in (hs.spectrum(model, (x, y)), hs.hessian(model, (x, y)).spectrum(None)):
        assert_within(found, values)


def test_rounding_of_small_numbers_in_single_precision_is_seen():
    """Squares of the entries are zero in single precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    data = torch.randn(20, 3), torch.randn(20, 2)
    sizes = []
    for scale in (1.0, 2.0**-40, 2.0**-80):
        H = hs.hessian(model, data, lambda f, y, scale=scale: scale * ((f - y) ** 2).mean())
        sizes.append(H.rounding() / scale)
    assert sizes[1:] == pytest.approx(sizes[:1] * 2, rel=0.5)


def test_a_wrong_spectrum_of_small_numbers_in_single_precision_is_seen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 9), nn.Linear(9, 2))
    data = torch.randn(20, 3), torch.randn(20, 2)
    H = hs.hessian(model, data, lambda f, y: 2.0**-80 * ((f - y) ** 2).mean())
    right = recognise(H).spectrum
    assert _defect(H, right) < 1e-4
    assert _defect(H, right.mapped(lambda vectors: vectors, 2.0)) > 0.1
