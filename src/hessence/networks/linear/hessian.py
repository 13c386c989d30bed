"""The Hessian of a linear network, and which exact route leads to its spectrum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    Numbers,
    constant,
    epsilon,
    identity,
    largest,
    requires_gradient,
    transpose,
)
from hessence.data.matrix_objectives import Separable
from hessence.data.rounding import DerivativeErrors
from hessence.krylov.eigenpairs_result import Eigenpairs
from hessence.networks.linear._gauss_newton import NEGLECTED, TooLargeError, gauss_newton
from hessence.networks.linear._modes import find_modes
from hessence.networks.linear._pairs import Pairs
from hessence.networks.linear._products import LinearProducts
from hessence.networks.linear._top import top_of_batch, top_of_twin
from hessence.networks.linear.range_reduction import range_of, range_size
from hessence.networks.scalar.nearly_orthonormal import NearlyOrthonormal, nearly_orthonormal
from hessence.networks.scalar.vector_hessian import VectorHessian
from hessence.networks.twin import TwinSubspaces
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import LARGEST_BLOCK, Subspaces

SOLVED = 100
"""How many ε of the largest eigenvalue a functional part may have that is left out."""

GLANCE = 1e-6
"""How far from white or balanced what is worth a closer look may be, relative."""

CHUNK = 2**19
"""How many numbers are multiplied at a time, so that they stay in the cache."""


class LinearHessian(LinearProducts):
    """The Hessian of a loss of the end-to-end matrix W_L ⋯ W_1, first layer first, row by row."""

    def top(self, k: int = 1, which: str = "LA", **options: Any) -> Eigenpairs:
        """Return extreme eigenpairs by Lanczos; the arguments are those of ``hs.eigenpairs``.

        Works on a batch of networks too, all at once. A wide two-layer network is sought through
        its narrow twin where the bulk that this leaves out is not among the answers.
        """
        return top_of_twin(self, k, which, options) or top_of_batch(self, k, which, options)

    @cached_property
    def solved(self) -> bool:
        """Whether the Gauss–Newton part is all there is, to rounding of its largest eigenvalue.

        Its eigenvalues have other derivatives, so that it never is where PyTorch records.
        """
        if self.part != "hessian" or requires_gradient(self.gradient, *self.weights):
            return self.part == "ggn"
        xp, share = api.array_namespace(self.gradient), SOLVED * epsilon(self.gradient)
        # A single block of the functional part first, which is quick: most are not at a solution.
        block = xp.matmul(transpose(self.chain.after[len(self.weights) > 1]), self.gradient)
        if largest(block) > share * largest(self.trace()):
            return False
        return self.functional_bound() <= share * self.ggn_bounds()[0]

    def exact_spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors, by the cheapest exact route that applies.

        The Gauss–Newton part, which is all there is at a solution, needs the d_0 d_L matrix at
        most. Two layers go to the narrow twin, or to the closed forms of one output on orthonormal
        inputs and of a balanced network on white data. Deeper networks are tried for alignment, and
        else restricted to the range of their Hessian.

        Raises
        ------
        ValueError
            If no exact route brings the problem down to a size that can be solved; ``top`` then
            still finds the ends of the spectrum.
        """
        if len(self.shape) > 2:
            raise ValueError(
                "a spectrum is for one network; pick one of the batch, as in net[0].hessian(x, y), "
                "or call H.top(k) for the extreme eigenvalues of all."
            )
        too_large = None
        if self.solved:
            try:
                found = gauss_newton(self)
                defect = found.neglected + (self.functional_bound() if self.part != "ggn" else 0.0)
                return Spectrum(found.families(), found.method, operator=self, defect=defect)
            except TooLargeError as error:
                too_large = error
        for route in self._routes():
            if (spectrum := route()) is not None:
                return spectrum
        if too_large is not None:
            raise too_large
        reduced = range_of(self.chain, self.chain.before, self.chain.after)
        if reduced.size <= LARGEST_BLOCK:
            block, flat = reduced.families()
            families = [block, replace(flat, values=self.zero)]
            return Spectrum(families, "range reduction", operator=self)
        raise ValueError(
            f"no exact route leads to the whole spectrum of this {'-'.join(map(str, self.dims))} "
            f"network: it is not aligned, and {reduced.size} of its {self.shape[-1]} dimensions "
            f"matter, more than the {LARGEST_BLOCK} that a dense solver is given; call H.top(k) "
            "for the extreme eigenvalues, or H.ggn.spectrum()."
        )

    def _routes(self) -> list[Callable[[], Spectrum | None]]:
        """Return the ways to an exact spectrum, the cheapest first; each may not apply."""
        if len(self.weights) != 2:
            return [self._of_pairs]
        twin = [self._of_orthonormal_inputs, self._of_twin, self._of_pairs]
        return [partial(self._of_pairs, strict=True), *twin] if looks_balanced(self) else twin

    def _of_twin(self) -> Spectrum | None:
        """Return the spectrum by the narrow twin of two layers, if that is small."""
        twin = twin_of(self)
        if twin.bound > LARGEST_BLOCK:
            return None
        return Spectrum(twin_families(self, twin), "narrow twin", operator=self)

    def _of_pairs(self, strict: bool = False) -> Spectrum | None:
        """Return the spectrum of an aligned network, pair by pair.

        Where nothing else leads to a spectrum, rather one with a large error, which is told, than
        none at all; but not if `strict`.
        """
        # The modes are found in NumPy, out of PyTorch's sight.
        separable = isinstance(self.loss_hessian, Separable)
        if not separable or requires_gradient(self.gradient, *self.weights):
            return None
        modes = find_modes(self)
        if not modes.aligned:
            return None
        pairs = Pairs(self, modes)
        solved = Spectrum(pairs.families(), "aligned pairs", operator=self, defect=pairs.defect)
        # The Frobenius norm of d × d rounding errors is √d / 2 times the spectral one.
        allowed = NEGLECTED * epsilon(self.gradient) * max(1.0, max(self.dims) ** 0.5 / 2)
        if pairs.defect <= allowed * float(solved.norm):
            return solved
        none = not strict and range_size(self.chain.before, self.chain.after) > LARGEST_BLOCK
        return solved if none else None

    def _of_orthonormal_inputs(self) -> Spectrum | None:
        """Return the closed form of one output, where the first layer is orthonormal."""
        H = self.of_one_output()
        return self._by_unit(H.spectrum()) if H is not None and H.closed else None

    def nearly_orthonormal(self) -> NearlyOrthonormal | None:
        """Return the closed form at the nearest orthonormal first layer, and how far that is.

        None unless the network has two layers, one output and no fewer hidden units than inputs,
        and for any loss but the mean-squared error.
        """
        H = self.of_one_output() if len(self.weights) == 2 else None
        found = None if H is None else nearly_orthonormal(H)
        return found and replace(found, spectrum=self._by_unit(found.spectrum))

    def of_one_output(self) -> VectorHessian | None:
        """Return the Hessian of two layers with one output, ordered by inputs."""
        first, second = self.weights
        if second.shape[0] > 1 or self.part != "hessian":
            return None
        if not isinstance(self.loss_hessian, Separable):
            return None
        delta, variance = self.gradient[0, :], self.loss_hessian.variance
        return VectorHessian(
            second[0, :], transpose(first), delta, variance, derivatives=self._errors_of_row
        )

    def _by_unit(self, spectrum: Spectrum) -> Spectrum:
        """Return a spectrum with the first layer's entries ordered by units, not by inputs."""
        m, inputs = self.weights[0].shape

        def by_unit(vectors: Array) -> Array:
            xp = api.array_namespace(vectors)
            of_first = xp.reshape(vectors[:-m, :], (inputs, m, -1))
            turned = xp.reshape(xp.permute_dims(of_first, (1, 0, 2)), (inputs * m, -1))
            return xp.concat([turned, vectors[-m:, :]], axis=0)

        return spectrum.mapped(by_unit, 1.0)

    def _errors_of_row(self, _: Numbers) -> DerivativeErrors:
        """Return the errors of the loss's derivatives for one output."""
        if self.derivatives is None:
            return DerivativeErrors(*(np.zeros(self.dims[0]),) * 3)
        return DerivativeErrors(*(error[0] for error in self.derivatives(self._share)))


