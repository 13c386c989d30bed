"""Hidden layers of ReLUs and their relatives against the dense Hessian by double backward."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import hessence as hs
from hessence.models.recognition import recognise as table
from hessence.models.recognition.recognise import NotRecognised, recognise
from tests.models.recognition.custom import linear, torch_double
from tests.models.recognition.model_oracle import assert_recognised
from tests.models.untouched import assert_untouched, state


class Written(nn.Module):
    """Three layers with a scale that are used as a test says, and held in another order."""

    def __init__(self, use, width=25):
        super().__init__()
        self.last = linear(2, 2)
        self.b = linear(width, 2)
        self.a = linear(2, width)
        self.scale = nn.Parameter(torch.ones(2, **torch_double))
        self.use = use

    def forward(self, x):
        return self.use(self, x)


def sequential(*layers):
    return lambda: nn.Sequential(*(layer() for layer in layers))


def relus(*widths, biases=True):
    layers = []
    for i in range(len(widths) - 1):
        layers += [linear(widths[i], widths[i + 1], biases), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """A transformer's block: attention, then a residual with two layers and a ReLU."""

    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(2, 1, batch_first=True, **torch_double)
        self.norm = nn.LayerNorm(2, **torch_double)
        self.up, self.down = linear(2, 40), linear(40, 2)

    def forward(self, x):
        x = x + self.mix(x, x, x)[0]
        return x + self.down(F.relu(self.up(self.norm(x))))


def prelu():
    return nn.Sequential(linear(2, 30), nn.PReLU(**torch_double), linear(30, 2))


MODELS = {
    "two layers": (lambda: relus(2, 25, 2), (5, 2), "'0', '2'"),
    "no biases": (lambda: relus(3, 25, 2, biases=False), (4, 3), "'0', '2'"),
    "three layers": (lambda: relus(2, 12, 10, 2), (3, 2), "'0', '2', '4'"),
    "images": (lambda: nn.Sequential(nn.Flatten(), *relus(4, 20, 2)), (3, 1, 2, 2), "'1', '3'"),
    "tokens": (lambda: relus(2, 25, 2), (2, 2, 2), "'0', '2'"),
    "leaky": (
        lambda: nn.Sequential(linear(2, 30), nn.LeakyReLU(0.2), linear(30, 2)), (2, 2), "'0', '2'"
    ),
    "a learned slope": (prelu, (2, 2), "'0', '2'"),
    "in place": (
        lambda: nn.Sequential(linear(2, 20), nn.ReLU(inplace=True), linear(20, 2)), (5, 2),
        "'0', '2'",
    ),
    "one input": (lambda: relus(1, 12, 2), (6, 1), "'0', '2'"),
    "behind a convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 2, **torch_double), nn.Tanh(), nn.Flatten(), linear(8, 24), nn.ReLU(),
            linear(24, 2),
        ), (2, 1, 3, 3), "'3', '5'",
    ),
    "before another activation": (
        lambda: nn.Sequential(*relus(2, 20, 2), nn.Tanh(), linear(2, 2)), (4, 2), "'0', '2'"
    ),
    "in a block": (Block, (1, 3, 2), "'up', 'down'"),
    "with a wide pair": (
        lambda: nn.Sequential(linear(2, 9), linear(9, 3), nn.ReLU(), linear(3, 15), linear(15, 2)),
        (2, 2), "'0', '1', '3', '4'",
    ),
    "absolute values": (
        lambda: Written(lambda m, x: m.b(torch.abs(m.a(x)))), (2, 2), "'a', 'b'"
    ),
    "a method": (lambda: Written(lambda m, x: m.b(m.a(x).relu())), (4, 2), "'a', 'b'"),
    "an argument by name": (
        lambda: Written(lambda m, x: m.b(F.leaky_relu(m.a(x), negative_slope=-0.3))), (2, 2),
        "'a', 'b'",
    ),
    "in place, its result unused": (
        lambda: Written(lambda m, x: m.b((h := m.a(x), h.relu_())[0])), (4, 2), "'a', 'b'",
    ),
    "all arguments by name": (
        lambda: Written(lambda m, x: m.b(F.prelu(input=m.a(x), weight=m.scale[:1]))), (2, 2),
        "'a', 'b'",
    ),
    "used twice": (
        lambda: Written(lambda m, x: m.b(F.relu(m.a(torch.tanh(m.b(F.relu(m.a(x)))))))), (2, 2),
        "'a', 'b'",
    ),
    "inside": (
        lambda: Written(lambda m, x: m.last(torch.sin(m.scale * m.b(F.relu(m.a(x)))))), (4, 2),
        "'a', 'b'",
    ),
}  # fmt: skip

