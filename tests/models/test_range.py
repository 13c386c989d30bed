"""Flat directions, and spectra on the range of a Hessian, against dense matrices."""

from itertools import pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn

import hessence as hs
from hessence.models import _range
from hessence.models._range import HessianRange
from tests.models.layered import CASES, case
from tests.models.market import MODELS, Problem, numbers, problem
from tests.models.oracle import assert_same, dense_hessian

EVERYTHING = {**dict.fromkeys(MODELS, problem), **dict.fromkeys(CASES, case)}

FLAT = {
    "embedding": 2, "unused_parameters": 16, "twice": 6, "one_sample": 36, "unused_inputs": 15,
    "all_zero": 16, "zero_residual": 32, "flat_inputs": 24, "conv_wide": 232, "words": 60,
    "aside": 6,
}  # fmt: skip
"""How many directions the theorem finds; none in the others."""


def dense(made):
    return dense_hessian(made.value, made.model.parameters())


def assert_whole(spectrum, matrix):
    expected = torch.linalg.eigvalsh(matrix).flip(0)
    assert (spectrum.exact, spectrum.method, len(spectrum)) == (True, "range", len(matrix))
    assert (spectrum.eigenvalues - expected).abs().max() <= 1e-13 * expected.abs().max()


def network(*widths, bias=True, act=nn.Tanh):
    layers = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), act()]
    return nn.Sequential(*layers[:-1]).double()


@pytest.mark.parametrize("name", EVERYTHING)
def test_what_is_flat_is_flat_and_the_rest_is_orthogonal_to_it(name):
    made = EVERYTHING[name](name)
    matrix = dense(made)
    found = hs.flat_directions(made.model, made.data, made.loss)
    assert (found.total, found.size) == (FLAT.get(name, 0), len(matrix))
    H = hs.hessian(made.model, made.data, made.loss)
    coordinates = HessianRange(H).coordinates()
    assert coordinates.flat == found.total
    eye = torch.eye(len(matrix), dtype=torch.float64)
    flat = coordinates.embed_flat(eye[: found.total, : found.total])
    seen = coordinates.embed(eye[found.total :, found.total :])
    both = torch.cat([seen, flat], 1)
    assert_same(both.mT @ both, eye, 2e-14)
    assert_same(coordinates.project(both), eye[: coordinates.size], 2e-14)
    norm = torch.linalg.matrix_norm(matrix, 2)
    assert torch.linalg.matrix_norm(matrix @ flat, 2) <= 1e-13 * norm if found.total else True


@pytest.mark.parametrize("name", FLAT)
def test_the_whole_spectrum_on_the_range(name):
    made = EVERYTHING[name](name)
    H = hs.hessian(made.model, made.data, made.loss)
    spectrum = _range.range_spectrum(_range.on_range(H, H.shape[0] - 1))
    assert_whole(spectrum, dense(made))
    assert spectrum.verify(H).worst < 1e-13
    assert sum(s.multiplicity for s in spectrum["flat"]) == FLAT[name]


@pytest.mark.parametrize(
    ("widths", "act", "samples", "classes", "size"),
    [((6, 20, 15, 3), nn.Tanh, 3, True, 189), ((10, 30, 25, 20, 2), nn.GELU, 2, False, 292)],
)
def test_networks_on_few_samples_are_solved_completely(widths, act, samples, classes, size, seeded):
    model, x = network(*widths, bias=False, act=act), numbers(samples, widths[0])
    y, loss = numbers(samples, widths[-1]), nn.MSELoss()
    if classes:
        y, loss = y.argmax(1), nn.CrossEntropyLoss()
    spectrum = hs.spectrum(model, (x, y), loss)
    assert_whole(spectrum, hs.hessian(model, (x, y), loss).dense())
    assert len(spectrum["range"]) == size
    assert "what the layer takes" in spectrum.reason


@given(
    seed=st.integers(0, 2**32 - 1),
    widths=st.lists(st.integers(1, 7), min_size=2, max_size=4),
    samples=st.integers(1, 4),
    bias=st.booleans(),
    unit=st.sampled_from([1e-6, 1.0, 1e6]),
    act=st.sampled_from([nn.Tanh, nn.GELU, nn.Softplus]),
    special=st.sampled_from(["", "equal samples", "zero layer", "zero residual", "idle input"]),
)
def test_no_eigenvalue_is_lost(seed, widths, samples, bias, unit, act, special):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = network(3, *widths, bias=bias, act=act)
        x, y = numbers(samples, 3), numbers(samples, widths[-1])
    model[0].weight.data[:, 1] /= unit
    x[:, 1] *= unit
    if special == "equal samples":
        x[:] = x[:1]
    elif special == "zero layer":
        nn.init.zeros_(model[-1].weight)
    elif special == "zero residual":
        y = model(x).detach()
    elif special == "idle input":
        x[:, 2] = 0
    made = Problem(model, x, y, nn.MSELoss())
    matrix, H = dense(made), hs.hessian(model, (x, y), nn.MSELoss())
    coordinates = HessianRange(H).coordinates()
    assert hs.flat_directions(model, (x, y), nn.MSELoss()).total == coordinates.flat
    flat = coordinates.embed_flat(torch.eye(coordinates.flat, dtype=torch.float64))
    norm = torch.linalg.matrix_norm(matrix, 2)
    assert (matrix @ flat).norm() <= 1e-13 * norm
    # A first layer has out · (in − r_h) flat directions, whatever the rest does.
    extra = torch.ones(samples, 1, dtype=torch.float64)
    inputs = torch.cat([x / x.abs().amax(0).clamp(min=1e-300), extra], 1) if bias else x
    rank = int(torch.linalg.matrix_rank(inputs / inputs.norm(dim=1, keepdim=True)))
    if len(widths) > 1 or special != "zero residual":
        assert coordinates.flat >= widths[0] * (3 + bias - rank)


