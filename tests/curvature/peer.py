"""curvlinops, whose import warns about what it is made of."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import curvlinops


def peer(kind, case):
    """Return curvlinops' "Hessian" or "GGN" of a problem."""
    make = getattr(curvlinops, f"{kind}LinearOperator")
    parameters = list(case.model.parameters())
    return make(case.model, case.loss, parameters, [case.data], check_deterministic=False)
