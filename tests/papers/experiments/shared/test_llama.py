"""LLaMA, against the arithmetic of llama2.c's program: one token at a time, complex rotations."""

import numpy as np
import pytest
import torch

from hessence.papers.experiments.shared.language_models import enforce_sink, sink_attention
from hessence.papers.experiments.shared.llama import Llama, LlamaShape, rotate

SHAPE = LlamaShape(
    width=16, hidden=20, layers=2, heads=4, kv_heads=2, vocabulary=13, context=9, tied=False
)


def random_llama(shape, seed=0):
    model = Llama(shape).double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.4, generator=generator)
    return model


def rms(x, gain):
    return x / np.sqrt(np.mean(x**2) + 1e-5) * gain


def turned(vector, place):
    """Rotate neighbouring pairs as complex numbers."""
    pairs = vector[0::2] + 1j * vector[1::2]
    pairs = pairs * np.exp(1j * place * 10_000.0 ** (-np.arange(0, len(vector), 2) / len(vector)))
    return np.stack([pairs.real, pairs.imag], axis=1).ravel()


def logits_by_tokens(weights, shape, tokens, sink):
    """Go through a sequence token by token, keeping keys and values."""
    size = shape.width // shape.heads
    keys = [[] for _ in range(shape.layers)]
    values = [[] for _ in range(shape.layers)]
    found = []
    for place, token in enumerate(tokens):
        x = weights["embedding.weight"][token]
        for i in range(shape.layers):
            own = {
                name.removeprefix(f"blocks.{i}.").removesuffix(".weight"): w
                for name, w in weights.items()
                if name.startswith(f"blocks.{i}.")
            }
            seen = rms(x, own["attention_norm"])
            q, k, v = (
                (own[f"attention.w{name}"] @ seen).reshape(-1, size) for name in ("q", "k", "v")
            )
            keys[i].append([turned(head, place) for head in k])
            values[i].append(v)
            heads = []
            for h in range(shape.heads):
                group = h // (shape.heads // shape.kv_heads)
                scores = np.array([turned(q[h], place) @ key[group] for key in keys[i]])
                scores = scores / np.sqrt(size)
                scores[0] += sink if h == 0 else 0.0
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                heads.append(sum(s * v[group] for s, v in zip(shares, values[i], strict=True)))
            x = x + own["attention.wo"] @ np.concatenate(heads)
            seen = rms(x, own["feed_norm"])
            gate = own["feed.w1"] @ seen
            x = x + own["feed.w2"] @ (gate / (1 + np.exp(-gate)) * (own["feed.w3"] @ seen))
        out = weights.get("classifier.weight", weights["embedding.weight"])
        found.append(out @ rms(x, weights["last.weight"]))
    return np.array(found)


@pytest.mark.parametrize("sink", [0.0, 2.0])
@pytest.mark.parametrize("tied", [True, False])
def test_it_computes_what_llama2c_computes(sink, tied):
    shape = LlamaShape(**{**vars(SHAPE), "tied": tied})
    model = random_llama(shape)
    enforce_sink(model, sink)
    tokens = [1, 5, 12, 0, 5, 5, 3]
    weights = {name: p.detach().numpy() for name, p in model.named_parameters()}
    expected = logits_by_tokens(weights, shape, tokens, sink)
    found = model(torch.tensor([tokens, tokens]))
    assert found.shape == (2, 13, 7)
    for row in found:
        np.testing.assert_allclose(row.detach().numpy().T, expected, atol=1e-12)


def test_scores_depend_on_distance_alone(rng):
    q, k = torch.from_numpy(rng.normal(size=(2, 1, 8))).expand(2, 6, 8)
    scores = rotate(q) @ rotate(k).T
    for offset in range(-5, 6):
        along = scores.diagonal(offset)
        torch.testing.assert_close(along, along[:1].expand_as(along))
    torch.testing.assert_close(rotate(q).norm(dim=-1), q.norm(dim=-1))


def test_sinks_and_sizes():
    model = random_llama(SHAPE)
    assert SHAPE.parameters == sum(p.numel() for p in model.parameters())
    enforce_sink(model, 100.0)
    assert sink_attention(model, torch.tensor([[1, 2, 3]])) == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"heads of kv_heads"):
        LlamaShape(**{**vars(SHAPE), "kv_heads": 3})
    with pytest.raises(ValueError, match="at least 1"):
        LlamaShape(**{**vars(SHAPE), "layers": 0})
