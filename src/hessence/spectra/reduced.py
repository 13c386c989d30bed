"""Operators whose spectrum is partly known: the rest of them, and estimates of the whole.

Where the spectrum of an operator is that of a smaller one and of families of invariant subspaces
with known eigenvalues, only the smaller one is left to Lanczos::

    rest = Reduced(H, order, embed, project, known=(flat, bulk))
    rest.spectrum(k=10)          # an Estimate of H, with flat and bulk in ``known``
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import array_api_compat as api
import numpy as np

from hessence._common.arguments import Which
from hessence._common.arrays import Array, integers, like, to_numpy
from hessence.krylov.density import density
from hessence.krylov.request import preference
from hessence.spectra.estimate import LABEL, Estimate
from hessence.spectra.estimating import estimate, require_feasible
from hessence.spectra.operators import Operator
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Subspaces


@dataclass(frozen=True, eq=False, repr=False)
class Reduced(Operator):
    """An operator on coordinates of an invariant subspace; the rest of the spectrum is known."""

    whole: Operator
    order: int  # the dimension R of the subspace
    embed: Callable[[Array], Array]  # an isometry from coordinates (R, n) to vectors (p, n)
    project: Callable[[Array], Array]  # its transpose
    known: tuple[Subspaces, ...]  # all other invariant subspaces, with their eigenvalues
    method: str  # what the reduction is called
    multiply: Callable[[Array], Array] | None = None
    """Multiplies coordinates (R, n), where that costs less than a product of the whole."""

    @property
    def shape(self) -> tuple[int, int]:
        return (self.order, self.order)

    @property
    def reference(self) -> Array:
        return self.whole.reference

    def times(self, columns: Array) -> Array:
        if self.multiply is not None:
            return self.multiply(columns)
        return self.project(self.whole.times(self.embed(columns)))

    def rounding(self) -> Any:
        return self.whole.rounded

    def release(self) -> None:
        self.whole.release()
        getattr(self.multiply, "release", lambda: None)()

    def spectrum(self, k: int | None = 10, *, which: str = "LA", **options: Any) -> Estimate:
        """Return an estimate of the whole operator; its ``known`` part is exact.

        The arguments are those of ``hessence.spectra.estimating.estimate``.
        """
        size, known = int(self.whole.shape[0]), Spectrum(self.known, self.method)
        if self.order + len(known) != size:
            raise ValueError(
                f"the reduced operator has order {self.order} and {len(known)} eigenvalues are "
                f"known, but there are {size} in all."
            )
        require_feasible(k, size)
        inside = estimate(self, None if k is None else min(k, self.order), which=which, **options)
        found = self._joined(inside, known, size if k is None else min(k, size), which)
        names = ("rng", "probes", "steps", "memory")
        chosen = {name: options[name] for name in names if name in options}
        return replace(
            found,
            size=size,
            trace=inside.trace + known.trace,
            trace_stderr=inside.trace_stderr + known.trace_stderr,
            norm=float(max(inside.norm, float(to_numpy(known.norm)))),
            method=f"{inside.method}, {self.method}",
            known=known,
            _density=lambda: density(self.whole, **chosen),
        )

    def _joined(self, inside: Estimate, known: Spectrum, k: int, which: str) -> Estimate:
        """Return the k eigenvalues asked for among those found and those known."""
        xp = api.array_namespace(inside.eigenvalues)
        counts = to_numpy(known.multiplicities)
        groups = np.repeat(np.arange(len(counts)), np.minimum(counts, k))
        bounds = to_numpy(known.errors)[np.cumsum(counts) - 1]
        values = np.concatenate([to_numpy(inside.eigenvalues), to_numpy(known.values)[groups]])
        errors = np.concatenate([to_numpy(inside.errors), bounds[groups]])
        ascending = np.argsort(values, kind="stable")
        wanted = np.sort(ascending[preference(values[ascending], cast(Which, which))[:k]])
        own = wanted[wanted < len(inside)]
        taken = np.bincount(groups[wanted[len(own) :] - len(inside)], minlength=len(counts))
        spaces = [(known.space(int(g)), int(taken[g])) for g in np.flatnonzero(taken)]
        assert inside.eigenvectors is not None
        reference = inside.eigenvalues
        columns = [self.embed(xp.take(inside.eigenvectors, integers(own, reference), axis=1))]
        columns += [space.vectors(count) for space, count in spaces]
        labels = [LABEL] * len(own) + [space.label for space, count in spaces for _ in range(count)]
        order = np.argsort(-values[wanted], kind="stable")
        vectors = xp.take(xp.concat(columns, axis=-1), integers(order, reference), axis=1)
        return replace(
            inside,
            eigenvalues=like(values[wanted][order], reference),
            errors=like(errors[wanted][order], reference),
            eigenvectors=vectors,
            labelled=tuple(labels[i] for i in order),
        )
