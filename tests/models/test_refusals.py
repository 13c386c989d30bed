"""What has no Hessian is refused by name, in one sentence."""

import copy
import pickle

import pytest
import torch
from torch import nn

import hessence as hs
from tests.models.market import numbers, problem
from tests.models.oracle import assert_same


def half():
    return nn.Linear(4, 4).half()


def mixed():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[0].double()
    return model


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.LazyLinear(4), nn.Linear(4, 4)

    def forward(self, x):
        return self.out(self.inner(x))


MODELS = {
    "half": (half, TypeError, "parameter 'weight' is float16; spectra need float32 or float64"),
    "bfloat16": (lambda: nn.Linear(4, 4).bfloat16(), TypeError, "parameter 'weight' is bfloat16"),
    "complex": (lambda: nn.Linear(4, 4).to(torch.complex64), TypeError, "'weight' is complex64"),
    "mixed": (mixed, ValueError, "parameters must share one dtype.*'0.weight'.*'2.weight'"),
    "meta": (lambda: nn.Linear(4, 4, device="meta"), ValueError, "'weight' is on the meta device"),
    "lazy": (lambda: nn.LazyLinear(4), ValueError, "parameter 'weight' has no shape yet"),
    "function": (lambda: torch.tanh, TypeError, "model must be a torch.nn.Module, got builtin"),
    "class": (lambda: nn.Linear, TypeError, "model must be a torch.nn.Module, got type"),
    "none": (lambda: None, TypeError, "model must be a torch.nn.Module, got NoneType"),
    "network": (
        lambda: hs.TwoLayerLinear(torch.ones(2, 4), torch.ones(4, 2)),
        TypeError,
        r"got TwoLayerLinear; its own Hessian is net.hessian\(x, y\)\.$",
    ),
    "no parameters": (nn.Tanh, ValueError, "model has no parameters"),
}


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature:UserWarning")
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, operator):
    make, error, message = MODELS[name]
    with pytest.raises(error, match=message):
        operator(make(), (torch.randn(3, 4), torch.randn(3, 4)), nn.MSELoss())


def test_a_lazy_layer_that_is_not_asked_for():
    with pytest.raises(ValueError, match=r"parameter 'inner.weight' has no shape yet"):
        hs.hessian(Lazy(), (torch.randn(3, 4), torch.randn(3, 4)), params="out")


