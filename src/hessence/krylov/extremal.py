"""``hs.eigenpairs``: the ends of the spectrum of anything with ``@``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import array_api_compat as api
import numpy as np

from hessence._common.arrays import Array, floating, like
from hessence._common.messages import warn
from hessence._common.precision import full_precision
from hessence.krylov.arguments import (
    independent_of,
    require_int,
    require_tolerance,
)
from hessence.krylov.dense import dense
from hessence.krylov.findings import Findings, Request, attainable
from hessence.krylov.lanczos import Search
from hessence.krylov.operands import Operand, operand, plain
from hessence.krylov.results import ConvergenceWarning, Eigenpairs
from hessence.krylov.selection import Which, require_which

SMALL = 64
"""Operators up to this order are solved densely."""

DENSE_ENTRIES = 2**23
"""If all matrices have no more entries, n products without convergence lead to the dense route."""

CONFIDENCE = 0.995
"""How sure ``eigenpairs`` is by default that no copy of a multiple eigenvalue was missed. At 0.999
the search after a top ten took one or two products more than at 0.99."""

STORED, GROWTH = 2**24, 8
"""A basis that is full grows by this factor at most, while it has no more entries than this."""


def eigenpairs(
    H: Any,
    k: int = 10,
    which: str = "LA",
    tol: float = 1e-6,
    v0: Array = None,
    rng: int | np.random.Generator | None = 0,
    *,
    ncv: int | None = None,
    block: int = 1,
    max_products: int | None = None,
    confidence: float | None = None,
) -> Eigenpairs:
    r"""Find k eigenvalues at the ends of a symmetric operator's spectrum, with their vectors.

    Thick-restart Lanczos with full reorthogonalisation, in the array library, type and device of
    the operator; the small projected problems are solved in float64.

    Parameters
    ----------
    H : operator or array
        Symmetric, with ``.shape`` and ``@`` for vectors (n,) and columns (n, b): an operator of
        this library, an array, a SciPy or curvlinops linear operator. A batch of them, of shape
        (*batch, n, n), is solved in lock-step: ``@`` then takes columns (*batch, n, b).
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
    block : int
        How many vectors to multiply at once. More than one needs more products in all, which pays
        where the operator multiplies several vectors at the price of one.
    max_products : int, optional
        Give up after so many products. By default max(1000, 100 k), and 2 n if n is small enough
        for the dense route.
    confidence : float, optional
        How sure to be that no copy of a multiple eigenvalue is missed, see Notes. By default 0.995,
        or 0, that is without a search, if `v0` has k columns; ask for a search to guard against a
        `v0` that has no part in a wanted eigenvector.

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
    request = _request(subject, start, k, which, tol, ncv, block, max_products, confidence)
    with full_precision():
        return _solved(subject, start, request, independent_of(start, rng))


def _solved(
    subject: Operand, start: Array, request: Request, source: np.random.Generator
) -> Eigenpairs:
    n, allowed = subject.size, request.max_products
    if n <= allowed and n <= max(SMALL, request.ncv + request.block):
        return _report(dense(subject, request), request, subject, "dense")
    patience = n if _fits(subject) and 2 * n <= allowed else allowed
    findings = Search(subject, replace(request, max_products=patience), start, source).run()
    # Cut short, or out of room, the search may not have come to look for what it has missed.
    exhausted = findings.products >= min(patience, n - 1)
    unsure = (findings.confidence or 0.0) < request.confidence
    if not exhausted or findings.products + n > allowed:
        return _report(findings, request, subject, "Lanczos")
    if findings.resolved.all() and not unsure:
        return _report(findings, request, subject, "Lanczos")
    everything = dense(subject, request)
    total = findings.products + everything.products
    return _report(replace(everything, products=total), request, subject, "dense")


