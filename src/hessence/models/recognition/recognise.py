"""PyTorch models that are one of the solvable networks, or that have one inside.

A table of rules, read from top to bottom, maps the shape of an ``nn.Sequential`` to the network
whose theorem gives its Hessian. What no rule covers may still have a narrow twin
(:mod:`hessence.models.recognition.model_twin`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from hessence.models.criterion import PairCriterion
from hessence.models.model_layers import NotRecognised, require_ordinary
from hessence.models.recognition.model_stacks import (
    Candidate,
    affine_chain,
    linear_chain,
    scalar_affine,
    scalar_linear,
    scalar_relu,
)
from hessence.models.recognition.model_twin import hessian_by_twin
from hessence.spectra.spectrum import Spectrum

__all__ = ["NotRecognised", "Recognition", "recognise"]


@dataclass(frozen=True)
class Recognition:
    """A model's Hessian, exactly.

    Attributes
    ----------
    network : str
        The solvable network that the model is, or the layers whose twin was taken.
    theorem : str
        Why the answer is exact.
    operator : Operator
        The Hessian, in the order of ``model.parameters()``: ``operator @ v`` with v (p,) or (p, k).
    """

    network: str
    theorem: str
    operator: Any

    def spectrum(self) -> Spectrum:
        """Return all eigenvalues and eigenvectors, solved for once."""
        return self._spectrum

    @cached_property
    def _spectrum(self) -> Spectrum:
        spectrum: Spectrum = self.operator.spectrum()
        return spectrum


def recognise(model: nn.Module, x: Tensor, y: Any, criterion: PairCriterion) -> Recognition:
    """Return the exact Hessian of a model's loss, if there is a theorem for it.

    The model is read, never changed. The first line that fits and is not too large counts:

    ==================  ==========================================================================
    ``ScalarLinear``    Linear(1, m), Linear(m, 1), squared error
    ``ScalarReLU``      Linear(1, m), ReLU, Linear(m, 1), any loss that is a sum over samples
    ``ScalarAffine``    Linear(1, m) with a bias, Linear(m, 1), squared error
    ``TwoLayerLinear``  two Linear layers, the first with or without a bias, squared error
    ``DeepLinear``      any other number of them, the first with or without a bias, any loss
    narrow twin         a wide pair of Linear layers in any model, the second right after the first,
                        with or without biases, any loss
    ``DeepLinear``      any number of Linear layers with any biases, any loss
    ==================  ==========================================================================

    Layers have no bias where none is mentioned. Nested ``nn.Sequential``, ``nn.Identity`` and
    dropout in evaluation mode do not count as layers, nor does ``nn.Flatten`` where there is
    nothing to flatten.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    x : tensor
        All inputs; samples first, features last.
    y : object
        The targets, as the criterion takes them.
    criterion : PairCriterion
        The loss.

    Raises
    ------
    NotRecognised
        If there is no theorem; the message is a sentence that says why.

    Examples
    --------
    >>> import torch
    >>> from torch.nn import Linear, ReLU, Sequential
    >>> from hessence.models.criteria import as_criterion
    >>> _ = torch.manual_seed(0)
    >>> model = Sequential(Linear(1, 100, bias=False), ReLU(), Linear(100, 1, bias=False))
    >>> x, y = torch.randn(50, 1), torch.randn(50, 1)
    >>> criterion = as_criterion(torch.nn.MSELoss(), (x, y))
    >>> found = recognise(model, x, y, criterion)
    >>> found.network, len(found.spectrum()), found.spectrum().method
    ('ScalarReLU', 200, 'closed form')

    >>> model = Sequential(Linear(4, 500), Linear(500, 3), ReLU(), Linear(3, 1))
    >>> found = recognise(model, torch.randn(50, 4), y, criterion)
    >>> found.network, [(s.label, s.multiplicity) for s in found.spectrum()["bulk"][:3]]
    ("narrow twin of layers '0', '1'", [('bulk/0/0', 492), ('bulk/0/1', 492), ('bulk/0/2', 492)])
    >>> recognise(Sequential(Linear(4, 3), ReLU(), Linear(3, 1)), torch.randn(50, 4), y, criterion)
    Traceback (most recent call last):
    hessence.models.model_layers.NotRecognised: ... layer '1' is a ReLU, and ...
    """
    require_ordinary(model, x)
    try:
        candidate = Candidate.of(model, x.detach(), y, criterion)
    except Exception as error:
        # A mistake of the user's, which will show, and be explained, where the model is run as it
        # is; here it only means that there is nothing to recognise.
        raise NotRecognised(f"model, loss and data do not go together: {error}") from error
    refusals = {}
    for rule in RULES:
        if rule.fits(candidate):
            try:
                return rule.apply(candidate)
            except NotRecognised as refusal:
                refusals[rule] = refusal
    # A refusal by a rule for the whole model is more informative than the twin's.
    twin = refusals.pop(TWIN)
    raise next(iter(refusals.values()), twin)


@dataclass(frozen=True)
class Rule:
    """One kind of model and its network.

    Attributes
    ----------
    network : str
        The network's name, into which ``operator`` is formatted.
    kinds : str
        A regular expression for the layers: (l)inear, (a)ffine, (r)elu, (o)ther.
    hessian : callable
        Returns the exact Hessian of a candidate.
    theorem : str
        Why it is exact.
    scalar : bool
        Whether the rule is for one input and one output.
    squared : bool
        Whether it is for the squared error alone.
    """

    network: str
    kinds: str
    hessian: Callable[[Candidate], Any]
    theorem: str
    scalar: bool = False
    squared: bool = False

    def fits(self, candidate: Candidate) -> bool:
        """Whether the rule is for this model and its loss."""
        return (
            re.fullmatch(self.kinds, candidate.kinds) is not None
            and (not self.scalar or candidate.is_scalar)
            and (not self.squared or candidate.factor is not None)
        )

    def apply(self, candidate: Candidate) -> Recognition:
        """Solve for the Hessian, or say why that cannot be done."""
        try:
            operator = self.hessian(candidate)
            found = Recognition(self.network.format(operator=operator), self.theorem, operator)
            # Whether a deep network has an exact route shows only when it is taken.
            found.spectrum()
        except NotRecognised:
            raise
        except Exception as error:  # also from a model whose forward does not work for a twin
            # The first half of a sentence says what is wrong, the second what to call instead.
            reason = str(error).partition(";")[0].rstrip(".")
            raise NotRecognised(f"{self.network.partition(' {')[0]}: {reason}.") from error
        return found


TWIN = Rule(
    "narrow twin of layers {operator.names}",
    ".*",
    hessian_by_twin,
    "hidden directions that neither layer of a pair uses give a bulk ±σᵢ(∂loss/∂M), M the product "
    "of the two; the rest is a network of the width that they use",
)

DEEP = (
    "the loss depends on the layers only through their product, and directions that do not change "
    "it are flat"
)

RULES = (
    Rule(
        "ScalarLinear",
        "ll",
        scalar_linear,
        "an outlier pair and a bulk ±δ in closed form (Singh & Hofmann, Theorems 1–3)",
        scalar=True,
        squared=True,
    ),
    Rule(
        "ScalarReLU",
        "lrl",
        scalar_relu,
        "the samples x > 0 and x ≤ 0 see two scalar linear networks (Singh & Hofmann, Theorem 4)",
        scalar=True,
    ),
    Rule(
        "ScalarAffine",
        "al",
        scalar_affine,
        "a block of at most seven dimensions, a bulk ±‖δ‖ and zeros (after Singh & Hofmann, "
        "Theorem 6)",
        scalar=True,
        squared=True,
    ),
    Rule("TwoLayerLinear", "[al]l", linear_chain, TWIN.theorem, squared=True),
    Rule("DeepLinear", "[al]|[al]ll+", linear_chain, DEEP),
    TWIN,
    Rule("DeepLinear", "[al]+", affine_chain, DEEP),
)
"""Which network a model is: the first rule that fits and is not too large."""
