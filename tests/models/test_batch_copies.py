"""Data are copied as they are read: what becomes of the user's own changes nothing."""

from collections.abc import MutableMapping
from dataclasses import dataclass

import pytest
import torch

import hessence as hs
from tests.models.oracle import assert_same


class Refilled:
    """Has one piece of memory for all of its batches."""

    def __init__(self, x, y, size=8):
        self.x, self.y, self.size = x, y, size

    def __iter__(self):
        x, y = torch.empty_like(self.x[: self.size]), torch.empty_like(self.y[: self.size])
        for start in range(0, len(self.x), self.size):
            x.copy_(self.x[start : start + self.size])
            y.copy_(self.y[start : start + self.size])
            yield x, y


@pytest.mark.parametrize("memory", [None, 0, 600])
def test_batches_in_the_same_memory(case, memory):
    model, x, y, loss, expected, _ = case
    H = hs.hessian(model, Refilled(x, y), loss, memory=memory)
    assert_same(H.dense(), expected)
    assert_same(H.dense(), expected)


def test_data_that_are_written_to_later(case):
    model, x, y, loss, expected, _ = case
    for give in (lambda x: (x, y), lambda x: list(zip(x.split(4), y.split(4), strict=True))):
        for write in (lambda x: x.mul_(2), lambda x: x.data.mul_(2)):
            given = x.clone()
            H = hs.hessian(model, give(given), loss)
            write(given)
            assert_same(H.dense(), expected)
            given.zero_()
            assert_same(H.dense(), expected)
            assert H.check().passed


@pytest.mark.parametrize("memory", [None, 0])
def test_inputs_that_require_gradients(case, memory):
    """They are data all the same; one piece of memory has all of them here."""
    model, x, y, loss, expected, _ = case

    class Sloped:
        def __iter__(self):
            part = torch.empty_like(x[:8]).requires_grad_()
            for start in range(0, len(x), 8):
                with torch.no_grad():
                    part.copy_(x[start : start + 8])
                yield part, y[start : start + 8]

    assert_same(hs.hessian(model, Sloped(), loss, memory=memory).dense(), expected)


@dataclass
class Sheet:
    x: torch.Tensor
    y: torch.Tensor


class Page:
    def __init__(self, x, y):
        self.x, self.y = x, y


class Fields(dict):
    """A dictionary whose entries are attributes too."""

    def __getattr__(self, name):
        return self[name]


class Ring:
    """Knows itself."""

    def __init__(self, x, y):
        self.x, self.y, self.me = x, y, self


class Graph:
    """Has its tensors in a dictionary."""

    def __init__(self, x, y):
        self.store = {"x": x, "y": y}

    x = property(lambda self: self.store["x"])
    y = property(lambda self: self.store["y"])


class Slots:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


KINDS = [
    Sheet, Page, lambda x, y: Fields(x=x, y=y), Ring, Graph,
    Slots,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", [None, 0])
def test_batches_of_any_kind_in_the_same_memory(case, kind, memory):
    model, x, y, loss, expected, _ = case

    class Data:
        def __iter__(self):
            for a, b in Refilled(x, y):
                yield kind(a, b)

    def closure(model, batch):
        return loss(model(batch.x), batch.y), (batch.y != -100).sum()

    H = hs.hessian(model, Data(), closure, memory=memory)
    assert_same(H.dense(), expected)
    assert_same(H.dense(), expected)


class Shelf(MutableMapping):
    """Keeps its entries in a dictionary of its own."""

    def __init__(self, **entries):
        self.entries = dict(entries)

    def __getitem__(self, key):
        return self.entries[key]

    def __setitem__(self, key, value):
        self.entries[key] = value

    def __delitem__(self, key):
        del self.entries[key]

    def __iter__(self):
        return iter(self.entries)

    def __len__(self):
        return len(self.entries)


def test_batches_of_the_user_stay_as_they_are(case):
    model, x, y, loss, expected, _ = case

    def closure(model, batch):
        return loss(model(batch["x"]), batch["y"]), (batch["y"] != -100).sum()

    shelves = [Shelf(x=a, y=b) for a, b in zip(x.split(9), y.split(9), strict=True)]
    before = [dict(shelf) for shelf in shelves]
    assert_same(hs.hessian(model, shelves, closure).dense(), expected)
    for shelf, entries in zip(shelves, before, strict=True):
        assert all(shelf[key] is entries[key] for key in entries)
