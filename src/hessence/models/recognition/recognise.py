"""PyTorch models that are one of the solvable networks, or that have one inside.

A table of rules, read from top to bottom, maps what a model was seen to do to the network whose
theorem gives its Hessian. What no rule for whole models covers may still have a narrow twin
(:mod:`hessence.models.recognition.pairs`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from hessence.models.criterion import PairCriterion
from hessence.models.recognition.candidate import Candidate, NotRecognised, Reason, require_ordinary
from hessence.models.recognition.chains import (
    affine_chain,
    linear_chain,
    scalar_affine,
    scalar_linear,
    scalar_relu,
)
from hessence.models.recognition.pairs import by_twin, twin_layers
from hessence.spectra.spectrum import Spectrum

__all__ = ["NotRecognised", "Reason", "Recognition", "recognise"]


@dataclass(frozen=True)
class Recognition:
    """A model's spectrum, exactly.

    Attributes
    ----------
    why : Reason
        The network that the model is, or the layers whose twin was taken, and the theorem.
    spectrum : Spectrum
        All eigenvalues and eigenvectors, in the order of ``model.parameters()``.
    """

    why: Reason
    spectrum: Spectrum


def recognise(
    model: nn.Module, x: Any, y: Any, criterion: PairCriterion, *, share: Any = None
) -> Recognition:
    """Return the exact spectrum of a model's loss, if there is a theorem for it.

    The first line that fits and is not too large counts:

    ==================  ==========================================================================
    ``ScalarLinear``    Linear(1, m), Linear(m, 1), squared error
    ``ScalarReLU``      Linear(1, m), ReLU, Linear(m, 1), any loss that is a sum over samples
    ``ScalarAffine``    Linear(1, m) with a bias, Linear(m, 1), squared error
    ``TwoLayerLinear``  two linear layers, the first with or without a bias, squared error
    ``ResidualLinear``  x + W2 W1 x, any loss
    ``DeepLinear``      any other number of linear layers W, or residual ones h + W h, the first
                        with or without a bias, any loss
    narrow twin         a wide pair of linear layers in any model, the second right after the first,
                        with or without biases, any loss
    ``DeepLinear``      any number of linear or residual layers with any biases, perhaps in one skip
                        connection x + g(x), any loss
    ==================  ==========================================================================

    Layers have no bias where none is mentioned. What counts is what the model does, not how its
    classes are nested: steps that change nothing, such as ``nn.Identity`` or dropout in evaluation
    mode, are not seen, and steps without parameters before the first layer belong to the data.

    Parameters
    ----------
    model : torch.nn.Module
        The model; it is copied.
    x : tensor
        All inputs; samples first, features last.
    y : object
        The targets, as the criterion takes them.
    criterion : PairCriterion
        The loss.
    share : (x, y), optional
        What this process has of them, where several multiply together.

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
    >>> found.why.rule, len(found.spectrum), found.spectrum.method
    ('ScalarReLU', 200, 'closed form')

    >>> model = Sequential(Linear(4, 500), Linear(500, 3), ReLU(), Linear(3, 1))
    >>> found = recognise(model, torch.randn(50, 4), y, criterion)
    >>> found.why.rule, [(s.label, s.multiplicity) for s in found.spectrum["bulk"][:3]]
    ("narrow twin of layers '0', '1'", [('bulk/0/0', 492), ('bulk/0/1', 492), ('bulk/0/2', 492)])
    >>> recognise(Sequential(Linear(4, 3), ReLU(), Linear(3, 1)), torch.randn(50, 4), y, criterion)
    Traceback (most recent call last):
    hessence.models.recognition.candidate.NotRecognised: ... layer '1' is a ReLU, and ...
    """
    require_ordinary(model, x)
    candidate = Candidate.of(copy.deepcopy(model), x.detach(), y, criterion, share or (x, y))
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
        The network's name.
    kinds : str
        A regular expression for the steps of the model, see ``Candidate.kinds``.
    spectrum : callable
        Returns the exact spectrum of a candidate.
    theorem : str
        Why it is exact.
    scalar : bool
        Whether the rule is for one input and one output.
    squared : bool
        Whether it is for the squared error alone.
    layers : callable, optional
        Returns the names of the layers that the rule is about, if not all.
    """

    network: str
    kinds: str
    spectrum: Callable[[Candidate], Spectrum]
    theorem: str
    scalar: bool = False
    squared: bool = False
    layers: Callable[[Candidate], list[str]] | None = None

    def fits(self, candidate: Candidate) -> bool:
        """Whether the rule is for this model and its loss."""
        return (
            re.fullmatch(self.kinds, candidate.kinds) is not None
            and (not self.scalar or candidate.is_scalar)
            and (not self.squared or candidate.factor is not None)
        )

    def apply(self, candidate: Candidate) -> Recognition:
        """Solve for the spectrum, or say why that cannot be done."""
        try:
            spectrum = self.spectrum(candidate)
        except NotRecognised:
            raise
        except Exception as error:
            # What a network refuses, or a model whose forward does not work for a twin.
            raise NotRecognised(str(error).rstrip("."), rule=self.network) from error
        of = ", ".join(map(repr, self.layers(candidate))) if self.layers else ""
        name = f"{self.network} of layers {of}" if of else self.network
        return Recognition(Reason(self.theorem, rule=name), spectrum)


TWIN = Rule(
    "narrow twin",
    ".*",
    by_twin,
    "hidden directions that neither layer of a pair uses give a bulk ±σᵢ(∂loss/∂M), M the product "
    "of the two; the rest is a network of the width that they use",
    layers=twin_layers,
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
    Rule("ResidualLinear", r"\(ll\)", linear_chain, TWIN.theorem),
    Rule("DeepLinear", "[alAL]|[AL]l|[alAL]L|[alAL][lL]{2,}", linear_chain, DEEP),
    TWIN,
    Rule("DeepLinear", r"[alAL]+|\([alAL]+\)", affine_chain, DEEP),
)
"""Which network a model is: the first rule that fits and is not too large."""
