"""Residual linear networks, as users write them, against the dense Hessian by double backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hessence as hs
from hessence.models.recognition.recognise import NotRecognised, recognise
from tests.models.recognition.model_oracle import assert_recognised


def linear(d, k, bias=False):
    return nn.Linear(d, k, bias=bias, dtype=torch.float64)


class Bottleneck(nn.Module):
    """x + b(a(x)), or what else is done with the two layers."""

    def __init__(self, width=4, bias="00", use=lambda block, x: x + block.b(block.a(x))):
        super().__init__()
        self.b = linear(width, 3, bias[1] == "1")
        self.a = linear(3, width, bias[0] == "1")
        self.use = use

    def forward(self, x):
        return self.use(self, x)


class Residual(nn.Module):
    """x + inside(x)."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return x + self.inside(x)


class Layers(nn.Module):
    """Residual layers in a loop."""

    def __init__(self, depth, bias=False):
        super().__init__()
        self.layers = nn.ModuleList(linear(3, 3, bias) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def blocks(*biases):
    return [Residual(linear(3, 3, bias)) for bias in biases]


def skip(*biases):
    return Residual(nn.Sequential(*(linear(3, 3, bias) for bias in biases)))


MODELS = {
    "a narrow bottleneck": (lambda: Bottleneck(2), "ResidualLinear"),
    "a wide bottleneck": (lambda: Bottleneck(20), "ResidualLinear"),
    "a block in a Sequential": (
        lambda: nn.Sequential(nn.Flatten(), Residual(nn.Sequential(linear(3, 5), linear(5, 3)))),
        "ResidualLinear",
    ),
    "a bias in the bottleneck": (lambda: Bottleneck(4, "10"), "DeepLinear"),
    "biases in the bottleneck": (lambda: Bottleneck(4, "11"), "DeepLinear"),
    "biases in a wide bottleneck": (
        lambda: Bottleneck(20, "11"), "narrow twin of layers 'a', 'b'",
    ),
    "one layer": (lambda: Layers(1), "DeepLinear"),
    "one layer with a bias": (lambda: Layers(1, True), "DeepLinear"),
    "two layers": (lambda: Layers(2), "DeepLinear"),
    "three layers": (lambda: Layers(3), "DeepLinear"),
    "three layers with biases": (lambda: Layers(3, True), "DeepLinear"),
    "residual blocks": (lambda: nn.Sequential(*blocks(False, False, False)), "DeepLinear"),
    "a bias in the first block": (lambda: nn.Sequential(*blocks(True, False)), "DeepLinear"),
    "residual blocks and a head": (
        lambda: nn.Sequential(*blocks(False, False), linear(3, 2)), "DeepLinear",
    ),
    "residual blocks and ends with biases": (
        lambda: nn.Sequential(linear(3, 3, True), *blocks(True, False), linear(3, 2, True)),
        "DeepLinear",
    ),
    "three layers in one skip": (lambda: skip(False, False, False), "DeepLinear"),
    "biases in one skip": (lambda: skip(False, True, True), "DeepLinear"),
}  # fmt: skip

LOSSES = {
    "mean": nn.MSELoss(),
    "half": None,
    "huber": nn.HuberLoss(),
    "cross-entropy": nn.CrossEntropyLoss(),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODELS)
def test_recognised(name, loss):
    torch.manual_seed(0)
    make, rule = MODELS[name]
    model, x = make(), torch.randn(9, 3, dtype=torch.float64)
    y = torch.randn_like(model(x))
    if loss == "cross-entropy":
        y = torch.randint(2, (9,))
    found = recognise(hs.hessian(model, (x, y), LOSSES[loss]))
    assert found.why.rule == rule
    assert_recognised(found, model, x, y, LOSSES[loss])


@st.composite
def chains(draw):
    """Linear and residual layers in any order, with biases anywhere, perhaps in one skip."""
    torch.manual_seed(draw(st.integers(0, 99)))
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        layer = linear(3, 3, draw(st.booleans()))
        if draw(st.integers(0, 4)) == 0:
            nn.init.zeros_(layer.weight)
        layers.append(Residual(layer) if draw(st.booleans()) else layer)
    model = nn.Sequential(*layers)
    if len(layers) > 1 and draw(st.booleans()):
        model = Residual(model)
    x = torch.randn(draw(st.integers(1, 4)), 3, dtype=torch.float64)
    y = model(x).detach() if draw(st.booleans()) else torch.randn_like(x)
    return model, x, y, draw(st.sampled_from([nn.MSELoss(), nn.HuberLoss()]))


@given(chains())
def test_any_chain(case):
    model, x, y, loss = case
    found = recognise(hs.hessian(model, (x, y), loss))
    assert found.why.rule in ("DeepLinear", "TwoLayerLinear", "ResidualLinear")
    assert_recognised(found, *case)


def test_fixed_steps_before_the_first_layer_belong_to_the_data():
    torch.manual_seed(0)
    fixed = torch.randn(3, 3, dtype=torch.float64)
    model = Bottleneck(7, use=lambda m, x: (h := nn.functional.linear(x, fixed)) + m.b(m.a(h)))
    x, y = torch.randn(2, 9, 3, dtype=torch.float64)
    for loss in (nn.MSELoss(), nn.HuberLoss()):
        found = recognise(hs.hessian(model, (x, y), loss))
        assert found.why.rule == "ResidualLinear"
        assert_recognised(found, model, x, y, loss)


NEAR_MISSES = {
    "another scale": lambda block, x: x + 0.9 * block.b(block.a(x)),
    "a scaled skip": lambda block, x: 1.1 * x + block.b(block.a(x)),
    "another sign": lambda block, x: x - block.b(block.a(x)),
    "an activation between": lambda block, x: x + block.b(torch.tanh(block.a(x))),
    "a ReLU between": lambda block, x: x + block.b(torch.relu(block.a(x))),
    "an activation after": lambda block, x: torch.tanh(x + block.b(block.a(x))),
    "a skip from elsewhere": lambda block, x: x.flip(1) + block.b(block.a(x)),
    "two skips": lambda block, x: x + x + block.b(block.a(x)),
    "a use of a weight": lambda block, x: x + block.b(block.a(x)) + block.a.weight.sum(),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses(name):
    torch.manual_seed(0)
    model, x = Bottleneck(3, use=NEAR_MISSES[name]), torch.randn(9, 3, dtype=torch.float64)
    y = torch.randn(9, 3, dtype=torch.float64)
    with pytest.raises(NotRecognised) as refusal:
        recognise(hs.hessian(model, (x, y), nn.MSELoss()))
    assert refusal.value.why.reason
    assert not hs.spectrum(model, (x, y), nn.MSELoss()).exact


def test_the_whole_way():
    torch.manual_seed(0)
    model = Bottleneck(50)
    x, y = torch.randn(2, 30, 3, dtype=torch.float64)
    s = hs.spectrum(model, [(x[:10], y[:10]), (x[10:], y[10:])], nn.MSELoss())
    assert s.exact
    assert s.reason.startswith("ResidualLinear: ")
    H = hs.hessian(model, (x, y), nn.MSELoss())
    assert s.verify(H).worst < 1e-12
