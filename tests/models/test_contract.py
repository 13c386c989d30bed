"""What may be handed in as model, data and loss, and the sentence for what cannot work."""

import copy
import gc
import pickle
import weakref
from collections import OrderedDict, UserDict

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

import hessence as hs
from tests.models.oracle import assert_same, dense_hessian, finite_differences


class Normalised(nn.Module):
    """Normalises over the batch: by a layer, by PyTorch's function, or by hand."""

    def __init__(self, how):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.inward, self.outward = nn.Linear(3, 4), nn.Linear(4, 2)
        self.how, self.norm = how, nn.Identity()
        if how in ("layer", "without statistics"):
            self.norm = nn.BatchNorm1d(4, track_running_stats=how == "layer")
        self.double()

    def forward(self, x):
        z = self.norm(self.inward(x))
        if self.how == "function":
            z = F.batch_norm(z, None, None, training=True)
        if self.how == "by hand":
            z = (z - z.mean(0)) / (z.var(0) + 1e-5).sqrt()
        return self.outward(torch.tanh(z))


@pytest.mark.parametrize("how", ["layer", "without statistics", "function", "by hand"])
@pytest.mark.parametrize("loss", [nn.MSELoss(), lambda f, y: F.mse_loss(f, y)])
def test_normalising_over_one_batch_is_a_loss(pair, how, loss):
    model, (x, y) = Normalised(how), pair
    before = copy.deepcopy(model.state_dict())
    expected = finite_differences(lambda: F.mse_loss(model(x), y), model.parameters())
    model.load_state_dict(before)
    H = hs.hessian(model, pair, loss)
    assert H.check().passed
    assert_same(H.dense(), expected, 1e-7)
    assert_same(hs.hessian(model, pair, loss, memory=0).dense(), H.dense())
    top = float(torch.linalg.eigvalsh(H.dense())[-1])
    assert float(hs.spectrum(model, pair, loss).sharpness) == pytest.approx(top, rel=1e-10)
    monitor = hs.Monitor(model, pair, loss)
    assert monitor.measure(0).sharpness == pytest.approx(top, rel=1e-6)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize("how", ["layer", "without statistics"])
def test_layers_that_normalise_over_each_of_several_batches_are_refused(pair, how):
    x, y = pair
    model = Normalised(how)
    batches = [(x[:5], y[:5]), (x[5:], y[5:])]
    with pytest.raises(ValueError, match=r"layer 'norm'.*all data must be one"):
        hs.hessian(model, batches, nn.MSELoss())
    if how == "layer":
        monitor = hs.Monitor(model.eval(), batches, nn.MSELoss())
        model.train()
        with pytest.raises(ValueError, match=r"layer 'norm'.*all data must be one"):
            monitor.measure(0)
        hs.hessian(model, batches, nn.MSELoss(), eval_mode=True)


def test_a_batch_that_may_be_cut_stays_in_evaluation_mode(pair):
    """An operator of a model in evaluation mode may have cut its one batch already."""
    model = Normalised("layer").eval()
    monitor = hs.Monitor(model, pair, nn.MSELoss())
    monitor.measure(0)
    model.train()
    with pytest.raises(ValueError, match=r"layer 'norm'.*all data must be one"):
        monitor.measure(1)
    training = hs.Monitor(model, pair, nn.MSELoss())
    training.measure(0)
    model.eval()
    assert training.measure(1).sharpness == pytest.approx(monitor.measure(1).sharpness, rel=1e-6)


@pytest.mark.parametrize("how", ["function", "by hand"])
@pytest.mark.parametrize("loss", [nn.MSELoss(), lambda f, y: F.mse_loss(f, y)])
def test_other_ways_to_normalise_over_several_batches_are_noticed(pair, how, loss):
    (x, y), model = pair, Normalised(how)
    batches = [(x[:5], y[:5]), (x[5:], y[5:])]
    H = hs.hessian(model, batches, loss, reduction="mean")
    assert not H.check().passed
    with pytest.warns(hs.CheckWarning, match="predictions for two batches together"):
        hs.spectrum(model, batches, loss, reduction="mean")


