"""The GPT and its training, against PyTorch's own attention and automatic differentiation."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessence as hs
from hessence.papers.experiments.shared.language_models import (
    Gpt,
    GptAttention,
    GptShape,
    enforce_sink,
    sink_attention,
    sink_for_attention,
)
from hessence.papers.experiments.shared.language_training import (
    Recipe,
    as_batches,
    mean_residual_norm,
    pretrain,
)

SHAPE = GptShape(vocabulary=11, context=7, width=12, heads=3, layers=2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gpt(attention=True):
    return Gpt(SHAPE, generator(), attention).double()


@pytest.fixture
def tokens():
    return torch.randint(11, (4, 7), generator=generator(1))


@pytest.mark.parametrize("strength", [0.0, 2.5, -1.0])
def test_attention_is_pytorchs_with_a_bias_on_the_first_token(strength):
    layer = gpt().layers[0]
    assert isinstance(layer, GptAttention)
    enforce_sink(layer, strength)
    x = torch.randn(2, 7, 12, dtype=torch.float64, generator=generator(2))
    q, k, v = (part.view(2, 7, 3, 4).transpose(1, 2) for part in layer.projections(x).chunk(3, -1))
    bias = torch.full((3, 7, 7), -math.inf, dtype=torch.float64).triu(1)
    bias[0, :, 0] += strength
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    expected = layer.out(expected.transpose(1, 2).reshape(2, 7, 12))
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("attention", [True, False])
def test_no_token_sees_a_later_one(tokens, attention):
    model = gpt(attention)
    other = tokens.clone()
    other[:, 4] = (other[:, 4] + 1) % 11
    before, after = model(tokens), model(other)
    torch.testing.assert_close(before[..., :4], after[..., :4])
    assert not torch.allclose(before[..., 4], after[..., 4])
    mixes = not torch.allclose(before[..., 5:], after[..., 5:])
    assert mixes == attention


def test_both_kinds_are_of_one_size():
    shape = GptShape(vocabulary=50_257, context=64, width=48, heads=12, layers=12)
    matrices = [
        sum(p.numel() for p in Gpt(shape, generator(), attention).parameters() if p.ndim > 1)
        for attention in (True, False)
    ]
    assert matrices[0] == matrices[1]
    with pytest.raises(ValueError, match="layers must be even"):
        Gpt(GptShape(11, 7, 12, 3, 3), generator(), attention=False)


def test_the_initial_weights_are_gpt2s_and_leave_global_state_alone():
    state = torch.get_rng_state()
    shape = GptShape(vocabulary=256, context=64, width=96, heads=4, layers=8)
    model = Gpt(shape, generator())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.layers[1].out.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)


def test_the_attention_to_the_first_token(tokens):
    model = gpt()
    x = model.embedding(tokens) + model.positions.weight
    shares = []
    for norm, layer in zip(model.norms, model.layers, strict=True):
        if isinstance(layer, GptAttention):
            q, k, _ = layer.projections(norm(x)).chunk(3, -1)
            for query in range(7):
                scores = (q[:, query, None, :4] * k[:, : query + 1, :4]).sum(-1) / 2
                shares.append(scores.softmax(-1)[:, 0].mean().item())
        x = x + layer(norm(x))
    assert sink_attention(model, tokens) == pytest.approx(np.mean(shares))
    sink = sink_for_attention(model, tokens, 0.81)
    assert float(model.layers[0].sink) == 0
    enforce_sink(model, sink)
    assert sink_attention(model, tokens) == pytest.approx(0.81, abs=1e-3)


def test_an_operator_keeps_its_sink(tokens):
    model = gpt()
    H = hs.hessian(model, (tokens, tokens), nn.CrossEntropyLoss())
    v = torch.randn(H.shape[0], dtype=torch.float64, generator=generator(3))
    before = H @ v
    enforce_sink(model, 3.0)
    after = hs.hessian(model, (tokens, tokens), nn.CrossEntropyLoss()) @ v
    torch.testing.assert_close(H @ v, before)
    assert not torch.allclose(after, before)


def test_the_residual_is_the_derivative_by_the_logits(tokens):
    model = gpt()
    targets = torch.randint(11, (4, 7), generator=generator(4))
    logits = model(tokens).detach().requires_grad_()
    F.cross_entropy(logits, targets, reduction="sum").backward()
    expected = logits.grad.norm(dim=1).mean().item()
    batches = as_batches((tokens.numpy(), targets.numpy()), 3, torch.device("cpu"))
    assert [len(x) for x, _ in batches] == [3, 1]
    assert mean_residual_norm(model, batches) == pytest.approx(expected)


def test_training_learns_and_does_not_depend_on_the_pieces():
    text = np.tile(np.arange(5), 40)
    ends = []
    for piece in (4, 3):
        model = gpt()
        recipe = Recipe(steps=30, batch=4, context=7, lr=0.01, warmup=5, piece=piece)
        seen = []
        for step in pretrain(model, text, recipe, np.random.default_rng(0), (0, 10, 30)):
            batches = as_batches((text[None, :7], text[None, 1:8]), 1, torch.device("cpu"))
            seen.append((step, mean_residual_norm(model, batches)))
        ends.append([p.detach() for p in model.parameters()])
        assert [step for step, _ in seen] == [0, 10, 30]
        assert seen[-1][1] < 0.5 * seen[0][1]
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other)
