"""Wide pairs of layers inside bigger models against the dense Hessian by double backward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hessence as hs
from hessence.models.recognition.recognise import NotRecognised, recognise
from tests.models.recognition.custom import Custom, linear, torch_double
from tests.models.recognition.model_oracle import assert_recognised
from tests.models.untouched import assert_untouched, state


class Attention(nn.Module):
    """Self-attention over tokens before a wide pair."""

    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(2, 1, batch_first=True, **torch_double)
        self.head = nn.Sequential(nn.LayerNorm(2, **torch_double), linear(2, 8), linear(8, 2))

    def forward(self, x):
        return self.head(self.mix(x, x, x)[0])


def convolution():
    return nn.Sequential(
        nn.Conv2d(1, 1, 2, **torch_double), nn.GELU(), nn.Flatten(), linear(4, 9), linear(9, 2)
    )


def batch_norm():
    norm = nn.BatchNorm1d(2, **torch_double)
    norm(3 * torch.randn(9, 2, **torch_double))
    return nn.Sequential(linear(2, 9), linear(9, 2), norm, nn.Softplus(), linear(2, 2)).eval()


def look(hidden):
    """Pass on what is only asked for its shape."""
    assert hidden.shape[-1] == hidden.size(-1)
    return hidden


MODELS = {
    "before an activation": (
        lambda: nn.Sequential(linear(3, 8), linear(8, 2), nn.Tanh(), linear(2, 2)),
        (9, 3), "'0', '1'",
    ),
    "after an activation": (
        lambda: nn.Sequential(linear(3, 2), nn.ReLU(), linear(2, 8, False), linear(8, 2, False)),
        (9, 3), "'2', '3'",
    ),
    "two pairs": (
        lambda: nn.Sequential(
            linear(2, 7, False), linear(7, 2), nn.Tanh(), nn.Sequential(linear(2, 8), linear(8, 2))
        ), (9, 2), "'0', '1', '3.0', '3.1'",
    ),
    "a run of three": (
        lambda: nn.Sequential(linear(2, 2), linear(2, 8), linear(8, 2), nn.Tanh()),
        (9, 2), "'1', '2'",
    ),
    "a run of four": (
        lambda: nn.Sequential(
            linear(2, 8), linear(8, 2), linear(2, 9), linear(9, 2), nn.LayerNorm(2, **torch_double)
        ), (9, 2), "'0', '1', '2', '3'",
    ),
    "tokens": (
        lambda: nn.Sequential(linear(2, 7), nn.Identity(), linear(7, 2), nn.Sigmoid()),
        (3, 4, 2), "'0', '2'",
    ),
    "one sample": (
        lambda: nn.Sequential(linear(2, 7), linear(7, 2), nn.Tanh()), (1, 2), "'0', '1'"
    ),
    "images": (convolution, (5, 1, 3, 3), "'3', '4'"),
    "batch normalisation": (batch_norm, (9, 2), "'0', '1'"),
    "attention": (Attention, (3, 4, 2), "'head.1', 'head.2'"),
    "inside a module": (
        lambda: Custom(lambda m, x: m.last(torch.sin(m.scale * m.net(x)))), (9, 2),
        "'net.0', 'net.1'",
    ),
    "used twice": (
        lambda: Custom(lambda m, x: m.net(torch.tanh(m.net(x)))), (9, 2), "'net.0', 'net.1'",
    ),
    "without an nn.Sequential": (
        lambda: Custom(lambda m, x: m.last(torch.tanh(m.net[1](m.net[0](x))))), (9, 2),
        "'net.0', 'net.1'",
    ),
    "behind a residual": (
        lambda: Custom(lambda m, x: x + m.scale * m.net[1](m.net[0](torch.tanh(m.last(x))))),
        (9, 2), "'net.0', 'net.1'",
    ),
    "idle steps between": (
        lambda: Custom(lambda m, x: torch.sin(m.net[1](look(nn.functional.dropout(
            m.net[0](m.last(torch.tanh(x))), training=False))))),
        (9, 2), "'net.0', 'net.1'",
    ),
    "by functions": (
        lambda: Custom(lambda m, x: torch.sin(nn.functional.linear(
            m.net[0](m.scale * x), bias=m.net[1].bias, weight=m.net[1].weight))),
        (9, 2), "'net.0', 'net.1'",
    ),
}  # fmt: skip

LOSSES = {
    "mean": nn.MSELoss(),
    "half": None,
    "huber": nn.HuberLoss(),
    "cross-entropy": nn.CrossEntropyLoss(label_smoothing=0.1),
}


def recognised(model, x, loss):
    prediction = model(x).detach()
    y = torch.randn_like(prediction)
    if loss == "cross-entropy":
        y = torch.randint(2, (len(x),))
    found = recognise(hs.hessian(model, (x, y), LOSSES[loss]))
    return found, (model, x, y, LOSSES[loss])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODELS)
def test_model(name, loss):
    make, shape, layers = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(*shape, **torch_double)
    if loss == "cross-entropy" and model(x).ndim != 2:
        pytest.skip("one class index for each sample")
    y = torch.randn(model(x).shape, **torch_double)
    if loss == "cross-entropy":
        y = torch.randint(2, (len(x),))
    before = state(model)
    found = recognise(hs.hessian(model, (x, y), LOSSES[loss]))
    assert_untouched(model, before)
    assert found.why.rule == f"narrow twin of layers {layers}"
    assert found.spectrum.method == "narrow twin"
    assert_recognised(found, model, x, y, LOSSES[loss])


def test_token_indices():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 2, **torch_double), linear(2, 7), linear(7, 2), nn.Tanh())
    found, case = recognised(model, torch.randint(4, (5, 3)), "mean")
    assert found.why.rule == "narrow twin of layers '1', '2'"
    assert_recognised(found, *case)


def test_bulk_is_the_gradient_of_the_product():
    torch.manual_seed(0)
    model = nn.Sequential(linear(2, 20, False), linear(20, 3), nn.Tanh())
    found, (_, x, y, loss) = recognised(model, torch.randn(9, 2, **torch_double), "mean")
    M = (model[1].weight @ model[0].weight).detach().requires_grad_()
    (G,) = torch.autograd.grad(loss(torch.tanh(x @ M.T + model[1].bias), y), M)
    sigma = torch.linalg.svdvals(G)
    bulk = found.spectrum["bulk"]
    assert [space.multiplicity for space in bulk] == [15] * 4
    values = torch.stack([space.value for space in bulk])
    torch.testing.assert_close(values, torch.cat([sigma, -sigma.flip(0)]))
    assert {space.label for space in bulk} == {"bulk/layer 0/0", "bulk/layer 0/1"}


def test_wide():
    torch.manual_seed(0)
    model = nn.Sequential(linear(6, 8), nn.ReLU(), linear(8, 5000), linear(5000, 4))
    found, (_, x, y, loss) = recognised(model, torch.randn(40, 6, **torch_double), "mean")
    certificate = found.spectrum.verify(hs.hessian(model, (x, y), loss), samples=1)
    assert len(found.spectrum) == sum(p.numel() for p in model.parameters())
    assert certificate.worst < 1e-12


def test_single_precision():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 7), nn.Linear(7, 2), nn.Tanh())
    found, case = recognised(model, torch.randn(9, 2), "mean")
    assert found.spectrum.sharpness.dtype == torch.float32
    assert_recognised(found, *case, tolerance=1e-4)


# Any shape, and the degenerate corners.

WEIGHTS = {
    "random": lambda t: torch.randn(t.shape, dtype=t.dtype),
    "zero": torch.zeros_like,
    "equal": lambda t: torch.full_like(t, 0.5),
}


@st.composite
def pairs(draw):
    inputs, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    width = inputs + outputs + draw(st.integers(2, 4))
    torch.manual_seed(draw(st.integers(0, 99)))
    last = draw(st.sampled_from([nn.Tanh(), nn.Sequential(nn.Softplus(), linear(outputs, 2))]))
    model = nn.Sequential(
        linear(inputs, width, draw(st.booleans())),
        linear(width, outputs, draw(st.booleans())),
        last,
    )
    kinds = st.sampled_from(["random", *WEIGHTS])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(WEIGHTS[draw(kinds)](parameter))
    x = WEIGHTS[draw(kinds)](torch.zeros(draw(st.integers(1, 4)), inputs, **torch_double))
    y = model(x).detach()
    return (
        model,
        x,
        y if draw(st.booleans()) else torch.randn_like(y),
        draw(st.sampled_from([nn.MSELoss(), nn.HuberLoss(), nn.MSELoss(reduction="sum")])),
    )


@given(pairs())
def test_any_pair(case):
    model, x, y, loss = case
    found = recognise(hs.hessian(model, (x, y), loss))
    assert_recognised(found, *case)


# What is not recognised, and the sentence that says so.


def added(hidden, layer):
    return layer(hidden) + hidden[:, :2]


NO_PAIR = "it has no two Linear layers with nothing or a ReLU between them"

REFUSALS = {
    "the hidden layer": (
        lambda: Custom(lambda m, x: m.net(x) + m.net[0](x)[:, :2]),
        NO_PAIR,
    ),
    "a weight": (
        lambda: Custom(lambda m, x: m.net(x) + m.net[0].weight.sum() ** 2), NO_PAIR
    ),
    "another order": (
        lambda: Custom(lambda m, x: m.net[1](torch.tanh(m.net[0](x)))), NO_PAIR
    ),
    "something in place": (
        lambda: Custom(lambda m, x: m.net[1](m.net[0](x).tanh_())), NO_PAIR
    ),
    "a second use of what is between": (
        lambda: Custom(lambda m, x: added(m.net[0](x), m.net[1])), NO_PAIR
    ),
    "one of them alone, once": (
        lambda: Custom(lambda m, x: m.net(x) + m.net[1](torch.ones(7, **torch_double))), NO_PAIR
    ),
    "a narrow pair": (
        lambda: nn.Sequential(linear(2, 4), linear(4, 2), nn.Tanh()),
        r"layers '0' and '1' have nothing between them, but their hidden width 4 is no more than "
        r"the 3 \+ 2",
    ),
    "a large rest": (
        lambda: nn.Sequential(linear(2, 9), linear(9, 2), nn.Tanh(), linear(2, 700), nn.Tanh(),
                              linear(700, 2)),
        r"with one unit for each cell between layers '0', '1' the model still has \d+ parameters",
    ),
    "a large twin": (
        lambda: nn.Sequential(linear(2, 40), nn.Tanh(), linear(40, 500), linear(500, 40),
                              nn.Tanh()),
        "with as few units between layers '2', '3' as they need, an eigenproblem of size 6680 is",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal(name):
    make, sentence = REFUSALS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(60, 2, **torch_double)
    y = torch.randn(60, 40 if name == "a large twin" else 2, **torch_double)
    before = state(model)
    with pytest.raises(NotRecognised, match=sentence):
        recognise(hs.hessian(model, (x, y), nn.MSELoss()))
    assert_untouched(model, before)


def test_a_random_model_has_no_spectrum():
    model = Custom(lambda m, x: m.net(x) * torch.rand(2, **torch_double))
    data = torch.randn(60, 2, **torch_double), torch.randn(60, 2, **torch_double)
    with torch.random.fork_rng(), pytest.raises(ValueError, match="from one evaluation to the"):
        hs.spectrum(model, data, nn.MSELoss())


def test_weights_that_the_model_writes_to():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3, max_norm=0.7, **torch_double), linear(3, 20),
                          linear(20, 2), nn.Tanh())  # fmt: skip
    x, y = torch.randint(5, (40,)), torch.randn(40, 2, **torch_double)
    before = state(model)
    recognise(hs.hessian(model, (x, y), nn.MSELoss()))
    assert_untouched(model, before)


def test_batches_that_cannot_be_joined_and_other_inputs():
    torch.manual_seed(0)
    model = nn.Sequential(linear(2, 9), linear(9, 2), nn.Tanh())
    batches = [(torch.randn(4, n, 2, **torch_double), torch.randn(4, n, 2, **torch_double))
               for n in (3, 5)]  # fmt: skip
    s = hs.spectrum(model, batches, nn.MSELoss())
    assert s.method == "narrow twin"
    assert s.verify(hs.hessian(model, batches, nn.MSELoss())).worst < 1e-13

    class Both(Custom):
        def forward(self, x, more):
            return self.net(x) + more

    both = Both(None)
    x, y = torch.randn(2, 9, 2, **torch_double)
    with pytest.raises(NotRecognised, match="the input is a tuple, not a single tensor"):
        recognise(hs.hessian(both, ((x, y), y), nn.MSELoss()))


def test_zero_weights_and_a_zero_gradient_leave_nothing_inside():
    model = nn.Sequential(linear(1, 4, False), linear(4, 1, False), nn.Tanh())
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    x, y = torch.zeros(2, 1, 1, **torch_double)
    found = recognise(hs.hessian(model, (x, y), nn.MSELoss()))
    assert_recognised(found, model, x, y, nn.MSELoss())