LOSSES = {
    "class": (nn.MSELoss, TypeError, "loss must be an object, not the class MSELoss"),
    "number": (5, TypeError, "loss must be a torch.nn loss, .* got int"),
    "name": ("msse", ValueError, "loss must be one of 'mse', .* got 'msse'"),
    "tensor": (torch.ones(3), TypeError, "loss must be a torch.nn loss, .* got Tensor"),
    "no tensor": (lambda f, y: 3.0, TypeError, r"^loss must return a tensor .* got float\.$"),
    "integers": (lambda f, y: (f > y).sum(), TypeError, "loss must return a tensor of real"),
    "none": (lambda f, y: None, TypeError, "^loss must return a tensor .* got NoneType"),
    "three arguments": (
        nn.GaussianNLLLoss(),
        TypeError,
        "missing .* argument: 'var'",
    ),
    "detached": (
        lambda f, y: (f - y).square().mean().detach(),
        ValueError,
        "loss has no derivative",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name):
    loss, error, message = LOSSES[name]
    with pytest.raises(error, match=message):
        hs.hessian(nn.Linear(4, 4), (torch.randn(3, 4), torch.randn(3, 4)), loss).dense()


@pytest.mark.parametrize("model", [nn.Linear(4, 4), nn.LayerNorm(4)])
@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_losses_that_are_detached(model, operator):
    loss, error, message = LOSSES["detached"]
    with pytest.raises(error, match=message):
        operator(model, (torch.randn(3, 4), torch.randn(3, 4)), loss).dense()


def test_samples_without_a_batch():
    model, x, y = nn.Linear(3, 2), torch.randn(5, 3), torch.randn(5, 2)
    for data in ((x[0], y[0]), list(zip(x, y, strict=True))):
        with pytest.raises(ValueError, match=r"data: an input of shape \(3,\) is a sample without"):
            hs.hessian(model, data)
    hs.hessian(nn.Sequential(nn.Linear(3, 1)), (x[0], y[0, :1])).dense()


def test_closures_have_no_gauss_newton_matrix():
    model, data = nn.Linear(2, 1), (torch.randn(3, 2), torch.randn(3, 1))

    def loss(model, batch):
        return model(batch[0]).pow(2).mean()

    H = hs.hessian(model, data, loss, closure=True)
    with pytest.raises(ValueError, match=r"loss must be a loss of .* for the Gauss–Newton"):
        hs.ggn(model, data, loss, closure=True)
    with pytest.raises(ValueError, match=r"loss must be a loss of .* for the Gauss–Newton"):
        _ = H.ggn


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
@pytest.mark.parametrize("loss", [None, "mse", nn.MSELoss(), nn.L1Loss(), nn.HuberLoss(),
                                  nn.SmoothL1Loss(), nn.BCEWithLogitsLoss(),
                                  nn.PoissonNLLLoss(), nn.SoftMarginLoss(),
                                  nn.HingeEmbeddingLoss()], ids=str)  # fmt: skip
def test_targets_that_would_broadcast(loss, operator):
    """(n,) against (n, 1) is an n × n table of differences, and not what anybody means."""
    model = nn.Linear(2, 1)
    message = r"data: the target must have the prediction's shape \(n, 1\), got \(n,\)\."
    with pytest.raises(ValueError, match=message):
        operator(model, (torch.randn(5, 2), torch.ones(5)), loss)


@pytest.mark.parametrize(("target", "message"), [
    (torch.tensor([0, 1, 2, 3]), "must hold class numbers from 0 to 2, got 3"),
    (torch.tensor([0, 1, -1, 2]), "must hold class numbers from 0 to 2, got -1"),
    (torch.tensor([[0], [1], [2], [0]]), r"\(n, 1\); class numbers have the prediction's shape"),
    (torch.eye(4, 3, dtype=torch.int64), r"of one-hot targets give .* y.argmax\(1\)"),
    (torch.ones(4), r"must hold class numbers as integers.*, got float32 of shape \(4,\)"),
    (torch.ones(4, dtype=torch.int32), r"of type int64, got int32: use y.long\(\)"),
    (torch.tensor([0, 1]), "there are 4 predictions and 2 targets"),
])  # fmt: skip
@pytest.mark.parametrize("loss", ["cross-entropy", nn.CrossEntropyLoss(), nn.NLLLoss()], ids=str)
def test_class_numbers(loss, target, message):
    with pytest.raises(ValueError, match=f"^data: .*{message}"):
        hs.hessian(nn.Linear(2, 3), (torch.randn(4, 2), target), loss).dense()


def test_classes_in_the_last_dimension():
    data = torch.randn(4, 5, 2), torch.zeros(4, 5, dtype=torch.int64)
    said = r"prediction has shape \(n, 5, 3\) and the target \(n, 5\), but classes are dimension 1"
    with pytest.raises(ValueError, match=said):
        hs.hessian(nn.Linear(2, 3), data, nn.CrossEntropyLoss())


@pytest.mark.parametrize(
    "loss", [None, nn.MSELoss(), lambda f, y: (f - y).pow(2).mean()], ids=["default", "mse", "own"]
)
@pytest.mark.parametrize(("x", "told"), [
    (torch.ones(4, 5), r"shape \(n, 5\) and float32: .*shapes cannot be multiplied"),
    (torch.ones(4), r"shape \(n\) and float32"),
    (torch.ones(4, 2) + 1j, r"shape \(n, 2\) and complex64"),
    (torch.ones(4, 2, dtype=torch.int64), r"shape \(n, 2\) and int64"),
])  # fmt: skip
def test_inputs_that_do_not_go_with_the_model(x, told, loss):
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    for use in (hs.hessian, hs.ggn, hs.spectrum, hs.layer_spectra):
        with pytest.raises(ValueError, match=f"data: the model cannot be run on inputs of {told}"):
            use(model, (x, torch.ones(4, 1)), loss)


def test_class_numbers_that_are_ignored():
    data = torch.randn(4, 2), torch.tensor([0, -1, 7, 2])
    H = hs.hessian(nn.Linear(2, 8), data, nn.CrossEntropyLoss(ignore_index=-1))
    assert H.check().passed


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_data_that_are_not_finite(operator):
    x = torch.randn(5, 2)
    x[3, 1] = float("nan")
    H = operator(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), (x, torch.randn(5, 3)))
    for use in (lambda: H.dense(), lambda: H @ torch.ones(9), lambda: hs.eigenpairs(H, 2)):
        with pytest.raises(ValueError, match="contains NaN or infinity: data holds NaN"):
            use()


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.CrossEntropyLoss()])
@pytest.mark.parametrize("which", [0, 1])
def test_duals_of_data_that_are_not_finite(loss, which):
    data = torch.randn(5, 2), torch.rand(5, 3)
    data[which][3, 1] = float("nan")
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3))
    G, uses = hs.ggn(model, data, loss), [lambda: hs.brackets(model, data, loss)]
    # The Jacobian is without targets, and so is the Hessian of a squared error in the predictions.
    uses += [lambda: G.kernel()] if which == 0 else []
    uses += [lambda: G.spectrum()] if which == 0 or isinstance(loss, nn.CrossEntropyLoss) else []
    for use in uses:
        with pytest.raises(ValueError, match="NaN or infinity: data holds NaN"):
            use()


@pytest.mark.parametrize("exact", [True, False])
def test_a_model_where_its_operator_belongs(exact):
    model = nn.Sequential(nn.Linear(2, 3), nn.Identity() if exact else nn.Tanh(), nn.Linear(3, 1))
    s = hs.spectrum(model, (torch.randn(5, 2), torch.randn(5, 1)))
    assert s.exact is exact
    for use in (s.verify, hs.density, hs.eigenpairs):
        with pytest.raises(TypeError, match=r"H must be .*got Sequential"):
            use(model)


