"""Eigenvalues and eigenvectors of symmetric matrices, in closed form up to 3 × 3."""

from __future__ import annotations

from typing import Any

import array_api_compat as api
import numpy as np

from hessence._common.arrays import (
    Array,
    NotFiniteError,
    constant,
    dtype_name,
    identity,
    is_finite,
    like,
    nonzero,
    requires_gradient,
    to_double,
)
from hessence.spectra.frames import Frame


def eigenvalues(matrix: Array) -> Array:
    """Return the eigenvalues of symmetric matrices (..., k, k), largest first.

    Closed forms up to k = 3, which neither overflow nor cancel for entries from 1e-150 to 1e150;
    the array library's `eigvalsh` beyond. PyTorch's derivatives are those of its `eigvalsh` for any
    k, since closed forms have none where eigenvalues or entries vanish or meet.

    Examples
    --------
    >>> import numpy as np
    >>> eigenvalues(np.asarray([[2.0, 1.0], [1.0, 2.0]]))
    array([3., 1.])
    """
    xp = api.array_namespace(matrix)
    if matrix.shape[-1] > 1 and requires_gradient(matrix):
        smooth = xp.flip(xp.linalg.eigvalsh(matrix), axis=-1)
        return eigenvalues(constant(matrix)) + (smooth - constant(smooth))
    match int(matrix.shape[-1]):
        case 1:
            return matrix[..., 0]
        case 2:
            return xp.stack(_eigenvalues2(*_entries2(matrix)), axis=-1)
        case 3:
            return _eigensystem3(matrix)[0]
        case _:
            require_no_overflow(matrix)
            return xp.flip(_solved("eigvalsh", matrix), axis=-1)


def eigensystem(matrix: Array) -> tuple[Array, Array]:
    """Return eigenvalues (..., k), largest first, and orthonormal eigenvectors as columns.

    Examples
    --------
    >>> import numpy as np
    >>> values, vectors = eigensystem(np.diag([1.0, 3.0]))
    >>> values, vectors.round(15)
    (array([3., 1.]), array([[ 0., -1.],
           [ 1.,  0.]]))
    """
    xp = api.array_namespace(matrix)
    match int(matrix.shape[-1]):
        case 1:
            return matrix[..., 0], xp.ones_like(matrix)
        case 2:
            entries = _entries2(matrix)
            return xp.stack(_eigenvalues2(*entries), axis=-1), _rotation2(*entries)
        case 3:
            return _eigensystem3(matrix)
        case _:
            require_no_overflow(matrix)
            values, vectors = _solved("eigh", matrix)
            return xp.flip(values, axis=-1), xp.flip(vectors, axis=-1)


def _solved(name: str, matrix: Array) -> Any:
    """Call a solver of the array library; where it gives up, NumPy's in double precision.

    PyTorch's may, for entries of very different sizes in single precision.
    """
    xp = api.array_namespace(matrix)
    try:
        return getattr(xp.linalg, name)(matrix)
    except (RuntimeError, np.linalg.LinAlgError):
        if requires_gradient(matrix):
            raise
        found = getattr(np.linalg, name)(to_double(matrix))
        return like(found, matrix) if name == "eigvalsh" else [like(part, matrix) for part in found]


def require_no_overflow(hessian: Array) -> None:
    """Refuse entries or eigenvalues of a Hessian that are NaN or infinite."""
    if not is_finite(hessian):
        kind = dtype_name(hessian)
        remedy = ", or take float64" if kind == "float32" else ""
        raise NotFiniteError(
            f"the Hessian overflows {kind}: scale weights, inputs or targets down{remedy}."
        )


def _entries2(matrix: Array) -> tuple[Array, Array, Array]:
    return matrix[..., 0, 0], matrix[..., 1, 0], matrix[..., 1, 1]


def _eigenvalues2(a: Array, b: Array, d: Array) -> tuple[Array, Array]:
    xp = api.array_namespace(a)
    scale = nonzero(xp.maximum(xp.maximum(xp.abs(a), xp.abs(b)), xp.abs(d)))
    a, b, d = a / scale, b / scale, d / scale
    mean, half = (a + d) / 2, (a - d) / 2
    radius = xp.sqrt(half * half + b * b)
    # The root of larger magnitude is a sum without cancellation; the product of the roots, the
    # determinant, gives the other one.
    outer = xp.where(mean < 0, mean - radius, mean + radius)
    outer_or_one = nonzero(outer)
    inner = (a / outer_or_one) * d - (b / outer_or_one) * b
    upper, lower = xp.where(mean < 0, inner, outer), xp.where(mean < 0, outer, inner)
    return scale * upper, scale * lower


