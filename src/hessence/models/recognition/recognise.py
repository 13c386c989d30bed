"""PyTorch models that are one of the solvable networks, or that have one inside.

A table of rules, read from top to bottom, maps what a model computes to the network whose theorem
gives its Hessian. A model that no rule for whole models covers may still have a narrow twin
(:mod:`hessence.models.recognition._cells`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from hessence.models.model_matrices import ModelHessian
from hessence.models.recognition._candidate import Candidate, NotRecognised, Reason, Recognition
from hessence.models.recognition._cells import TWIN, by_cells
from hessence.models.recognition._chains import (
    affine_chain,
    linear_chain,
    scalar_affine,
    scalar_linear,
    scalar_relu,
)
from hessence.spectra.reduced import Reduced
from hessence.spectra.spectrum import Spectrum

__all__ = ["NotRecognised", "Recognition", "exact_spectrum", "recognise"]

AGREEMENT = {torch.float64: 1e-8, torch.float32: 2e-4}
"""How far an exact product may be from that of automatic differentiation, relative."""


def exact_spectrum(H: ModelHessian) -> Spectrum:
    """Return the spectrum of a model by a theorem, after products with H have confirmed it.

    Raises ``NotRecognised`` if there is no theorem; the message says why.
    """
    try:
        found = recognise(H)
    except NotRecognised as refusal:
        if refusal.rest is not None and not _part_defect(H, refusal.rest) <= AGREEMENT[H.dtype]:
            refusal.rest = None
        raise
    defect = _defect(H, found.spectrum)
    if not defect <= AGREEMENT[H.dtype]:
        raise NotRecognised(
            f"it looks like {found.why.rule}, but its products differ from those of automatic "
            f"differentiation by {defect:.1e}, relative"
        )
    found.spectrum.reason = str(found.why)
    return found.spectrum


def _defect(H: ModelHessian, found: Spectrum) -> float:
    """Return the largest relative error of products by the spectrum, for three vectors.

    A random vector has a part in every family of invariant subspaces, in two members where there
    are several; two more are eigenvectors at the ends. A few large eigenvalues contribute little to
    the image of a random vector, so that image, and not ‖H‖, is the scale of its error.
    """
    if len(found) != H.shape[0]:
        return float("inf")
    rng = np.random.default_rng(0)
    families = [family for family in found.families if family.multiplicity]
    twice = [family for family in families if family.members is not None]
    drawn = [family.sample(rng) for family in (*families, *twice)]
    ends = [(space.vectors(1), space.value) for space in (found.space(0), found.space(-1))]
    random = tuple(sum(part) for part in zip(*drawn, strict=True))
    vectors, expected = zip(random, *((z, value * z) for z, value in ends), strict=True)
    # In single precision, squares of small numbers are zero.
    images = (H @ torch.cat(vectors, dim=1)).double()
    gaps = (images - torch.cat(expected, dim=1)).norm(dim=0)
    scales = torch.cat([images[:, :1].norm(dim=0), found.values.abs().max().expand(2)])
    return float((gaps / torch.where(scales > 0, scales, 1.0)).max())


def _part_defect(H: ModelHessian, rest: Reduced) -> float:
    """Return the error of products by a reduction, relative to a random product with H.

    Tested are the known families, and the products of the reduction itself.
    """
    rng = np.random.default_rng(0)
    drawn = [family.sample(rng) for family in rest.known if family.multiplicity]
    vector, expected = (sum(part) for part in zip(*drawn, strict=True))
    other = torch.as_tensor(rng.normal(size=(H.shape[0], 1))).to(vector)
    inside = torch.as_tensor(rng.normal(size=(rest.order, 1))).to(vector)
    images = (H @ torch.cat([vector, other, rest.embed(inside)], dim=1)).double()
    gaps = images[:, ::2] - torch.cat([expected, rest.embed(rest.times(inside))], dim=1)
    return float(gaps.norm(dim=0).max()) / (float(images[:, 1].norm()) or 1.0)


def recognise(H: ModelHessian) -> Recognition:
    """Return the exact spectrum of a model's loss, if there is a theorem for it.

    The first row that fits and is not too large counts:

    ==================  ==========================================================================
    ``ScalarLinear``    Linear(1, m), Linear(m, 1), squared error
    ``ScalarReLU``      Linear(1, m), ReLU, Linear(m, 1), any loss that is a sum over samples
    ``ScalarAffine``    Linear(1, m) with a bias, Linear(m, 1), squared error
    ``TwoLayerLinear``  two linear layers, the first with or without a bias, squared error
    ``ResidualLinear``  x + W2 W1 x, any loss
    ``DeepLinear``      any other number of linear layers W, or residual ones h + W h, the first
                        with or without a bias, any loss
    narrow twin, cells  a pair of linear layers in any model, with or without biases, the second
                        right after the first, or with a ReLU, leaky ReLU, ``abs`` or a PReLU of one
                        slope between them, and more units there than they need, any loss
    ``DeepLinear``      any number of linear or residual layers with any biases, perhaps in one skip
                        connection x + g(x), any loss
    ==================  ==========================================================================

    Layers have no bias unless one is mentioned. What counts is what the model computes, not how its
    classes are nested: steps that change nothing, such as ``nn.Identity`` or dropout in evaluation
    mode, are ignored, and steps without parameters before the first layer belong to the data.

    Raises
    ------
    NotRecognised
        If there is no theorem; the message says why.

    Examples
    --------
    >>> import torch, hessence as hs
    >>> from torch.nn import Linear, MSELoss, ReLU, Sequential, Tanh
    >>> _ = torch.manual_seed(0)
    >>> model = Sequential(Linear(1, 100, bias=False), ReLU(), Linear(100, 1, bias=False))
    >>> x, y = torch.randn(50, 1), torch.randn(50, 1)
    >>> found = recognise(hs.hessian(model, (x, y), MSELoss()))
    >>> found.why.rule, len(found.spectrum), found.spectrum.method
    ('ScalarReLU', 200, 'closed form')

    >>> x, model = torch.randn(50, 4), Sequential(Linear(4, 500), Linear(500, 3), ReLU())
    >>> found = recognise(hs.hessian(model, (x, torch.randn(50, 3)), MSELoss()))
    >>> found.why.rule, [(s.label, s.multiplicity) for s in found.spectrum["bulk"][:2]]
    ("narrow twin of layers '0', '1'", [('bulk/layer 0/0', 492), ('bulk/layer 0/1', 492)])
    >>> x, y, model = x[:9], y[:9], Sequential(Linear(4, 90), ReLU(), Linear(90, 1))
    >>> found = recognise(hs.hessian(model, (x, y), MSELoss()))
    >>> found.why.rule, found.spectrum.method
    ("cells of layers '0', '2'", 'cells')
    >>> model = Sequential(Linear(4, 3), Tanh(), Linear(3, 1))
    >>> recognise(hs.hessian(model, (x, y), MSELoss()))
    Traceback (most recent call last):
    hessence.models.recognition._candidate.NotRecognised: ... layer '1' is a Tanh, and ...
    """
    candidate = Candidate.of(H)
    refusals = {}
    for rule in RULES:
        if rule.fits(candidate):
            try:
                return rule.apply(candidate)
            except NotRecognised as refusal:
                refusals[rule] = refusal
    # A refusal by a rule for the whole model is more informative than the twin's.
    cells = refusals.pop(BY_CELLS)
    told = next(iter(refusals.values()), cells)
    told.rest = cells.rest
    raise told


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
        Returns the exact spectrum of a candidate, or a ``Recognition`` that says more of it.
    theorem : str
        Why it is exact.
    scalar, squared : bool
        Whether the rule is for one input and one output only, and for the squared error only.
    """

    network: str
    kinds: str
    spectrum: Callable[[Candidate], Spectrum | Recognition]
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
        """Return the spectrum, or say why there is none."""
        try:
            found = self.spectrum(candidate)
        except NotRecognised:
            raise
        except Exception as error:
            # The network refuses its arguments, or the model's forward does not work for a twin.
            raise NotRecognised(str(error), rule=self.network) from error
        if isinstance(found, Recognition):
            return found
        return Recognition(Reason(self.theorem, rule=self.network), found)


BY_CELLS = Rule("narrow twin", ".*", by_cells, TWIN)

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
    Rule("TwoLayerLinear", "[al]l", linear_chain, TWIN, squared=True),
    Rule("ResidualLinear", r"\(ll\)", linear_chain, TWIN),
    Rule("DeepLinear", "[alAL]|[AL]l|[alAL]L|[alAL][lL]{2,}", linear_chain, DEEP),
    BY_CELLS,
    Rule("DeepLinear", r"[alAL]+|\([alAL]+\)", affine_chain, DEEP),
)
"""Which network a model is: the first rule that fits and is not too large."""
