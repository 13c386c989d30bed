"""The dense route: all n columns of an operator, for those that are small."""

from __future__ import annotations

import numpy as np

from hessence.arrays import epsilon, like, to_numpy
from hessence.krylov.findings import ROUNDING, Findings, Request
from hessence.krylov.operands import Operand
from hessence.krylov.projected import eigensystem
from hessence.krylov.selection import preference


def dense(operand: Operand, request: Request) -> Findings:
    """Find the wanted eigenpairs from all n columns of the operator."""
    reference, k = operand.reference, request.k
    identity = np.tile(np.eye(operand.size), (*operand.batch, 1, 1))
    matrix = to_numpy(operand(like(identity, reference))).astype(np.float64)
    peak = np.abs(matrix).max(axis=(-2, -1))
    scale = np.where(peak > 0, np.ldexp(1.0, np.frexp(peak)[1] - 1), 1.0)
    matrix = matrix / scale[..., None, None]
    values, vectors = eigensystem(matrix, reference)
    order = preference(values, request.which)[..., :k]
    norm = np.abs(values).max(axis=-1)
    values = np.take_along_axis(values, order, axis=-1)
    vectors = np.take_along_axis(vectors, order[..., None, :], axis=-1)
    defect = np.linalg.norm(matrix @ vectors - vectors * values[..., None, :], axis=-2)
    spacing = epsilon(reference)
    return Findings(
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
