"""Random numbers: a loss must not depend on them, and data leave the user's generators alone."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import hessence as hs
from tests.models.market import numbers


class Scaled(nn.Module):
    """Scales what is inside by a number that it draws."""

    def __init__(self, draw):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 1)
        self.draw = draw

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)) * self.draw())


DRAWS = {
    "PyTorch": lambda: float(torch.rand(())),
    "NumPy": lambda: float(np.random.rand()),  # noqa: NPY002
    "Python": random.random,
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_model_that_draws_random_numbers(name):
    draw = DRAWS[name]
    model = Scaled(draw).double()
    data = numbers(7, 3), numbers(7, 1)
    with pytest.raises(ValueError, match="something random is in the model"):
        hs.hessian(model, data, nn.MSELoss()).dense()
    with pytest.raises(ValueError, match="something random is in the model"):
        hs.spectrum(model, data, nn.MSELoss())


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_that_are_drawn_for_nothing(name):
    draw = DRAWS[name]
    model = Scaled(lambda: 1.0 + 0 * draw()).double()
    plain = Scaled(lambda: 1.0).double()
    plain.load_state_dict(model.state_dict())
    data = numbers(7, 3), numbers(7, 1)
    found = hs.hessian(model, data, nn.MSELoss()).dense()
    assert torch.equal(found, hs.hessian(plain, data, nn.MSELoss()).dense())


LOADERS = {
    "shuffled": {"shuffle": True},
    "weighted": {"sampler": WeightedRandomSampler([1.0, 2.0, 3.0] * 4, 12)},
    "a subset": {"sampler": SubsetRandomSampler(range(2, 12))},
    "batches": {"batch_sampler": BatchSampler(RandomSampler(range(12)), 5, drop_last=True)},
}


@pytest.mark.parametrize("memory", [None, 0])
@pytest.mark.parametrize("name", LOADERS)
def test_loaders_draw_from_generators_of_their_own(name, memory):
    """Another thread that draws meanwhile is not disturbed: nobody touches PyTorch's generator."""
    x, y = numbers(12, 3), numbers(12, 1)
    options = LOADERS[name]
    given = {} if "batch_sampler" in options else {"batch_size": 4}
    loader = DataLoader(TensorDataset(x, y), **given, **options)
    drawn = Scaled(lambda: 1.0).double()
    seen = []
    collate = loader.collate_fn
    loader.collate_fn = lambda rows: seen.append(torch.get_rng_state()) or collate(rows)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    H = hs.hessian(drawn, loader, nn.MSELoss(), memory=memory)
    torch.rand(5)  # as a user does between products, which must all have the same batches
    after = torch.get_rng_state()
    torch.testing.assert_close(H.dense(), H.dense(), rtol=1e-12, atol=0)
    assert seen
    assert all(torch.equal(s, before) or torch.equal(s, after) for s in seen)
    assert torch.equal(torch.get_rng_state(), after)


def test_data_that_shuffle_when_asked_for_an_iterator():
    x, y = numbers(12, 3), numbers(12, 1)

    class Shuffling:
        def __iter__(self):
            order = torch.randperm(12)
            return iter([(x[i], y[i]) for i in order.split(4)])

    model = Scaled(lambda: 1.0).double()
    found = hs.hessian(model, Shuffling(), nn.MSELoss()).dense()
    torch.testing.assert_close(found, hs.hessian(model, (x, y), nn.MSELoss()).dense())
    with pytest.raises(ValueError, match="other batches on another pass"):
        hs.hessian(model, Shuffling(), nn.MSELoss(), memory=0).dense()
