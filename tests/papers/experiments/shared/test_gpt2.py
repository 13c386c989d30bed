"""GPT-2's weights: against PyTorch's own transformer layers, and files that are something else."""

import numpy as np
import pytest
import torch
from torch import nn

from hessence.papers.experiments.datasets import MissingDataError, gpt2_files, require_data
from hessence.papers.experiments.shared.gpt2 import load_gpt2
from tests.papers.experiments.shared.gpt2_files import random_weights, write_tensors


def by_pytorch(weights, tokens, heads):
    """Return the logits, by encoder layers that normalise first."""
    tensors = {name: torch.from_numpy(values) for name, values in weights.items()}
    width, length = tensors["wte.weight"].shape[1], tokens.shape[1]
    x = tensors["wte.weight"][tokens] + tensors["wpe.weight"][:length]
    mask = nn.Transformer.generate_square_subsequent_mask(length)
    layers = sum(name.endswith("ln_1.weight") for name in weights)
    for i in range(layers):
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, nn.GELU("tanh"), norm_first=True, batch_first=True
        )
        theirs = {"norm1": "ln_1", "norm2": "ln_2", "linear1": "mlp.c_fc", "linear2": "mlp.c_proj",
                  "self_attn.out_proj": "attn.c_proj"}  # fmt: skip
        state = {"self_attn.in_proj_weight": tensors[f"h.{i}.attn.c_attn.weight"].T,
                 "self_attn.in_proj_bias": tensors[f"h.{i}.attn.c_attn.bias"]}  # fmt: skip
        for ours, name in theirs.items():
            stored = tensors[f"h.{i}.{name}.weight"]
            state[f"{ours}.weight"] = stored.T if stored.ndim == 2 else stored
            state[f"{ours}.bias"] = tensors[f"h.{i}.{name}.bias"]
        layer.load_state_dict(state)
        x = layer(x, src_mask=mask, is_causal=True)
    x = nn.functional.layer_norm(x, (width,), tensors["ln_f.weight"], tensors["ln_f.bias"])
    return x @ tensors["wte.weight"].T


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_logits_are_those_of_pytorchs_layers(tmp_path, prefix):
    weights = random_weights()
    held = {prefix + name: values for name, values in weights.items()}
    # What files of Hugging Face hold beside the parameters.
    held |= {"lm_head.weight": weights["wte.weight"],
             f"{prefix}h.0.attn.bias": np.ones((1, 1, 8, 8)),
             f"{prefix}h.0.attn.masked_bias": np.asarray(-1e4)}  # fmt: skip
    write_tensors(tmp_path / "m", held, kinds={f"{prefix}h.0.attn.bias": "BOOL"})
    model = load_gpt2(tmp_path / "m")
    tokens = torch.tensor([[3, 0, 10, 3, 7], [1, 1, 2, 9, 4]])
    with torch.no_grad():
        expected = by_pytorch(weights, tokens, heads=2)
        torch.testing.assert_close(model(tokens).transpose(1, 2), expected, rtol=1e-4, atol=1e-4)
    assert sum(p.numel() for p in model.parameters()) == sum(w.size for w in weights.values())


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_half_precision_is_widened(tmp_path, kind):
    weights = random_weights(layers=1)
    write_tensors(tmp_path / "m", weights, kinds=dict.fromkeys(weights, kind))
    found = load_gpt2(tmp_path / "m").embedding.weight
    rounded = torch.from_numpy(weights["wte.weight"]).to(
        {"F16": torch.float16, "BF16": torch.bfloat16}[kind]
    )
    assert torch.equal(found, rounded.float())
    assert not torch.equal(found, torch.from_numpy(weights["wte.weight"]))


def without(name):
    return lambda weights: weights.pop(name)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (without("wte.weight"), "wte.weight, wpe.weight and h.0.ln_1.weight must be there"),
        (without("h.0.ln_1.weight"), "wte.weight, wpe.weight and h.0.ln_1.weight must be there"),
        (without("h.0.mlp.c_fc.bias"), "h.0.mlp.c_fc.bias is missing and should have (512,)"),
        (lambda w: w.update({"h.0.attn.c_attn.weight": np.ones((384, 128))}),
         "h.0.attn.c_attn.weight has shape (384, 128) and should have (128, 384)"),
        (lambda w: w.update({"h.7.ln_1.weight": np.ones(128)}), "h.1.ln_1.weight is missing"),
        (lambda w: w.update({"h.0.attn.c_query.weight": np.ones(128)}), "is not part of it"),
        (lambda w: w.update({"transformer.ln_f.bias": np.ones(128)}), "with and without"),
        (lambda w: w.update({"lm_head.weight": w["wte.weight"] + 1}), "other than wte.weight"),
        (lambda w: w.update({"wte.weight": np.ones((5, 96))}), "width 96 is no multiple of 64"),
        (lambda w: w.update({"ln_f.bias": np.full(128, np.nan)}), "ln_f.bias with NaN"),
        (lambda w: w.update({"wte.weight": np.ones((0, 128))}), "as matrices"),
    ],
)  # fmt: skip
def test_other_files_are_one_sentence(tmp_path, change, sentence):
    weights = random_weights(layers=1)
    change(weights)
    write_tensors(tmp_path / "m", weights)
    with pytest.raises(MissingDataError) as caught:
        load_gpt2(tmp_path / "m")
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "m"))
    assert str(caught.value).count(". ") == 0


def test_where_the_files_go(tmp_path):
    with pytest.raises(MissingDataError) as caught:
        require_data(["gpt2"], tmp_path)
    assert str(caught.value) == (
        "gpt2 is missing: put model.safetensors, vocab.json or encoder.json and merges.txt or "
        f"vocab.bpe into {tmp_path / 'gpt2'}."
    )
    folder = tmp_path / "gpt2"
    folder.mkdir()
    for name in ("model.safetensors", "encoder.json"):
        (folder / name).touch()
    with pytest.raises(MissingDataError, match=r"put merges\.txt or vocab\.bpe into"):
        require_data(["gpt2"], tmp_path)
    (folder / "vocab.bpe").touch()
    require_data(["gpt2"], tmp_path)
    (folder / "vocab.json").touch()
    assert [path.name for path in gpt2_files(tmp_path)] == [
        "model.safetensors", "vocab.json", "vocab.bpe"]  # fmt: skip