def _rotation2(a: Array, b: Array, d: Array) -> Array:
    xp = api.array_namespace(a)
    # atan2 sees only the ratio, which must survive entries of any size.
    scale = nonzero(xp.maximum(xp.maximum(xp.abs(a), xp.abs(b)), xp.abs(d)))
    angle = xp.atan2(2 * (b / scale), a / scale - d / scale) / 2
    cos, sin = xp.cos(angle), xp.sin(angle)
    return xp.stack([xp.stack([cos, -sin], axis=-1), xp.stack([sin, cos], axis=-1)], axis=-2)


def _eigensystem3(matrix: Array) -> tuple[Array, Array]:
    # The eigenvalue farthest from the other two is well separated, hence its closed form and its
    # eigenvector are accurate; the rest is a 2 × 2 problem on the complement. The textbook's
    # cosines for all three lose half the digits when two eigenvalues are close.
    xp = api.array_namespace(matrix)
    scale = nonzero(xp.max(xp.abs(matrix), axis=(-2, -1), keepdims=True))
    scaled = matrix / scale
    eye = identity(3, matrix)
    vector = _isolated_vector3(scaled - _isolated_value3(scaled, eye)[..., None, None] * eye)
    image = xp.matmul(scaled, vector[..., None])
    isolated = xp.vecdot(vector, image[..., 0])
    frame = Frame(vector[..., None])
    plane = frame.complement(eye[:2, :2])
    rest = xp.matmul(xp.matrix_transpose(plane), xp.matmul(scaled, plane))
    values2, vectors2 = eigensystem(rest)
    first = (isolated > (values2[..., 0] + values2[..., 1]) / 2)[..., None]
    alone = isolated[..., None]
    values = xp.where(
        first,
        xp.concat([alone, values2], axis=-1),
        xp.concat([values2, alone], axis=-1),
    )
    vectors2 = xp.matmul(plane, vectors2)
    vectors = xp.where(
        first[..., None],
        xp.concat([vector[..., None], vectors2], axis=-1),
        xp.concat([vectors2, vector[..., None]], axis=-1),
    )
    return scale[..., 0] * values, vectors


def _isolated_value3(matrix: Array, eye: Array) -> Array:
    xp = api.array_namespace(matrix)
    mean = (matrix[..., 0, 0] + matrix[..., 1, 1] + matrix[..., 2, 2]) / 3
    deviator = matrix - mean[..., None, None] * eye
    radius = xp.sqrt(xp.sum(deviator * deviator, axis=(-2, -1)) / 6)
    unitless = deviator / nonzero(radius)[..., None, None]
    half_det = xp.vecdot(unitless[..., 0, :], _cross(unitless[..., 1, :], unitless[..., 2, :])) / 2
    # With λ = mean ± 2·radius·t: 4t³ − 3t = |half_det|, t in [√3/2, 1]. Newton from t = 1 descends
    # to the root, quadratically, and unlike an arccos it is smooth where |half_det| reaches 1.
    target = xp.abs(half_det)
    t = xp.ones_like(target)
    for _ in range(6):
        t = t - (t * (4 * t * t - 3) - target) / (12 * t * t - 3)
    return mean + xp.where(half_det < 0, -2 * radius * t, 2 * radius * t)


def _isolated_vector3(singular: Array) -> Array:
    xp = api.array_namespace(singular)
    rows = [singular[..., i, :] for i in range(3)]
    crosses = xp.stack([_cross(rows[i], rows[(i + 1) % 3]) for i in range(3)], axis=-2)
    norms = xp.sum(crosses * crosses, axis=-1)
    longest = norms[..., 0]
    best = crosses[..., 0, :]
    for i in (1, 2):
        best = xp.where((norms[..., i] > longest)[..., None], crosses[..., i, :], best)
        longest = xp.maximum(longest, norms[..., i])
    # A multiple of the identity has no isolated vector; any will do.
    first = xp.eye(1, 3, dtype=singular.dtype, device=api.device(singular))[0, :]
    best = xp.where((longest == 0)[..., None], xp.zeros_like(best) + first, best)
    return best / xp.sqrt(xp.vecdot(best, best))[..., None]


def _cross(a: Array, b: Array) -> Array:
    xp = api.array_namespace(a)
    return xp.stack(
        [
            a[..., (i + 1) % 3] * b[..., (i + 2) % 3] - a[..., (i + 2) % 3] * b[..., (i + 1) % 3]
            for i in range(3)
        ],
        axis=-1,
    )
