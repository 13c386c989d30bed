"""Which parameters: by pattern, by tensor, from elsewhere; blocks, and vectors by name."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessence as hs
from hessence.models._parameters import matching
from tests.models.market import Gpt, numbers, problem
from tests.models.oracle import assert_same, dense_hessian


@pytest.fixture
def gpt():
    with torch.random.fork_rng():
        torch.manual_seed(6)
        model = Gpt(width=2, heads=1, depth=2).double()
        tokens = torch.randint(5, (4, 5))
    return model, (tokens[:, :-1], tokens[:, 1:]), nn.CrossEntropyLoss()


def places(model, names):
    """Return where some parameters are in the flat vector of all."""
    found, start = [], 0
    for name, parameter in model.named_parameters():
        if name in names:
            found += range(start, start + parameter.numel())
        start += parameter.numel()
    return torch.tensor(found)


PATTERNS = {
    "blocks.*.attn.*": {f"blocks.{i}.attn.{n}.{w}" for i in (0, 1) for n in ("qkv", "out")
                        for w in ("weight", "bias")},
    "blocks.1.mlp": {f"blocks.1.mlp.{i}.{w}" for i in (0, 2) for w in ("weight", "bias")},
    "*.ln?.bias": {f"blocks.{i}.ln{k}.bias" for i in (0, 1) for k in (1, 2)},
    "positions": {"positions"},
}  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_choose_blocks_of_the_whole(gpt, pattern):
    model, data, loss = gpt
    H = hs.hessian(model, data, loss)
    full = H.dense()
    rows = places(model, PATTERNS[pattern])
    for chosen in (
        hs.hessian(model, data, loss, pattern),
        H.restrict(pattern),
        H.restrict([pattern]),
    ):
        assert set(chosen.parameters.names) == PATTERNS[pattern]
        assert_same(chosen.dense(), full[rows][:, rows])
        assert chosen.gradient().shape == (len(rows),)
        assert_same(chosen.gradient(), H.gradient()[rows])
        assert chosen.loss() == H.loss()
    G = hs.ggn(model, data, loss)
    dense = G.dense()[rows][:, rows]
    assert_same(hs.ggn(model, data, loss, pattern).dense(), dense)
    assert_same(G.restrict(pattern).dense(), dense)
    assert_same(H.restrict(pattern).ggn.dense(), dense)
    assert H.restrict(pattern).check().passed


def test_several_patterns_keep_the_models_order(gpt):
    model, data, loss = gpt
    H = hs.hessian(model, data, loss)
    names = ["blocks.0.ln1.weight", "blocks.1.ln1.weight", "positions"]
    rows = places(model, names)
    both = ["blocks.*.ln1.weight", "positions", "blocks.0.ln1.weight"]
    tensors = [model.blocks[1].ln1.weight, model.positions, model.blocks[0].ln1.weight]
    mixed = [model.blocks[1].ln1.weight, "positions", model.blocks[0].ln1.weight]
    expected = H.dense()[rows][:, rows]
    for params in (both, tensors, mixed, iter(tensors), tuple(both)):
        chosen = hs.hessian(model, data, loss, params)
        assert chosen.parameters.names == ("positions", *names[:2])
        assert_same(chosen.dense(), expected)
    assert_same(H.restrict(both).dense(), expected)


def test_a_prefix_is_a_layer_and_not_the_beginning_of_a_name():
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(11)))
    data = torch.randn(3, 1), torch.randn(3, 1)
    assert hs.hessian(model, data, params="1").parameters.names == ("1.weight", "1.bias")
    assert hs.hessian(model, data, params="10").parameters.names == ("10.weight", "10.bias")


def test_shared_parameters_have_both_names(gpt):
    model, data, loss = gpt
    by_first = hs.hessian(model, data, loss, "embedding")
    assert_same(
        by_first.dense(),
        dense_hessian(lambda: loss(model(data[0]), data[1]), [model.embedding.weight]),
    )
    for other in ("head", "head.weight", model.head.weight, ["head", "embedding"]):
        again = hs.hessian(model, data, loss, other)
        assert again.parameters.names == ("embedding.weight",)
        assert torch.equal(again.dense(), by_first.dense())
    assert hs.hessian(model, data, loss).restrict("head").shape == by_first.shape


def test_frozen_parameters():
    case = problem("tanh_mlp")
    full = hs.hessian(case.model, case.data, case.loss).dense()
    case.model[2].weight.requires_grad_(False)
    rows = places(case.model, {"0.weight", "0.bias", "2.bias", "4.weight", "4.bias"})
    H = hs.hessian(case.model, case.data, case.loss)
    assert "2.weight" not in H.parameters.names
    assert_same(H.dense(), full[rows][:, rows])
    # Asked for by name, it is there; and it is still frozen afterwards.
    rows = places(case.model, {"2.weight", "2.bias"})
    assert_same(hs.hessian(case.model, case.data, case.loss, "2").dense(), full[rows][:, rows])
    assert not case.model[2].weight.requires_grad
    case.model.requires_grad_(False)
    with pytest.raises(ValueError, match="model has no parameters that require gradients"):
        hs.hessian(case.model, case.data, case.loss)


def test_a_soft_prompt(gpt):
    """A tensor that is not the model's: the prompt before the embedded tokens, in a closure."""
    model, (tokens, targets), _ = gpt
    prompt = numbers(2, 2).requires_grad_()

    def loss(model, batch):
        tokens, targets = batch
        x = model.embedding(tokens[:, :2]) + model.positions[:2]
        x = torch.cat([prompt.expand(len(tokens), -1, -1), x], dim=1)
        for block in model.blocks:
            x = block(x)
        return F.cross_entropy(model.head(x).transpose(1, 2), targets)

    expected = dense_hessian(lambda: loss(model, (tokens, targets)), [prompt])
    H = hs.hessian(model, (tokens, targets), loss, prompt, closure=True)
    assert_same(H.dense(), expected)
    assert prompt.grad is None
    check = H.check()
    assert check.passed
    assert check.difference is None
    assert "cannot be moved" in check.message
    both = [model.positions, prompt]
    expected = dense_hessian(lambda: loss(model, (tokens, targets)), both)
    for params in (["positions", prompt], both, both[::-1]):
        H = hs.hessian(model, (tokens, targets), loss, params, closure=True)
        assert H.parameters.names[0] == "positions"
        assert_same(H.dense(), expected)
    several = [(tokens[:3], targets[:3]), (tokens[3:], targets[3:])]
    H = hs.hessian(model, several, loss, both, reduction="mean", closure=True)
    assert_same(H.dense(), expected)


