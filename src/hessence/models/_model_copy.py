"""Our own copy of a user's model, so that nothing we do can touch the model itself.

An operator copies the model when it is made, sets the copy up once, and works on it alone. The
user may go on training, or infer with the model from other threads. What a run leaves behind in the
copy, such as running statistics, is reset, so that every run starts from the same state.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hessence._common.arrays import dtype_name
from hessence.models._exact_kernels import outside_inference, with_exact_kernels, with_recording
from hessence.models._parameters import Parameters, irregular, listed
from hessence.models.batch_parts import copied, tensors_in
from hessence.models.model_layers import ModelState, graph_uses, require_deterministic, unwrap

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_SIMPLE = (bool, int, float, str, type(None))

ERROR = "torch::autograd::Error"
"""What PyTorch calls a node of a graph that cannot be differentiated again."""

REMEDY = (
    "Write it out in other operations, such as (x[:, None] - y).norm(dim=-1) for torch.cdist(x, "
    "y), or F.embedding(words, weight).mean(1) for an EmbeddingBag, and leave out torch.compile."
)

Thing = TypeVar("Thing")


class ModelCopy:
    """A copy of a model, ready to be differentiated.

    Parameters
    ----------
    model : torch.nn.Module
        The user's model; wrappers for data-parallel training and compilation are looked through.
    params : None, str, tensor, module, or sequence of them
        Which parameters to differentiate by, see :class:`Parameters`.
    eval_mode : bool
        Whether the copy is in evaluation mode, whatever mode the model is in.
    copy : bool
        False to work on the user's model itself. The caller then promises not to touch it.

    Attributes
    ----------
    model : torch.nn.Module
        The copy. Its layers have the right mode, its embeddings make dense gradients, and only its
        chosen parameters require gradients.
    parameters : Parameters
        The chosen parameters of the copy, and chosen tensors from elsewhere.
    owned : bool
        Whether this is a copy, and not the user's model.
    version : int
        How many states it has loaded. Graphs of an earlier one are useless.
    """

    def __init__(
        self, model: Any, params: Any = None, *, eval_mode: bool = False, copy: bool = True
    ) -> None:
        live = unwrap(model)
        require_deterministic(live, eval_mode=eval_mode)
        selected = Parameters.select(live, params)
        self._eval_mode, self.owned = eval_mode, copy
        self.version, self._twice = 0, False
        self._memo: dict[int, Any] = {id(t): t for t in selected.foreign}
        # By identity, since tensors are compared entry by entry.
        self._live = [(name, weakref.ref(p)) for name, p in live.named_parameters()]
        self._lock = threading.RLock()
        with outside_inference():
            self._own(_deep_copy(live, self._memo) if copy else live, selected)

    def _own(self, model: nn.Module, selected: Parameters) -> None:
        """Take a model, set it up, and remember the state that every run is to start from."""
        self.model = model
        named = dict(model.named_parameters())
        leaves = tuple(
            named.get(name, leaf)
            for name, leaf in zip(selected.names, selected.leaves, strict=True)
        )
        self.parameters = replace(selected, leaves=leaves)
        if self.owned:
            for name, parameter in named.items():
                parameter.requires_grad_(name in selected.names)
            for module in model.modules():
                if isinstance(getattr(module, "_orig_mod", None), nn.Module):
                    # What is compiled has one derivative only.
                    vars(module)["forward"] = module._orig_mod
            self._lower_flags()
        self._state, self._in_use = ModelState(model), False

    def _lower_flags(self) -> list[tuple[nn.Module, str]]:
        """Clear flags of layers that must not be set, and return those that were set."""
        lowered: list[tuple[nn.Module, str]] = []
        for module in self.model.modules():
            # A gradient that depends on how often a word occurs is not that of the loss.
            names = ["sparse", "scale_grad_by_freq"] if isinstance(module, _EMBEDDINGS) else []
            names += ["training"] if self._eval_mode else []
            lowered += [(module, name) for name in names if getattr(module, name)]
        for module, name in lowered:
            setattr(module, name, False)
        return lowered

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.parameters.leaves[0].device

    @property
    def padding_rows(self) -> dict[str, int]:
        """The rows of embeddings, by the name of the weight, that PyTorch takes for constants."""
        return {
            f"{name}.weight" if name else "weight": module.padding_idx
            for name, module in self.model.named_modules()
            if isinstance(module, _EMBEDDINGS) and module.padding_idx is not None
        }

    def value(self, name: str) -> Tensor:
        """Return the values of a parameter, without its derivatives."""
        return self.model.get_parameter(name).detach()

    def copy_along(self, thing: Thing) -> Thing:
        """Return a copy of a thing in which our model takes the place of the user's.

        Only before the first run, which drops what this needs.
        """
        return _deep_copy(thing, self._memo) if self.owned else thing

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call function(model, *arguments), with recording on and kernels that are right.

        The arguments are copied, since a model may write to its inputs.
        """
        return self._run(with_exact_kernels, function, arguments)

    def run_plainly(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call function(model, *arguments), with recording on and PyTorch's own kernels."""
        return self._run(with_recording, function, arguments)

    def _run(self, within: Callable[..., Any], function: Callable[..., Any], arguments: Any) -> Any:
        with self._lock:
            lowered = self._begin()
            try:
                self._in_use = True
                return within(lambda: function(self.model, *copied(arguments)))
            except RuntimeError as error:
                self._require_same_precision(arguments, error)
                raise
            finally:
                self._state.restore()
                for module, name in lowered:
                    setattr(module, name, True)
                self._in_use = False

    def _begin(self) -> list[tuple[nn.Module, str]]:
        """Start from the same state as every run, and return which flags were lowered for it."""
        self._memo = {}
        if self._in_use:  # an interrupt came while the last run was being undone
            self._state.restore()
        if self.owned:
            return []
        lowered = self._lower_flags()
        # The user may have changed the model between runs.
        self._state = ModelState(self.model)
        return lowered

    def clone(self, *, double: bool = False) -> ModelCopy:
        """Return another copy in the same state, perhaps in double precision."""
        memo = {id(t): t for t in self.parameters.foreign}
        twin = copy.copy(self)
        twin._lock, twin.owned = threading.RLock(), True
        with outside_inference():
            model = _deep_copy(self.model, memo)
            twin._own(model.double() if double else model, self.parameters)
        return twin

    def elsewhere(self) -> ModelCopy:
        """Return another copy, at a nearby point where nothing is zero or equal by chance."""
        twin = self.clone()
        values = [leaf.detach() for leaf in twin.parameters.leaves]
        sizes = [value.square().mean().sqrt() for value in values]
        steps = [0.3 * torch.where(size > 0, size, 0.1) for size in sizes]
        twin.move([v + step * irregular(v) for v, step in zip(values, steps, strict=True)])
        return twin

    def move(self, values: Sequence[Tensor]) -> None:
        """Write other values to the model's parameters, in place.

        Graphs made before are then useless. Tensors from elsewhere stay as they are.
        """
        parameters = self.parameters
        with torch.no_grad():
            for name, leaf, value in zip(parameters.names, parameters.leaves, values, strict=True):
                if name not in parameters.outside:
                    leaf.copy_(value)

    def load(self, model: Any) -> None:
        """Bring the copy to the state that the user's model has now, in place.

        It takes over parameters, buffers, modes, and numbers and strings that layers hold. Graphs
        made before are then useless.
        """
        self.version += 1
        if not self.owned:
            return
        live = unwrap(model)
        require_deterministic(live, eval_mode=self._eval_mode)
        theirs, ours = dict(live.named_modules()), dict(self.model.named_modules())
        if theirs.keys() != ours.keys() or _shapes(live) != _shapes(self.model):
            raise ValueError(
                "model has other layers or parameters than when this was made: make it anew."
            )
        with self._lock, outside_inference(), torch.no_grad():
            for name, module in ours.items():
                _load_simple(module, theirs[name])
                for key, buffer in theirs[name]._buffers.items():
                    module._buffers[key] = None if buffer is None else buffer.detach().clone()
            named = dict(live.named_parameters())
            for name, parameter in self.model.named_parameters():
                parameter.copy_(named[name])
            self._lower_flags()
            self._state = ModelState(self.model)

    def reached(self, total: Tensor) -> tuple[list[str], list[str]]:
        """Tell which of our leaves a total depends on, and which of the user's parameters.

        There should be none of the latter: a run that uses them reaches past its copy.
        """
        nodes = graph_uses([total])
        leaves = {id(total), *(id(node.variable) for node in nodes if hasattr(node, "variable"))}
        parameters = self.parameters
        ours = {id(t): name for name, t in zip(parameters.names, parameters.leaves, strict=True)}
        past = [
            name
            for name, reference in self._live
            if id(reference()) in leaves and id(reference()) not in ours
        ]
        return [name for leaf, name in ours.items() if leaf in leaves], past

    def require_second(self, gradients: Iterable[Tensor], *, whole: bool = True) -> None:
        """Refuse gradients with an operation that is marked as differentiable once.

        Where nothing else depends on parameters, PyTorch takes it for a constant without a word.
        Gradients in all parameters, the `whole`, are tested once.
        """
        if not self._twice and any(node.name() == ERROR for node in graph_uses(gradients)):
            raise NotImplementedError(
                "model or loss has an operation that is differentiable once, as a custom backward "
                f"may be: {REMEDY}"
            )
        self._twice = self._twice or whole

    def patterns(self, params: Sequence[Any], known: Sequence[str]) -> list[str]:
        """Return name patterns for patterns, parts and parameters of the user's model."""
        own = {id(reference()): name for name, reference in self._live}
        found: list[str] = []
        for item in listed(list(params), own):
            if not isinstance(item, str) and own.get(id(item)) not in known:
                raise ValueError("params: a parameter was given that is not the operator's.")
            found.append(item if isinstance(item, str) else own[id(item)])
        return found

    def _require_same_precision(self, arguments: tuple[Any, ...], error: Exception) -> None:
        """Give the most likely reason for an error: data in another precision."""
        own = self.parameters.leaves[0]
        for tensor in tensors_in(list(arguments)):
            if tensor.is_floating_point() and tensor.dtype != own.dtype:
                raise TypeError(
                    f"data is {dtype_name(tensor)}, but the model is "
                    f"{dtype_name(own)}: convert one of them."
                ) from error


def _load_simple(module: nn.Module, live: nn.Module) -> None:
    """Copy a module's flags, numbers and strings."""
    if isinstance(module, torch.jit.ScriptModule):
        return
    home = vars(module)
    for name, value in vars(live).items():
        if type(value) in _SIMPLE and type(home.get(name)) in _SIMPLE:
            home[name] = value


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def _deep_copy(thing: Thing, memo: dict[int, Any]) -> Thing:
    """Return a deep copy; where that cannot be, say which part is in the way."""
    modules = dict(thing.named_modules()) if isinstance(thing, nn.Module) else {}
    for module in modules.values():
        if not isinstance(module, torch.jit.ScriptModule):
            # Tensors with a history, such as weights that a hook computes, cannot be copied.
            inner = (t for t in tensors_in(vars(module)) if not t.is_leaf)
            memo.update({id(t): t.detach().clone() for t in inner})
    kept = dict(memo)
    try:
        return copy.deepcopy(thing, memo)
    except Exception as error:
        raise ValueError(
            f"model cannot be copied: {_obstacle(modules, kept)} stands in the way ({error}); pass "
            "copy=False to work on the model itself, and do not touch it meanwhile."
        ) from error


def _obstacle(modules: Mapping[str, nn.Module], memo: dict[int, Any]) -> str:
    """Find the attribute of a module that cannot be copied."""
    for name, module in reversed(list(modules.items())):
        where = f"layer {name!r}" if name else "the model"
        for attribute, value in vars(module).items():
            try:
                copy.deepcopy(value, dict(memo))
            except Exception:
                # Whatever it raises, this is the part that is looked for.
                return f"attribute {attribute!r} ({type(value).__name__}) of {where}"
    return "something in it"
