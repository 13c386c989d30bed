"""Writes GPT-2's files: weights in the safetensors format, and a vocabulary of byte pairs."""

import json
import struct

import numpy as np
import torch

START = "<|endoftext|>"


def random_weights(vocabulary=11, context=8, width=128, layers=2, seed=0):
    """Return weights in Hugging Face's layout: matrices of layers are inputs × outputs."""
    rng = np.random.default_rng(seed)
    sizes = {"wte.weight": (vocabulary, width), "wpe.weight": (context, width)}
    of_layers = {"ln_1": (width,), "attn.c_attn": (width, 3 * width), "ln_2": (width,),
                 "attn.c_proj": (width, width), "mlp.c_fc": (width, 4 * width),
                 "mlp.c_proj": (4 * width, width)}  # fmt: skip
    for i in range(layers):
        for name, size in of_layers.items():
            sizes |= {f"h.{i}.{name}.weight": size, f"h.{i}.{name}.bias": size[-1:]}
    sizes |= {"ln_f.weight": (width,), "ln_f.bias": (width,)}
    return {name: (0.2 * rng.normal(size=size)).astype(np.float32) for name, size in sizes.items()}


def write_tensors(path, tensors, kinds=None, change=lambda header: None, tail=b""):
    """Write tensors one after another; `change` may falsify the header before it is written."""
    header, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, values in tensors.items():
        kind = (kinds or {}).get(name, "F32")
        content = in_bytes(values, kind)
        header[name] = {"dtype": kind, "shape": list(np.shape(values)),
                        "data_offsets": [at, at + len(content)]}  # fmt: skip
        at += len(content)
        parts.append(content)
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts) + tail)


def in_bytes(values, kind):
    """Return an array's bytes in a type that only PyTorch has all of."""
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
             "I64": torch.int64, "BOOL": torch.bool}  # fmt: skip
    tensor = torch.as_tensor(values).to(types[kind])
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def spelt(data):
    """Return the characters that stand for bytes in the files."""
    printable = [c for c in map(chr, range(256)) if c.isprintable() and c not in " "]
    others = [b for b in range(256) if chr(b) not in printable]
    return "".join(chr(b) if chr(b) in printable else chr(256 + others.index(b)) for b in data)


def write_vocabulary(folder, merges, names=("vocab.json", "merges.txt")):
    """Write the tokens of all bytes, of the merges, and the start; return how many."""
    tokens = [*(spelt(bytes([b])) for b in range(256)), *("".join(m) for m in merges), START]
    numbers = {token: i for i, token in enumerate(tokens)}
    (folder / names[0]).write_text(json.dumps(numbers), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges), ""]
    (folder / names[1]).write_text("\n".join(lines), encoding="utf-8")
    return len(tokens)
