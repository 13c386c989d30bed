"""Experiments with language models: checkpoints, the paper's preset, and one clear sentence."""

import csv
import dataclasses
import json
from functools import partial

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh, svds

from hessence.cli.main import main
from hessence.papers.experiments.catalogue import all_experiments, find_experiment
from hessence.papers.experiments.figures import (
    gauss_newton_gap,
    gauss_newton_solvable,
    language_model_sinks,
)
from hessence.papers.experiments.listing import experiment_table
from hessence.papers.experiments.shared.language_models import Gpt, GptShape
from hessence.papers.experiments.shared.language_training import Recipe, pretrain
from hessence.papers.experiments.shared.llama import LlamaShape
from hessence.papers.experiments.shared.pretrained import load_pretrained
from hessence.papers.experiments.shared.texts import load_tokens, windows
from tests.papers.experiments.shared.gpt2_files import (
    random_weights,
    write_tensors,
    write_vocabulary,
)
from tests.papers.experiments.shared.llama2c_files import write_checkpoint, write_tokenizer

SMALL = ("layers=2", "width=4", "heads=2", "context=4", "steps=2", "batch=4", "piece=3",
         "sequences=2", "draws=1", "every=1")  # fmt: skip


def reproduce(name, preset, out, *changes):
    sets = [word for change in changes for word in ("--set", change)]
    return main(["reproduce", name, "--preset", preset, "--out", str(out), *sets])


def test_the_gap_is_that_of_dense_matrices():
    settings = dataclasses.replace(gauss_newton_gap.EXPERIMENT.presets["tiny"], sequences=1)
    record = gauss_newton_gap.run(
        settings, {"draw": 0, "attention": True}, np.random.default_rng(1)
    )
    rng = np.random.default_rng(1)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
    model = Gpt(GptShape(256, 8, 8, 2, 2), generator)
    tokens = load_tokens("stdlib")
    x, y = map(torch.from_numpy, windows(tokens, settings.sequences, 8, rng))
    recipe = Recipe(settings.steps, 4, 8, settings.lr, settings.warmup, settings.piece)
    for _ in pretrain(model, tokens, recipe, rng, ()):
        pass
    model.double()
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    theta = torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    def logits(vector):
        parts = vector.split([shape.numel() for shape in shapes])
        weights = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        return torch.func.functional_call(model, weights, (x,))

    p = logits(theta).softmax(dim=1).detach().transpose(1, 2).reshape(-1, 256)
    J = torch.func.jacrev(lambda v: logits(v).transpose(1, 2).reshape(-1, 256))(theta)
    bent = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    # The root of the loss' Hessian keeps the matrix small: one side for each logit.
    values, vectors = torch.linalg.eigh(bent)
    root = vectors * values.clamp(min=0).sqrt()[:, None, :]
    half = torch.einsum("ncr,ncp->nrp", root, J).flatten(0, 1)
    (largest,) = svds(half.numpy(), k=1, return_singular_vectors=False)
    assert record["ggn"][-1] == pytest.approx(largest**2 / len(p), rel=1e-4)
    theta.requires_grad_()
    loss = torch.nn.functional.cross_entropy(logits(theta), y)
    (slope,) = torch.autograd.grad(loss, theta, create_graph=True)

    def multiply(vector):
        along = torch.from_numpy(vector.ravel())
        return torch.autograd.grad(slope, theta, along, retain_graph=True)[0].numpy()

    H = LinearOperator((len(theta),) * 2, matvec=multiply, dtype=np.float64)
    (top,) = eigsh(H, k=1, which="LA", return_eigenvectors=False)
    assert record["sharpness"][-1] == pytest.approx(top, rel=1e-4)
    assert record["error"][-1] == pytest.approx(1 - largest**2 / len(p) / top, rel=1e-3)
    residual = (p - torch.nn.functional.one_hot(y.flatten(), 256)).norm(dim=1).mean()
    assert record["residual"][-1] == pytest.approx(residual.item(), rel=1e-5)


def curves(errors):
    """Return records of models whose error is constant, by seed and model."""
    steps = {"step": [0, 1, 2], "residual": [1.0, 0.9, 0.5], "loss": [3.0, 2.0, 1.0]}
    return [{**steps, "draw": seed, "attention": attention, "uncertain": [0.0], "parameters": 1,
             "error": [1.0, error, error]}
            for seed, pair in enumerate(errors)
            for attention, error in zip((True, False), pair, strict=True)]  # fmt: skip


@pytest.mark.parametrize(
    ("errors", "holds"),
    [
        ([(0.2, 0.1), (0.3, 0.1), (0.2, 0.15)], True),
        ([(0.1, 0.2), (0.1, 0.3), (0.15, 0.2)], False),
        # The mean is larger with attention, by one seed alone.
        ([(0.1, 0.15), (0.1, 0.2), (0.9, 0.1)], None),
        ([(0.2, 0.1)], None),
    ],
)
def test_a_verdict_that_seeds_do_not_share_is_left_open(errors, holds):
    by_residual, by_loss, start = gauss_newton_gap.findings(None, curves(errors))
    assert by_residual.holds is by_loss.holds is holds
    assert start.holds
    assert {by_residual.id, by_loss.id} == {"000-ggn-attention"}


