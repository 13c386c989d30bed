"""Batches as users have them for closures: dictionaries, records, texts beside tensors."""

from collections import UserDict
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessence as hs
from tests.models.market import numbers
from tests.models.oracle import assert_same, dense_hessian
from tests.models.ragged import SAMPLES, batches, mlp


def test_batches_that_are_dictionaries():
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    data = [{"target": b, "input": a, "name": "sine"} for a, b in batches(x, y)]

    def loss(model, batch):
        return ((model(batch["input"]) - batch["target"]) ** 2).mean()

    expected = dense_hessian(lambda: F.mse_loss(model(x), y), model.parameters())
    assert_same(hs.hessian(model, data, loss, reduction="mean").dense(), expected)
    assert_same(hs.hessian(model, {"input": x, "target": y}, loss).dense(), expected)


class Labelled(NamedTuple):
    inputs: torch.Tensor
    labels: torch.Tensor


def test_batches_that_are_named_tuples():
    model, x, y = mlp(), numbers(SAMPLES, 2), torch.randint(3, (SAMPLES,))

    def loss(model, batch):
        return F.cross_entropy(model(batch.inputs), batch.labels)

    expected = dense_hessian(lambda: F.cross_entropy(model(x), y), model.parameters())
    data = [Labelled(a, b) for a, b in batches(x, y)]
    assert_same(hs.hessian(model, data, loss, reduction="mean", closure=True).dense(), expected)
    assert_same(hs.hessian(model, Labelled(x, y), nn.CrossEntropyLoss()).dense(), expected)


class Sheet:
    """A batch of a user's own kind."""

    def __init__(self, x, y):
        self.x, self.y = x, y


def test_batches_of_any_kind_with_a_weight():
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    sheets = [Sheet(*parts) for parts in batches(x, y)]
    calls = []

    def loss(model, sheet):
        calls.append(sheet)
        return F.mse_loss(model(sheet.x), sheet.y), len(sheet.x)

    H = hs.hessian(model, sheets, loss)
    # With a weight beside it, there is nothing to find out.
    assert len(calls) <= 1
    assert_same(H.dense(), dense_hessian(lambda: F.mse_loss(model(x), y), model.parameters()))


def test_batches_of_a_tokenizer():
    """They are dictionaries, but not of Python's own kind."""
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    encoding = UserDict(inputs=x, labels=y)

    def loss(model, batch):
        return F.mse_loss(model(batch["inputs"]), batch["labels"])

    expected = dense_hessian(lambda: F.mse_loss(model(x), y), model.parameters())
    for data in (encoding, [encoding]):
        assert_same(hs.hessian(model, data, loss).dense(), expected)


def test_inputs_of_a_tokenizer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = mlp()

        def forward(self, inputs, scale):
            return self.layer(inputs * scale)

    model, x, y = Model(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    scale = torch.full((SAMPLES, 1), 2.0, dtype=torch.float64)
    data = [(UserDict(inputs=x, scale=scale), y)]
    expected = dense_hessian(lambda: F.mse_loss(model(x, scale), y), model.parameters())
    assert_same(hs.hessian(model, data, nn.MSELoss()).dense(), expected)


def test_arrays_beside_tensors_are_copied():
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    weight = np.full(1, 2.0)

    def loss(model, batch):
        return batch["weight"].item() * F.mse_loss(model(batch["x"]), batch["y"])

    H = hs.hessian(model, {"x": x, "y": y, "weight": weight}, loss)
    weight[:] = 5.0
    expected = dense_hessian(lambda: 2 * F.mse_loss(model(x), y), model.parameters())
    assert_same(H.dense(), expected)


@pytest.mark.parametrize("kind", [list, tuple])
def test_texts_and_lists_are_cut_with_the_samples(kind):
    """A mean that is taken by their number is one over samples."""
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    words = [["a"] * (i % 3) for i in range(SAMPLES)]
    expected = dense_hessian(lambda: (model(x) - y).pow(2).sum() / SAMPLES, model.parameters())
    for things in (list(map(str, range(SAMPLES))), words):
        data = [
            {"x": a, "y": b, "names": kind(things[i * 5 : i * 5 + 5])}
            for i, (a, b) in enumerate(zip(x.split(5), y.split(5), strict=True))
        ]
        H = hs.hessian(model, data, lambda model, b: (
            (model(b["x"]) - b["y"]).pow(2).sum() / len(b["names"])), reduction="mean")  # fmt: skip
        assert_same(H.dense(), expected)
        assert H.check().passed


class Counting(nn.Module):
    """Tells the number of samples beside the prediction."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 3, dtype=torch.float64)

    def forward(self, x):
        return {"f": self.inner(x), "n": len(x)}


def test_means_by_a_number_that_cannot_be_joined():
    model, x, y = Counting(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    data = list(zip(x.split(5), y.split(5), strict=True))
    H = hs.hessian(model, data, lambda p, y: (p["f"] - y).pow(2).sum() / p["n"], reduction="mean")
    assert H.check().passed
    expected = dense_hessian(lambda: (model(x)["f"] - y).pow(2).sum() / SAMPLES, model.parameters())
    assert_same(H.dense(), expected)


@pytest.mark.parametrize("kind", [list, dict])
def test_closures_that_replace_a_part_of_their_batch(kind):
    model, x, y = mlp(), numbers(SAMPLES, 2), numbers(SAMPLES, 3)
    data = [list(batch) for batch in batches(x, y)]
    first, second = 0, 1
    if kind is dict:
        first, second = "x", "y"
        data = [dict(zip("xy", batch, strict=True)) for batch in data]

    def loss(model, batch):
        batch[first] = batch[first] / 2
        batch[second].data.mul_(2.0)
        return F.mse_loss(model(batch[first]), batch[second])

    H = hs.hessian(model, data, loss, reduction="mean", closure=True)
    expected = F.mse_loss(model(x / 2), 2 * y).item()
    assert [H.loss(), H.loss()] == pytest.approx([expected, expected], rel=1e-12)
    assert torch.equal(torch.cat([batch[first] for batch in data]), x)