def looks_balanced(H: LinearHessian) -> bool:
    """Tell whether two layers on white data may be balanced, at a glance.

    Without the m × m matrices: ‖W1 W1ᵀ − W2ᵀ W2‖² = ‖W1ᵀ W1‖² + ‖W2 W2ᵀ‖² − 2 ‖W2 W1‖². Nor are
    wide networks looked at, whose twin is small.
    """
    if not isinstance(H.loss_hessian, Separable) or H.dims[1] > H.dims[0] + H.dims[2]:
        return False
    xp, variance = api.array_namespace(H.gradient), H.loss_hessian.variance
    white = variance[0, 0] * identity(H.dims[0], variance)
    if largest(variance - white) > GLANCE * largest(white):
        return False
    first, second = map(constant, H.weights)
    grams = xp.matmul(transpose(first), first), xp.matmul(second, transpose(second))
    products = (constant(H.chain.product),) * 2
    own, across = (float(sum(xp.sum(a * a) for a in c)) for c in (grams, products))
    return bool(abs(own - across) <= GLANCE * own)


def twin_of(H: LinearHessian) -> TwinSubspaces:
    """Return the narrow twin of a two-layer network."""
    first, second = H.weights

    def place(dB: Array, dA: Array) -> Array:
        return H.chain.join([dB, dA])

    return TwinSubspaces(first, second, H.gradient, place, loss_hessian=H.loss_hessian)


def twin_families(H: LinearHessian, twin: TwinSubspaces) -> list[Subspaces]:
    """Return the invariant subspaces; products of the network of width r make the block."""
    narrow = replace(H, weights=(twin.twin.W1, twin.twin.W2))

    def products(columns: Array) -> Array:
        step, count = max(1, CHUNK // narrow.chain.size), int(columns.shape[-1])
        parts = [
            twin.project(*narrow.multiply(list(twin.embed(columns[:, i : min(i + step, count)]))))
            for i in range(0, count, step)
        ]
        return api.array_namespace(columns).concat(parts, axis=-1)

    return [twin.inside(products=products), *twin.outside()]