@pytest.mark.parametrize("name", ["attention", "linear", "relu"])
def test_errors_of_solvable_models_are_those_of_dense_matrices(name):
    settings = gauss_newton_solvable.EXPERIMENT.presets["tiny"]
    task = {"scale": 1.0, "network": name}
    found = gauss_newton_solvable.run(settings, task, np.random.default_rng(2))["errors"]
    assert found.shape == (2, 4)

    def outputs(theta, x):
        if name == "attention":
            q, k = theta[1:4], theta[4:]
            return theta[0] * (torch.outer(x, x) * (q @ k) / 3**0.5).softmax(dim=1) @ x
        hidden = torch.outer(x, theta[3:])
        return (hidden if name == "linear" else hidden.relu()) @ theta[:3]

    drawn = gauss_newton_solvable.samples(settings, task, np.random.default_rng(2))
    for i, (net, x, direction) in enumerate(drawn):
        weights = (net.w_v, net.w_q, net.w_k) if name == "attention" else (net.w, net.v)
        theta = torch.from_numpy(np.concatenate([np.ravel(w) for w in weights]))
        x, direction = torch.as_tensor(x), torch.as_tensor(direction)
        J = torch.autograd.functional.jacobian(partial(outputs, x=x), theta)
        ggn = torch.linalg.eigvalsh(J.T @ J / len(x))[-1]
        for row, size in zip(found, settings.residuals, strict=True):
            y = outputs(theta, x) - size * direction

            def loss(theta, x=x, y=y):
                return (outputs(theta, x) - y).square().mean() / 2

            top = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, theta))[-1]
            assert row[i] == pytest.approx(float(abs(top - ggn) / top), rel=1e-9)


def test_looks_are_the_papers():
    paper = gauss_newton_gap.EXPERIMENT.presets["paper"]
    steps = gauss_newton_gap.looks(paper)
    assert steps[:3] == [0, 10, 20]
    assert steps[9:13] == [90, 100, 200, 300]
    assert steps[-2:] == [9000, 10_000]
    shorter = dataclasses.replace(paper, steps=250)
    assert gauss_newton_gap.looks(shorter)[-3:] == [100, 200, 250]


def test_the_papers_preset_runs_when_it_is_made_small(tmp_path, monkeypatch):
    monkeypatch.setenv("HESSENCE_DATA", str(tmp_path))
    (tmp_path / "openwebtext").mkdir()
    tokens = np.random.default_rng(0).integers(50_257, size=1000).astype("<u2")
    tokens.tofile(tmp_path / "openwebtext" / "train.bin")
    assert reproduce("gauss-newton-gap", "paper", tmp_path / "out", *SMALL) == 0


def test_what_needs_a_gpu_is_told():
    text = experiment_table(list(all_experiments().values())).to_text()
    (line,) = (row for row in text.splitlines() if row.startswith("gauss-newton-gap"))
    assert "h on a GPU" in line
    with pytest.raises(ValueError, match="gpu must name presets, got huge"):
        dataclasses.replace(find_experiment("gauss-newton-gap"), gpu=("huge",))


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("gauss-newton-gap", "text={}/none.txt", "text must be stdlib, openwebtext or the path"),
        ("gauss-newton-gap", "text={}/short.txt", "text must hold at least 80 bytes"),
        ("gauss-newton-gap", "layers=3", "layers must be even"),
        ("language-model-sinks", "text=stories", "text must be stdlib, openwebtext or a file for"),
        ("language-model-sinks", "checkpoint=a.bin", "text must be stories or a file for a.bin"),
        ("gauss-newton-gap", "text=openwebtext", "vocabulary must be at least 50257"),
        ("language-model-sinks", "checkpoint=stories15M", "checkpoint must be gpt2 or the name"),
        ("language-model-sinks", "attention=1", "attention must be between 0 and 1"),
        ("language-model-sinks", "lr=nan", "lr must be positive"),
        ("gauss-newton-gap", "lr=nan", "lr must be positive"),
    ],
)
def test_one_sentence_tells_what_is_wrong(tmp_path, capsys, name, change, sentence):
    (tmp_path / "short.txt").write_text("short", encoding="utf-8")
    assert reproduce(name, "tiny", tmp_path / "out", change.format(tmp_path)) != 0
    told = capsys.readouterr().err
    assert sentence in told
    assert len(told.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"abc", "train.bin must hold tokens of two bytes each, and holds 3 bytes; see "),
        (b"\xff\xff" * 200, "text must hold tokens of GPT-2, below 50257, and holds 65535, as "),
    ],
)
def test_what_is_wrong_in_a_file_is_told_without_the_name_of_a_class(
    tmp_path, capsys, monkeypatch, content, sentence
):
    monkeypatch.setenv("HESSENCE_DATA", str(tmp_path))
    (tmp_path / "openwebtext").mkdir()
    (tmp_path / "openwebtext" / "train.bin").write_bytes(content)
    assert reproduce("language-model-sinks", "tiny", tmp_path / "out", "text=openwebtext") == 1
    told = capsys.readouterr().err
    assert "1 of 1 task failed, the first, {'draw': 0}: " in told
    assert sentence in told
    assert "Error" not in told
    assert ".;" not in told
    assert told.endswith("failures.txt.\n")