def _request(
    subject: Operand,
    start: Array,
    k: int,
    which: str,
    tol: float,
    ncv: int | None,
    block: int,
    max_products: int | None,
    confidence: float | None,
) -> Request:
    require_which(which)
    n, width = subject.size, 0 if start is None else int(start.shape[-1])
    require_int("k", k, 1, n)
    require_int("block", block, 1, n)
    require_tolerance(tol)
    if ncv is None:
        ncv = min(max(2 * k + 20, 40, width + k), n)
        room = STORED // (n * math.prod(subject.batch))
        limit = max(ncv, min(GROWTH * ncv, room))
    else:
        limit = ncv
        require_int("ncv", ncv, min(max(k + 1, width), n), n)
    if max_products is None:
        max_products = max(1000, 100 * k, 2 * width, 2 * n if _fits(subject) else 0)
    else:
        require_int("max_products", max_products, max(k, width, block), None)
    if confidence is None:
        confidence = 0.0 if width >= k else CONFIDENCE
    elif not 0 <= confidence < 1:
        raise ValueError(f"confidence must be at least 0 and below 1, got {confidence!r}.")
    return Request(
        k=int(k),
        which=cast(Which, which),
        tol=max(float(tol), attainable(subject.reference)),
        ncv=int(ncv),
        limit=int(limit),
        block=int(block),
        max_products=int(max_products),
        confidence=float(confidence),
    )


def _fits(subject: Operand) -> bool:
    """Whether all matrices of the batch fit into memory in full."""
    return math.prod(subject.batch) * subject.size**2 <= DENSE_ENTRIES


def _start(v0: Any, subject: Operand) -> Array:
    if v0 is None:
        return None
    xp, start = floating(("H", subject.reference), v0=v0)
    start = xp.astype(start, subject.reference.dtype, copy=False)
    start = plain(start)
    lead = (*subject.batch, subject.size)
    given = tuple(start.shape)
    if given == lead:
        return start[..., None]
    if given[:-1] != lead or given[-1] > subject.size:
        shown = ", ".join(map(str, lead))
        raise ValueError(f"v0 must have shape ({shown},) or ({shown}, b) with b ≤ n, got {given}.")
    return start


def _report(findings: Findings, request: Request, subject: Operand, method: str) -> Eigenpairs:
    """Turn findings into a result, in the operator's units and kind."""
    xp = api.array_namespace(subject.reference)
    scale = np.where(findings.scale > 0, findings.scale, 1.0)[..., None]
    rounding = (findings.rounding * findings.norm)[..., None]
    message = _message(findings, request, attainable(subject.reference))
    pairs = Eigenpairs(
        eigenvalues=like(findings.values * scale, subject.reference),
        eigenvectors=xp.matrix_transpose(findings.rows),
        errors=like((findings.residuals + rounding) * scale, subject.reference),
        resolved=xp.asarray(findings.resolved, device=api.device(subject.reference)),
        products=findings.products,
        norm=like(findings.norm * scale[..., 0], subject.reference),
        message=message,
        method=method,
        which=request.which,
        confidence=findings.confidence,
    )
    if not pairs.converged:
        warn(message, ConvergenceWarning)
    return pairs


def _message(findings: Findings, request: Request, least: float) -> str:
    if findings.resolved.all():
        limit = ", as small as rounding lets them be" if request.tol <= least else ""
        said = f"Converged: residuals are at most {request.tol:.1e} · ‖H‖{limit}."
        if findings.confidence is not None and findings.confidence < request.confidence:
            said += (
                " Copies of multiple eigenvalues may be missing, but for a confidence of "
                f"{findings.confidence:.2f}: raise ncv or max_products."
            )
        return said
    open_ = ~findings.resolved
    norm = np.where(findings.norm > 0, findings.norm, 1.0)[..., None]
    worst = float((findings.residuals / norm)[open_].max())
    noise = float((findings.asymmetry / norm)[open_].max())
    said = (
        f"{int(open_.sum())} of {open_.size} eigenvalues have residuals above "
        f"{request.tol:.1e} · ‖H‖ (up to {worst:.1e}) after {findings.products} products: "
    )
    if noise > worst / 2:
        return said + (
            "⟨u, Hv⟩ and ⟨v, Hu⟩ differ by as much, so H is not symmetric, or its products carry "
            f"noise of {noise:.0e} · ‖H‖; check H, or ask for a larger tol."
        )
    return said + (
        "raise max_products or ncv, ask for a larger tol, or go on from here with "
        "v0=result.eigenvectors."
    )