LOSSES = {"mean": nn.MSELoss(), "cross-entropy": nn.CrossEntropyLoss()}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODELS)
def test_model(name, loss):
    make, shape, layers = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(*shape, **torch_double)
    f = model(x).detach()
    if loss == "cross-entropy" and f.ndim != 2:
        pytest.skip("one class index for each sample")
    y = torch.randn_like(f) if loss == "mean" else torch.randint(2, (len(x),))
    before = state(model)
    found = recognise(hs.hessian(model, (x, y), LOSSES[loss]))
    assert_untouched(model, before)
    assert found.why.rule == f"cells of layers {layers}"
    assert found.spectrum.method == "cells"
    assert_recognised(found, model, x, y, LOSSES[loss])
    assert hs.spectrum(model, (x, y), LOSSES[loss]).exact


def test_the_bulk_is_that_of_a_cell():
    torch.manual_seed(0)
    model, x, y = relus(2, 60, 2), *torch.randn(2, 4, 2, **torch_double)
    s = hs.spectrum(model, (x, y), nn.MSELoss())
    net = hs.ReLU(
        [model[0].weight.detach(), model[2].weight.detach()],
        [model[0].bias.detach(), model[2].bias.detach()],
    )
    own = net.hessian(x, y).spectrum()  # ½ E‖f − y‖²: for two outputs PyTorch's own mean
    torch.testing.assert_close(s.eigenvalues, own.eigenvalues, rtol=0, atol=1e-13 * own.norm)
    # Networks count their layers from 1, and models name them.
    named = {space.label.replace("layer 1", "layer 0") for space in own["bulk"]}
    assert named == {space.label for space in s["bulk"]}


def test_dead_units_alone_are_worth_it():
    torch.manual_seed(0)
    model, x = relus(3, 6, 2), torch.rand(30, 3, **torch_double)
    y = torch.randn(30, 2, **torch_double)
    with torch.no_grad():
        model[0].weight.abs_(), model[0].bias.abs_()
        model[0].weight[:2], model[0].bias[:2] = -1, -0.5
    found = recognise(hs.hessian(model, (x, y), nn.MSELoss()))
    assert sum(space.multiplicity for space in found.spectrum["flat/dead"]) == 2 * (3 + 1 + 2)
    assert_recognised(found, model, x, y, nn.MSELoss())


def test_batches():
    torch.manual_seed(0)
    model, x, y = relus(2, 30, 2), *torch.randn(2, 7, 2, **torch_double)
    whole = hs.spectrum(model, (x, y), nn.MSELoss())
    parts = hs.spectrum(model, [(x[:3], y[:3]), (x[3:], y[3:])], nn.MSELoss())
    assert parts.method == "cells"
    torch.testing.assert_close(parts.eigenvalues, whole.eigenvalues)


def test_single_precision():
    torch.manual_seed(0)
    model, x, y = relus(2, 30, 2).float(), *torch.randn(2, 5, 2)
    found = recognise(hs.hessian(model, (x, y), nn.MSELoss()))
    assert_recognised(found, model, x, y, nn.MSELoss(), tolerance=1e-4)


def test_a_scalar_network_has_its_closed_form():
    torch.manual_seed(0)
    model, x, y = relus(1, 30, 1, biases=False), *torch.randn(2, 9, 1, **torch_double)
    assert hs.spectrum(model, (x, y), nn.MSELoss()).method == "closed form"


def test_wide():
    torch.manual_seed(0)
    model, x, y = relus(2, 3000, 2), *torch.randn(2, 3, 2, **torch_double)
    s = hs.spectrum(model, (x, y), nn.MSELoss())
    assert (len(s), s.method) == (15002, "cells")
    assert s.verify(hs.hessian(model, (x, y), nn.MSELoss()), samples=1).worst < 1e-12


def test_what_is_known_goes_with_an_estimate():
    torch.manual_seed(0)
    model, x = relus(8, 240, 3), torch.randn(80, 8, **torch_double)
    with torch.no_grad():
        model[0].bias[:10] = -20
        model[0].bias[10:40] = 20
    data = x, torch.randn(80, 3, **torch_double)
    s = hs.spectrum(model, data, nn.MSELoss(), k=4)
    assert not s.exact
    assert s.method == "Lanczos, cells"
    assert sum(space.multiplicity for space in s["flat/dead"]) == 10 * (8 + 1 + 3)
    # 30 units are on for all samples, of which 9 + 3 are needed.
    assert [space.multiplicity for space in s["bulk"]] == [18] * 6
    H = hs.hessian(model, data, nn.MSELoss())
    assert s.verify(H).worst < 1e-5
    for space in s["bulk"]:
        z = space.vectors(2)
        torch.testing.assert_close(H @ z, space.value * z, rtol=0, atol=1e-10 * s.norm)
    plain = hs.spectrum(model, data, nn.MSELoss(), k=4, method="estimate")
    torch.testing.assert_close(s.eigenvalues, plain.eigenvalues, rtol=1e-4, atol=0)


