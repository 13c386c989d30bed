r"""The one mechanism behind every exact spectrum: invariant subspaces with multiplicities.

An orthogonal change of basis, known explicitly, turns the Hessian of a solvable network into
:math:`\bigoplus_k B_k \otimes I_{\mu_k}` with small symmetric blocks. An eigenvalue of :math:`B_k`
is an eigenvalue of the Hessian :math:`\mu_k` times over, and the isometry embeds its eigenvectors
in parameter space. The cost never depends on :math:`\mu_k`.

A network supplies its products ``H @ v`` and families of invariant subspaces::

    twin = Subspaces(("twin",) * k, lambda _: Columns(embed))    # no matrix: basisᵀ (H basis)
    bulk = Subspaces(("bulk",), isometry, m - r, values=sigma)   # a 1 × 1 block, m − r copies
    flat = Subspaces(("flat",), isometry, spare, values=zero)
    return Spectrum([twin, bulk, flat], "narrow twin", operator=H)

What a family does not supply comes from the operator. So ``H.ggn`` and ``H.functional`` get their
spectra from the same list wherever they leave the same subspaces invariant.

Error bounds come from the same list. A block is as accurate as the operator, ``H.rounding()``, plus
some ε ‖H‖ for forming and solving it. A closed form may be better, and says so by ``errors``. Where
something was neglected, such as the deviation of data that are white to a tolerance,
``Spectrum(families, method, operator=H, defect=d)`` adds a bound d of its spectral norm to the
error of every eigenvalue (Weyl's inequality).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arguments import generator
from hessence._common.arrays import (
    Array,
    Numbers,
    epsilon,
    integers,
    like,
    stack_rows,
    to_numpy,
    transpose,
    zero_rows,
)
from hessence.spectra.small_eigen import eigensystem, eigenvalues

CHUNK = 2**24
"""How many numbers the columns of one product with an operator may hold."""

ROUNDING = 100
"""What forming and solving a block may do to an eigenvalue, in ε · ‖H‖."""

LARGEST_BLOCK = 4000
"""The largest eigenproblem that an exact spectrum may leave to a dense solver."""

Isometry = Callable[[Array, Array], Array]
"""Embeds block coordinates c (..., k) and copies Z (μ, n) as the n vectors (..., p, n) that c ⊗ Z
stands for in parameter space; orthonormal copies give orthonormal vectors."""


@dataclass(frozen=True)
class Columns:
    """The isometry of a 1 × 1 block, or of one that exists once, from a map of columns.

    Attributes
    ----------
    embed : callable
        Maps coordinates (k, n), or copies (μ, n), to parameter vectors (p, n).
    project : callable, optional
        Its transpose, for subspaces whose basis is too large to be stored.
    """

    embed: Callable[[Array], Array]
    project: Callable[[Array], Array] | None = None

    def __call__(self, coordinates: Array, copies: Array) -> Array:
        """Embed coordinates (k,) times copies (μ, n), where k or μ is 1."""
        return self.embed(coordinates[..., None] * copies)


@dataclass(frozen=True)
class Subspaces:
    r"""A family of invariant subspaces on which an operator is :math:`B \otimes I_\mu`.

    Attributes
    ----------
    labels : tuple of str
        One label for each of the k eigenvalues of B, largest first.
    isometry : callable
        Maps the index of a member of the family to its isometry; the index is 0 if there is one.
    multiplicity : int or array of int
        The number of copies of B; an array where that differs over a batch of networks.
    members : sequence of str, or callable, optional
        A name for each member, appended to its labels; a function of the index where there are
        many. A family without it has a single member.
    matrix : array (..., k, k), or (..., members, k, k), or callable, optional
        B, in formula; a function of the member's index where a matrix is worth forming only for
        its eigenvectors, beside `values`.
    values : array (..., k), or (..., members, k), optional
        The eigenvalues of B, largest first, where they are known in closed form.
    vectors : array (k, k), optional
        The eigenvectors of the only member's B as columns, where they came with `values`.
    products : callable, optional
        Multiplies coordinates (k, n) by B, where that costs less than products of the operator.
    errors : callable, optional
        Returns a bound for the error of each of `values`, a NumPy array of their shape, where it is
        smaller than for the whole operator; it includes the operator's rounding.
    operator, defect : Operator, float
        The operator, and the spectral norm of what was neglected; the spectrum fills them in.
    """

    labels: tuple[str, ...]
    isometry: Callable[[int], Isometry]
    multiplicity: int | Array = 1
    members: Sequence[str] | Callable[[int], str] | None = None
    matrix: Array | Callable[[int], Array] | None = None
    values: Array | None = None
    vectors: Array | None = None
    products: Callable[[Array], Array] | None = None
    errors: Callable[[], Numbers] | None = None
    operator: Any = None
    defect: float = 0.0

    @property
    def size(self) -> int:
        """The order k of the block."""
        return len(self.labels)

    def of(self, operator: Any, defect: float = 0.0) -> Subspaces:
        """Return the family of an operator, which forms the matrix if nothing else supplies it."""
        own = self.operator if operator is None else operator
        return replace(self, operator=own, defect=self.defect + defect)

    def mapped(self, place: Callable[[Array], Array], factor: float, norm: Any) -> Subspaces:
        """Return the family of `factor` times the operator, with vectors mapped.

        `place` maps vectors (p, n) to other orthonormal ones, such as in another parameter order;
        `norm` is that of the operator.
        """

        def isometry(member: int) -> Isometry:
            embed = self.isometry(member)
            return lambda coordinates, copies: place(embed(coordinates, copies))

        xp = api.array_namespace(self.eigenvalues)
        shape = self.eigenvalues.shape
        grouped = (*shape[:-1], -1, self.size) if self.members is not None else shape
        values, labels = factor * xp.reshape(self.eigenvalues, grouped), self.labels
        if factor < 0:
            values, labels = xp.flip(values, axis=-1), labels[::-1]

        def errors() -> Numbers:
            own = abs(factor) * np.reshape(self.bounds(norm), grouped)
            return own[..., ::-1] if factor < 0 else own

        return replace(
            self, labels=labels, isometry=isometry, values=values, errors=errors, defect=0.0,
            vectors=None, matrix=lambda member: factor * self._matrix(member),
        )  # fmt: skip

    @cached_property
    def eigenvalues(self) -> Array:
        """The eigenvalues of every block, largest first, (..., members · k)."""
        if self.members is None:
            return eigenvalues(self._matrix(0)) if self.values is None else self.values
        if self.values is None and (self.matrix is None or callable(self.matrix)):
            raise ValueError("a family of several members must supply its matrices or values.")
        values = eigenvalues(self.matrix) if self.values is None else self.values
        return api.array_namespace(values).reshape(values, (*values.shape[:-2], -1))

    def bounds(self, norm: Any) -> Numbers:
        """Return a bound for the error of each of ``eigenvalues``, given the operator's norm."""
        shape = tuple(self.eigenvalues.shape)
        if self.errors is not None:
            defect: Numbers = np.asarray(self.defect)[..., None]
            return np.reshape(self.errors(), shape) + defect
        solved = (ROUNDING + self.size) * epsilon(self.eigenvalues) * to_numpy(norm)
        known = hasattr(self.operator, "rounded")
        rounding = to_numpy(self.operator.rounded) if known else 0.0
        return np.broadcast_to((solved + rounding + self.defect)[..., None], shape)

    def eigenvectors(self, member: int) -> Array:
        """Return the eigenvectors of one member's block as columns, (..., k, k)."""
        return self._vectors if self.members is None else eigensystem(self._matrix(member))[1]

    @cached_property
    def _vectors(self) -> Array:
        """The eigenvectors of a family's single block, solved for once."""
        return eigensystem(self._matrix(0))[1] if self.vectors is None else self.vectors

    def sample(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return a random vector (p, 1) of a random member and its image under the operator."""
        member = int(rng.integers(max(1, int(self.eigenvalues.shape[-1]) // self.size)))
        embed, reference = self.isometry(member), self.eigenvalues
        xp = api.array_namespace(reference)
        values = xp.reshape(reference, (-1, self.size))[member, :]
        weights = like(rng.normal(size=self.size), reference)
        copies = like(rng.normal(size=(int(self.multiplicity), 1)), reference)
        if self.size == 1:
            drawn = embed(weights, copies)
            return drawn, values * drawn
        own = self.eigenvectors(member)
        vector, image = (xp.matmul(own, w[:, None])[:, 0] for w in (weights, values * weights))
        return embed(vector, copies), embed(image, copies)

    def label(self, member: int, index: int) -> str:
        """Name one eigenvalue of one block."""
        if self.members is None:
            return self.labels[index]
        name = self.members(member) if callable(self.members) else self.members[member]
        return self.labels[index] + name

    def _matrix(self, member: int) -> Array:
        """Return one member's block (..., k, k)."""
        if self.size == 1 and self.values is not None:
            own = self.values if self.members is None else self.values[..., member, :]
            return own[..., None]
        if callable(self.matrix):
            return self.matrix(member)
        if self.matrix is not None:
            return self.matrix if self.members is None else self.matrix[..., member, :, :]
        return self._formed if self.members is None else self._from_products(member)

    @cached_property
    def _formed(self) -> Array:
        """A family's single block, formed once for its eigenvalues and its eigenvectors."""
        return self._from_products(0)

    def _from_products(self, member: int) -> Array:
        """Return basisᵀ (H basis)."""
        if self.operator is None:
            raise ValueError("subspaces without a matrix need the operator: Spectrum(operator=H).")
        isometry = self.isometry(member)
        if isinstance(isometry, Columns):
            matrix = self._from_columns(isometry)
        else:
            xp = api.array_namespace(self.operator.reference)
            eye, first = self._eye(self.size), self._eye(int(self.multiplicity), 1)
            vectors = [isometry(eye[i, :], first) for i in range(self.size)]
            basis = xp.concat(vectors, axis=-1)
            matrix = xp.matmul(transpose(basis), self.operator @ basis)
        return (matrix + transpose(matrix)) / 2

    def _from_columns(self, isometry: Columns) -> Array:
        xp = api.array_namespace(self.operator.reference)
        eye, length = self._eye(self.size), int(self.operator.shape[-1])
        if self.products is not None:
            multiply, length = self.products, self.size
        else:
            project = isometry.project or partial(xp.matmul, transpose(isometry.embed(eye)))

            def multiply(part: Array) -> Array:
                return project(self.operator @ isometry.embed(part))

        step = max(1, min(self.size, CHUNK // length))
        starts = range(0, self.size, step)
        return xp.concat([multiply(eye[:, i : min(i + step, self.size)]) for i in starts], axis=-1)

    def _eye(self, rows: int, columns: int | None = None) -> Array:
        reference = self.operator.reference
        xp = api.array_namespace(reference)
        return xp.eye(rows, columns, dtype=reference.dtype, device=api.device(reference))


class Range:
    """The range of an operator, and what is flat, by coordinates that each belong to one of them.

    Parameters
    ----------
    turn : callable
        Changes vectors (p, n) to these coordinates and back: it is its own inverse.
    seen : array of bool (p,)
        Which coordinates belong to the range.
    reference : array
        Some array of the operator's kind.

    Attributes
    ----------
    size, flat : int
        How many there are in the range, and outside.
    """

    def __init__(self, turn: Callable[[Array], Array], seen: Numbers, reference: Array) -> None:
        self._turn, self._reference = turn, reference
        chosen, others = np.flatnonzero(seen), np.flatnonzero(~seen)
        self.size, self.flat = len(chosen), len(others)
        places = np.empty(len(seen), dtype=np.int64)
        places[chosen] = np.arange(self.size)
        places[others] = np.arange(self.size, len(seen))
        self._chosen, self._places = integers(chosen, reference), integers(places, reference)

    def embed(self, coordinates: Array) -> Array:
        """Return coordinates (size, n) on the range as vectors (p, n)."""
        return self._embed(stack_rows(coordinates, zero_rows(self.flat, coordinates)))

    def embed_flat(self, coordinates: Array) -> Array:
        """Return coordinates (flat, n) outside as vectors (p, n)."""
        return self._embed(stack_rows(zero_rows(self.size, coordinates), coordinates))

    def project(self, vectors: Array) -> Array:
        """Return the coordinates (size, n) of vectors (p, n) on the range."""
        return api.array_namespace(vectors).take(self._turn(vectors), self._chosen, axis=0)

    def families(self) -> list[Subspaces]:
        """Return the range, one dense block, and the flat rest."""
        xp, device = api.array_namespace(self._reference), api.device(self._reference)
        zero = xp.zeros((1,), dtype=self._reference.dtype, device=device)
        seen, flat = Columns(self.embed, self.project), Columns(self.embed_flat)
        return [
            Subspaces(("range",) * self.size, lambda _: seen),
            Subspaces(("flat",), lambda _: flat, self.flat, values=zero),
        ]

    def _embed(self, ordered: Array) -> Array:
        return self._turn(api.array_namespace(ordered).take(ordered, self._places, axis=0))


@dataclass(frozen=True)
class Eigenspace:
    """All eigenvectors of one eigenvalue that share a label.

    Attributes
    ----------
    value : array
        The eigenvalue; shaped like the batch if the network is one.
    multiplicity : int, or array of int over a batch
        The dimension of the space.
    label : str
        What the eigenvalue is: ``"outlier"``, ``"bulk"``, ``"flat"``, with a tail such as
        ``"outlier/+cell"`` where there is more to say.

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> H = hs.ScalarLinear([1.0, 0.5, 0.0], [0.5, 1.0, 1.0]).hessian([1.0, -1.0], [2.0, -2.0])
    >>> space = H.spectrum()["bulk"][0]
    >>> float(space.value), space.multiplicity
    (1.0, 2)
    >>> z = space.vectors()
    >>> bool(np.allclose(H @ z, space.value * z)), bool(np.allclose(z.T @ z, np.eye(2)))
    (True, True)
    """

    value: Array
    multiplicity: Any
    label: str
    _family: Subspaces | None = field(default=None, repr=False, compare=False)
    _member: int = field(default=0, repr=False, compare=False)
    _index: int = field(default=0, repr=False, compare=False)

    def vectors(self, k: int | None = None) -> Array:
        """Return the first k orthonormal eigenvectors of the space as columns, (p, k).

        The default is all of them. Each costs O(p) time and memory.
        """
        dimension = self._dimension()
        k = dimension if k is None else _require_count(k, dimension)
        xp = api.array_namespace(self.value)
        return self._embed(
            xp.eye(dimension, k, dtype=self.value.dtype, device=api.device(self.value))
        )

    def sample(self, k: int = 1, *, rng: Any = None) -> Array:
        """Return k random orthonormal eigenvectors of the space as columns, (p, k)."""
        dimension = self._dimension()
        normal = generator(rng).normal(size=(dimension, _require_count(k, dimension)))
        return self._embed(like(np.linalg.qr(normal)[0], self.value))

    def __reduce__(self) -> tuple[Any, ...]:
        # As with a spectrum, a copy in another process goes without vectors.
        return Eigenspace, (self.value, self.multiplicity, self.label)

    def _embed(self, copies: Array) -> Array:
        if self._family is None:
            raise ValueError(
                "these eigenvectors are gone: a spectrum read from a file keeps values, "
                "multiplicities and labels only; compute it again to get vectors."
            )
        coordinates = self._family.eigenvectors(self._member)[..., self._index]
        return self._family.isometry(self._member)(coordinates, copies)

    def _dimension(self) -> int:
        if isinstance(self.multiplicity, int):
            return self.multiplicity
        raise ValueError(
            "the multiplicity of this space differs over the batch; "
            "pick one network first, as in net[0].hessian(x, y)."
        )


def _require_count(k: Any, most: int) -> int:
    if not isinstance(k, (int, np.integer)):
        raise TypeError(f"k must be an integer, got {type(k).__name__}.")
    if not 0 <= k <= most:
        raise ValueError(f"k must lie between 0 and the multiplicity {most}, got {k}.")
    return int(k)
