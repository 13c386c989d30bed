"""Batches are merged and cut where every sample is on its own, and nowhere else."""

import pytest
import torch
from torch import nn

import hessence as hs
from tests.models.market import numbers
from tests.models.oracle import assert_same, dense_hessian


class OverTime(nn.Module):
    """Recurrent with time first, as is PyTorch's default."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.out = nn.GRU(2, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.out(self.recurrent(x)[0])


class Centred(nn.Module):
    """Takes a mean over the batch."""

    def __init__(self, width=4):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x):
        z = self.inner(x)
        return z - z.mean(0)


class OnAGraph(nn.Module):
    """Knows all nodes of one graph, so that there is no part of it."""

    def __init__(self, nodes):
        super().__init__()
        self.register_buffer("neighbours", torch.rand(nodes, nodes))
        self.inner = nn.Linear(2, 1)

    def forward(self, x):
        return torch.tanh(self.neighbours @ self.inner(x))


class Gated(nn.Module):
    """Takes a mean over the batch, times a number that starts out as zero."""

    def __init__(self):
        super().__init__()
        self.inner, self.gate = nn.Linear(2, 1), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        z = self.inner(x)
        return z + self.gate * z.mean(0)


def test_batches_of_one_sample_are_merged(case):
    model, x, y, loss, H, _ = case
    ones = [(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    operator = hs.hessian(model, ones, loss)
    assert_same(operator.dense(), H)
    assert operator.kept_graphs == 1
    # What takes a mean over the batch must be left with its batches.
    coupled, ones = Centred().double(), [(numbers(1, 2), numbers(1, 1)) for _ in range(3)]
    apart = hs.hessian(coupled, ones, nn.MSELoss())
    _ = apart.dense()
    assert apart.kept_graphs == 3


def test_samples_on_their_own_are_merged():
    model = nn.Linear(2, 1)
    data = [(torch.randn(4, 2), torch.randn(4, 1)) for _ in range(20)]
    H = hs.hessian(model, data, nn.MSELoss())
    H @ torch.ones(3)
    assert H.kept_graphs == 1


@pytest.mark.parametrize("make", [OverTime, Centred, lambda: OnAGraph(6)],
                         ids=["time first", "centred", "graph"])  # fmt: skip
def test_batches_are_not_merged_where_samples_interact(make):
    """Merged along time, or among samples of other batches, they would be other data."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model, loss = make().double(), nn.MSELoss()
        shape = (6, 3, 2) if isinstance(model, OverTime) else (6, 2)
        data = [(numbers(*shape), numbers(*shape[:-1], 1)) for _ in range(3)]

    def value():
        return sum(loss(model(x), y) for x, y in data) / 3

    expected = dense_hessian(value, model.parameters())
    assert_same(hs.hessian(model, data, loss).dense(), expected)
    (x, y), *_ = data
    expected = dense_hessian(lambda: loss(model(x), y), model.parameters())
    assert_same(hs.hessian(model, (x, y), loss, memory=0).dense(), expected)


def test_batches_are_not_merged_where_samples_may_come_to_interact():
    model, loss = Gated().double(), nn.MSELoss()
    data = [(numbers(6, 2), numbers(6, 1)) for _ in range(3)]
    expected = dense_hessian(
        lambda: sum(loss(model(x), y) for x, y in data) / 3, model.parameters()
    )
    assert_same(hs.hessian(model, data, loss).dense(), expected)


def test_batches_are_not_cut_where_samples_interact():
    """However large: a batch of this size is cut if samples are on their own."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model, loss = Centred(4096).double(), nn.MSELoss()
        x, y = numbers(500, 2), numbers(500, 1)
    parameters = list(model.parameters())
    H = hs.hessian(model, (x, y), loss, memory=0)
    v = numbers(H.shape[0])
    slopes = torch.autograd.grad(loss(model(x), y), parameters, create_graph=True)
    product = torch.autograd.grad(torch.cat([s.reshape(-1) for s in slopes]) @ v, parameters)
    assert_same(H @ v, torch.cat([part.reshape(-1) for part in product]))
    alone = hs.hessian(model.inner, (x, y), loss, memory=2e8)
    alone @ v
    assert alone.kept_graphs > 1
