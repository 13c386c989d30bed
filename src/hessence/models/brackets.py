"""``hs.brackets``: a proved interval for every eigenvalue of a Hessian."""

from __future__ import annotations

from typing import Any

from hessence._common.arguments import Seed
from hessence.networks.network import Network
from hessence.networks.two_layer.bracketing import two_layer_brackets
from hessence.networks.two_layer.of_network import of_network
from hessence.spectra.brackets import Brackets


def brackets(
    model: Any,
    data: Any,
    loss: Any = None,
    params: Any = None,
    reduction: Any = None,
    eval_mode: bool = False,
    memory: float | None = None,
    *,
    copy: bool = True,
    level: float = 0.99,
    steps: int = 64,
    rng: Seed = 0,
) -> Brackets:
    r"""Return an interval for every eigenvalue of a Hessian, proved for two-layer networks.

    For :math:`f = W\varphi(Vx + b) + c` with any function φ of each hidden unit, and any loss that
    is convex in the predictions, the Hessian is :math:`H = F + G`: a small block of F for each
    hidden unit, and the Gauss–Newton part G, whose non-zero eigenvalues γ are those of a matrix of
    order samples × outputs. All eigenvalues of both are computed, and Weyl's inequalities

    .. math:: \max\big(\lambda_i(F),\ \max_s\,[\gamma_{i+s} + \lambda_{p-s}(F)]\big)
        \le \lambda_i(H) \le \min_r\,[\lambda_{i-r}(F) + \gamma_{r+1}]

    bracket each of the p eigenvalues of H. No p × p matrix is formed, and J is not stored.

    Any other model has all eigenvalues of its Gauss–Newton part from the dual, as
    ``hs.ggn(...).spectrum()`` does, and the two ends of the rest from Lanczos, with a ceiling that
    holds at a level of confidence, over the random start (Kuczyński and Woźniakowski, 1992).

    Parameters
    ----------
    model : torch.nn.Module, or a network of this library
        Two linear layers with a function of each hidden unit between them: a ``Sequential``, or a
        module of your own, which is watched running. Or any model, if `params` names its last two
        linear layers. Of this library ``ScalarLinear``, ``ScalarReLU``, ``ScalarAffine``,
        ``TwoLayerLinear``, ``TwoLayerReLU`` and ``ReLU`` of two layers.
    data : (x, y), DataLoader, or iterable of batches
        See ``hs.hessian``; of a network of this library, a pair of samples.
    loss : optional
        See ``hs.hessian``; by default ½ E‖f − y‖². A loss whose second derivative in the
        predictions is not positive semi-definite is refused.
    params : optional
        Which parameters, see ``hs.hessian``: those of two linear layers, with or without biases.
    reduction, eval_mode, memory, copy : optional
        See ``hs.hessian``.
    level, steps, rng : optional
        For a model that is not two layers: the probability with which all brackets hold, how many
        steps Lanczos takes, and its seed.

    Returns
    -------
    Brackets
        With ``lower``, ``upper``, ``sharpness``, ``share(x)`` and ``zeros``; of two layers also the
        exact integers ``count(a, b)``, ``histogram(edges)`` and ``inertia()``, and
        ``eigenvalue(i)`` and ``refine(k, which)`` find any eigenvalue to rounding.

    Raises
    ------
    ValueError
        If the loss is not convex, if samples × outputs are more than 16384, or than 4096 for a
        model that is not two layers, or if the data are shared among processes.

    Warns
    -----
    KinkWarning
        If a pre-activation is at a kink of φ, as far as rounding tells: there is no Hessian then,
        and slopes are taken as automatic differentiation takes them.

    Notes
    -----
    Everything is computed in double precision, and rounding is added outward: that of
    pre-activations, predictions, blocks, Gram matrix and eigensolvers. What is assumed and not
    proved is that φ, the loss, and their derivatives are evaluated to 16 units of rounding, that
    the second and third derivative of φ are at most twice the largest of some thousand values, and
    that LAPACK's eigenvalues have the errors that it states.

    A PyTorch model is confirmed before it is trusted: the second derivative of the loss along a
    random direction is compared with automatic differentiation.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> _ = torch.manual_seed(0)
    >>> wide = torch.nn.Linear(3, 500), torch.nn.Tanh(), torch.nn.Linear(500, 1)
    >>> data = torch.randn(20, 3), torch.randn(20, 1)
    >>> b = hs.brackets(torch.nn.Sequential(*wide), data)
    >>> len(b), bool((b.width[20:] < 0.05 * b.upper[0]).all())
    (2501, True)
    >>> b.count(0.1, 100.0) == b.count(0.1, 1.0) + b.count(1.0, 100.0)
    True
    """
    if isinstance(model, Network):
        if params is not None:
            raise ValueError("params is for PyTorch models; a network here has all its parameters.")
        return two_layer_brackets(of_network(model, data, loss))
    from hessence.models._dual_brackets import dual_brackets
    from hessence.models._problem import Problem
    from hessence.models._two_layer_model import NotTwoLayersError, read
    from hessence.models.batch_parts import widened
    from hessence.models.data import parallel
    from hessence.models.model_matrices import hessian

    if parallel():
        raise ValueError("data are shared among processes, and brackets need all of them in one.")
    problem = Problem(
        model, data, loss, params, reduction, eval_mode, memory, None, False, copy
    ).doubled()
    try:
        return two_layer_brackets(read(problem))
    except NotTwoLayersError as refusal:
        batches = [widened(batch) for batch in problem.batches]
        data = batches[0] if len(batches) == 1 else batches
        H = hessian(
            problem.copy.model, data, problem.criterion, list(problem.copy.parameters.names),
            memory=memory,
        )  # fmt: skip
        return dual_brackets(H, level, steps, rng, str(refusal))