class Single(nn.Module):
    """Takes a mapping as its one argument."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, batch):
        return torch.tanh(self.layer(batch["x"]))


class Encoding(UserDict):
    """Has attributes for its entries, as tokenizers' batches do."""

    def __getattr__(self, name):
        if name in ("data", "__setstate__"):
            raise AttributeError(name)
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, Encoding])
def test_a_mapping_as_the_only_argument(kind, pair):
    (x, y), model = pair, Single()
    H = hs.hessian(model, (kind({"x": x}), y), nn.MSELoss())
    expected = dense_hessian(lambda: F.mse_loss(model({"x": x}), y), model.parameters())
    assert_same(H.dense(), expected)
    assert H.check().passed
    named = hs.hessian(nn.Sequential(model.layer, nn.Tanh()), (kind({"input": x}), y), nn.MSELoss())
    assert_same(named.dense(), expected)
    inside = hs.hessian(nn.Sequential(model), (kind({"x": x}), y), nn.MSELoss())
    assert_same(inside.dense(), expected)


class Output(OrderedDict):
    """What models of Hugging Face return."""

    loss = None


class Own(nn.Module):
    """Computes its loss itself, if it has labels."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x, labels=None):
        output = Output(logits=torch.tanh(self.layer(x)))
        if labels is not None:
            output.loss = F.mse_loss(output["logits"], labels)
        return output


def test_the_loss_of_a_models_output(pair):
    (x, y), model = pair, Own()
    with pytest.raises(TypeError, match=r"model\(\*\*batch\)\.loss, pass closure=True"):
        hs.hessian(model, (x, y), lambda output, target: output.loss)
    with pytest.raises(TypeError, match=r"prediction of type Output.*closure=True"):
        hs.hessian(model, (x, y), lambda output, target: output.losses)
    batch = {"x": x, "labels": y}
    with pytest.raises(TypeError, match=r"no 'loss' in the model.*model\(\*\*batch\)\.loss"):
        hs.hessian(model, batch, lambda output, _: output.loss).dense()
    H = hs.hessian(model, batch, lambda model, batch: model(**batch).loss)
    assert_same(H.dense(), dense_hessian(lambda: model(x, y).loss, model.parameters()))


def test_a_list_of_two_tensors_is_asked_about(mlp, pair):
    x, _ = pair

    def closure(model, batch):
        return model(batch).square().mean()

    with pytest.raises(ValueError, match=r"a pair \(input, target\) or two batches"):
        hs.hessian(mlp, [x[:5], x[5:]], closure, reduction="mean")
    H = hs.hessian(mlp, [x[:5], x[5:]], closure, reduction="mean", closure=True)
    assert_same(H.dense(), dense_hessian(lambda: mlp(x).square().mean(), mlp.parameters()))


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(3, 4, dtype=torch.float64), function

    def forward(self, x):
        return self.function(self.layer(x))


class Once(torch.autograd.Function):
    """A sine that says of itself that it has one derivative."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, slope):
        return slope * ctx.saved_tensors[0].cos()


SECOND = {
    "hessian": lambda *case: hs.hessian(*case).dense(),
    "ggn": lambda *case: hs.ggn(*case).dense(),
    "spectrum": hs.spectrum,
    "layers": hs.layer_spectra,
    "monitor": lambda *case: hs.Monitor(*case).measure(0),
}


@pytest.mark.parametrize("asked", SECOND)
def test_what_has_one_derivative_gets_a_sentence(asked, pair):
    model, (x, _) = Applied(Once.apply), pair
    with pytest.raises(NotImplementedError, match=r"differentiable once.*Write it out in other"):
        SECOND[asked](model, (x, model(x).detach() + 1), nn.MSELoss())


ONCE = {
    "_cdist": lambda z: torch.cdist(z, z[:4] + 1),
    "_pdist": lambda z: F.pdist(z),
    "_embedding_bag": lambda z: F.embedding_bag(torch.tensor([[0, 1], [2, 3]]), z),
}
"""What PyTorch could not differentiate twice, and may learn to."""


@pytest.mark.parametrize("name", ONCE)
def test_operations_without_a_second_derivative_are_named_or_right(name, pair):
    model, (x, _) = Applied(ONCE[name]), pair
    y = model(x).detach() + 1
    H = hs.hessian(model, ({"x": x}, y), nn.MSELoss())
    if twice(ONCE[name], x):
        expected = finite_differences(lambda: F.mse_loss(model(x), y), model.parameters())
        assert_same(H.dense(), expected, 1e-7)
    else:
        with pytest.raises(NotImplementedError, match=rf"{name}.*Write it out in other operations"):
            H.dense()


