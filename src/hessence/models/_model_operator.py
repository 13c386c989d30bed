"""A matrix over the parameters of a PyTorch model, as an operator: a sum over batches."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from hessence._common.arguments import Seed
from hessence._common.arrays import NotFiniteError, is_finite
from hessence._common.device import full_precision, reduced
from hessence._common.messages import warn
from hessence.models._exact_kernels import outside_inference
from hessence.models._model_checks import BatchCheck, misfit
from hessence.models._model_copy import ModelCopy
from hessence.models._parameters import length
from hessence.models._problem import Problem
from hessence.models._products import Graphs
from hessence.models.batch_parts import tensors_in
from hessence.models.checks import Check, CheckWarning
from hessence.models.data import gather, sum_number, sum_tensor
from hessence.models.rounding import DRAWS, FACTOR, RandomRounding
from hessence.spectra.operators import Operator

Method = TypeVar("Method", bound=Callable[..., Any])


def recordable(method: Method) -> Method:
    """Leave inference mode, whose results cannot be part of a graph, and half precision."""

    @wraps(method)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if not reduced() and not torch.is_inference_mode_enabled():
            return method(*arguments, **named)
        with outside_inference(), full_precision():
            return method(*arguments, **named)

    return cast(Method, wrapped)


class ModelOperator(Operator):
    """A symmetric matrix over a model's parameters, the sum of a matrix for each batch.

    ``H @ v`` takes a vector (p,) or columns (p, k). The flat order is that of
    ``model.parameters()``; ``split`` cuts a vector into tensors by name. The operator belongs to
    the parameters that the model had when it was made, whatever becomes of the model.
    """

    def __init__(
        self, problem: Problem, graphs: Graphs, chosen: Sequence[int] | None = None
    ) -> None:
        self.problem = problem
        self._graphs = graphs
        everything = problem.copy.parameters
        self._chosen = tuple(range(len(everything.names)) if chosen is None else chosen)
        self.parameters = everything.restricted(self._chosen)
        self._products = 0
        self._watcher: Callable[[int], None] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(p, p), p the number of parameters."""
        return (self.parameters.size, self.parameters.size)

    @property
    def device(self) -> torch.device:
        """Where vectors must be."""
        return self.reference.device

    @property
    def reference(self) -> Tensor:
        return self.parameters.leaves[0].detach()

    @property
    def kept_graphs(self) -> int:
        """How many batches have their graph in memory."""
        return self._graphs.kept

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, (list, tuple)) and any(isinstance(part, Tensor) for part in other):
            raise TypeError(
                "the operand of @ is a list of tensors: join them, H @ H.join(tensors)."
            )
        return super().__matmul__(other)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled, as it holds graphs and follows "
            "a model: pass on model, data and loss, and make another."
        )

    def restrict(self, params: Any) -> Operator:
        """Return the restriction to some of the parameters: a diagonal block of the matrix.

        Parameters
        ----------
        params : str, module, parameter, sequence of them, slice, or array of int or bool
            Patterns of names, such as ``"blocks.*.attn"``, or parts of the model: the restriction
            is then an operator of the same kind, which shares the graphs of this one. Or places in
            a vector.
        """
        listed = params if isinstance(params, (list, tuple)) else [params]
        if not all(isinstance(p, (str, nn.Module, nn.Parameter)) for p in listed):
            return super().restrict(params)
        patterns = self.problem.copy.patterns(listed, self.parameters.names)
        chosen = [self._chosen[i] for i in self.parameters.indices(patterns)]
        return type(self)(self.problem, self._graphs, chosen)

    def load(self, model: Any) -> None:
        """Take over the state that the user's model has now; data and loss stay what they are."""
        self.release()
        vars(self).pop("rounded", None)
        self.problem.load(model)

    def spectrum(self, *arguments: Any, **options: Any) -> Any:
        """Return an estimate of the spectrum, after a check: see ``Operator.spectrum``."""
        self.require_sound()
        return super().spectrum(*arguments, **options)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Cut a vector (p,) into tensors shaped like the parameters, by name.

        Columns (p, k), such as eigenvectors, give tensors with k in front of these shapes.
        """
        if not isinstance(vector, Tensor):
            raise TypeError(f"vector must be a torch tensor, got {type(vector).__name__}.")
        size = self.parameters.size
        if vector.ndim not in (1, 2) or vector.shape[0] != size:
            raise ValueError(
                f"vector must have shape ({size},) or ({size}, k), got {tuple(vector.shape)}."
            )
        rows = vector if vector.ndim == 1 else vector.mT
        return dict(zip(self.parameters.names, self.parameters.split(rows), strict=True))

    def join(self, parts: Mapping[str, Tensor] | Iterable[Tensor]) -> Tensor:
        """Make a vector (p,) of tensors shaped like the parameters, which ``split`` undoes.

        They are given by name, or in the order of the parameters, as gradients are. Tensors with k
        in front of these shapes give columns (p, k).
        """
        if isinstance(parts, Mapping):
            if set(parts) != set(self.parameters.names):
                wanted = ", ".join(self.parameters.names[:3])
                raise ValueError(f"parts must have the names of the parameters, {wanted}, ….")
            parts = [parts[name] for name in self.parameters.names]
        tensors, wanted_shapes = list(parts), self.parameters.shapes
        several = bool(tensors) and getattr(tensors[0], "ndim", 0) == len(wanted_shapes[0]) + 1
        lead = tensors[0].shape[:1] if several else torch.Size()
        shapes = [getattr(part, "shape", type(part).__name__) for part in tensors]
        if shapes != [lead + shape for shape in wanted_shapes]:
            raise ValueError(f"parts must be tensors of the parameters' shapes, got {shapes}.")
        return self.parameters.join(tensors).mT if several else self.parameters.join(tensors)

    @recordable
    def loss(self) -> float:
        """Return the loss on all data."""
        total, count = 0.0, 0.0
        for chunk in self._graphs.chunks():
            value, weight = self.problem.copy.run(self.problem.criterion.total, chunk)
            total, count = total + float(value.detach()), count + weight
        total = sum_number(total, self.device)
        return total / self._divisor(count)

    @recordable
    def gradient(self) -> Tensor:
        """Return the gradient of the loss on all data, (p,)."""
        result = torch.zeros(self.parameters.size, dtype=self.dtype, device=self.device)
        count = 0.0
        for chunk in self._graphs.chunks():
            gradients, weight = self.problem.gradients(chunk)
            result += self.parameters.join([gradients[i] for i in self._chosen])
            count += weight
        sum_tensor(result)
        return result / self._divisor(count)

    @recordable
    def check(self, *, rng: Seed = 0) -> Check:
        """Test that the loss is the same twice, and that products are symmetric and right.

        Right is what finite differences of the gradient say, up to the errors of both, rounding
        inside the model among them (``hessence.models.rounding``). Differences are taken
        in double precision, if the model can be run in it. On the first batch only. For a function
        or closure on several batches, the loss of two batches together is also compared with what
        was said about it (`reduction`).
        """
        checked = BatchCheck(self).check(rng)
        found = misfit(self.problem) if checked.passed else None
        return checked if found is None else replace(checked, passed=False, message=found)

    def require_sound(self) -> None:
        """Refuse a loss that is random or not finite, and warn of products that look wrong."""
        checked = self.check()
        self.problem.steady = True
        refused = not checked.deterministic or not checked.finite
        message = f"products are suspect: {checked.message}"
        if refused:
            said = checked.message if checked.finite else f"{self._culprit()}."
            message = said if said.startswith("data") else f"model: {said}"
        # Where one rank stopped alone, the others would wait for it.
        everywhere = gather((refused, checked.passed, message))
        for refused, _, message in everywhere:
            if refused:
                raise ValueError(message)
        for _, passed, message in everywhere:
            if not passed:
                warn(message, CheckWarning)
                return

    def _culprit(self) -> str:
        """Say where NaN or infinity comes from, as far as the first batch and the model tell."""
        model = self.problem.copy.model
        kinds = ("parameter", model.named_parameters()), ("buffer", model.named_buffers())
        for kind, named in kinds:
            for name, tensor in named:
                if not bool(tensor.detach().isfinite().all()):
                    return f"{kind} {name!r} holds NaN or infinity"
        if any(bool((t != t).any()) for t in tensors_in(self.problem.batches.first)):
            return "data holds NaN"
        return "the loss is NaN or infinite, so the model overflows or divides by zero"

    @recordable
    def rounding(self) -> float:
        """Return an estimate of the spectral norm of what rounding inside the model does.

        Products whose operations are rounded otherwise, at random, are compared with products, and
        the largest difference is multiplied by 8: see ``hessence.models.rounding``.
        """
        rng, worst = np.random.default_rng(0), 0.0
        for seed in range(DRAWS):
            v = torch.as_tensor(rng.normal(size=self.shape[0])).to(self.reference)
            image = self @ v
            moved = self._graphs.multiply_anew(
                v, self.parameters, self._chosen, RandomRounding(seed)
            )
            sum_tensor(moved)
            assert self._graphs.count is not None
            gap = float(length(moved.div_(self._divisor(self._graphs.count)).sub_(image)))
            del image, moved
            worst = max(worst, gap if math.isfinite(gap) else math.inf)
        return FACTOR * worst

    def watch(self, callback: Callable[[int], None] | None) -> None:
        """Call back with the number of products of this operator so far, whenever some are made."""
        self._watcher = callback

    def release(self) -> None:
        """Drop all kept graphs; they are built again when needed."""
        self._graphs.release()

    @staticmethod
    @abstractmethod
    def _moved(problem: Problem, batch: Any, there: ModelCopy) -> Sequence[Tensor]:
        """Return what changes by a product, to first order, when the parameters move."""

    @recordable
    def times(self, columns: Tensor) -> Tensor:
        self.problem.require_steady()
        rows = columns.detach().mT.contiguous()
        result = self._graphs.multiply(rows, self.parameters, self._chosen)
        sum_tensor(result)
        assert self._graphs.count is not None
        result /= self._divisor(self._graphs.count)
        if not is_finite(result):
            raise NotFiniteError(f"H @ v contains NaN or infinity: {self._culprit()}.")
        self._products += len(rows)
        if self._watcher is not None:
            self._watcher(self._products)
        return result.mT

    def _divisor(self, count: float) -> float:
        """Return what totals are divided by, from the count of the batches of this rank."""
        if not self.problem.criterion.averaged:
            return 1.0
        if self.problem.count is None:
            self.problem.count = sum_number(count, self.device)
        if self.problem.count == 0:
            raise ValueError("data has no targets that count: all of them are ignored.")
        return self.problem.count
