"""Chains of layers against the dense Hessian by double backward."""

from __future__ import annotations

import subprocess
import sys
from types import MethodType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hessence as hs
from hessence.models.recognition.recognise import NotRecognised, recognise
from hessence.networks.scalar.scalar_relu import KinkWarning
from tests.models.recognition.model_oracle import assert_recognised
from tests.models.untouched import assert_untouched, state

HALF_MSE = None


def linear(d, k, bias=False):
    return nn.Linear(d, k, bias=bias, dtype=torch.float64)


def chain(*widths, biases=""):
    """Return Linear layers of these widths; `biases` has one digit for each, 1 for a bias."""
    biases = biases or "0" * (len(widths) - 1)
    return nn.Sequential(
        *(linear(widths[i], widths[i + 1], bias == "1") for i, bias in enumerate(biases))
    )


def scalar_relu(m):
    return nn.Sequential(linear(1, m), nn.ReLU(), linear(m, 1))


def own(prediction, target):
    return torch.log1p((prediction - target) ** 2).mean()


LOSSES = {
    "mean": nn.MSELoss(),
    "sum": nn.MSELoss(reduction="sum"),
    "half": HALF_MSE,
    "cross-entropy": nn.CrossEntropyLoss(),
    "bce": nn.BCEWithLogitsLoss(),
    "huber": nn.HuberLoss(delta=0.7),
    "own": own,
}
SQUARED = ("mean", "sum", "half")


def targets(prediction, loss):
    y = torch.randn_like(prediction)
    if loss == "bce":
        return (y > 0).to(y)
    return y.softmax(1) if loss == "cross-entropy" else y


def recognised(model, x, loss):
    y = targets(model(x).detach(), loss)
    found = recognise(hs.hessian(model, (x, y), LOSSES[loss]))
    return found, (model, x, y, LOSSES[loss])


# Models, inputs, the network for a squared error and for any other loss.
CHAINS = {
    "scalar linear": (lambda: chain(1, 4, 1), (9, 1), "ScalarLinear", "narrow twin"),
    "scalar relu": (lambda: scalar_relu(5), (9, 1), "ScalarReLU", "ScalarReLU"),
    "scalar affine": (lambda: chain(1, 4, 1, biases="10"), (9, 1), "ScalarAffine", "narrow twin"),
    "scalar, biases": (lambda: chain(1, 4, 1, biases="11"), (9, 1), "narrow twin", "narrow twin"),
    "scalar, unbatched": (lambda: chain(1, 4, 1), (1,), "ScalarLinear", "narrow twin"),
    "scalar, tokens": (lambda: scalar_relu(3), (3, 4, 1), "ScalarReLU", "ScalarReLU"),
    "two layers": (lambda: chain(3, 7, 2), (9, 3), "TwoLayerLinear", "narrow twin"),
    "two narrow layers": (lambda: chain(3, 2, 2), (9, 3), "TwoLayerLinear", "DeepLinear"),
    "two layers, a bias": (
        lambda: chain(2, 7, 2, biases="10"), (9, 2), "TwoLayerLinear", "narrow twin",
    ),
    "two layers, biases": (
        lambda: chain(2, 7, 2, biases="11"), (9, 2), "narrow twin", "narrow twin",
    ),
    "two layers, tokens": (lambda: chain(3, 7, 2), (4, 2, 3), "TwoLayerLinear", "narrow twin"),
    "one layer": (lambda: linear(3, 2), (9, 3), "DeepLinear", "DeepLinear"),
    "one layer, a bias": (lambda: linear(3, 2, True), (9, 3), "DeepLinear", "DeepLinear"),
    "three layers": (lambda: chain(2, 4, 4, 2), (9, 2), "DeepLinear", "DeepLinear"),
    "three layers, a bias": (
        lambda: chain(2, 4, 4, 2, biases="100"), (9, 2), "DeepLinear", "DeepLinear",
    ),
    "four layers, biases": (
        lambda: chain(2, 2, 3, 3, 2, biases="0110"), (9, 2), "DeepLinear", "DeepLinear",
    ),
    "two narrow layers, biases": (
        lambda: chain(2, 2, 3, biases="11"), (9, 2), "DeepLinear", "DeepLinear",
    ),
    "wide pairs": (lambda: chain(2, 9, 2, 9, 2), (9, 2), "DeepLinear", "DeepLinear"),
}  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", CHAINS)
def test_chain(name, loss):
    make, shape, for_squares, for_others = CHAINS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(*shape, dtype=torch.float64)
    if loss == "cross-entropy" and x.ndim != 2 and model(x).shape[-1] == 1:
        pytest.skip("classes are the first or second dimension")
    before = state(model)
    with torch.random.fork_rng():  # for the targets
        found, case = recognised(model, x, loss)
    assert_untouched(model, before)
    assert found.why.rule.startswith(for_squares if loss in SQUARED else for_others)
    assert_recognised(found, *case)


