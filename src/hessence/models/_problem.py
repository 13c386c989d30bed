"""A model, data and a loss, checked: what operators are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy as shallow_copy
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from hessence._common.arrays import dtype_name
from hessence._common.device import budget
from hessence.models._criteria import PointwiseCriterion, as_criterion, is_own
from hessence.models._exact_kernels import outside_inference
from hessence.models._feed_forward import Chain, FeedForwardGraph
from hessence.models._model_copy import ModelCopy
from hessence.models._products import Graph, Graphs, derivatives
from hessence.models.batch_parts import CHUNK_BYTES, graph_bytes, on_tensors
from hessence.models.checks import RANDOM, same
from hessence.models.criterion import (
    ClosureCriterion,
    Criterion,
    FunctionCriterion,
    OwnCriterion,
    PairCriterion,
    Reduction,
    predict,
)
from hessence.models.data import Batches, gather, is_sample_pair, merged, parallel
from hessence.models.model_layers import require_uncoupled

TRIED = 64
"""How many samples are tried to see whether a loss is steady, and samples are independent."""

CLOSURE = "; if loss is a closure of (model, batch), pass closure=True"


class Problem:
    """A copy of a model, its data in batches, its loss, and how to multiply.

    Attributes
    ----------
    steady : bool
        Whether the loss is known to be the same whenever it is evaluated.
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        loss: Any,
        params: Any,
        reduction: Reduction | None,
        eval_mode: bool,
        memory: float | None,
        closure: bool | None,
        compile: bool,
        copy: bool,
    ) -> None:
        if isinstance(data, Tensor) and isinstance(loss, Tensor):
            raise TypeError("data must be one argument, a pair: give (x, y) in place of x, y.")
        # What is made in inference mode cannot be part of a graph.
        with outside_inference():
            self.copy = ModelCopy(model, params, eval_mode=eval_mode, copy=copy)
            leaves = self.copy.parameters.leaves
            self.memory = budget(memory, leaves[0])
            data = _pair_or_batches(data, loss, closure)
            self.batches = Batches(data, self.copy.device, self.memory, leaves)
            kept = self.batches.kept
            self.several = kept is None or len(kept) > 1 or parallel()
            if self.several:
                require_uncoupled(self.copy.model)
            self.criterion = self._criterion(loss, reduction, closure)
            self.steady = isinstance(loss, Criterion)
            if not self.steady:
                self._require_own_parameters()
        self.compile = compile
        self.count: float | None = None

    def _criterion(self, loss: Any, reduction: Reduction | None, closure: bool | None) -> Criterion:
        """Read the loss, and evaluate it once if it is the user's own."""
        if isinstance(loss, Criterion):  # that of another operator
            return loss
        several, first = self.several, self.batches.first
        # What is compiled has one derivative only.
        loss = getattr(loss, "_torchdynamo_orig_callable", loss)
        if isinstance(loss, nn.Module):
            loss = self.copy.copy_along(loss)
        criterion = as_criterion(loss, first, reduction, closure=closure, several=several)
        if isinstance(criterion, PointwiseCriterion):
            self._require_samples()
        elif isinstance(criterion, FunctionCriterion):
            inputs, target = first
            prediction = on_tensors(Tensor.detach, self._predicted(inputs, also=CLOSURE))
            try:
                value = criterion.call(prediction, target)
                if not isinstance(prediction, Tensor):
                    # It may lack what the loss takes of it, if the model computes its loss itself.
                    criterion.read(value, prediction, target)
            except (TypeError, AttributeError, KeyError) as error:
                raise TypeError(
                    f"loss, called as loss(prediction, target) with a prediction of type "
                    f"{type(prediction).__name__}, raised {error!r}; for a closure of (model, "
                    "batch), such as lambda model, batch: model(**batch).loss, pass closure=True."
                ) from error
            self._require_prediction_only(criterion.read(value, prediction, target)[0])
        return criterion

    def _require_prediction_only(self, total: Tensor) -> None:
        """Refuse a loss that depends on parameters of the model beside the prediction."""
        own, past = self.copy.reached(total)
        beside = past + [name for name in own if name not in self.copy.parameters.outside]
        if beside:
            raise ValueError(
                f"loss depends on {_quoted(beside)} of the model beside the prediction: give a "
                "closure loss(model, batch), which uses the model that it is given."
            )

    def _predicted(self, inputs: Any, also: str = "") -> Any:
        """Run the model; where PyTorch cannot, the message is about the data."""
        try:
            return self.copy.run(predict, inputs)
        except (torch.OutOfMemoryError, NotImplementedError):
            # These say nothing about the data.
            raise
        except (RuntimeError, TypeError) as error:
            told, several = type(inputs).__name__, isinstance(inputs, (tuple, list))
            if isinstance(error, TypeError) and not several:
                raise
            if several:
                told = f"{len(inputs)} tensors (several batches go into a list)"
            if isinstance(inputs, Tensor):
                shape = ", ".join(["n", *map(str, inputs.shape[1:])])
                told = f"shape ({shape}) and {dtype_name(inputs)}"
            raise ValueError(
                f"data: the model cannot be run on inputs of {told}: {error}{also}"
            ) from error

    def _require_samples(self) -> None:
        """Refuse a sample on its own, whose outputs would pass for samples."""
        inputs, _ = self.batches.first
        if not isinstance(inputs, Tensor) or inputs.ndim != 1:
            return
        prediction = self._predicted(inputs)
        if not isinstance(prediction, Tensor) or prediction.ndim != 1 or len(prediction) == 1:
            return
        if self._chain is not None or prediction.shape != inputs.shape:
            raise ValueError(
                f"data: an input of shape ({len(inputs)},) is a sample without a batch: give "
                "x[None] and y[None], or stack the samples."
            )

    def load(self, model: Any) -> None:
        """Take over the state that the user's model has now."""
        self.copy.load(model)
        if self.several or self.separable:
            require_uncoupled(self.copy.model)
        self.count = None

    def doubled(self) -> Problem:
        """Return the same in double precision, for a check."""
        twin = shallow_copy(self)
        twin.copy = self.copy.clone(double=True)
        twin.criterion = self.criterion.doubled()
        return twin

    def gradients(
        self, chunk: Any, there: ModelCopy | None = None
    ) -> tuple[Sequence[Tensor], float]:
        """Return the gradient of the total over a chunk, here or at another copy, and its count."""
        there = self.copy if there is None else there
        total, count = there.run(self.criterion.total, chunk)
        return derivatives(total, there.parameters.leaves), count

    def require_steady(self) -> None:
        """Refuse a loss that is random, once: evaluations on a few samples tell."""
        own = isinstance(self.criterion, OwnCriterion)
        if self.steady or (self._chain is not None and not own):
            return
        steady = self.is_steady(self._some(TRIED))
        # Where one rank stopped alone, the others would wait for it.
        if not all(gather(steady)):
            raise ValueError(f"model: {RANDOM}")
        self.steady = True

    def _require_own_parameters(self) -> None:
        """Refuse a loss that uses parameters of the user's model, which the copy cannot see.

        A closure is evaluated here for the first time, and what it returns is looked at.
        """
        closure, owned = isinstance(self.criterion, ClosureCriterion), self.copy.owned
        if not closure and (self._chain is not None or not owned):
            return
        total = self.copy.run(self.criterion.total, self._some(1))[0]
        if not owned:
            return
        arrives, past = self.copy.reached(total)
        names = _quoted(past)
        if past and closure:
            raise ValueError(
                f"loss reaches past the model that it is given, to {names} of your own: use the "
                "first argument of loss(model, batch) for everything; if it is not the loss but a "
                "hook of the model that does so, pass copy=False."
            )
        if past:
            raise ValueError(
                f"model cannot be copied: the copy still uses {names} of the model itself, as a "
                "hook or a patched forward would; pass copy=False to work on the model itself, and "
                "do not touch it meanwhile."
            )
        if closure and total.requires_grad and not arrives:
            raise ValueError(
                "loss does not depend on the model that it is given: use the first argument of "
                "loss(model, batch), and not a model from outside."
            )

    def _some(self, samples: int) -> Any:
        """Return so many samples of the first batch, or all of it if they belong together."""
        batch = self.batches.first
        return tuple(part[:samples] for part in batch) if self.separable else batch

    def is_steady(self, batch: Any) -> bool:
        """Whether the loss on a batch is the same when it is evaluated twice."""
        with torch.no_grad():
            once, again = (float(self.copy.run(self.criterion.total, batch)[0]) for _ in range(2))
        return same(once, again, self.copy.parameters.leaves[0].dtype)

    @cached_property
    def separable(self) -> bool:
        """Whether model and loss treat samples independently: batches may be cut and merged."""
        criterion = self.criterion
        if not isinstance(criterion, PairCriterion) or not is_sample_pair(self.batches.first):
            return False
        inputs, target = (part[:TRIED] for part in self.batches.first)
        whole = self._predicted(inputs)
        if not criterion.separable:
            return False
        # A target that does not fit is refused before anything is computed.
        criterion.sum(whole, target)
        return self.apart

    @cached_property
    def apart(self) -> bool:
        """Whether the model treats every sample independently.

        That is tried out: it does not if a mean is taken over the batch, or if the first dimension
        is time, as it is by default for PyTorch's recurrent layers.
        """
        if not is_sample_pair(self.batches.first):
            return False
        inputs = self.batches.first[0][:TRIED]
        if self._chain is not None and not self._chain.before and inputs.ndim > 1:
            return True
        gap = self._batching_gap
        return gap is not None and gap <= 1e3 * self._eps

    @property
    def coupled(self) -> bool:
        """Whether predictions for several batches depend on how the samples are batched.

        Where PyTorch's recurrent and attention layers have time first, that cannot be told.
        """
        first = self.batches.first
        if not self.several or not isinstance(self.criterion, PairCriterion):
            return False
        timed = (nn.RNNBase, nn.MultiheadAttention)
        modules = self.copy.model.modules()
        if any(isinstance(module, timed) and not module.batch_first for module in modules):
            return False
        gap = self._batching_gap if is_sample_pair(first) else None
        return gap is not None and gap > self._eps**0.5

    @property
    def _eps(self) -> float:
        return float(torch.finfo(self.copy.parameters.leaves[0].dtype).eps)

    @cached_property
    def _batching_gap(self) -> float | None:
        """How much predictions for samples at once differ from those for two halves, relative.

        None if that cannot be tried. It is tried at other parameters, since at these a coupling of
        samples may be zero and yet have derivatives.
        """
        if not self.copy.owned:
            return None
        inputs = self.batches.first[0][:TRIED]
        if len(inputs) < 2:
            inputs, _ = next(iter(merged(self.batches, 2)))
        there = self.copy.elsewhere()
        try:
            whole, *parts = (there.run(predict, x) for x in (inputs, *inputs.tensor_split(2)))
        except Exception:
            # The model may know the number of samples.
            return None
        if not all(isinstance(part, Tensor) and part.ndim for part in [whole, *parts]):
            return None
        joined = torch.cat(parts)
        if joined.shape != whole.shape:
            return None
        size = float(whole.detach().abs().max())
        return float((joined - whole).detach().abs().max()) / size if size else 0.0

    def graphs(self, build: Callable[[Any], Graph], *, functional: bool) -> Graphs:
        """Return the graphs of all batches.

        `build` makes that of a batch by automatic differentiation, with or without the `functional`
        part of the Hessian.
        """
        chain, criterion, size = self._chain, self.criterion, partial(graph_bytes, build)
        best, names = CHUNK_BYTES, set(self.copy.parameters.names)
        pairs = is_sample_pair(self.batches.first)
        compiled: Callable[[Graph], Graph] | None = None
        if self.compile:
            from hessence.models._compiled import CompiledGraph

            compiled = CompiledGraph
        elif pairs and isinstance(criterion, PairCriterion) and chain and names <= chain.names:
            size, best = partial(chain.bytes, self.copy), chain.best_bytes(self.copy)
            build = partial(FeedForwardGraph, chain, self.copy, criterion, functional=functional)
        return Graphs(
            build,
            self.batches,
            self.copy,
            separable=self.separable,
            memory=self.memory,
            size=size,
            best=best,
            compiled=compiled,
        )

    @cached_property
    def _chain(self) -> Chain | None:
        """The layers of the model, if it is a plain chain."""
        return Chain.read(self.copy.model) if self.copy.owned else None


def _quoted(names: Sequence[str]) -> str:
    """Write out some names."""
    return ", ".join(map(repr, names[:3]))


def _pair_or_batches(data: Any, loss: Any, closure: bool | None) -> Any:
    """Read a list of two tensors as a pair, or as two batches if the loss is a closure."""
    if not (isinstance(data, list) and len(data) == 2 and all(isinstance(d, Tensor) for d in data)):
        return data
    if closure is None and is_own(loss):
        raise ValueError(
            "data: a list of two tensors may be a pair (input, target) or two batches: give a "
            "tuple for a pair, or pass closure=True if loss is a closure of (model, batch)."
        )
    return data if closure else tuple(data)