def test_kinks_are_told_of():
    model = relus(2, 4, 1)
    with torch.no_grad():
        model[0].weight[0], model[0].bias[0] = 0, 0
    x, y = torch.rand(5, 2, **torch_double), torch.rand(5, 1, **torch_double)
    with pytest.warns(hs.KinkWarning, match=r"1 hidden unit\(s\) sit at the kink"):
        s = hs.spectrum(model, (x, y), nn.MSELoss())
    assert s.exact


# Any shape, and the degenerate corners.


@st.composite
def models(draw):
    depth = draw(st.sampled_from([2, 2, 3]))
    widths = [draw(st.integers(1, 3)), *(draw(st.integers(1, 7)) for _ in range(depth - 1)), 2]
    activation = draw(st.sampled_from([nn.ReLU, lambda: nn.LeakyReLU(0.3)]))
    torch.manual_seed(draw(st.integers(0, 99)))
    layers = []
    for i in range(depth):
        layers += [linear(widths[i], widths[i + 1], draw(st.booleans())), activation()]
    model = nn.Sequential(*layers[:-1])
    x = torch.randn(draw(st.integers(1, 3)), widths[0], **torch_double)
    with torch.no_grad():
        match draw(st.sampled_from(["free", "alike", "dead", "on", "zero"])):
            case "alike":
                model[0].weight.copy_(model[0].weight[:1].expand_as(model[0].weight))
            case "dead":
                model[0].weight.abs_().neg_(), x.abs_()
            case "on":
                model[0].weight.abs_(), x.abs_()
            case "zero":
                model[-1].weight.zero_()
    y = model(x).detach()
    return model, x, y if draw(st.booleans()) else torch.randn_like(y)


@given(models())
def test_any_model(case):
    model, x, y = case
    try:
        found = recognise(hs.hessian(model, (x, y), nn.MSELoss()))
    except NotRecognised as refusal:
        assert "can be spared" in str(refusal) or model[0].weight.shape[0] <= 5  # noqa: PT017
        return
    assert_recognised(found, model, x, y, nn.MSELoss())


# What is not recognised, and the sentence that says so.

REFUSALS = {
    "slopes of each unit": (
        lambda: nn.Sequential(linear(2, 14), nn.PReLU(14, **torch_double), linear(14, 2)),
        "layer '1' is a PReLU, and it has no two Linear layers",
    ),
    "nothing to spare": (
        lambda: relus(2, 5, 2), "of the 5 units between layers '0' and '2' none can be spared",
    ),
    "another use": (
        lambda: Written(lambda m, x: m.b(h := F.relu(m.a(x))) + h.sum()), "it has no two Linear",
    ),
    "another use before": (
        lambda: Written(lambda m, x: m.b(F.relu(h := m.a(x))) + h.sum()), "it has no two Linear",
    ),
    "too many units": (
        lambda: relus(2, 300, 300, 2),
        r"with one unit for each cell between layers '0', '2', '4' the model still has \d+",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal(name):
    make, sentence = REFUSALS[name]
    torch.manual_seed(0)
    model, x, y = make(), *torch.randn(2, 60, 2, **torch_double)
    with pytest.raises(NotRecognised, match=sentence):
        recognise(hs.hessian(model, (x, y), nn.MSELoss()))


def many_units_in_few_directions():
    """Return a Hessian whose narrow model is too large to be solved, and much smaller."""
    torch.manual_seed(0)
    wide = nn.Linear(20, 1500)
    with torch.no_grad():
        wide.weight[:] = wide.weight[torch.randint(8, (1500,))] * torch.rand(1500, 1)
        wide.bias.zero_()
    model = nn.Sequential(
        wide, nn.ReLU(), nn.Linear(1500, 40), nn.Tanh(), nn.Linear(40, 8)
    ).double()
    return hs.hessian(model, (torch.randn(6, 20).double(), torch.randn(6, 8).double()))


def test_an_estimate_multiplies_with_the_narrow_model():
    H = many_units_in_few_directions()
    with pytest.raises(NotRecognised) as refused:
        recognise(H)
    rest = refused.value.rest
    v = torch.randn(rest.order, 3).double()
    torch.testing.assert_close(rest.embed(rest.times(v)), H @ rest.embed(v), rtol=0, atol=1e-12)
    assert rest.multiply is not None
    assert rest.multiply._hessian.shape[0] < H.shape[0] / 2


def test_a_part_whose_products_are_not_finite_is_not_used(monkeypatch):
    def broken(H):
        with pytest.raises(NotRecognised) as refused:
            recognise(H)
        rest = replace(refused.value.rest, multiply=lambda columns: columns * float("nan"))
        raise NotRecognised("too large", rest=rest)

    monkeypatch.setattr(table, "recognise", broken)
    with pytest.raises(NotRecognised) as refused:
        table.exact_spectrum(many_units_in_few_directions())
    assert refused.value.rest is None