def test_says_how():
    found, _ = recognised(chain(1, 4, 1), torch.randn(5, 1, dtype=torch.float64), "mean")
    assert found.spectrum.method == "closed form"
    assert "outlier pair" in found.why.reason


def test_idle_layers_do_not_count():
    torch.manual_seed(0)
    first, second = linear(1, 4), linear(4, 1)
    inner = nn.Sequential(nn.Identity(), first, nn.Dropout(0.5), nn.ReLU())
    model = nn.Sequential(nn.Flatten(), inner, nn.Sequential(), nn.Flatten(), second).eval()
    found, case = recognised(model, torch.randn(6, 1, 1, dtype=torch.float64), "mean")
    assert found.why.rule == "ScalarReLU"
    assert_recognised(found, *case)


def test_images_are_flattened():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), *chain(4, 9, 2, biases="10"))
    found, case = recognised(model, torch.randn(6, 2, 2, dtype=torch.float64), "mean")
    assert found.why.rule == "TwoLayerLinear"
    assert_recognised(found, *case)


def test_class_indices_and_weights():
    torch.manual_seed(0)
    model, x = chain(3, 9, 4), torch.randn(8, 3, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 3, 0, 1, -100, 2])
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=torch.float64))
    found = recognise(hs.hessian(model, (x, y), loss))
    assert_recognised(found, model, x, y, loss)


def test_single_precision():
    torch.manual_seed(0)
    for model in (chain(1, 4, 1), scalar_relu(4), chain(3, 7, 2, biases="11")):
        model = model.float()
        found, case = recognised(model, torch.randn(9, model[0].in_features), "mean")
        assert found.spectrum.sharpness.dtype == torch.float32
        assert_recognised(found, *case, tolerance=1e-4)


def test_without_gradients_around():
    torch.manual_seed(0)
    with torch.no_grad():
        found, case = recognised(chain(2, 9, 2), torch.randn(9, 2, dtype=torch.float64), "bce")
    assert_recognised(found, *case)


def test_a_kink_counts_as_dead():
    torch.manual_seed(0)
    model, x = scalar_relu(3), torch.randn(6, 1, dtype=torch.float64)
    with torch.no_grad():
        model[0].weight[1] = 0
    with pytest.warns(KinkWarning):
        found, case = recognised(model, x, "mean")
    assert_recognised(found, *case)
    with pytest.raises(NotRecognised, match="layer '0' has a weight of zero, where a ReLU"):
        recognised(model, x, "bce")


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (chain(1, 3000, 1), "mean"),
        (scalar_relu(3000), "bce"),
        (chain(1, 3000, 1, biases="11"), "bce"),
        (chain(10, 10_000, 10), "mean"),
        (chain(10, 10_000, 10), "cross-entropy"),
        (chain(2, 40, 40, 40, 2), "mean"),
        (chain(1, 30, 30, 30, 30, 1, biases="11111"), "mean"),
        (linear(784, 10, True), "mean"),
    ],
    ids=str,
)
def test_wide(model, loss):
    torch.manual_seed(0)
    x = torch.randn(30, next(model.parameters()).shape[1], dtype=torch.float64)
    found, (_, x, y, loss) = recognised(model, x, loss)
    H = hs.hessian(model, (x, y), loss)
    assert found.spectrum.verify(H, samples=1).residual < 1e-11
    assert len(found.spectrum) == sum(p.numel() for p in model.parameters())


def test_aligned_networks_may_be_large():
    rng = np.random.default_rng(0)
    x = torch.as_tensor(hs.whiten(rng.normal(size=(90, 40))))
    net = hs.DeepLinear.balanced((40, 40, 40, 40), rng.uniform(0.5, 2, size=40), rng=rng)
    model = chain(40, 40, 40, 40)
    with torch.no_grad():
        for layer, weight in zip(model, net.weights, strict=True):
            layer.weight.copy_(torch.as_tensor(weight))
    for y, route in ((model(x) / 2, "aligned pairs"), (model(x), "closed form")):
        y = y.detach()
        found = recognise(hs.hessian(model, (x, y), nn.MSELoss()))
        spectrum = found.spectrum
        assert spectrum.method.startswith(route)
        assert len(spectrum) == 4800
        z = spectrum.spaces[0].vectors(1)
        H = hs.hessian(model, (x, y), nn.MSELoss())
        torch.testing.assert_close(H @ z, spectrum.sharpness * z)


# Any shape, and the degenerate corners.

FILLINGS = {
    "random": lambda t: torch.randn(t.shape, dtype=t.dtype),
    "zero": torch.zeros_like,
    "equal": lambda t: torch.full_like(t, 0.5),
    "one column": lambda t: torch.randn(t.shape, dtype=t.dtype) * (torch.arange(t.shape[-1]) == 0),
}


