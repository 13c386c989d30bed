"""``hs.eigenpairs``: the ends of the spectrum of anything with ``@``."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from typing import Any, cast

import array_api_compat as api
import numpy as np

from hessence._common.arguments import (
    Seed,
    Which,
    as_number,
    generator,
    require_int,
    require_tolerance,
    require_which,
)
from hessence._common.arrays import Array, constant, epsilon, floating, like, to_numpy
from hessence._common.device import full_precision
from hessence._common.messages import warn
from hessence.krylov._lanczos import Search
from hessence.krylov._linear_algebra import eigensystem
from hessence.krylov._operand import Operand, operand, unit
from hessence.krylov.eigenpairs_result import ConvergenceWarning, Eigenpairs
from hessence.krylov.request import (
    ROUNDING,
    Outcome,
    Request,
    RitzPairs,
    attainable,
    preference,
)

SMALL = 64
"""Operators up to this order are solved densely."""

DENSE_ENTRIES = 2**23
"""Matrices of at most this many entries are solved densely if n products have not converged."""

CONFIDENCE = 0.995
"""How sure ``eigenpairs`` is by default that no copy of a multiple eigenvalue was overlooked. At
0.999 the search after a top ten took one or two products more than at 0.99."""

COLUMNS = 512
"""How many columns one product computes."""

SAMPLED = 4096
"""At least this many numbers of a start go into its checksum."""

STORED, GROWTH = 2**24, 8
"""A full basis grows up to STORED entries, but at most by the factor GROWTH."""


def eigenpairs(
    H: Any,
    k: int = 10,
    which: str = "LA",
    tol: float = 1e-6,
    v0: Array = None,
    rng: Seed = 0,
    *,
    ncv: int | None = None,
    columns: int = 1,
    max_products: int | None = None,
    confidence: float | None = None,
) -> Eigenpairs:
    r"""Find k eigenvalues at the ends of a symmetric operator's spectrum, with their vectors.

    Thick-restart Lanczos with full reorthogonalisation, in the array library, type and device of
    the operator; the small projected problems are solved in float64.

    Parameters
    ----------
    H : operator or array
        Symmetric, see Notes. A batch of them, of shape (*batch, n, n), is solved in lock-step;
        ``@`` then takes columns (*batch, n, b).
    k : int
        How many eigenvalues, up to n.
    which : {"LA", "SA", "LM", "BE"}
        The largest, the smallest, the largest in magnitude, or half from both ends (one more from
        the upper end if k is odd).
    tol : float
        Stop when every residual ‖Hz − λz‖ is at most tol · ‖H‖, with ‖H‖ estimated by the largest
        Ritz value or image. Not below 256 ε in float64 and 16 ε in float32, which is as far as
        rounding lets it go.
    v0 : array (*batch, n) or (*batch, n, b), optional
        Where to start: approximate eigenvectors from an earlier call save products. By default a
        random vector.
    rng : int or numpy.random.Generator
        The source of random vectors. The same seed gives the same result.
    ncv : int, optional
        How many vectors to keep at most, beside those that wait for a product; more need fewer
        products. By default max(2 k + 20, 40), or up to eight times as many where convergence is
        slow and they hold no more than 2²⁴ numbers.
    columns : int
        How many vectors to multiply at once. More than one needs more products in all, which pays
        where the operator multiplies several vectors at the price of one.
    max_products : int, optional
        Give up after so many products. By default max(1000, 100 k), and 2 n if n is small enough
        for the dense route.
    confidence : float, optional
        How sure to be that no copy of a multiple eigenvalue is overlooked, see Notes. By default
        0.995, or 0, that is without a search, if `v0` has k columns; ask for a search to guard
        against a `v0` that has no part in a wanted eigenvector.

    Returns
    -------
    Eigenpairs
        Eigenvalues, descending, with vectors and error bounds. If the products did not suffice, it
        holds what was found, its ``converged`` is False and its ``message`` says what to do.

    Warns
    -----
    ConvergenceWarning
        If not every residual is small enough. (A `tol` below what rounding allows is raised to
        that, as the message then says.)

    Notes
    -----
    Anything with ``shape``, (n, n), and ``@`` for vectors (n,) and columns (n, b) is an operator,
    here and in ``hs.density`` and ``hs.trace``: an operator of this library, an array, a linear
    operator of SciPy or curvlinops, any object of one's own. Its vectors are arrays of one library,
    in single or double precision; they may be immutable, like JAX's. They are like H itself if that
    is an array; else like the array ``H.reference``, if there is one, or like `v0`; else PyTorch's
    if ``H.dtype`` is, on ``H.device``; else NumPy's, of type ``H.dtype`` if there is one. An H that
    has a method ``times(columns)`` promises columns of its own kind for columns (*batch, n, b),
    which are then not checked.

    An eigenvalue of H lies within ``errors`` of each value returned. That every wanted one is
    among them cannot be proved by products alone. Lanczos from one vector sees one copy of each
    eigenvalue; the others are searched for afterwards, from a random vector in the complement of
    all that was found, until none can be left but for a probability of 1 − `confidence`. Where
    no copy was missing after a top ten, the search took 3 to 15 products; it is repeated after each
    copy found.
    Values closer together than tol · ‖H‖ count as copies. For k = 1 there is nothing to search for;
    with a loose tolerance (1e-2) a random start that hardly meets the first eigenvector may settle
    for the second.

    Operators of order n ≤ 64, those where the basis would span everything, and those of at most
    2²³ entries that have not converged after n products, are solved densely by n products.

    References
    ----------
    K. Wu and H. Simon, Thick-restart Lanczos method for large symmetric eigenvalue problems, SIAM
    J. Matrix Anal. Appl. 22 (2000).

    Examples
    --------
    >>> import numpy as np, hessence as hs
    >>> H = np.diag([5.0, 5.0, 3.0] + 197 * [1.0])
    >>> pairs = hs.eigenpairs(H, k=3)
    >>> pairs.eigenvalues.round(6)
    array([5., 5., 3.])
    >>> bool((np.abs(pairs.eigenvalues - [5, 5, 3]) <= pairs.errors).all())
    True
    """
    subject = operand(H, v0)
    start = _start(v0, subject)
    n, width = subject.size, 0 if start is None else int(start.shape[-1])
    require_which(which)
    require_int("k", k, 1, n)
    require_int("columns", columns, 1, n)
    require_tolerance(tol)
    if ncv is None:
        ncv = min(max(2 * k + 20, 40, width + k), n)
        limit = max(ncv, min(GROWTH * ncv, STORED // (n * math.prod(subject.batch))))
    else:
        require_int("ncv", ncv, min(max(k + 1, width), n), n)
        limit = ncv
    if max_products is None:
        max_products = max(1000, 100 * k, 2 * width, 2 * n if _fits(subject) else 0)
    else:
        require_int("max_products", max_products, max(k, width, columns), None)
    if confidence is None:
        confidence = 0.0 if width >= k else CONFIDENCE
    wanted = "at least 0 and below 1"
    confidence = as_number("confidence", confidence, wanted, lambda number: 0 <= number < 1)
    request = Request(
        int(k), cast(Which, which), max(float(tol), attainable(subject.reference)), int(ncv),
        int(limit), int(columns), int(max_products), confidence,
    )  # fmt: skip
    with full_precision():
        return _solved(subject, start, request, _independent_of(start, rng))


def _solved(
    subject: Operand, start: Array, request: Request, source: np.random.Generator
) -> Eigenpairs:
    n, allowed = subject.size, request.max_products
    if n <= allowed and n <= max(SMALL, request.ncv + request.columns):
        return _report(_dense(subject, request), request, subject, "dense")
    products = n if _fits(subject) and 2 * n <= allowed else allowed
    found = Search(subject, replace(request, max_products=products), start, source).run()
    # A search that is cut short, or out of room, may not have looked for copies.
    exhausted = found.products >= min(products, n - 1)
    sure = found.resolved.all() and (found.confidence or 0.0) >= request.confidence
    if sure or not exhausted or found.products + n > allowed:
        return _report(found, request, subject, "Lanczos")
    everything = _dense(subject, request)
    total = found.products + everything.products
    return _report(replace(everything, products=total), request, subject, "dense")


def _dense(operand: Operand, request: Request) -> RitzPairs:
    """Find the wanted eigenpairs from all n columns of the operator."""
    reference, k = operand.reference, request.k
    matrix = np.empty((*operand.batch, operand.size, operand.size))
    for start in range(0, operand.size, COLUMNS):
        columns = np.zeros((*matrix.shape[:-1], min(COLUMNS, operand.size - start)))
        np.einsum("...ii->...i", columns[..., start : start + COLUMNS, :])[...] = 1.0
        matrix[..., start : start + COLUMNS] = to_numpy(operand(like(columns, reference)))
    peak = np.maximum(matrix.max(axis=(-2, -1)), -matrix.min(axis=(-2, -1)))
    scale = unit(peak)
    matrix /= scale[..., None, None]
    values, vectors = eigensystem(matrix, reference)
    order = np.sort(preference(values, request.which)[..., :k], axis=-1)[..., ::-1]
    norm = np.abs(values).max(axis=-1)
    values = np.take_along_axis(values, order, axis=-1)
    vectors = np.take_along_axis(vectors, order[..., None, :], axis=-1)
    defect = np.linalg.norm(matrix @ vectors - vectors * values[..., None, :], axis=-2)
    spacing = epsilon(reference)
    return RitzPairs(
        values=values,
        rows=like(np.ascontiguousarray(np.swapaxes(vectors, -1, -2)), reference),
        residuals=defect,
        resolved=defect <= request.tol * norm[..., None],
        asymmetry=defect,
        scale=scale,
        norm=norm,
        rounding=ROUNDING * spacing,
        products=operand.size,
        confidence=1.0,
    )


def _fits(subject: Operand) -> bool:
    """Whether all matrices of the batch fit into memory in full."""
    return math.prod(subject.batch) * subject.size**2 <= DENSE_ENTRIES


def _start(v0: Any, subject: Operand) -> Array:
    if v0 is None:
        return None
    xp, start = floating(("H", subject.reference), v0=v0)
    start = constant(xp.astype(start, subject.reference.dtype, copy=False))
    lead = (*subject.batch, subject.size)
    given = tuple(start.shape)
    if given == lead:
        return start[..., None]
    if given[:-1] != lead or given[-1] > subject.size:
        shown = ", ".join(map(str, lead))
        raise ValueError(f"v0 must have shape ({shown},) or ({shown}, b) with b ≤ n, got {given}.")
    return start


def _report(found: RitzPairs, request: Request, subject: Operand, method: str) -> Eigenpairs:
    """Turn Ritz pairs into a result, in the operator's units and kind."""
    xp = api.array_namespace(subject.reference)
    scale = np.where(found.scale > 0, found.scale, 1.0)[..., None]
    rounding = (found.rounding * found.norm)[..., None]
    outcome, message = _outcome(found, request, attainable(subject.reference))
    if not outcome.converged:
        warn(message, ConvergenceWarning)
    return Eigenpairs(
        eigenvalues=like(found.values * scale, subject.reference),
        eigenvectors=xp.matrix_transpose(found.rows),
        errors=like((found.residuals + rounding) * scale, subject.reference),
        resolved=xp.asarray(found.resolved, device=api.device(subject.reference)),
        products=found.products,
        norm=like(found.norm * scale[..., 0], subject.reference),
        outcome=outcome,
        message=message,
        method=method,
        which=request.which,
        confidence=found.confidence,
    )


