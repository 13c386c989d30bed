"""Krylov methods on anything with ``@``: one engine for NumPy, PyTorch and foreign operators.

``operand`` says what counts as an operator and of which kind its vectors are; ``linear_algebra``
has inner products and Gram–Schmidt; an ``outcome`` says how an iteration ended.

``eigenpairs`` is the public face of ``lanczos``, for the ends of a spectrum: a ``request`` says
which are wanted, a ``basis`` grows and keeps the operator's exact coefficients, and ``copies``
tells whether a copy of a multiple eigenvalue was overlooked. ``davidson`` starts from a warm start.

``density`` takes ``probes``, random vectors, to ``quadrature`` rules and these to a smooth density
by ``smoothing``. ``trace`` is the public face of ``xtrace``.
"""
