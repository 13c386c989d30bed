"""curvlinops, whose import warns about what it is made of."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import curvlinops


def peer(kind, model, loss, batches):
    """Return curvlinops' "Hessian" or "GGN" of a model."""
    make = getattr(curvlinops, f"{kind}LinearOperator")
    return make(model, loss, list(model.parameters()), batches, check_deterministic=False)
