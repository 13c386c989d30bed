"""The dense route: all n columns of an operator, for those that are small."""

from __future__ import annotations

import numpy as np

from hessence._common.arrays import epsilon, like, to_numpy
from hessence.krylov.findings import ROUNDING, Findings, Request
from hessence.krylov.operands import Operand
from hessence.krylov.projected import eigensystem
from hessence.krylov.scaling import unit
from hessence.krylov.selection import preference

COLUMNS = 512
"""How many columns are computed at a time."""


def dense(operand: Operand, request: Request) -> Findings:
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
