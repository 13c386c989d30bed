"""``H.check()`` behind norms of few features: steps and rounding are told from mistakes.

What a norm returns does not depend on the size of its features, so that small weights before it
make a loss that changes on their scale, far below the size of all parameters.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hessence as hs
from hessence.models.checks import ROUGH, unit_vectors


class Bent(nn.Module):
    """Has a second derivative that is not its own; value and gradient are right."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        z = self.inner(x)
        here = z.detach()
        return z + (z - here).square() / here.norm()


def draw(seed, wrong=False):
    """Return a model with a norm of few features and its data; or the same with a mistake in it."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    inputs, features, samples = (int(rng.integers(*ends)) for ends in ((1, 4), (1, 5), (2, 6)))
    bias, affine, rms, tanh, deep, single, later = rng.integers(2, size=7).astype(bool)
    eps = float(10.0 ** rng.uniform(-20, -4))
    norm = nn.LayerNorm(features, eps, affine)
    if rms:
        norm = nn.RMSNorm(features, eps, affine)
    before = [nn.Linear(inputs, features, bias), *([nn.Tanh()] if tanh else [])]
    after = [nn.Linear(features, 1)]
    if deep:
        after = [nn.Linear(features, 3), nn.Tanh(), nn.Linear(3, 1)]
    dtype = torch.float32 if single else torch.float64
    with torch.no_grad():
        for parameter in before[0].parameters():
            parameter *= float(10.0 ** rng.uniform(-9, 0))
    if wrong and later:
        after[0] = Bent(after[0])
    elif wrong:
        before[0] = Bent(before[0])
    model = nn.Sequential(*before, norm, *after).to(dtype)
    x, y = (torch.randn(samples, k, dtype=dtype) for k in (inputs, 1))
    return model, (x, y)


@given(st.integers(0, 2**32 - 1), st.sampled_from([hs.hessian, hs.ggn]))
def test_right_products_pass(seed, operator):
    found = operator(*draw(seed)).check()
    assert found.passed, (found, seed)


@given(st.integers(0, 2**32 - 1))
def test_a_mistake_is_found_wherever_it_shows(seed):
    right, wrong = hs.hessian(*draw(seed)), hs.hessian(*draw(seed, wrong=True))
    _, v = unit_vectors(right.gradient(), 0)
    image = right @ v
    size = min(float(image.norm()), float((wrong @ v - image).norm()))
    if size > 0.1 * float((wrong @ v).norm()) and right.rounding() < 1e-5 * size:
        found = wrong.check()
        # Where differences are off by more than this, it says that it cannot tell.
        assert not found.passed or found.uncertainty > ROUGH, (found, seed)


@pytest.mark.parametrize("size", [1e-5, 1e-6, 1e-8])
@pytest.mark.parametrize("seed", range(3))
def test_a_norm_of_two_features_behind_small_weights(size, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.LayerNorm(2, eps=1e-16), nn.Linear(2, 1))
    model.double()
    with torch.no_grad():
        model[0].weight *= size
    data = torch.randn(5, 3).double(), torch.randn(5, 1).double()
    found = hs.hessian(model, data).check()
    assert found.passed, found
    assert found.difference < 1e-4
    assert "agree with finite differences" in found.message
    model[0] = Bent(model[0])
    assert not hs.hessian(model, data).check().passed


def test_rounding_that_leaves_nothing_of_a_product_is_said():
    # Two features that differ by 1e-13 of their mean.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2, eps=1e-30), nn.Linear(2, 1)).double()
    with torch.no_grad():
        model[0].weight *= 1e-13
        model[0].bias[:] = 0.7
    data = torch.randn(5, 3).double(), torch.randn(5, 1).double()
    found = hs.hessian(model, data).check()
    assert found.passed, found
    assert "up to their rounding" in found.message or "too rough" in found.message
