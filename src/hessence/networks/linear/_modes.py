r"""Aligned linear networks: matrices that share their singular vectors from layer to layer.

If :math:`W_\ell = U_\ell\,\mathrm{diag}(s_\ell)\,U_{\ell-1}^\top` with orthogonal U, and data and
gradient go along, :math:`\Sigma = U_0\,\mathrm{diag}(c)\,U_0^\top` and
:math:`G = U_L\,\mathrm{diag}(\omega)\,U_0^\top`, then the Hessian splits into one block for
each pair of singular directions. This file finds the U, or finds that there are none.

A *mode* is one singular direction followed through the layers: a unit vector in each layer where
it exists, the singular values between, the variance c of the inputs along it and the gradient ω. A
mode ends where a singular value vanishes, and new ones begin where a layer has directions that no
mode has reached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from hessence._common.arrays import Array, Numbers, epsilon, to_numpy
from hessence.data.matrix_objectives import Separable
from hessence.networks.linear._products import LinearProducts

TOLERANCE = 1000
"""Layers, data and gradient count as aligned if they are off by at most this many ε, relative."""

ROUNDING = 32
"""How many ε of its terms a gradient may be off by."""

WHITE = 8
"""How many ε white data may be off by, on average over the inputs."""


@dataclass(frozen=True)
class Modes:
    """The singular directions of an aligned network."""

    bases: list[Numbers]  # orthogonal (d_ℓ, d_ℓ), ℓ = 0 … L; columns are the modes' unit vectors
    place: Numbers  # (L + 1, N): the column of each mode, or −1 where it does not exist
    singular: Numbers  # (L, N): s_ℓ of each mode; zero where it does not cross the layer
    variance: Numbers  # (N,): c of each mode
    gradient: Numbers  # (N,): ω of each mode
    rests: Numbers  # (L + 2,): Frobenius norms of layers, data and gradient off the diagonal
    defect: float  # the largest of them, relative to its matrix: the distance from alignment
    aligned: bool  # whether that may be rounding

    @property
    def count(self) -> int:
        """How many modes there are."""
        return int(self.place.shape[1])

    @cached_property
    def below(self) -> Numbers:
        """Π_{m<ℓ} s_m for ℓ = 1 … L, (L, N)."""
        return np.cumprod(np.concatenate([np.ones((1, self.count)), self.singular[:-1]]), axis=0)

    @cached_property
    def above(self) -> Numbers:
        """Π_{m>ℓ} s_m for ℓ = 1 … L, (L, N)."""
        flipped = np.concatenate([np.ones((1, self.count)), self.singular[:0:-1]])
        return np.cumprod(flipped, axis=0)[::-1]


def find_modes(H: LinearProducts) -> Modes:
    """Follow the singular directions through the layers; look at ``defect`` to see if it worked."""
    if not isinstance(H.loss_hessian, Separable):
        raise TypeError("modes are defined for the mean-squared error.")
    # Each matrix is brought to size 1, so that no product of them over- or underflows.
    layers = [_normalised(w) for w in H.weights]
    variance, of_data = _normalised(H.loss_hessian.variance)
    gradient, of_gradient = _normalised(H.gradient)
    weights, sizes = [w for w, _ in layers], [size for _, size in layers]
    precision = epsilon(H.gradient)
    # The gradient M Σ − C is a difference, and rounding in it is measured by its terms.
    terms = to_numpy(H.loss_hessian(H.chain.product)).astype(np.float64) / of_gradient
    size = max(float(np.linalg.norm(gradient)), float(np.linalg.norm(terms)))
    # The end-to-end matrix is there, unless it may have overflowed on the way.
    modest = sum(abs(math.log10(size)) for size in sizes) < 250
    product = _normalised(H.chain.product)[0] if modest else reduce(np.matmul, weights[::-1])
    # Data and the first and last product mostly tell all directions apart; if not, ask all layers.
    modes = _Search(weights, variance, gradient, size, precision, product).run()
    if not modes.aligned:
        again = _Search(weights, variance, gradient, size, precision).run()
        modes = min(modes, again, key=lambda found: found.defect)
    return replace(
        modes,
        singular=modes.singular * np.asarray(sizes)[:, None],
        variance=modes.variance * of_data,
        gradient=modes.gradient * of_gradient,
        rests=modes.rests * np.asarray([*sizes, of_data, of_gradient]),
    )


def _normalised(matrix: Array) -> tuple[Numbers, float]:
    plain = to_numpy(matrix).astype(np.float64, copy=False)
    size = _largest(plain) or 1.0
    return plain / size, size


def _largest(matrix: Numbers) -> float:
    """Return the largest magnitude of an entry, without a copy of the matrix."""
    return max(float(matrix.max()), -float(matrix.min()))


class _Search:
    def __init__(
        self,
        weights: list[Numbers],
        variance: Numbers,
        gradient: Numbers,
        size: float,
        precision: float,
        product: Numbers | None = None,
    ) -> None:
        """Prepare a search in which the end-to-end matrix stands for the layers; else all do."""
        self.weights, self.variance, self.whole, self.size = weights, variance, gradient, size
        self.noise = ROUNDING * precision * size
        # A gradient that is nothing but rounding has no directions to follow.
        self.gradient = gradient * (np.abs(gradient).max() > self.noise)
        self.precision, self.product, self.thorough = precision, product, product is None
        self.depth = len(weights)
        self.columns: list[list[Numbers]] = [[] for _ in range(self.depth + 1)]
        self.modes: list[dict[int, int]] = []
        self.bases: list[Numbers] = []
        self.images: list[Numbers] = []

    def run(self) -> Modes:
        self._start(0, self._joint_basis(None, self._input_family()))
        for layer in range(1, self.depth + 1):
            self._cross(layer)
            if layer == self.depth:
                self._meet_gradient()
            free = self._free(layer)
            if free.shape[1]:
                self._start(layer, self._joint_basis(free, self._onward_family(layer, free)))
        return self._collect()

    def _threshold(self, shape: tuple[int, ...]) -> float:
        return max(shape) * self.precision

    def _start(self, layer: int, basis: Numbers) -> None:
        for column in basis.T:
            self.modes.append({layer: len(self.columns[layer])})
            self.columns[layer].append(column)

    def _cross(self, layer: int) -> None:
        """Follow the modes of the layer before across one matrix."""
        alive = [mode for mode in self.modes if layer - 1 in mode]
        self.bases.append(np.stack(self.columns[layer - 1], axis=1))
        self.images.append(self.weights[layer - 1] @ self.bases[-1])
        images = self.images[-1][:, [mode[layer - 1] for mode in alive]]
        # More images than dimensions mean that the network is not aligned, and the defect says so.
        self._follow(alive, images, layer, len(images))

    def _meet_gradient(self) -> None:
        """Follow the modes that have ended across the gradient, to the last layer."""
        ended = [c for c in self.modes if 0 in c and self.depth not in c]
        if not ended:
            return
        start = np.stack([self.columns[0][c[0]] for c in ended], axis=1)
        images = self.gradient @ start
        free = self._free(self.depth)
        self._follow(ended, free @ (free.T @ images), self.depth, free.shape[1], self.noise)

    def _follow(
        self,
        modes: list[dict[int, int]],
        images: Numbers,
        layer: int,
        most: int,
        noise: float = 0.0,
    ) -> None:
        """Give modes their images as unit vectors in a layer, unless they are rounding.

        Orthonormalised from the longest image down: a short one is accurate only relative to the
        longest, and must not turn the long ones towards its error.
        """
        norms = np.linalg.norm(images, axis=0)
        keep = norms > max(noise, self._threshold(images.shape) * norms.max(initial=0.0))
        order = [i for i in np.argsort(-norms, kind="stable") if keep[i]][:most]
        for i, direction in zip(order, _orthonormal(images[:, order]).T, strict=True):
            modes[i][layer] = len(self.columns[layer])
            self.columns[layer].append(direction)

    def _free(self, layer: int) -> Numbers:
        """Return an orthonormal basis of what no mode has reached in a layer."""
        size = self.weights[layer - 1].shape[0]
        if not self.columns[layer]:
            return np.eye(size)
        found = np.stack(self.columns[layer], axis=1)
        if found.shape[1] == size:
            return np.zeros((size, 0))
        full, _ = np.linalg.qr(found, mode="complete")
        return full[:, found.shape[1] :]

    # Families of symmetric matrices that commute if and only if the network is aligned.

    def _input_family(self) -> list[Numbers]:
        product, by_gradient = self.weights[0], self.gradient.T @ self.gradient
        family = [self.variance, product.T @ product]
        if self.product is not None:
            return [*family, self.product.T @ self.product, by_gradient]
        for k, w in enumerate(self.weights[1:], start=2):
            product = self._unless_rounding(w @ product, self.weights[:k])
            family.append(product.T @ product)
        family.append(by_gradient)
        mixed = product.T @ self.gradient
        family.append(mixed + mixed.T)
        back = self.gradient
        for k in range(self.depth - 1, 0, -1):
            factors = [self.gradient, *self.weights[k:]]
            back = self._unless_rounding(self.weights[k].T @ back, factors)
            family.append(back.T @ back)
        return family

    def _onward_family(self, layer: int, start: Numbers) -> list[Numbers]:
        family, product = [], start
        for k, w in enumerate(self.weights[layer:], start=layer + 1):
            product = self._unless_rounding(w @ product, self.weights[layer:k])
            family.append(product.T @ product)
        met = self.gradient.T @ product
        return [*family, met.T @ met]

    def _unless_rounding(self, product: Numbers, factors: list[Numbers]) -> Numbers:
        """Return a product of matrices, or zeros if it is no larger than its own rounding.

        Where every chain ends in some layer the product of the layers vanishes, and the
        directions of what is computed instead mean nothing.
        """
        if not self.thorough:
            return product
        size = math.prod(float(np.linalg.norm(factor, 2)) for factor in factors)
        rounding = len(factors) * self._threshold(product.shape) * size
        return product if np.abs(product).max(initial=0.0) > rounding else np.zeros_like(product)

    def _joint_basis(self, start: Numbers | None, family: list[Numbers]) -> Numbers:
        """Return start · U, U the common eigenvectors of a family in start's coordinates.

        None starts from the coordinates themselves.
        """
        sizes = [_largest(m) for m in family]
        scaled = [(m, size) for m, size in zip(family, sizes, strict=True) if size > 0]
        if not scaled:
            return np.eye(len(family[0])) if start is None else start
        # A generic combination has the common eigenvectors even where single members repeat
        # eigenvalues; fixed coefficients make it repeatable.
        weights = np.random.default_rng(0).uniform(0.5, 1.5, size=len(scaled))
        if not self.thorough:
            # What varies along with the singular values comes first, the gradient only where they
            # are equal: a sum of both would bring some eigenvalues close that neither confuses.
            weights[-1] = 0.01
        total = sum((c / size) * m for c, (m, size) in zip(weights, scaled, strict=True))
        _, vectors = np.linalg.eigh(total)
        vectors = vectors[:, ::-1]
        if self.thorough:
            vectors = _polish(vectors, [m / size for m, size in scaled])
        return vectors if start is None else start @ vectors

    def _collect(self) -> Modes:
        bases = [*self.bases, np.stack(self.columns[-1], axis=1)]
        ends = [*((ell, ell - 1) for ell in range(1, self.depth + 1)), (0, 0), (self.depth, 0)]
        in_bases = [basis.T @ image for basis, image in zip(bases[1:], self.images, strict=True)]
        variance, coloured = self._variance_in(bases[0])
        in_bases += [variance, bases[-1].T @ (self.whole @ bases[0])]
        if self.gradient.any():
            self._merge(in_bases[-1])
        count = len(self.modes)
        place = np.full((self.depth + 1, count), -1)
        for i, mode in enumerate(self.modes):
            for layer, column in mode.items():
                place[layer, i] = column
        picked, rests, sizes = np.zeros((len(ends), count)), [], []
        for out, turned, (row, column) in zip(picked, in_bases, ends, strict=True):
            both = (place[row] >= 0) & (place[column] >= 0)
            own = place[row][both], place[column][both]
            sizes.append(float(np.linalg.norm(turned)))
            out[both] = turned[own]
            turned[own] = 0
            rests.append(float(np.linalg.norm(turned)))
        rests[-2] += coloured
        sizes[-1] = self.size
        defect = max((r / size for r, size in zip(rests, sizes, strict=True) if size), default=0.0)
        *singular, variance, gradient = picked
        # Nearly aligned layers may join two modes that cross one layer both.
        whole = all((row >= 0).sum() == len(basis) for row, basis in zip(place, bases, strict=True))
        aligned = whole and defect <= TOLERANCE * self.precision
        return Modes(
            bases,
            place,
            np.asarray(singular),
            variance,
            gradient,
            np.asarray(rests),
            defect,
            aligned,
        )

    def _variance_in(self, basis: Numbers) -> tuple[Numbers, float]:
        """Return the data's second moments in a basis, up to something of a norm that is told.

        Those of white data, c I, are the same in every basis.
        """
        size = len(basis)
        white = float(np.trace(self.variance)) / size * np.eye(size)
        coloured = float(np.linalg.norm(self.variance - white))
        if coloured <= WHITE * self.precision * size**0.5 * abs(white[0, 0]):
            return white, coloured
        return basis.T @ self.variance @ basis, 0.0

    def _merge(self, turned: Numbers) -> None:
        """Join modes that begin in the middle with ended ones that the gradient connects."""
        late = [c for c in self.modes if 0 not in c and self.depth in c]
        for mode in [c for c in self.modes if 0 in c and self.depth not in c]:
            row = np.abs(turned[:, mode[0]])
            for other in late:
                if row[other[self.depth]] > max(self.noise, 0.5 * float(np.linalg.norm(row))):
                    mode.update(other)
                    late.remove(other)
                    self.modes.remove(other)
                    break


def _orthonormal(columns: Numbers) -> Numbers:
    """Return orthonormal columns, each in the span of the ones up to it."""
    q, r = np.linalg.qr(columns)
    return q * np.where(np.diagonal(r) < 0, -1.0, 1.0)


def _polish(vectors: Numbers, family: list[Numbers]) -> Numbers:
    """Correct approximate common eigenvectors to first order, twice.

    Where a combination happens to have two close eigenvalues its eigenvectors are mixed by
    rounding, although some member of the family tells them apart; the correction asks all members.
    """
    for _ in range(2):
        numerator = np.zeros((vectors.shape[1],) * 2)
        denominator = np.zeros_like(numerator)
        for matrix in family:
            turned = vectors.T @ matrix @ vectors
            diagonal = np.diagonal(turned)
            gap = diagonal[None, :] - diagonal[:, None]
            numerator += turned * gap
            denominator += gap * gap
        # Pairs that no member tells apart beyond rounding stay as they are.
        told = denominator > 1e-22 * len(family)
        angle = np.where(told, numerator / np.where(told, denominator, 1.0), 0.0)
        angle = np.clip((angle - angle.T) / 2, -0.1, 0.1)
        vectors = _orthonormal(vectors + vectors @ angle)
    return vectors