def test_wrapped_models_go_by_their_own_names():
    case = problem("tanh_mlp")
    plain = hs.hessian(case.model, case.data, case.loss)
    wrapped = hs.hessian(nn.DataParallel(case.model), case.data, case.loss)
    assert wrapped.parameters.names == plain.parameters.names
    assert_same(wrapped.dense(), plain.dense())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_models_are_looked_through():
    case = problem("tanh_mlp")
    plain = hs.hessian(case.model, case.data, case.loss)
    for wrapped in (torch.compile(case.model), nn.DataParallel(torch.compile(case.model))):
        H = hs.hessian(wrapped, case.data, case.loss)
        assert H.parameters.names == plain.parameters.names
        assert_same(H.dense(), plain.dense())


def test_parameters_that_nothing_depends_on():
    case = problem("unused_parameters")
    for operator in (hs.hessian, hs.ggn):
        H = operator(case.model, case.data, case.loss, "idle")
        assert not H.dense().any()
        assert not H.gradient().any()
        assert H.check().passed


def test_split():
    case = problem("unused_parameters")
    H = hs.hessian(case.model, case.data, case.loss)
    v = torch.arange(float(H.shape[0]), dtype=torch.float64)
    parts = H.split(v)
    named = dict(case.model.named_parameters())
    assert list(parts) == list(named)
    assert {n: p.shape for n, p in parts.items()} == {n: p.shape for n, p in named.items()}
    assert torch.equal(torch.cat([p.reshape(-1) for p in parts.values()]), v)
    assert parts["factor"].shape == ()
    assert torch.equal(H.join(parts), v)
    assert torch.equal(H.join(dict(reversed(parts.items()))), v)
    assert torch.equal(H.join(list(parts.values())), v)
    assert torch.equal(H.join(part for part in parts.values()), v)
    columns = torch.stack([v, -v], dim=1)
    for name, part in H.split(columns).items():
        assert torch.equal(part, torch.stack([parts[name], -parts[name]]))
    with pytest.raises(ValueError, match=r"parts must be tensors .* got .*NoneType"):
        H.join([None] * len(parts))
    loss = case.loss(case.model(case.x), case.y)
    slopes = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    assert_same(H.join(slopes), H.gradient())
    for wrong in (
        {},
        parts | {"more": v},
        list(parts.values())[1:],
        [v],
        list(named.values())[::-1],
    ):
        with pytest.raises(ValueError, match="parts must"):
            H.join(wrong)
    for bad in (v[:-1], torch.stack([v, v]), v[:, None, None], v.numpy(), [1.0]):
        with pytest.raises((ValueError, TypeError), match="vector must"):
            H.split(bad)


