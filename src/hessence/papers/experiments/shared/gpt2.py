"""OpenAI's GPT-2 from a file of weights in the layout of Hugging Face, of any of its sizes.

Tensors are called ``wte.weight``, ``wpe.weight``, ``h.0.ln_1.weight``, …, ``ln_f.bias``, all with
or without ``transformer.`` in front. Matrices of layers are stored as inputs × outputs, the
transpose of what PyTorch's linear layers hold. Files may hold masks and the tied output matrix
too, which are no parameters.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

from hessence.papers.experiments.datasets import MissingDataError
from hessence.papers.experiments.shared.language_models import Gpt, GptShape
from hessence.papers.experiments.shared.safetensors import Tensors, open_tensors

PREFIX = "transformer."
HEAD_SIZE = 64
"""The length of a query, in all sizes of GPT-2; files do not tell it."""

TIED = "lm_head.weight"
MASK = re.compile(r"h\.\d+\.attn\.(masked_)?bias")


def load_gpt2(path: Path) -> Gpt:
    """Return the model of a file of weights, in float32 on the CPU."""
    tensors = open_tensors(path)
    names = {_plain(name): name for name in tensors.entries}
    shape = _shape(tensors, names)
    _require_layout(tensors, names, shape)
    model = Gpt(shape)
    with torch.no_grad():
        for place, module in _modules(model).items():
            for part, parameter in module.named_parameters():
                values = torch.from_numpy(tensors.read(names[f"{place}.{part}"]))
                turned = isinstance(module, nn.Linear) and part == "weight"
                parameter.copy_(values.T if turned else values)
    if TIED in names:
        output = torch.from_numpy(tensors.read(names[TIED]))
        if not torch.equal(output, model.embedding.weight):
            raise MissingDataError(
                f"{path} holds an output matrix {TIED} other than wte.weight, unlike GPT-2."
            )
    return model


def _plain(name: str) -> str:
    return name.removeprefix(PREFIX)


def _shape(tensors: Tensors, names: dict[str, str]) -> GptShape:
    """Read the sizes off the header; layers are those whose first norm is there."""
    sizes = [tensors.entries[names[name]].shape if name in names else ()
             for name in ("wte.weight", "wpe.weight")]  # fmt: skip
    layers = sum(bool(re.fullmatch(r"h\.\d+\.ln_1\.weight", name)) for name in names)
    if any(len(size) != 2 or not all(size) for size in sizes) or not layers:
        raise MissingDataError(
            f"{tensors.path} does not hold GPT-2: wte.weight, wpe.weight and h.0.ln_1.weight must "
            "be there, the first two as matrices."
        )
    (vocabulary, width), (context, _) = sizes
    if width % HEAD_SIZE:
        raise MissingDataError(
            f"{tensors.path} does not hold GPT-2: its width {width} is no multiple of {HEAD_SIZE}."
        )
    heads = width // HEAD_SIZE
    return GptShape(vocabulary, context, width, heads, layers, biases=True)


def _require_layout(tensors: Tensors, names: dict[str, str], shape: GptShape) -> None:
    """Refuse a file that lacks a tensor, has one of another shape, or one that is not GPT-2's."""
    expected = _sizes(shape)
    for name, size in expected.items():
        held = tensors.entries[names[name]].shape if name in names else None
        if held != size:
            found = "is missing" if held is None else f"has shape {held}"
            raise MissingDataError(
                f"{tensors.path} does not hold GPT-2: {name} {found} and should have {size}."
            )
    if len(names) != len(tensors.entries):
        raise MissingDataError(f"{tensors.path} holds a tensor with and without {PREFIX!r}.")
    others = [name for name in names
              if name not in expected and name != TIED and not MASK.fullmatch(name)]  # fmt: skip
    if others:
        raise MissingDataError(
            f"{tensors.path} does not hold GPT-2: {others[0][:60]!r} is not part of it."
        )


def _sizes(shape: GptShape) -> dict[str, tuple[int, ...]]:
    """Return the shapes that tensors have in the file."""
    d = shape.width
    of_layers = {
        "ln_1": (d,), "attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d),
        "ln_2": (d,), "mlp.c_fc": (d, 4 * d), "mlp.c_proj": (4 * d, d),
    }  # fmt: skip
    sizes: dict[str, tuple[int, ...]] = {
        "wte.weight": (shape.vocabulary, d), "wpe.weight": (shape.context, d),
        "ln_f.weight": (d,), "ln_f.bias": (d,),
    }  # fmt: skip
    for i in range(shape.layers):
        for name, size in of_layers.items():
            sizes |= {f"h.{i}.{name}.weight": size, f"h.{i}.{name}.bias": size[-1:]}
    return sizes


def _modules(model: Gpt) -> dict[str, nn.Module]:
    """Return the modules under the names that they have in the file."""
    modules = {"wte": model.embedding, "wpe": model.positions, "ln_f": model.last}
    for i in range(len(model.layers) // 2):
        attention, mlp = model.layers[2 * i], model.layers[2 * i + 1]
        modules |= {
            f"h.{i}.ln_1": model.norms[2 * i],
            f"h.{i}.attn.c_attn": attention.projections,
            f"h.{i}.attn.c_proj": attention.out,
            f"h.{i}.ln_2": model.norms[2 * i + 1],
            f"h.{i}.mlp.c_fc": mlp.hidden,
            f"h.{i}.mlp.c_proj": mlp.out,
        }
    return modules
