"""The spectrum of a PyTorch model by a theorem, confirmed by automatic differentiation."""

from __future__ import annotations

import sys
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hessence.models import ranks
from hessence.models.batch_parts import byte_count, tensors_in
from hessence.models.batches import is_sample_pair, merged
from hessence.models.criterion import PairCriterion
from hessence.models.model_matrices import ModelHessian
from hessence.models.recognition.recognise import NotRecognised, Reason, recognise
from hessence.models.setting import Setting
from hessence.spectra.spectrum import Spectrum

AGREEMENT = {torch.float64: 1e-8, torch.float32: 2e-4}
"""How far an exact product may be from that of automatic differentiation, relative."""


def exact_spectrum(H: ModelHessian, params: Any) -> Spectrum | str:
    """Return the spectrum by a theorem that products confirm, or the reason why there is none."""
    setting = H.setting
    try:
        if params is not None:
            raise NotRecognised("only some of the parameters were asked for")
        criterion = setting.criterion
        if not isinstance(criterion, PairCriterion):
            raise NotRecognised("the loss is a closure, which may do anything with the model")
        if not setting.copy.owned:
            raise NotRecognised("the model was not copied, and only copies are looked into")
        (x, y), share = _all_data(setting), _own_data(setting)
        recognition = recognise(setting.copy.model, x, y, criterion, share=share)
    except NotRecognised as error:
        return str(error)
    found = recognition.spectrum
    defect = _defect(H, found)
    if not defect <= AGREEMENT[H.dtype]:
        return str(
            Reason(
                f"it looks like {recognition.why.rule}, but its products differ from those of "
                f"automatic differentiation by {defect:.1e}, relative"
            )
        )
    found.reason = str(recognition.why)
    return found


def _all_data(setting: Setting) -> tuple[Tensor, Any]:
    """Return all data as one batch, with the shares of all ranks in it."""
    if not ranks.parallel():
        return _own_data(setting)
    # All ranks must do the same, whatever one of them finds; so they tell each other first.
    own: Any = None
    try:
        own = _own_data(setting)
        if not is_sample_pair(own):
            raise NotRecognised("the data of several processes are not pairs of tensors")
        word: str | int = byte_count(own)
    except NotRecognised as error:
        word = error.why.reason
    kinds = [(part.shape[1:], part.dtype) for part in tensors_in(own)]
    told = ranks.gather((word, kinds, setting.memory))
    for said, _, _ in told:
        if isinstance(said, str):
            raise NotRecognised(said)
    if any(other != told[0][1] for _, other, _ in told):
        raise NotRecognised("the data of several processes differ in shape")
    if sum(size for size, _, _ in told) > min(memory for _, _, memory in told):
        raise NotRecognised("the data of all processes do not fit into memory= at once")
    shares = ranks.gather(tuple(part.cpu() for part in own))
    device = setting.copy.device
    x, y = (torch.cat(parts).to(device) for parts in zip(*shares, strict=True))
    return x, y


def _own_data(setting: Setting) -> tuple[Tensor, Any]:
    batches = setting.batches.kept
    if batches is None:
        raise NotRecognised("the data do not fit into memory= at once")
    if len(batches) == 1:
        return cast(tuple[Tensor, Any], tuple(batches[0]))
    joined = list(merged(batches, sys.maxsize))
    if len(joined) > 1 or not is_sample_pair(joined[0]):
        raise NotRecognised("the batches differ in shape, so they cannot be joined")
    return cast(tuple[Tensor, Any], joined[0])


def _defect(H: ModelHessian, found: Spectrum) -> float:
    """Return how far the spectrum is from products with H, relative.

    Two random vectors have a part in every family of invariant subspaces; two more are eigenvectors
    at the ends. A random vector meets little of a few large eigenvalues, so its image is the scale
    of its error.
    """
    if len(found) != H.shape[0]:
        return float("inf")
    rng = np.random.default_rng(0)
    families = [family for family in found.families if family.multiplicity]
    drawn = [family.sample(rng) for _ in range(2) for family in families]
    half = len(drawn) // 2
    sums = [[sum(part) for part in zip(*own, strict=True)] for own in (drawn[:half], drawn[half:])]
    ends = [found.space(0), found.space(-1)]
    vectors = [vector for vector, _ in sums] + [space.vectors(1) for space in ends]
    expected = [image for _, image in sums]
    expected += [space.value * space.vectors(1) for space in ends]
    images = H @ torch.cat(vectors, dim=1)
    gaps = (images - torch.cat(expected, dim=1)).norm(dim=0)
    scales = torch.cat([images[:, :2].norm(dim=0), found.norm.expand(2)])
    return float((gaps / torch.where(scales > 0, scales, 1.0)).max())