def test_inputs_that_are_always_zero_have_a_direction_for_each_unit():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, x = network(12, 9, 4), numbers(40, 12)
    x[:, [2, 3, 7]] = 0
    found = hs.flat_directions(model, (x, numbers(40, 4)))
    assert found.layers == (("0", 117, 10, 0, 27), ("2", 40, 10, 4, 0))
    assert found.total == 27


def test_words_that_do_not_occur(seeded):
    model = nn.Sequential(nn.Embedding(50, 6, padding_idx=0), nn.Flatten(), nn.Linear(18, 2))
    x = torch.randint(10, (8, 3))
    x[0] = 0
    made = Problem(model.double(), x, torch.randint(2, (8,)), nn.CrossEntropyLoss())
    found = hs.flat_directions(model, made.data, made.loss)
    assert found.layers[0].flat == 6 * (50 - len(set(x.ravel().tolist()) - {0}))
    assert_whole(hs.spectrum(model, made.data, made.loss), dense(made))


def test_a_large_range_is_searched_inside(monkeypatch, seeded):
    monkeypatch.setattr(_range, "LARGEST", 100)
    model = network(10, 40, 40, 2)
    data = numbers(6, 10), numbers(6, 2)
    found = hs.spectrum(model, data, nn.MSELoss(), k=4)
    matrix = hs.hessian(model, data, nn.MSELoss()).dense()
    expected = torch.linalg.eigvalsh(matrix).flip(0)
    assert (found.exact, found.size) == (False, len(matrix))
    assert (found.eigenvalues - expected[:4]).abs().max() <= 1e-10 * expected[0]
    assert found.verify(hs.hessian(model, data, nn.MSELoss())).worst < 1e-6
    total = hs.flat_directions(model, data, nn.MSELoss()).total
    assert [(s.label, s.multiplicity) for s in found.known.spaces] == [("flat", total)]
    assert abs(float(found.trace) - float(expected.sum())) <= 4 * float(found.trace_stderr)


def test_batches_closures_and_choices_of_parameters(seeded):
    model = network(6, 12, 10, 2)
    x, y = numbers(4, 6), numbers(4, 2)
    whole = hs.flat_directions(model, (x, y), nn.MSELoss())
    cut = hs.flat_directions(model, list(zip(x.split(1), y.split(1), strict=True)), nn.MSELoss())
    assert cut == whole
    closure = hs.flat_directions(model, (x, y), lambda m, b: (m(b[0]) - b[1]).square().mean(),
                                 closure=True)  # fmt: skip
    assert closure == whole
    # A penalty of the weights sees all of them.
    decayed = hs.flat_directions(
        model, (x, y), lambda m, b: m(b[0]).sum() + m[2].weight.square().sum(), closure=True
    )
    assert decayed.layers[0] == whole.layers[0]
    assert [layer.flat for layer in decayed.layers[1:3]] == [0, 0]
    # Without the first layer, what the second takes does not move.
    later = hs.flat_directions(model, (x, y), nn.MSELoss(), params=["2", "4"])
    assert later.layers[0] == ("2", 130, 4, 0, 90)
    alone = hs.flat_directions(model, (x, y), nn.MSELoss(), params=["2.weight", "4"])
    assert alone.layers[0] == ("2", 120, 4, 0, 80)
    H = hs.hessian(model, (x, y), nn.MSELoss(), params=["2.weight", "4"])
    coordinates = HessianRange(H).coordinates()
    flat = coordinates.embed_flat(torch.eye(coordinates.flat, dtype=torch.float64))
    assert (H @ flat).norm() <= 1e-13 * torch.linalg.matrix_norm(H.dense(), 2)


def test_what_products_do_not_confirm_is_not_shown(monkeypatch, seeded):
    monkeypatch.setattr(_range, "made", lambda call, samples, gradient: 0 * gradient[None, None])
    model, data = network(6, 12, 10, 2), (numbers(2, 6), numbers(2, 2))
    found = hs.spectrum(model, data, nn.MSELoss(), k=3)
    assert not found.exact
    assert found.known is None


def test_files_and_tables(tmp_path, seeded):
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1)).double()
    found = hs.flat_directions(model, (numbers(2, 4), numbers(2, 1)))
    assert repr(found).splitlines() == [
        "24 of 65 eigenvalues are exactly zero",
        "  layer     parameters  r_h  r_delta  flat",
        "  0                 40    2        0    24",
        "  1.weight           8    –        –     0",
        "  1.bias             8    –        –     0",
        "  3                  9    2        1     0",
    ]
    found.save(tmp_path / "flat.json")
    assert hs.load(tmp_path / "flat.json") == found
    data = found.to_dict()
    data["layers"][0]["flat"] = "24"
    with pytest.raises(ValueError, match="flat is not what it should be"):
        hs.FlatDirections.from_dict(data)


def test_many_samples_are_not_looked_at_in_vain(monkeypatch, seeded):
    model, data = network(4, 6, 2), (numbers(50, 4), numbers(50, 2))
    read = []
    own = HessianRange._read
    monkeypatch.setattr(HessianRange, "_read", lambda s, chunk: (read.append(1), own(s, chunk)))
    H = hs.hessian(model, data, nn.MSELoss(), memory=1)
    with pytest.raises(_range.NoRange, match="more than 22 dimensions, of 44"):
        HessianRange(H, 22)
    assert len(read) == 1


def test_numbers_that_are_not_finite(seeded):
    model, data = network(6, 12, 2), (numbers(2, 6) * float("nan"), numbers(2, 2))
    with pytest.raises(ValueError, match="the loss is not finite"):
        hs.flat_directions(model, data, nn.MSELoss())
