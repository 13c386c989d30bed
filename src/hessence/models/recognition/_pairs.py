r"""The narrow twin of adjacent linear layers inside a PyTorch model.

Two linear layers with nothing between them, :math:`A` (K × m) after :math:`B` (m × D), reach the
loss only through :math:`M = AB`; a bias of the first is a column more of B. With G the gradient of
the loss in M and Q an orthonormal basis of row(A) + col(B), of dimension r, the Hessian
has (see :mod:`hessence.networks.twin`)

- a bulk ±σᵢ(G), m − r times each, on hidden directions outside Q;
- the Hessian of the *narrow twin*, the model with :math:`AQ` and :math:`Q^\top B` in their place,
  on all other parameters and on the changes of A and B inside Q;
- zeros.

Both come from small models in the place of the large one: G is the gradient of the model in which
M and the identity stand for B and A, and the matrix of the twin comes from products with the twin's
own Hessian. Neither sees the width m.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from hessence.models.recognition._candidate import VARIABLES, Candidate, NotRecognised
from hessence.models.recognition._program import Layer
from hessence.networks.twin import TwinSubspaces
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import LARGEST_BLOCK, Columns, Subspaces

CHUNK = 256
"""How many columns are multiplied with the Hessian of a narrow model at a time."""

Factors = tuple[Tensor, Tensor]
"""B and A of a pair, or changes of them (n, m, D) and (n, K, m)."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Two adjacent linear layers, and where their parameters are."""

    first: Layer
    second: Layer
    A: Tensor
    B: Tensor

    @classmethod
    def of(cls, first: Layer, second: Layer, parameters: Mapping[str, Tensor]) -> Pair:
        """Read the factors, B with a column for the bias."""
        B = parameters[first.weight]
        if first.bias is not None:
            B = torch.cat([B, parameters[first.bias][:, None]], dim=1)
        return cls(first, second, parameters[second.weight], B)

    @property
    def names(self) -> list[str]:
        """The names of the layers."""
        return [self.first.name, self.second.name]

    @property
    def replaced(self) -> set[str]:
        """The names of the parameters in A and B."""
        return {*self.first.parameters, self.second.weight}

    @property
    def saving(self) -> int:
        """How many dimensions the twin leaves out at least."""
        (outputs, width), inputs = self.A.shape, self.B.shape[1]
        used, rank = min(width, outputs + inputs), min(outputs, inputs)
        twin = min(used * (outputs + inputs), 2 * used * rank + outputs * inputs)
        return int(width * (outputs + inputs) - twin)

    def tensors(self, B: Tensor, A: Tensor) -> dict[str, Tensor]:
        """Return factors (..., m, D) and (..., K, m) as the layers' parameters, by name."""
        if self.first.bias is None:
            return {self.second.weight: A, self.first.weight: B}
        weight, bias = B[..., :-1], B[..., -1]
        return {self.second.weight: A, self.first.weight: weight, self.first.bias: bias}

    def factors(self, tensors: Mapping[str, Tensor]) -> Factors:
        """Return the layers' parameters (n, …) as factors."""
        A, B = tensors[self.second.weight], tensors[self.first.weight]
        if self.first.bias is not None:
            B = torch.cat([B, tensors[self.first.bias][..., None]], dim=-1)
        return B, A

    def place(self, vectors: Vectors, dB: Tensor, dA: Tensor) -> Tensor:
        """Return changes of the factors as columns (p, n) of changes of all parameters."""
        return vectors.join(self.tensors(dB, dA))


def twin_layers(candidate: Candidate) -> list[str]:
    """Return the names of the layers whose twin is taken."""
    return [name for pair in _choose(candidate) for name in pair.names]


def by_twin(candidate: Candidate) -> Spectrum:
    """Return the spectrum of a model with pairs of layers that are wide enough.

    Raises
    ------
    NotRecognised
        If no pair of layers is wide enough to gain anything, or the twin is too large for a dense
        solver.
    """
    pairs = _choose(candidate)
    others = {
        name: parameter
        for name, parameter in candidate.parameters.items()
        if not any(name in pair.replaced for pair in pairs)
    }
    rest = sum(parameter.numel() for parameter in others.values())
    size = rest + sum(len(pair.A) * pair.B.shape[1] for pair in pairs)
    names = ", ".join(map(repr, twin_layers(candidate)))
    if size > VARIABLES:
        raise NotRecognised(
            f"with one layer in place of each two of {names} the model still has {size} "
            f"parameters, more than the {VARIABLES} in which a loss is differentiated twice"
        )
    vectors = Vectors(candidate.parameters)
    twins = [
        TwinSubspaces(pair.B, pair.A, gradient, partial(pair.place, vectors))
        for pair, gradient in zip(pairs, _gradients(candidate, pairs), strict=True)
    ]
    bound = rest + sum(twin.bound for twin in twins)
    if bound > LARGEST_BLOCK:
        raise NotRecognised(
            f"the narrow twin of layers {names} leaves an eigenproblem of size {bound}, more than "
            f"the {LARGEST_BLOCK} that a dense solver is given"
        )
    outside = [
        family
        for pair, twin in zip(pairs, twins, strict=True)
        for family in twin.outside(f"/{pair.names[0]}")
    ]
    # Zero weights and a zero gradient without other parameters leave nothing inside.
    empty = not rest + sum(twin.size for twin in twins)
    inside = [] if empty else [_inside(candidate, pairs, twins, others)]
    return Spectrum([*inside, *outside], "narrow twin")


