"""Arguments that many functions share."""

import numpy as np
import pytest
import torch

import hessence as hs
from hessence._common.arguments import generator, seed

H = np.diag(np.linspace(0.0, 1.0, 200))
CALLS = {
    "eigenpairs": lambda rng: hs.eigenpairs(H, k=2, rng=rng, max_products=40).eigenvectors,
    "density": lambda rng: hs.density(H, probes=1, steps=5, rng=rng).values,
    "trace": lambda rng: hs.trace(H, products=10, rng=rng).value,
    "balanced": lambda rng: hs.DeepLinear.balanced((4, 4, 4), (1.0, 2.0), rng=rng).weights[0],
    "init": lambda rng: hs.init.standard((4, 4, 4), rng=rng).weights[0],
    "sample": lambda rng: hs.ScalarLinear(np.ones(5), np.ones(5)).hessian([1.0], [2.0]).spectrum()
    ["bulk"][0].sample(rng=rng),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::hessence.ConvergenceWarning")
@pytest.mark.parametrize("name", CALLS)
def test_an_integer_repeats_and_a_generator_goes_on(name):
    call = CALLS[name]
    np.testing.assert_array_equal(call(7), call(7))
    np.testing.assert_array_equal(call(7), call(np.random.default_rng(7)))
    source = np.random.default_rng(7)
    assert not np.array_equal(call(source), call(source))
    with pytest.raises(TypeError, match="rng must be an integer or a numpy Generator, got 'seed'"):
        call("seed")
    with pytest.raises(ValueError, match="rng must be an integer of at least 0, got -1"):
        call(-1)


def test_models_take_the_same():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    data = torch.randn(5, 2), torch.randn(5, 1)
    source = np.random.default_rng(0)
    assert hs.hessian(model, data).check(rng=source).passed
    assert hs.spectrum(model, data, rng=source).converged
    assert hs.layer_spectra(model, data, rng=source).converged
    assert hs.Monitor(model, data, rng=source).measure(0).converged


def test_a_seed_is_an_integer_or_drawn_once():
    assert seed(5) == seed(np.int64(5)) == 5
    assert seed(generator(5)) == seed(generator(5)) != seed(generator(6))
