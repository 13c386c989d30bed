r"""Hidden layers with more units than they need, inside a PyTorch model.

Two linear layers with nothing between them, :math:`A` (K × m) after :math:`B` (m × D), reach the
loss only through :math:`M = AB`; a bias of the first is a column more of B. With a ReLU or another
activation of two slopes between them, the same holds for every *cell*, the units that are positive
for the same samples. So the model has a narrow twin (:mod:`hessence.networks.cells`): the Hessian
is that of a model with fewer hidden units, beside a bulk and zeros that are known exactly.

Both come from small models in place of the large one: the gradient in M is that of the model with M
and the identity in place of B and A, and the matrix of the twin comes from products with the twin's
own Hessian. The cost of neither depends on the width m. All other layers and parameters, such as
the slope of a PReLU, stay as they are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from hessence._common.arrays import Numbers
from hessence._common.messages import warn
from hessence.models.data import gather
from hessence.models.model_matrices import ModelHessian
from hessence.models.recognition._candidate import (
    VARIABLES,
    Candidate,
    NotRecognised,
    Reason,
    Recognition,
)
from hessence.models.recognition._program import Pair
from hessence.models.recognition._slopes import Activation, FixedSlopes, run_with
from hessence.networks.cells import CellReduction
from hessence.networks.hidden_layers import HiddenLayer, Layout, Weights, cells_of
from hessence.networks.scalar.scalar_relu import KinkWarning
from hessence.spectra.reduced import Reduced
from hessence.spectra.small_eigen import eigensystem
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import LARGEST_BLOCK

CHUNK = 256
"""How many columns are multiplied by the Hessian of a narrow model at once."""

TWIN = (
    "hidden directions that neither layer of a pair uses give a bulk ±σᵢ(∂loss/∂M), M the product "
    "of the two; the rest is a network of the width that they use"
)
CELLS = (
    "units that are positive for the same samples are a narrow network of their own, with a bulk "
    "±σᵢ(∂loss/∂M), M the product of its two weights"
)


def by_cells(candidate: Candidate) -> Recognition:
    """Return the spectrum of a model with hidden layers that have more units than they need.

    Raises ``NotRecognised`` if there is no such layer, or if the narrow model is too large.
    """
    pairs = candidate.program.pairs
    if not pairs:
        found = candidate.program.obstacle
        raise NotRecognised(
            f"the model is none of the solvable networks{f': {found}' if found else ''}, and it "
            "has no two Linear layers with nothing or a ReLU between them"
        )
    model = _Cells(candidate, pairs)
    reduction = CellReduction(candidate.parameters, model.layers, model.gradient)
    shrunk = [
        pair
        for pair, before, after in zip(pairs, model.layers, reduction.layers, strict=True)
        if len(after.cells) < len(before.cells)
    ]
    names = ", ".join(dict.fromkeys(repr(name) for pair in shrunk for name in pair.names))
    if not shrunk:
        raise NotRecognised(_need_all(candidate, pairs))
    inside, *outside = reduction.families()
    least, size = model.least(), reduction.bound
    if least > VARIABLES or size > LARGEST_BLOCK:
        raise NotRecognised(
            f"with one unit for each cell between layers {names} the model still has {least} "
            f"parameters, more than the {VARIABLES} in which a loss is differentiated twice"
            if least > VARIABLES
            else f"with as few units between layers {names} as they need, an eigenproblem of size "
            f"{size} is left, more than the {LARGEST_BLOCK} that a dense solver is given",
            rest=Reduced(
                candidate.operator, reduction.size, reduction.widen, reduction.narrow,
                tuple(outside), "cells", _Products(model.hessian(reduction), reduction),
            ),
        )  # fmt: skip
    if model.kinks:
        warn(
            f"{model.kinks} hidden unit(s) sit at the kink of their activation for a sample, where "
            "there is no Hessian; their slope there counts as autodiff has it.",
            KinkWarning,
        )
    active = any(pair.activation is not None for pair in shrunk)
    method, theorem = ("cells", CELLS) if active else ("narrow twin", TWIN)
    if reduction.size:
        # The block is formed here, so that the spectrum does not keep the narrow model alive, and
        # solved here, since products are about to confirm the eigenvectors.
        narrow = model.hessian(reduction)
        block = _block(narrow, reduction)
        values, vectors = eigensystem(block)
        inside = replace(inside, matrix=block, values=values, vectors=vectors)
        rounded = narrow.rounded
    else:
        rounded = candidate.operator.rounded
    spectrum = Spectrum([inside, *outside], method, defect=rounded)
    return Recognition(Reason(theorem, rule=f"{method} of layers {names}"), spectrum)


class _Cells:
    """The hidden layers of a model with their cells, and the models of other widths.

    Attributes
    ----------
    layers : list of HiddenLayer
        One for each pair.
    kinks : int
        How many hidden units are exactly zero for a sample that can move them.
    """

    def __init__(self, candidate: Candidate, pairs: list[Pair]) -> None:
        self._candidate, self.kinks = candidate, 0
        self._active = [i for i, pair in enumerate(pairs) if pair.activation is not None]
        self._weights = [pairs[i].first.weight for i in self._active]
        self._biased = [pairs[i].first.bias is not None for i in self._active]
        self._members: dict[int, Numbers] = {}
        patterns = self._patterns()
        self.layers = []
        for i, pair in enumerate(pairs):
            first, dead = pair.first, None
            cells: Numbers = np.zeros(len(candidate.parameters[first.weight]), dtype=int)
            if i in patterns:
                cells, self._members[i] = cells_of(patterns[i])
                never: Numbers = (patterns[i][:, self._members[i]] == 0).all(axis=0)
                dead = never & (pair.activation == "relu")
            self.layers.append(
                HiddenLayer(
                    first.weight, first.bias, pair.second.weight, f"layer {first.name}", cells, dead
                )
            )

    def _patterns(self) -> dict[int, Numbers]:
        """Return which hidden units are positive for which samples, as bits, by layer."""
        found: list[list[Numbers]] = [[] for _ in self._active]
        if not found:
            return {}

        def record(i: int, h: Tensor, z: Tensor, activation: Activation) -> Tensor:
            units = z.shape[-1]
            found[i].append(np.packbits((z > 0).reshape(-1, units).cpu().numpy(), axis=0))
            moves = (h != 0).any(dim=-1, keepdim=True) | self._biased[i]
            self.kinks += int(((z == 0) & moves).reshape(-1, units).any(dim=0).sum())
            return activation(z)

        for inputs, _ in self._candidate.batches:
            with torch.no_grad():
                run_with(record, self._candidate.model, inputs.clone(), self._weights)
        shares = gather((found, self.kinks))
        self.kinks = sum(kinks for _, kinks in shares)
        together = zip(*(own for own, _ in shares), strict=True)
        joined = [np.concatenate([rows for own in layer for rows in own]) for layer in together]
        return dict(zip(self._active, joined, strict=True))

    def least(self) -> int:
        """Return how many parameters the model has if every cell needs only one unit."""
        shapes = {name: list(p.shape) for name, p in self._candidate.parameters.items()}
        for layer in self.layers:
            cells = np.unique(layer.cells)
            count = len(cells) if layer.dead is None else int((~layer.dead[cells]).sum())
            shapes[layer.first][0] = shapes[layer.second][1] = count
            if layer.bias is not None:
                shapes[layer.bias][0] = count
        return sum(map(math.prod, shapes.values()))

    def model(self, weights: Weights, cells: list[Numbers]) -> nn.Module:
        """Return a model of other widths, given the cells of all hidden units."""
        origin = self._candidate.model
        model = copy.deepcopy(origin)
        for name, parameter in model.named_parameters():
            # The same parameter with other data, since the model may hold it in several places.
            parameter.data = weights[name].contiguous()
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.out_features, module.in_features = module.weight.shape
        if not self._active:
            return model
        units = [torch.as_tensor(self._members[i][cells[i]]) for i in self._active]
        return FixedSlopes(origin, model, dict(zip(self._weights, units, strict=True)))

    def gradient(self, weights: Weights, cells: list[Numbers]) -> Mapping[str, Tensor]:
        """Return the gradient of the loss at weights of other widths."""
        gradient = self._candidate.hessian(self.model(weights, cells)).gradient()
        return {name: g[0] for name, g in Layout(weights).split(gradient[:, None]).items()}

    def hessian(self, reduction: CellReduction) -> ModelHessian:
        """Return the Hessian of the narrow model."""
        return self._candidate.hessian(self.model(reduction.weights, reduction.cells))


class _Products:
    """Products of the narrow model in the coordinates of a reduction."""

    def __init__(self, hessian: ModelHessian, reduction: CellReduction) -> None:
        self._hessian, self._reduction = hessian, reduction
        self._layout = Layout(reduction.weights)

    def __call__(self, columns: Tensor) -> Tensor:
        """Multiply coordinates (R, n)."""
        vectors = self._layout.join(self._reduction.embed(columns))
        return self._reduction.project(self._layout.split(self._hessian @ vectors))

    def release(self) -> None:
        """Release kept graphs."""
        self._hessian.release()


def _block(hessian: ModelHessian, reduction: CellReduction) -> Tensor:
    """Return the block of the narrow model."""
    multiply = _Products(hessian, reduction)
    eye = torch.eye(reduction.size, dtype=hessian.dtype, device=hessian.device)
    matrix = torch.cat([multiply(columns) for columns in eye.split(CHUNK, dim=1)], dim=1)
    return (matrix + matrix.T) / 2


def _need_all(candidate: Candidate, pairs: list[Pair]) -> str:
    """Say that no hidden layer has more units than it needs."""
    pair = max(pairs, key=lambda pair: len(candidate.parameters[pair.first.weight]))
    width, inputs = candidate.parameters[pair.first.weight].shape
    inputs += pair.first.bias is not None
    outputs = len(candidate.parameters[pair.second.weight])
    first, second = pair.names
    if pair.activation is None:
        return (
            f"layers {first!r} and {second!r} have nothing between them, but their hidden width "
            f"{width} is no more than the {inputs} + {outputs} that they can use"
        )
    return (
        f"of the {width} units between layers {first!r} and {second!r} none can be spared: each "
        f"is positive for some samples, and no more than {inputs} + {outputs} for the same"
    )
