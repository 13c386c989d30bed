"""Krylov methods on anything with ``@``: one engine for NumPy, PyTorch and foreign operators.

``eigenpairs`` is the public face of ``_lanczos``: a ``request`` says which eigenvalues are wanted,
a ``_basis`` grows and keeps the operator's coefficients, and ``_copies`` tests whether a copy of a
multiple eigenvalue was overlooked. ``davidson`` starts from what an earlier search has found.
``density`` turns random vectors into rules by ``_quadrature``, these into a smooth density by
``_smoothing``, and bounds counts by ``_counting``. ``trace`` is the public face of ``_xtrace``.
"""