# Which pairs.


def _choose(candidate: Candidate) -> list[Pair]:
    """Return disjoint pairs of adjacent layers, in order, chosen by how much they save."""
    runs, parameters = candidate.program.runs, candidate.parameters
    if not runs:
        found = candidate.program.obstacle
        raise NotRecognised(
            f"the model is none of the solvable networks{f': {found}' if found else ''}, and it "
            "has no two Linear layers with nothing between them"
        )
    adjacent = [
        Pair.of(run[i], run[i + 1], parameters) for run in runs for i in range(len(run) - 1)
    ]
    taken: set[str] = set()
    chosen = []
    for pair in sorted(adjacent, key=lambda pair: pair.saving, reverse=True):
        if pair.saving > 0 and not taken & set(pair.names):
            chosen.append(pair)
            taken |= set(pair.names)
    if not chosen:
        best = max(adjacent, key=lambda pair: pair.saving)
        raise NotRecognised(
            f"layers {best.names[0]!r} and {best.names[1]!r} have nothing between them, but their "
            f"hidden width {best.A.shape[1]} is no more than the {best.B.shape[1]} + "
            f"{best.A.shape[0]} that they can use"
        )
    return [pair for pair in adjacent if pair in chosen]


# Small models in the place of the large one.


def _with_factors(model: nn.Module, pairs: list[Pair], factors: list[Factors]) -> nn.Module:
    """Return a copy of a model whose pairs have other factors, of any inner width."""
    model = copy.deepcopy(model)
    parameters = dict(model.named_parameters())
    for pair, (B, A) in zip(pairs, factors, strict=True):
        for name, tensor in pair.tensors(B, A).items():
            # The same parameter with other data, since the model may hold it in several places.
            parameters[name].data = tensor.contiguous()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
    return model


def _gradients(candidate: Candidate, pairs: list[Pair]) -> list[Tensor]:
    """Return the gradient of the loss in the product of each pair."""
    products = [(pair.A @ pair.B, pair.A.new_ones(len(pair.A)).diag()) for pair in pairs]
    model = _with_factors(candidate.model, pairs, products)
    vectors = Vectors(dict(model.named_parameters()))
    gradient = vectors.split(candidate.hessian(model).gradient()[:, None])
    return [pair.factors(gradient)[0][0] for pair in pairs]


def _inside(
    candidate: Candidate,
    pairs: list[Pair],
    twins: list[TwinSubspaces],
    others: Mapping[str, Tensor],
) -> Subspaces:
    """Return the subspace of twins and other parameters, with the narrow model's Hessian."""
    model = _with_factors(candidate.model, pairs, [(t.twin.W1, t.twin.W2) for t in twins])
    hessian, narrow = candidate.hessian(model), Vectors(dict(model.named_parameters()))
    wide, rest = Vectors(candidate.parameters), Vectors(others)
    sizes = [*(twin.size for twin in twins), rest.size]

    def tensors(columns: Tensor, widen: bool) -> dict[str, Tensor]:
        *parts, last = columns.split(sizes)
        found = rest.split(last)
        for pair, twin, part in zip(pairs, twins, parts, strict=True):
            change = twin.embed(part)
            found |= pair.tensors(*(twin.widen(*change) if widen else change))
        return found

    def multiply(columns: Tensor) -> Tensor:
        image = narrow.split(hessian @ narrow.join(tensors(columns, widen=False)))
        parts = [t.project(*pair.factors(image)) for pair, t in zip(pairs, twins, strict=True)]
        return torch.cat([*parts, rest.join(image)])

    embed = Columns(lambda columns: wide.join(tensors(columns, widen=True)))
    # Formed here, once, so that the spectrum does not hold on to the narrow model and its graphs.
    eye = torch.eye(sum(sizes), dtype=hessian.dtype, device=hessian.device)
    matrix = torch.cat([multiply(part) for part in eye.split(CHUNK, dim=1)], dim=1)
    return Subspaces(("twin",) * len(eye), lambda _: embed, matrix=(matrix + matrix.T) / 2)


class Vectors:
    """Parameter vectors as columns (p, n), and as tensors (n, …) by name."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        self.size = sum(p.numel() for p in parameters.values())

    def split(self, columns: Tensor) -> dict[str, Tensor]:
        """Cut columns into tensors."""
        pieces = columns.split([math.prod(shape) for shape in self._shapes.values()])
        return {
            name: piece.T.reshape(-1, *shape)
            for piece, (name, shape) in zip(pieces, self._shapes.items(), strict=True)
        }

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Make columns of those of the tensors that count; one that is not given is zero."""
        first = next(iter(tensors.values()))
        pieces = [
            tensors[name].flatten(1).T
            if name in tensors
            else first.new_zeros(math.prod(shape), len(first))
            for name, shape in self._shapes.items()
        ]
        return torch.cat(pieces) if pieces else first.new_zeros(0, len(first))
