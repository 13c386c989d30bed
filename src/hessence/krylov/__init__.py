"""Krylov methods on anything with ``@``: one engine for NumPy, PyTorch and foreign operators.

``operands`` says what counts as an operator and of which kind its vectors are; ``basis`` grows an
orthonormal basis and keeps the operator's exact coefficients in it; ``selection`` and ``missed``
decide which Ritz values are asked for and whether a copy of one was overlooked; ``lanczos`` puts
them together and ``extremal`` is the public face.

``probes`` are random vectors and ``chains`` Lanczos' recurrences from them; ``quadrature`` makes
rules of these, ``smoothing`` a density with its band, and ``spectral_density`` is the public face.
``sketch`` finds an operator's range, ``leave_one_out`` is XTrace, ``stochastic_trace`` its face.
"""