@st.composite
def chains(draw):
    depth = draw(st.integers(1, 4))
    widths = [draw(st.integers(1, 5)) for _ in range(depth + 1)]
    biases = "".join(draw(st.sampled_from("01")) for _ in range(depth))
    torch.manual_seed(draw(st.integers(0, 99)))
    fillings = st.sampled_from(["random", *FILLINGS])
    if widths[0] == widths[-1] == 1 and depth == 2 and biases == "00" and draw(st.booleans()):
        model = scalar_relu(widths[1])
    else:
        model = chain(*widths, biases=biases)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(FILLINGS[draw(fillings)](parameter))
    loss = draw(st.sampled_from(list(LOSSES)))
    leads = draw(st.sampled_from([(1,), (4,), *[(2, 3)] * (loss != "cross-entropy")]))
    x = FILLINGS[draw(fillings)](torch.zeros(*leads, widths[0], dtype=torch.float64))
    y = targets(model(x).detach(), loss)
    if loss in SQUARED and draw(st.booleans()):
        y = model(x).detach()
    return model, x, y, LOSSES[loss]


@given(chains())
def test_any_chain(case):
    model, x, y, loss = case
    found = recognise(hs.hessian(model, (x, y), loss))
    assert_recognised(found, *case)


# What is not recognised, and the sentence that says so.


def hooked():
    model = chain(2, 9, 2)
    model[1].register_forward_hook(lambda *_: None)
    return model


def parametrised():
    model = chain(2, 9, 2)
    nn.utils.parametrizations.orthogonal(model[0])
    return model


def tied():
    model = chain(2, 9, 2, 9, 2)
    model[2].weight = model[0].weight
    return model


def twice():
    layer = linear(2, 2)
    return nn.Sequential(layer, nn.Tanh(), layer)


def frozen():
    model = chain(2, 9, 2)
    model[0].weight.requires_grad_(False)
    return model


def patched():
    model = chain(2, 9, 2)
    layer = model[0]
    layer.forward = MethodType(lambda layer, x: x @ layer.weight.T, layer)
    return model


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


X2 = torch.ones(3, 2, dtype=torch.float64)
NO_PAIR = "it has no two Linear layers with nothing or a ReLU between them"

REFUSALS = {
    "a hook": (hooked, X2, "layer '1' has hooks"),
    "a parametrisation": (parametrised, X2, "layer '0' is parametrised"),
    "tied weights": (tied, X2, "parameters '0.weight' and '2.weight' are tied"),
    "a layer twice": (twice, X2, "parameters '0.weight' and '2.weight' are tied"),
    "a frozen weight": (frozen, X2, "only some of the parameters count: '0.weight' is frozen"),
    "a patched layer": (patched, X2, NO_PAIR),
    "a subclass": (
        lambda: nn.Sequential(Doubled(2, 9, dtype=torch.float64), linear(9, 2)),
        X2,
        "layer '0' is a Doubled",
    ),
    "an activation": (
        lambda: nn.Sequential(linear(2, 9), nn.Tanh(), linear(9, 2)),
        X2,
        f"layer '1' is a Tanh, and {NO_PAIR}",
    ),
    "a clipped ReLU": (
        lambda: nn.Sequential(linear(2, 9), nn.ReLU6(), linear(9, 2)), X2, "layer '1' is a ReLU6"
    ),
    "too many products": (
        lambda: chain(60, 2000, 60), torch.ones(3, 60, dtype=torch.float64), "TwoLayerLinear: "
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal(name):
    make, x, sentence = REFUSALS[name]
    model = make()
    y = torch.ones(3, 2, dtype=torch.float64)
    if name == "too many products":
        y = torch.arange(180, dtype=torch.float64).reshape(3, 60)
    with pytest.raises(NotRecognised) as refusal:
        recognise(hs.hessian(model, (x, y), nn.MSELoss()))
    assert sentence in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_refuses_losses():
    model, x = chain(2, 9, 2), X2
    with pytest.raises(NotRecognised, match="y contains NaN"):
        recognise(hs.hessian(model, (x, X2 * torch.nan), nn.MSELoss()))
    with pytest.raises(NotRecognised, match="contains NaN or infinity"):
        recognise(hs.hessian(model, (x, X2 * torch.nan), own))
    softmax, wide = linear(300, 10, True), torch.ones(2, 300, dtype=torch.float64)
    with pytest.raises(NotRecognised, match="has 3010 entries, more than the 2048"):
        recognise(hs.hessian(softmax, (wide, torch.tensor([0, 1])), nn.CrossEntropyLoss()))


def test_a_loss_that_couples_samples():
    torch.manual_seed(0)
    model, x = scalar_relu(3), torch.randn(5, 1, dtype=torch.float64)

    def coupled(prediction, target):
        return ((prediction - target).sum()) ** 2

    with pytest.raises(NotRecognised, match="couples samples"):
        recognise(hs.hessian(model, (x, x), coupled))


def test_importing_the_library_does_not_import_torch():
    code = "import hessence, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
