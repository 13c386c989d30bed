"""Writes files of llama2.c: a checkpoint of random weights, and a tokenizer."""

import struct

import numpy as np

BYTE_PIECES = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(bytes([i]) for i in range(256))]


def write_checkpoint(path, shape, seed=0):
    """Write the weights, each kind for all layers at once, and return them by name."""
    rng = np.random.default_rng(seed)
    d, hidden, layers = shape.width, shape.hidden, shape.layers
    shared = shape.kv_heads * d // shape.heads
    sizes = {
        "embedding": (shape.vocabulary, d),
        "rms_att": (layers, d),
        "wq": (layers, d, d),
        "wk": (layers, shared, d),
        "wv": (layers, shared, d),
        "wo": (layers, d, d),
        "rms_ffn": (layers, d),
        "w1": (layers, hidden, d),
        "w2": (layers, d, hidden),
        "w3": (layers, hidden, d),
        "rms_final": (d,),
        "cos": (shape.context, d // shape.heads // 2),
        "sin": (shape.context, d // shape.heads // 2),
    }
    if not shape.tied:
        sizes["classifier"] = (shape.vocabulary, d)
    weights = {k: (0.4 * rng.normal(size=v)).astype(np.float32) for k, v in sizes.items()}
    vocabulary = shape.vocabulary if shape.tied else -shape.vocabulary
    header = (d, hidden, layers, shape.heads, shape.kv_heads, vocabulary, shape.context)
    content = struct.pack("<7i", *header) + b"".join(w.tobytes() for w in weights.values())
    path.write_bytes(content)
    return weights


def write_tokenizer(path, words):
    """Write the pieces of all bytes, then words with falling scores; return how many."""
    pieces = [*BYTE_PIECES, *words]
    content = struct.pack("<i", max(map(len, pieces)))
    for i, piece in enumerate(pieces):
        score = -float(i - len(BYTE_PIECES)) if i >= len(BYTE_PIECES) else 0.0
        content += struct.pack("<fi", score, len(piece)) + piece
    path.write_bytes(content)
    return len(pieces)
