"""Models made of layers whose derivatives have factors, in the ways that users combine them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.models.market import Problem, numbers


def convolutional(kind, *arguments, size=7, samples=3, **options):
    """Return a builder of a convolution between two others, with a linear layer at the end."""

    def build():
        dims = int(kind.__name__[-2])
        layers = kind(1, 4, 2, bias=False), nn.Tanh(), kind(4, *arguments, **options), nn.GELU()
        model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(2))
        x = numbers(samples, 1, *[size] * dims)
        model(x.float())
        return Problem(model, x, numbers(samples, 2), nn.MSELoss())

    return build


class Tied(nn.Module):
    """One matrix embeds words, is a linear layer, and is its own output layer."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(6, 3, padding_idx=2)
        self.norm = nn.RMSNorm(3)

    def forward(self, x):
        h = torch.tanh(self.words(x)).mean(1)
        h = torch.tanh(F.linear(h, self.words.weight)) @ torch.ones(6, 3, dtype=h.dtype) + h
        return F.linear(self.norm(h), self.words.weight)


class Twice(nn.Module):
    """A layer that is used again and again, with an activation in place."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.act = nn.ELU(inplace=True)

    def forward(self, x):
        h = self.act(self.first(x))
        for _ in range(3):
            h = self.act(self.again(h))
        return self.last(h)


class TimeFirst(nn.Module):
    """Works on (time, samples, features) inside."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x):
        h = torch.tanh(self.norm(self.a(x.transpose(0, 1))))
        return self.b(h.cumsum(0)).transpose(0, 1)


class Flattened(nn.Module):
    """Has sequences and features as rows, and mixes positions in between."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 2)
        self.scale = nn.Parameter(torch.randn(4, 1))

    def forward(self, x):
        n = len(x)
        h = torch.tanh(self.a(x.flatten(0, 1))).unflatten(0, (n, -1))
        return self.b((h * self.scale).cumsum(1).flatten(0, 1))


class Coupled(nn.Module):
    """Takes a mean over the batch, so that no sample is on its own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(h - h.mean(0))


class InGroups(nn.Module):
    """A kernel that convolves all channels together, and in two groups."""

    def __init__(self):
        super().__init__()
        self.kernel, self.last = nn.Parameter(torch.randn(4, 3, 2)), nn.Linear(8, 2)

    def forward(self, x):
        both = F.conv1d(x, self.kernel), F.conv1d(torch.cat([x, x * x], 1), self.kernel, groups=2)
        return self.last(torch.tanh(torch.cat(both, 1)).mean(2))


class Aside(nn.Module):
    """Calls a layer for nothing, and another without gradients; uses both weights as matrices."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        self.a(x)
        h = torch.tanh(x @ self.a.weight.T)
        with torch.no_grad():
            self.b(h)
        return h @ self.b.weight.T


class Vector(nn.Module):
    """The weight of the last layer is a vector."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Parameter(torch.randn(5))

    def forward(self, x):
        return F.linear(torch.tanh(self.first(x)), self.last)


def in_groups():
    return Problem(InGroups(), numbers(4, 3, 5), numbers(4, 2), nn.MSELoss())


def aside():
    return Problem(Aside(), numbers(4, 3), numbers(4, 2), nn.MSELoss())


def vector():
    return Problem(Vector(), numbers(4, 3), numbers(4), nn.MSELoss())


def tied():
    return Problem(Tied(), torch.randint(6, (4, 3)), torch.randint(6, (4,)), nn.CrossEntropyLoss())


def words():
    """Sequences of words, some of which occur often and one of which is a constant."""
    layers = nn.Embedding(20, 4, padding_idx=3), nn.Tanh(), nn.Linear(4, 3), nn.GELU()
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(15, 2))
    return Problem(model, torch.randint(6, (4, 5)), numbers(4, 2), nn.MSELoss())


def twice():
    return Problem(Twice(), numbers(3, 3), torch.randint(2, (3,)), nn.CrossEntropyLoss())


def time_first():
    # As many time steps as samples: the shapes alone do not tell which is which.
    return Problem(TimeFirst(), numbers(4, 4, 2), numbers(4, 4, 2), nn.MSELoss())


def flattened():
    return Problem(Flattened(), numbers(3, 4, 3), numbers(12, 2), nn.MSELoss(reduction="sum"))


def coupled():
    return Problem(Coupled(), numbers(4, 3), numbers(4, 2), nn.MSELoss())


def one_sample():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return Problem(model, numbers(1, 4), torch.tensor([1]), nn.CrossEntropyLoss())


def unused_inputs():
    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    x = numbers(4, 6)
    x[:, 2:4] = 0
    return Problem(model, x, (torch.rand(4, 1) > 0.5).double(), nn.BCEWithLogitsLoss())


def zero_weights():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    nn.init.zeros_(model[2].weight)
    return Problem(model, numbers(5, 3), numbers(5, 2), nn.MSELoss())


def all_zero():
    problem = zero_weights()
    for parameter in problem.model.parameters():
        nn.init.zeros_(parameter)
    return problem


def zero_residual():
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    model.double()
    x = numbers(3, 3)
    return Problem(model, x, model(x).detach(), nn.MSELoss())


def flat_inputs():
    """Inputs of rank 2, in units that differ."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    x = numbers(6, 2) @ numbers(2, 5) * torch.tensor([1.0, 1e-4, 1e3, 1.0, 1.0])
    return Problem(model, x * 1e-2, numbers(6, 2), nn.MSELoss())


CASES = {f.__name__: f for f in (
    tied, words, twice, time_first, flattened, coupled, one_sample, unused_inputs, zero_weights,
    all_zero, zero_residual, flat_inputs, in_groups, aside, vector,
)}  # fmt: skip
CASES |= {
    "conv1d": convolutional(nn.Conv1d, 3, 3),
    "conv1d_same": convolutional(nn.Conv1d, 3, 3, padding="same", dilation=2),
    "conv2d_stride": convolutional(nn.Conv2d, 3, 3, stride=(2, 1), padding=(0, 1)),
    "conv2d_groups": convolutional(nn.Conv2d, 6, 2, groups=2, dilation=(1, 2)),
    "conv2d_depthwise": convolutional(nn.Conv2d, 4, 3, groups=4, padding=1, bias=False),
    "conv2d_circular": convolutional(nn.Conv2d, 3, 3, padding=1, padding_mode="circular"),
    "conv3d": convolutional(nn.Conv3d, 2, 2, size=4, padding="valid"),
    "transposed1d": convolutional(nn.ConvTranspose1d, 3, 3, stride=2, padding=1, size=4),
    "transposed1d_dilated": convolutional(
        nn.ConvTranspose1d, 2, 2, dilation=3, output_padding=2, size=4
    ),
    "transposed2d": convolutional(
        nn.ConvTranspose2d, 6, (2, 3), stride=(2, 1), groups=2, output_padding=(1, 0), size=3
    ),
    "transposed3d": convolutional(nn.ConvTranspose3d, 2, 2, size=2, samples=2, bias=False),
    "conv_wide": convolutional(nn.Conv1d, 12, 5, size=6, samples=1),
}


def case(name):
    """Build a case, the same one every time, without touching the global random state."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        made = CASES[name]()
    made.model.double()
    return made
