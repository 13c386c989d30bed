"""What models are seen to do: steps to the prediction, and layers one right after the other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hessence.models.model_layers import entering
from hessence.models.recognition._program import Layer, Relu, Skip, read
from tests.models.recognition.custom import Custom, torch_double


def _unseen(x):
    """Call PyTorch in a way that cannot be watched, as scripted functions do."""
    with torch._C.DisableTorchFunction():
        return 1e-9 * x.sum()


OTHER_USES = {
    "returned": lambda m, x, h: (m.net[1](h), h),
    "in a dictionary": lambda m, x, h: {"out": m.net[1](h), "more": [h]},
    "in an object": lambda m, x, h: SimpleNamespace(out=m.net[1](h), more=h),
    "unseen": lambda m, x, h: m.net[1](h) + _unseen(h),
    "detached": lambda m, x, h: m.net[1](h) + 1e-9 * h.detach().sum(),
    "of many": lambda m, x, h: m.net[1](h) + 1e-9 * h.sum() if len(x) > 9 else m.net[1](h),
}


@pytest.mark.parametrize("name", OTHER_USES)
def test_what_a_layer_makes_has_other_uses(name):
    torch.manual_seed(0)
    model = Custom(lambda m, x: OTHER_USES[name](m, x, m.net[0](x)))
    assert read(model, torch.randn(100, 2, **torch_double)).pairs == []


def test_a_model_may_return_more_than_one_tensor():
    model = Custom(lambda m, x: (m.net[1](m.net[0](x)), x, None, 3.0))
    (pair,) = read(model, torch.randn(100, 2, **torch_double)).pairs
    assert pair.names == ["net.0", "net.1"]


def test_a_model_is_watched_with_few_samples():
    seen = []
    model = Custom(lambda m, x: (seen.append(len(x)), torch.tanh(m.net[1](m.net[0](x))))[1])
    (pair,) = read(model, torch.randn(1000, 2, **torch_double)).pairs
    assert pair.names == ["net.0", "net.1"]
    assert seen == [64]


# Steps to the prediction. A layer has no bias, and is named by its parameter.

A, B = Layer("a.weight", None), Layer("b.weight", None)


class Two(nn.Module):
    """Two square layers that are held in the order b, a."""

    def __init__(self, use, bias=False):
        super().__init__()
        self.b = nn.Linear(3, 3, bias=bias, **torch_double)
        self.a = nn.Linear(3, 3, bias=bias, **torch_double)
        self.use = use

    def forward(self, x):
        return self.use(self, x)


def in_place(h, g):
    h = h + 0
    h += g
    return h


STEPS = {
    "a chain": (lambda m, x: m.b(m.a(x)), (A, B)),
    "a ReLU": (lambda m, x: m.b(torch.relu(m.a(x))), (A, Relu(), B)),
    "a ReLU in place": (lambda m, x: m.b(m.a(x).relu_()), (A, Relu(), B)),
    "one skip": (lambda m, x: x + m.b(m.a(x)), (Skip((A, B)),)),
    "one skip, turned": (lambda m, x: m.b(m.a(x)).add(x), (Skip((A, B)),)),
    "one skip, in place": (lambda m, x: in_place(m.b(m.a(x)), x), (Skip((A, B)),)),
    "one skip, by sum": (lambda m, x: sum([x, m.b(m.a(x))]), (Skip((A, B)),)),
    "residual layers": (
        lambda m, x: (h := x + m.a(x)) + m.b(h),
        (Skip((A,)), Skip((B,))),
    ),
    "a residual layer before another": (lambda m, x: m.b(x + m.a(x)), (Skip((A,)), B)),
    "a skip of one of two": (lambda m, x: (h := m.a(x)) + m.b(h), (A, Skip((B,)))),
    "prepared data": (lambda m, x: m.b(m.a(torch.sin(x.flip(0)))), (A, B)),
    "arguments by name": (
        lambda m, x: nn.functional.linear(weight=m.b.weight, input=m.a(x)),
        (A, B),
    ),
    "a fixed layer before": (
        lambda m, x: m.b(m.a(nn.functional.linear(x, torch.ones(3, 3, **torch_double)))),
        (A, B),
    ),
    "idle steps": (lambda m, x: m.b(nn.Dropout().eval()(m.a(x.contiguous())).flatten(1)), (A, B)),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps(name):
    use, expected = STEPS[name]
    assert read(Two(use), torch.randn(5, 3, **torch_double)).steps == expected


OTHER_STEPS = {
    "a scale": lambda m, x: x + 0.5 * m.b(m.a(x)),
    "a weighted sum": lambda m, x: torch.add(x, m.b(m.a(x)), alpha=0.5),
    "another start": lambda m, x: x.clone() + m.b(m.a(x)),
    "twice the same": lambda m, x: (h := m.b(m.a(x))) + h,
    "a branch": lambda m, x: m.a(x) + m.b(x),
    "an activation": lambda m, x: m.b(torch.tanh(m.a(x))),
    "a layer twice": lambda m, x: m.b(m.a(m.a(x))),
    "another use of a weight": lambda m, x: m.b(m.a(x)) + 0 * m.a.weight.sum(),
    "a number": lambda m, x: m.b(m.a(x)) + 1,
    "other shapes": lambda m, x: x[None] + m.b(m.a(x)),
    "a pair": lambda m, x: (m.b(m.a(x)), x),
}


@pytest.mark.parametrize("name", OTHER_STEPS)
def test_other_steps(name):
    assert read(Two(OTHER_STEPS[name]), torch.randn(5, 3, **torch_double)).steps is None


def test_biases_and_obstacles():
    x = torch.randn(5, 3, **torch_double)
    steps = read(Two(lambda m, x: m.a(m.b(x)), bias=True), x).steps
    assert steps == (Layer("b.weight", "b.bias"), Layer("a.weight", "a.bias"))
    assert read(Two(lambda m, x: torch.tanh(m.a(x))), x).obstacle == "the model calls tanh"
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).double()
    assert read(model, x).obstacle == "layer '1' is a Tanh"
    assert not model[1]._forward_hooks
    assert not model[1]._forward_pre_hooks


def test_what_enters_a_layer():
    x = torch.randn(100, 3, **torch_double)
    model = Two(lambda m, x: m.b(torch.relu(m.a(torch.sin(x)))))
    assert torch.equal(entering(lambda: model(x), model.a.weight), torch.sin(x))
    hidden = torch.relu(model.a(torch.sin(x)))
    assert torch.equal(entering(lambda: model(x), model.b.weight), hidden)