def test_a_checkpoint_that_is_missing_is_told_first(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HESSENCE_DATA", raising=False)
    assert reproduce("language-model-sinks", "paper", tmp_path / "out") != 0
    told = capsys.readouterr().err
    assert "gpt2 is missing: put model.safetensors, vocab.json or encoder.json and" in told
    assert "HESSENCE_DATA" in told
    stories = "checkpoint=stories15M.bin"
    assert reproduce("language-model-sinks", "paper", tmp_path / "out", stories) != 0
    told = capsys.readouterr().err
    assert "stories15M.bin is missing: put stories15M.bin and tokenizer.bin into the folder" in told


def test_sinks_in_a_checkpoint(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HESSENCE_DATA", str(tmp_path))
    folder = tmp_path / "llama2c"
    folder.mkdir()
    count = write_tokenizer(folder / "tokenizer.bin", (b" ", b"t", b"h", b"e", b"th", b"the"))
    write_checkpoint(folder / "small.bin", LlamaShape(8, 8, 1, 2, 1, count, 16))
    small = ("checkpoint=small.bin", "context=8", "sequences=2", "probes=2", "products=8",
             "outliers=1", "attention=0.9")  # fmt: skip
    assert reproduce("language-model-sinks", "paper", tmp_path / "out", *small) == 0
    (folder,) = (tmp_path / "out").glob("language-model-sinks*")
    with (folder / "records.csv").open(encoding="utf-8") as rows:
        (record,) = csv.DictReader(rows)
    shares = json.loads(record["attention"])
    assert shares[-1] == pytest.approx(0.9, abs=1e-3)
    np.testing.assert_allclose(np.diff(shares, n=2), 0, atol=2e-3)
    too_little = (*small, "attention=0.01")
    assert reproduce("language-model-sinks", "paper", tmp_path / "out", *too_little) != 0
    assert "attention must be above" in capsys.readouterr().err
    too_many = (*small, "sequences=5")
    assert reproduce("language-model-sinks", "paper", tmp_path / "out", *too_many) != 0
    assert "text must hold 5 stories of 9 tokens or more" in capsys.readouterr().err


def test_sinks_in_gpt2(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HESSENCE_DATA", str(tmp_path))
    folder = tmp_path / "gpt2"
    folder.mkdir()
    count = write_vocabulary(folder, (("t", "h"), ("th", "e"), ("Ġ", "the")))
    write_tensors(folder / "model.safetensors", random_weights(count, 16, 64, layers=1))
    small = ("context=4", "sequences=2", "probes=2", "products=4", "outliers=1", "attention=0.9",
             "levels=2")  # fmt: skip
    assert reproduce("language-model-sinks", "paper", tmp_path / "out", *small) == 0
    assert "holds" in capsys.readouterr().out
    (tmp_path / "openwebtext").mkdir()
    tokens = np.arange(100) % count
    tokens.astype("<u2").tofile(tmp_path / "openwebtext" / "train.bin")
    _, x, y = load_pretrained("gpt2", "openwebtext", 3, 4, np.random.default_rng(0))
    assert ((y - x) % count == 1).all()
    assert reproduce("language-model-sinks", "paper", tmp_path / "out", *small, "context=17") != 0
    assert "context must be at most 16 for gpt2, got 17" in capsys.readouterr().err


def test_stories_begin_with_the_start(tmp_path, monkeypatch):
    monkeypatch.setenv("HESSENCE_DATA", str(tmp_path))
    (tmp_path / "gpt2").mkdir()
    count = write_vocabulary(tmp_path / "gpt2", (("O", "n"),))
    write_tensors(tmp_path / "gpt2" / "model.safetensors", random_weights(count, layers=1))
    (tmp_path / "stories.txt").write_text("One\n\nOnce upon", encoding="utf-8")
    text = str(tmp_path / "stories.txt")
    _, x, y = load_pretrained("gpt2", text, 1, 5, np.random.default_rng(0))
    assert x.tolist() == [[count - 1, 256, *b"ce "]]
    assert y.tolist() == [[256, *b"ce u"]]


def test_densities_and_eigenvalues_of_a_record_agree():
    settings = language_model_sinks.EXPERIMENT.presets["tiny"]
    record = language_model_sinks.run(settings, {"draw": 0}, np.random.default_rng(0))
    for values, ends, outliers in zip(
        record["values"], record["ends"], record["outliers"], strict=True
    ):
        assert np.trapezoid(values, record["grid"]) == pytest.approx(1, abs=1e-3)
        assert ends[1] <= outliers[0] * (1 + 1e-3)
        assert ends[1] == pytest.approx(outliers[0], rel=0.2)