def _outcome(found: RitzPairs, request: Request, least: float) -> tuple[Outcome, str]:
    """Return how the search has ended, and the sentence that says so."""
    tol = request.tol
    if found.resolved.all():
        sure = found.confidence is None or found.confidence >= request.confidence
        outcome = Outcome.AT_ROUNDING if tol <= least else Outcome.CONVERGED
        outcome = outcome if sure else Outcome.COPIES_UNCERTAIN
        return outcome, outcome.say(tol=tol, confidence=found.confidence)
    unresolved = ~found.resolved
    norm = np.where(found.norm > 0, found.norm, 1.0)[..., None]
    worst = float((found.residuals / norm)[unresolved].max())
    noise = float((found.asymmetry / norm)[unresolved].max())
    outcome = Outcome.NOISY if noise > worst / 2 else Outcome.OUT_OF_PRODUCTS
    return outcome, outcome.say(
        tol=tol, worst=worst, noise=noise, products=found.products,
        open=int(unresolved.sum()), count=unresolved.size,
    )  # fmt: skip


def _independent_of(start: Array, rng: Any) -> np.random.Generator:
    """Return a generator for the user's seed, or another one if a start may have come from it.

    A start is often the result of an earlier call with the same seed. The same random numbers would
    then lead to the copies of a multiple eigenvalue that the start already has, and find no other.
    A generator continues from call to call, and is taken as it is.
    """
    source = generator(rng)
    if start is None or source is rng:
        return source
    flat = api.array_namespace(start).reshape(start, (-1,))
    some = to_numpy(flat[:: max(1, int(flat.shape[0]) // SAMPLED)])
    return np.random.default_rng([int(source.integers(2**63)), zlib.crc32(some.tobytes())])