@pytest.mark.parametrize("operator", [hs.hessian, hs.ggn])
def test_what_operators_of_other_libraries_do(operator):
    model = nn.Linear(2, 3)
    H = operator(model, (torch.randn(5, 2), torch.randn(5, 3)))
    with pytest.raises(TypeError, match=r"list of tensors: join them, H @ H.join\(tensors\)"):
        H @ list(model.parameters())
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled.* make another"):
            way(H)


def test_predictions_that_are_not_tensors():
    model = nn.GRU(2, 3)
    data = torch.randn(5, 4, 2), torch.randn(5, 4, 3)
    for operator in (hs.hessian, hs.ggn):
        with pytest.raises(TypeError, match=r"model must return a tensor .*got tuple"):
            operator(model, data, nn.MSELoss()).dense()
    H = hs.hessian(model, data, lambda f, y: (f[0] - y).pow(2).mean())
    assert H.check().passed


@pytest.mark.parametrize(("options", "message"), [
    ({"memory": -1}, "memory must be a number of bytes that is not negative, got -1"),
    ({"memory": "1GB"}, "memory must be a number of bytes"),
    ({"memory": float("nan")}, "memory must be a number of bytes"),
])  # fmt: skip
def test_options(options, message):
    case = problem("linear")
    with pytest.raises((TypeError, ValueError), match=message):
        hs.hessian(case.model, case.data, case.loss, **options)


@pytest.mark.parametrize("loss", [nn.MSELoss(), "mse", lambda model, batch: model(batch[0]).mean()])
def test_data_in_another_precision(loss):
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    data = torch.randn(9, 3).double(), torch.randn(9, 1).double()
    with pytest.raises(TypeError, match=r"^data is float64, but the model is float32: convert"):
        hs.spectrum(model, data, loss, closure=callable(loss) and not isinstance(loss, nn.Module))


def test_a_model_may_convert_its_data():
    class Converting(nn.Linear):
        def forward(self, x):
            return super().forward(x.to(self.weight.dtype))

    data = torch.randn(9, 3).double(), torch.randn(9, 1)
    assert hs.hessian(Converting(3, 1), data, nn.MSELoss()).check().passed


def test_operands_of_other_kinds():
    H = hs.hessian(nn.Linear(2, 1), (torch.randn(5, 2), torch.randn(5, 1)), nn.MSELoss())
    with pytest.raises(ValueError, match=r"the operand of @ must be a vector \(3,\) or columns"):
        H @ torch.ones(2, 3, 4)
    with pytest.raises(TypeError, match=r"the operand of @ must be dense, got the layout"):
        H @ torch.ones(3).to_sparse()


@pytest.mark.parametrize(("loss", "target", "message"), [
    (nn.BCEWithLogitsLoss(), torch.ones(4, 3, dtype=torch.int64), r"real numbers .*y\.float\(\)"),
    (nn.CrossEntropyLoss(torch.ones(5)), torch.zeros(4).long(), "weights for 5 classes, .* are 3"),
    (nn.CrossEntropyLoss(torch.ones(3).double()), torch.zeros(4).long(), "weights of float64"),
    (nn.MSELoss(), torch.ones(4, 3, device="meta"), "data is on the meta device"),
])  # fmt: skip
def test_targets_and_weights_that_do_not_go_with_the_loss(loss, target, message):
    with pytest.raises(ValueError, match=message):
        hs.hessian(nn.Linear(2, 3), (torch.randn(4, 2), target), loss).dense()


def test_losses_of_one_argument():
    with pytest.raises(TypeError, match=r"called as loss\(prediction, target\).*1 positional"):
        hs.hessian(nn.Linear(2, 3), (torch.randn(4, 2), torch.randn(4, 3)), lambda m: m)


def test_names_that_match_nothing_are_answered_by_those_there_are():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    with pytest.raises(ValueError, match=r"no parameter matches 'layer1'; there are .*2\.weight"):
        hs.hessian(model, (torch.randn(4, 2), torch.randn(4, 1)), params="layer1")
    with pytest.raises(ValueError, match=r"there are (weight, bias|bias, weight)\.$"):
        hs.hessian(model[2], (torch.randn(4, 3), torch.randn(4, 1)), params="layer1")


def test_a_loss_in_the_place_of_the_model():
    x, y, model = torch.randn(4, 2), torch.randn(4, 1), nn.Linear(2, 1)
    with pytest.raises(TypeError, match=r"^model is a loss, MSELoss: give model, data and loss"):
        hs.spectrum(nn.MSELoss(), model, (x, y))


def test_a_loss_with_parameters_is_a_model():
    class Scaled(nn.MSELoss):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1).double())

        def forward(self, x):
            return self.scale**2 * x

    x = numbers(5, 1)
    H = hs.hessian(Scaled(), (x, 3 * x), nn.MSELoss())
    # The loss is (s² − 3)² E x², of second derivative 12 s² − 12 = 0 at s = 1 …
    assert abs(float(H.dense())) < 1e-14
    # … and (s² − 2)² E x² has one of 12 s² − 8 = 4.
    H = hs.hessian(Scaled(), (x, 2 * x), nn.MSELoss())
    assert_same(H.dense(), 4 * x.square().mean()[None, None])
