r"""The Hessian of a network of linear layers at fixed slopes, and its spectrum by cells.

With :math:`z_\ell = W_\ell h_{\ell-1} + b_\ell` and :math:`h_\ell = s_\ell \circ z_\ell`, the
slopes s constant in a neighbourhood of the weights, a network is linear in every one of its
weights. Products with the Hessian of its loss are one pass forward and one back over the samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import array_api_compat as api

from hessence._common.arrays import (
    Array,
    Numbers,
    constant,
    epsilon,
    identity,
    integers,
    to_numpy,
    transpose,
)
from hessence.data.rounding import terms
from hessence.networks.cells import CellReduction
from hessence.networks.hidden_layers import HiddenLayer, Layout, Weights, cells_of
from hessence.networks.relu._objective import LossHessian
from hessence.spectra.hessian import Hessian, Part, positive_norm
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import LARGEST_BLOCK

CHUNK = 2**21
"""How many numbers a hidden layer may have for all samples and columns at a time."""

COLUMNS = 2**22
"""How many numbers the columns that are read at a time may hold."""


@dataclass(frozen=True, eq=False, repr=False)
class ReLUHessian(Hessian):
    """The Hessian of a loss of a network whose slopes are fixed."""

    weights: Mapping[str, Array]  # W1, b1, W2, … in parameter order; layers may have no bias
    slopes: tuple[Array, ...]  # (n, d_ℓ) for each hidden layer
    x: Array  # (n, d_0)
    gradient: Array  # (n, K): that of the loss in the predictions
    loss_hessian: LossHessian  # its second derivative
    part: Part = "hessian"
    # Bounds the errors of `gradient` and `loss_hessian`, given those of the predictions.
    errors: Callable[[Array], tuple[Array, LossHessian]] | None = None
    reducible: tuple[int, ...] | None = None  # the layers whose cells are reduced; None for all

    @property
    def depth(self) -> int:
        """The number L of layers."""
        return len(self.slopes) + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix."""
        return self._layout.size, self._layout.size

    @property
    def reference(self) -> Array:
        """Some array of the kind, type and device that vectors must have."""
        return self.x

    @cached_property
    def _layout(self) -> Layout:
        return Layout(self.weights)

    @cached_property
    def signals(self) -> list[Array]:
        """What each layer takes: x, h_1, …, h_{L−1}."""
        return forward(self.weights, self.x, self.slopes)[0][:-1]

    @cached_property
    def _gradients(self) -> list[Array]:
        """The gradient of the loss in what each layer makes, z_1, …, z_L."""
        return self.pull(self.gradient)

    def pull(self, gradient: Array) -> list[Array]:
        """Return gradients in what each layer makes from those (..., n, K) in the predictions."""
        xp, found = api.array_namespace(gradient), [gradient]
        for i in range(self.depth, 1, -1):
            found.append(xp.matmul(found[-1], self.weights[f"W{i}"]) * self.slopes[i - 2])
        return found[::-1]

    def parameter_gradient(self) -> dict[str, Array]:
        """Return the gradient of the loss in the weights, by name."""
        xp, found = api.array_namespace(self.x), {}
        for i, (back, signal) in enumerate(zip(self._gradients, self.signals, strict=True), 1):
            found[f"W{i}"] = xp.matmul(transpose(back), signal)
            found[f"b{i}"] = xp.sum(back, axis=0)
        return {name: found[name] for name in self.weights}

    def times(self, columns: Array) -> Array:
        """Multiply columns (p, k)."""
        return self._layout.join(self.multiply(self._layout.split(columns)))

    def multiply(self, changes: Weights) -> dict[str, Array]:
        """Multiply changes (k, …) of the weights, chunk by chunk."""
        xp, count = api.array_namespace(self.x), int(next(iter(changes.values())).shape[0])
        widest = max(int(signal.shape[0] * signal.shape[1]) for signal in self.signals)
        step = max(1, CHUNK // max(1, widest))
        parts = [
            self._multiply({name: c[i : min(i + step, count), ...] for name, c in changes.items()})
            for i in range(0, count, step)
        ]
        return {name: xp.concat([part[name] for part in parts], axis=0) for name in self.weights}

    def _multiply(self, changes: Weights) -> dict[str, Array]:
        # Pearlmutter's R-operator: `d…` is the derivative along the given direction.
        xp, functional = api.array_namespace(self.x), self.part != "ggn"
        moved: list[Array] = [None]
        for i in range(1, self.depth + 1):
            dz = xp.matmul(self.signals[i - 1], transpose(changes[f"W{i}"]))
            if moved[-1] is not None:
                dz = dz + xp.matmul(moved[-1], transpose(self.weights[f"W{i}"]))
            if f"b{i}" in changes:
                dz = dz + changes[f"b{i}"][:, None, :]
            moved.append(dz if i == self.depth else self.slopes[i - 1] * dz)
        d_back, found = self.loss_hessian(moved[-1]), {}
        for i in range(self.depth, 0, -1):
            back, W = self._gradients[i - 1], f"W{i}"
            found[W] = xp.matmul(transpose(d_back), self.signals[i - 1])
            if f"b{i}" in changes:
                found[f"b{i}"] = xp.sum(d_back, axis=-2)
            if i > 1:
                if functional:
                    found[W] = found[W] + xp.matmul(transpose(back), moved[i - 1])
                d_back = xp.matmul(d_back, self.weights[W])
                if functional:
                    d_back = d_back + xp.matmul(back, changes[W])
                d_back = d_back * self.slopes[i - 2]
        return found

    def rounding(self) -> float:
        """Return a bound for the spectral norm of what rounding has done to the operator.

        Running error analysis, as for linear networks: all that is added up on the way to an entry
        is added up with positive signs, by the same products.
        """
        weights = {name: abs(constant(w)) for name, w in self.weights.items()}
        x, slopes = abs(constant(self.x)), tuple(abs(s) for s in self.slopes)
        longest = max(int(size) for signal in self.signals for size in signal.shape)
        share = epsilon(x) * (64 + 8 * self.depth + 2 * terms(longest))
        first = share * abs(constant(self.gradient))
        second = share * abs(constant(self.loss_hessian.entries))
        if self.errors is not None:
            off_first, off_second = self.errors(share * forward(weights, x, slopes)[0][-1])
            first, second = first + off_first, second + off_second.entries
        sizes = replace(
            self, weights=weights, slopes=slopes, x=x,
            gradient=first * float(self.part != "ggn"),
            loss_hessian=LossHessian(second * float(self.part != "functional")),
        )  # fmt: skip
        return float(positive_norm(sizes))

    # Cells.

    @property
    def _reducible(self) -> tuple[int, ...]:
        return tuple(range(1, self.depth)) if self.reducible is None else self.reducible

    def _at(self, weights: Weights, cells: list[Numbers]) -> Self:
        """Return the Hessian at weights of other widths, from the cells of reducible layers."""
        xp, slopes = api.array_namespace(self.x), list(self.slopes)
        for layer, index in zip(self._reducible, cells, strict=True):
            own, (_, members) = self.slopes[layer - 1], self._cells[layer - 1]
            slopes[layer - 1] = xp.take(own, integers(members[index], own), axis=1)
        return replace(self, weights=weights, slopes=tuple(slopes))

    @cached_property
    def _cells(self) -> list[tuple[Numbers, Numbers]]:
        return [cells_of(to_numpy(slopes)) for slopes in self.slopes]

    @cached_property
    def reduction(self) -> CellReduction:
        """The network with as few units in each cell as it needs, and what that leaves out."""
        layers = []
        for i in self._reducible:
            cells, members = self._cells[i - 1]
            dead: Numbers = (to_numpy(self.slopes[i - 1])[:, members] == 0).all(axis=0)
            bias = f"b{i}" if f"b{i}" in self.weights else None
            layers.append(HiddenLayer(f"W{i}", bias, f"W{i + 1}", f"layer {i}", cells, dead))

        def gradient(weights: Weights, cells: list[Numbers]) -> Weights:
            return self._at(weights, cells).parameter_gradient()

        return CellReduction(self.weights, layers, gradient)

    @cached_property
    def narrow(self) -> Self:
        """The Hessian of the network that is left, in its own weights."""
        return self._at(self.reduction.weights, self.reduction.cells)

    def exact_spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors: those of the narrow network, and all others.

        Raises
        ------
        ValueError
            If the narrow network is too large for a dense solver; ``top`` then still finds the
            ends of the spectrum.
        """
        self.require_small()
        families = self.reduction.families(self.narrow.multiply)
        return Spectrum(families, "cells", operator=self)

    def require_small(self) -> None:
        """Refuse a network that is too large for a dense solver, however few units it needs."""
        if self.reduction.bound > LARGEST_BLOCK:
            raise ValueError(
                f"no exact route leads to the whole spectrum: with as few units in each cell as it "
                f"needs, the network still has {self.reduction.bound} of its {self.shape[-1]} "
                f"dimensions, more than the {LARGEST_BLOCK} that a dense solver is given; call "
                "H.top(k) for the extreme eigenvalues."
            )

    def block(self) -> Array:
        """Return the matrix on the subspace of the narrow network, (size, size)."""
        reduction = self.reduction
        eye = identity(reduction.size, self.x)
        if not reduction.size:
            return eye
        matrix = reduction.project(self.narrow.multiply(reduction.embed(eye)))
        return (matrix + transpose(matrix)) / 2

    # Invariants, from the entries.

    @cached_property
    def _invariants(self) -> tuple[Array, Array]:
        """Trace and squared Frobenius norm."""
        few = math.prod(self.gradient.shape) <= self.shape[-1]
        return self._from_predictions() if few and self.depth == 2 else self._from_columns()

    def _from_columns(self) -> tuple[Array, Array]:
        xp, size = api.array_namespace(self.x), int(self.shape[-1])
        trace = squared_norm = 0 * xp.sum(self.gradient)
        step = max(1, COLUMNS // size)
        for start in range(0, size, step):
            count = min(step, size - start)
            eye = xp.eye(size, count, k=-start, dtype=self.dtype, device=api.device(self.x))
            image = self.times(eye)
            trace = trace + xp.sum(image * eye)
            squared_norm = squared_norm + xp.sum(image * image)
        return trace, squared_norm

    def _from_predictions(self) -> tuple[Array, Array]:
        r"""Return both from the gradients J of all predictions, with one hidden layer.

        With S the loss Hessian, u the gradient of the loss in the predictions and s the slopes, H
        is :math:`J S J^\top + F`, and

        .. math:: \|F\|^2 = 2\sum_{i,j} (u_i\cdot u_j)(x_i\cdot x_j)(s_i\cdot s_j),

        x having one entry 1 more for a bias. JᵀJ is summed layer by layer from inner products; J
        itself is needed for the inner product of the two parts alone.
        """
        xp, (n, outputs) = api.array_namespace(self.x), self.gradient.shape
        each = xp.broadcast_to(identity(outputs, self.x)[:, None, :], (outputs, n, outputs))
        changes: dict[str, Array] = {}
        gram = 0.0
        for i, (back, signal) in enumerate(zip(self.pull(each), self.signals, strict=True), 1):
            back, signals = xp.reshape(back, (outputs * n, -1)), xp.tile(signal, (outputs, 1))
            alike = xp.matmul(signal, transpose(signal)) + float(f"b{i}" in self.weights)
            gram = gram + xp.matmul(back, transpose(back)) * xp.tile(alike, (outputs, outputs))
            if self.part == "hessian":
                changes |= {f"W{i}": back[:, :, None] * signals[:, None, :], f"b{i}": back}

        def weighted(rows: Array) -> Array:
            """Multiply rows (k, K n) by S."""
            by_sample = transpose(xp.reshape(rows, (-1, outputs, n)))
            return xp.reshape(transpose(self.loss_hessian(by_sample)), tuple(rows.shape))

        dual = weighted(gram)
        trace, squared_norm = xp.sum(xp.linalg.diagonal(dual)), xp.sum(dual * transpose(dual))
        u, x, s = (xp.matmul(a, transpose(a)) for a in (self.gradient, self.x, self.slopes[0]))
        squared_norm = squared_norm + 2 * xp.sum(u * (x + float("b1" in self.weights)) * s)
        if self.part == "hessian":
            J = self._layout.join(changes)
            squared_norm = squared_norm + 2 * xp.sum(weighted(J) * self.functional.times(J))
        return trace, squared_norm

    def trace(self) -> Array:
        """Return the sum of the diagonal."""
        return self._invariants[0]

    def squared_norm(self) -> Array:
        """Return the sum of all squared entries."""
        return self._invariants[1]


def forward(weights: Weights, x: Array, slopes: Any) -> tuple[list[Array], list[Array]]:
    """Return what each layer takes, then the predictions; and the slopes of each hidden layer.

    `slopes` are those of each hidden layer, or a function that returns them for what it makes.
    """
    xp = api.array_namespace(x)
    depth = max(int(name[1:]) for name in weights)
    signals, found = [x], []
    for i in range(1, depth + 1):
        z = xp.matmul(signals[-1], transpose(weights[f"W{i}"]))
        if f"b{i}" in weights:
            z = z + weights[f"b{i}"]
        if i < depth:
            found.append(slopes(z) if callable(slopes) else slopes[i - 1])
            z = found[-1] * z
        signals.append(z)
    return signals, found