@pytest.mark.parametrize(("params", "error", "message"), [
    ("block", ValueError, r"params: no parameter matches 'block'; there are blocks, .* and others"),
    (["positions", "positoins"], ValueError, "no parameter matches 'positoins'.* positions"),
    ([], ValueError, "params must name at least one parameter"),
    (5, TypeError, "params must be name patterns or tensors, got int"),
    ([5], TypeError, "params must be name patterns or tensors, got int"),
    (nn.Linear(2, 2), ValueError, "params: a Linear was given that is not the model's"),
    (torch.ones(3, dtype=torch.float64), ValueError, "params: tensor 0 .*require"),
    ([torch.ones(3, requires_grad=True), "positions"], ValueError, "share one dtype"),
])  # fmt: skip
def test_what_cannot_be_chosen(gpt, params, error, message):
    with pytest.raises(error, match=message):
        hs.hessian(*gpt, params)


@pytest.mark.parametrize("params", ["nothing", ["positions", "nothing"]])
def test_restrictions_that_are_not_there(gpt, params):
    with pytest.raises(ValueError, match="no parameter matches 'nothing'"):
        hs.hessian(*gpt).restrict(params)
    with pytest.raises(ValueError, match="no parameter matches 'positions'"):
        hs.hessian(*gpt, "blocks").restrict("positions")
    with pytest.raises(ValueError, match="indices must choose among"):
        hs.hessian(*gpt).restrict(torch.ones(2, 2).double())


def test_parts_of_the_model(gpt):
    model = gpt[0]
    block = model.blocks[1]
    names = [name for name, _ in model.named_parameters() if name.startswith("blocks.1.")]
    for params in (block, [block], [model.blocks[1], "blocks.1.*"]):
        assert list(hs.hessian(*gpt, params).parameters.names) == names


def test_a_tensor_of_someone_elses_counts_once():
    scale = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    model, data = nn.Linear(2, 1).double(), (numbers(5, 2), numbers(5, 1))
    once, twice = (
        hs.hessian(model, data, lambda f, y: (scale * f - y).pow(2).mean(), params=given)
        for given in ([scale], [scale, scale])
    )
    assert_same(twice.dense(), once.dense())


def test_names_with_brackets_stand_for_themselves():
    model = nn.ModuleDict({"a[0]": nn.Linear(2, 2), "a0": nn.Linear(2, 2)})
    names = [name for name, _ in model.named_parameters()]
    assert matching(names, "a[0]") == ["a[0].weight", "a[0].bias"]
    assert matching(names, "a[0].bias") == ["a[0].bias"]
    assert matching(names, "[a]0") == ["a0.weight", "a0.bias"]


def test_columns_in_the_shapes_of_the_parameters_and_back():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    H = hs.hessian(model, (numbers(5, 2), numbers(5, 1)))
    columns = numbers(H.shape[0], 4)
    assert torch.equal(H.join(H.split(columns)), columns)
    assert torch.equal(H.join(H.split(columns).values()), columns)