def twice(function, x):
    """Whether PyTorch can differentiate a function twice."""
    z = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(function(z).square().sum(), z, create_graph=True)
    try:
        torch.autograd.grad(slope.sum(), z)
    except RuntimeError:
        return False
    return True


def test_what_the_sentence_proposes_is_right(pair):
    model, (x, _) = Applied(lambda z: (z[:, None] - z[None, :4] + 1).norm(dim=-1)), pair
    y = torch.zeros_like(model(x)).detach()
    expected = finite_differences(lambda: F.mse_loss(model(x), y), model.parameters())
    assert_same(hs.hessian(model, [({"x": x}, y)], nn.MSELoss()).dense(), expected, 1e-7)


@pytest.mark.parametrize("asked", ["spectrum", "layers", "product"])
def test_a_parameter_that_is_not_finite_is_named(mlp, pair, asked):
    with torch.no_grad():
        mlp[2].bias[1] = float("nan")
    work = {
        "spectrum": hs.spectrum,
        "layers": hs.layer_spectra,
        "product": lambda *case: hs.hessian(*case) @ torch.ones(26, dtype=torch.float64),
    }[asked]
    with pytest.raises(ValueError, match=r"parameter '2\.bias' holds NaN"):
        work(mlp, pair, nn.MSELoss())


@pytest.mark.parametrize("asked", [hs.hessian, hs.ggn, hs.spectrum, hs.layer_spectra, hs.Monitor])
def test_inputs_and_targets_as_two_arguments(mlp, pair, asked):
    with pytest.raises(TypeError, match=r"data must be one argument.*\(x, y\)"):
        asked(mlp, *pair, nn.MSELoss())


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_restriction_to_parts_of_the_model(mlp, pair, operator):
    H = operator(mlp, pair, nn.MSELoss())
    for given, names in [
        (mlp[0], "0"),
        (mlp[2].weight, "2.weight"),
        ([mlp[2], "0.bias"], ["2", "0.bias"]),
    ]:
        expected = operator(mlp, pair, nn.MSELoss(), names).dense()
        assert_same(H.restrict(given).dense(), expected)
        assert_same(operator(mlp, pair, nn.MSELoss(), given).dense(), expected)
    for other in (nn.Linear(2, 2), nn.Parameter(torch.ones(2)), H.restrict("2") and mlp[0]):
        with pytest.raises(ValueError, match="params: a"):
            H.restrict("2").restrict(other)
    assert H.restrict(slice(0, 3)).shape == H.restrict([0, 5, 7]).shape == (3, 3)


class Logging(nn.Module):
    """Notes what it computes in a list that grows for ever."""

    def __init__(self):
        super().__init__()
        self.layer, self.log = nn.Linear(3, 2, dtype=torch.float64), []

    def forward(self, x):
        self.log.append(torch.tanh(self.layer(x)))
        SEEN.append(weakref.ref(self.log[-1]))
        return self.log[-1]


SEEN = []


def test_lists_that_grow_keep_no_graph_alive(pair):
    model = Logging()
    H = hs.hessian(model, pair, nn.MSELoss(), memory=0)
    SEEN.clear()
    for _ in range(5):
        H @ torch.ones(8, dtype=torch.float64)
    gc.collect()
    assert len(SEEN) >= 5
    assert not any(reference() is not None for reference in SEEN)
    assert model.log == []


def test_results_pickle_and_come_back_equal(mlp, pair, tmp_path):
    monitor = hs.Monitor(mlp, pair, nn.MSELoss(), k=2)
    results = [
        monitor.measure(3),
        monitor.history,
        hs.layer_spectra(mlp, pair, nn.MSELoss(), k=2),
        hs.hessian(mlp, pair, nn.MSELoss()).check(),
        hs.spectrum(mlp, pair, nn.MSELoss(), k=3),
    ]
    for i, result in enumerate(results):
        again = pickle.loads(pickle.dumps(result))
        result.save(tmp_path / f"{i}.json")
        loaded = hs.load(tmp_path / f"{i}.json")
        assert type(again) is type(loaded) is type(result)
        assert again == result
        assert loaded == result
        assert loaded != results[i - 1]
        assert " at 0x" not in repr(result)
        assert repr(loaded).splitlines()[0] == repr(result).splitlines()[0]
    assert repr(monitor).startswith("Monitor: 1 measurement of 2 eigenvalues")
