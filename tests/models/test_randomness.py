"""Random numbers: a loss must not depend on them, and the user's generators stay where they are."""

import random

import numpy as np
import pytest
import torch
from torch import nn

import hessence as hs
from tests.models.market import numbers


class Skipping(nn.Module):
    """Leaves a layer out once in ten times."""

    def __init__(self, draw):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.draw = draw

    def forward(self, x):
        h = torch.tanh(self.first(x))
        if self.draw() > 0.1:
            h = h + torch.tanh(self.middle(h))
        return self.last(h)


DRAWS = {
    "PyTorch": lambda: float(torch.rand(())),
    "NumPy": lambda: float(np.random.rand()),  # noqa: NPY002
    "Python": random.random,
}


def states():
    return torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002


def assert_same_states(before):
    now = states()
    assert torch.equal(now[0], before[0])
    assert np.array_equal(now[1], before[1])
    assert now[2] == before[2]


@pytest.mark.parametrize("name", DRAWS)
def test_a_layer_that_is_mostly_there(name):
    model = Skipping(DRAWS[name]).double()
    data = numbers(7, 3), numbers(7, 1)
    for i in range(5):
        torch.manual_seed(i), np.random.seed(i), random.seed(i)  # noqa: NPY002
        before = states()
        with pytest.raises(ValueError, match="something random is in the model"):
            hs.hessian(model, data, nn.MSELoss()).dense()
        with pytest.raises(ValueError, match="something random is in the model"):
            hs.spectrum(model, data, nn.MSELoss())
        assert_same_states(before)


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_that_are_drawn_for_nothing(name):
    draw = DRAWS[name]
    model = Skipping(lambda: 1.0 + 0 * draw()).double()
    plain = Skipping(lambda: 1.0).double()
    plain.load_state_dict(model.state_dict())
    data = numbers(7, 3), numbers(7, 1)
    before = states()
    found = hs.hessian(model, data, nn.MSELoss()).dense()
    hs.Monitor(model, data, nn.MSELoss()).measure(0)
    assert_same_states(before)
    assert torch.equal(found, hs.hessian(plain, data, nn.MSELoss()).dense())


def test_data_that_shuffle_when_asked_for_an_iterator():
    x, y = numbers(12, 3), numbers(12, 1)

    class Shuffling:
        def __iter__(self):
            order = torch.randperm(12)
            return iter([(x[i], y[i]) for i in order.split(4)])

    model = Skipping(lambda: 1.0).double()
    before = states()
    found = hs.hessian(model, Shuffling(), nn.MSELoss()).dense()
    assert_same_states(before)
    torch.testing.assert_close(found, hs.hessian(model, (x, y), nn.MSELoss()).dense())
