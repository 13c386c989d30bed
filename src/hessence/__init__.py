"""Hessence: the Hessian spectrum of a neural network, exact where mathematics allows it.

>>> import numpy as np, hessence as hs
>>> net = hs.ScalarLinear(w=np.asarray([1.0, 0.5]), v=np.asarray([0.5, 1.0]))
>>> net.hessian(x=[1.0, -1.0], y=[2.0, -2.0]).spectrum()
4 eigenvalues, closed form
  label    value  multiplicity
  outlier      2             1
  bulk         1             1
  outlier    0.5             1
  bulk        -1             1
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hessence._common.arrays import NotFiniteError
from hessence._loading import load
from hessence.data import losses
from hessence.data.moments import Moments
from hessence.data.whitening import whiten
from hessence.dynamics.descent import gradient_descent
from hessence.dynamics.trajectory import Trajectory
from hessence.krylov.density import density
from hessence.krylov.density_result import Density
from hessence.krylov.eigenpairs import eigenpairs
from hessence.krylov.eigenpairs_result import ConvergenceWarning, Eigenpairs
from hessence.krylov.request import Outcome
from hessence.krylov.trace import Trace, trace
from hessence.models.brackets import brackets
from hessence.networks.attention import activations
from hessence.networks.attention.attention_hessian import AttentionBounds
from hessence.networks.attention.edge import Edge
from hessence.networks.attention.matrix_attention import MatrixAttention
from hessence.networks.attention.self_attention import AttentionStatistics, SelfAttention
from hessence.networks.linear import init
from hessence.networks.linear.bounds import LinearBounds
from hessence.networks.linear.deep_linear import DeepLinear
from hessence.networks.linear.residual_linear import ResidualLinear
from hessence.networks.linear.solutions import solution_spectrum
from hessence.networks.linear.two_layer_linear import TwoLayerLinear
from hessence.networks.relu.independent import IndependentCells
from hessence.networks.relu.relu import ReLU, TwoLayerReLU
from hessence.networks.scalar.anatomy import Anatomy, CellwiseAnatomy
from hessence.networks.scalar.batch_norm import ScalarBatchNorm
from hessence.networks.scalar.decoupled import DecoupledInputs, DecoupledOutputs
from hessence.networks.scalar.scalar_affine import ScalarAffine
from hessence.networks.scalar.scalar_linear import ScalarLinear
from hessence.networks.scalar.scalar_relu import KinkWarning, ScalarReLU
from hessence.networks.twin import NarrowTwin, narrow_twin
from hessence.spectra.brackets import Brackets
from hessence.spectra.certificate import Certificate
from hessence.spectra.counting import Count, UndecidedWarning
from hessence.spectra.estimate import Estimate
from hessence.spectra.operators import Operator
from hessence.spectra.result import Inertia, UnknownLabelError
from hessence.spectra.spectrum import Spectrum
from hessence.spectra.subspaces import Eigenspace

if TYPE_CHECKING:
    from hessence.models.checks import Check as Check
    from hessence.models.checks import CheckWarning as CheckWarning
    from hessence.models.flat_directions import FlatDirections as FlatDirections
    from hessence.models.flat_directions import flat_directions as flat_directions
    from hessence.models.history import History as History
    from hessence.models.history import Measurement as Measurement
    from hessence.models.layers import LayerSpectra as LayerSpectra
    from hessence.models.layers import layer_spectra as layer_spectra
    from hessence.models.model_matrices import ggn as ggn
    from hessence.models.model_matrices import hessian as hessian
    from hessence.models.model_spectrum import spectrum as spectrum
    from hessence.models.monitor import Monitor as Monitor

__version__ = "0.1.0"

__all__ = [
    "Anatomy",
    "AttentionBounds",
    "AttentionStatistics",
    "Brackets",
    "CellwiseAnatomy",
    "Certificate",
    "ConvergenceWarning",
    "Count",
    "DecoupledInputs",
    "DecoupledOutputs",
    "DeepLinear",
    "Density",
    "Edge",
    "Eigenpairs",
    "Eigenspace",
    "Estimate",
    "IndependentCells",
    "Inertia",
    "KinkWarning",
    "LinearBounds",
    "MatrixAttention",
    "Moments",
    "NarrowTwin",
    "NotFiniteError",
    "Operator",
    "Outcome",
    "ReLU",
    "ResidualLinear",
    "ScalarAffine",
    "ScalarBatchNorm",
    "ScalarLinear",
    "ScalarReLU",
    "SelfAttention",
    "Spectrum",
    "Trace",
    "Trajectory",
    "TwoLayerLinear",
    "TwoLayerReLU",
    "UndecidedWarning",
    "UnknownLabelError",
    "activations",
    "brackets",
    "density",
    "eigenpairs",
    "gradient_descent",
    "init",
    "load",
    "losses",
    "narrow_twin",
    "solution_spectrum",
    "trace",
    "whiten",
]

# What needs PyTorch is loaded on first use, so that `import hessence`, and a star import, do
# without it.
_TORCH_NAMES = {
    "Check": "checks",
    "CheckWarning": "checks",
    "FlatDirections": "flat_directions",
    "History": "history",
    "LayerSpectra": "layers",
    "Measurement": "history",
    "Monitor": "monitor",
    "flat_directions": "flat_directions",
    "ggn": "model_matrices",
    "hessian": "model_spectrum",  # which tells a Hessian of the theorems that solve it
    "layer_spectra": "layers",
    "spectrum": "model_spectrum",
}


def __getattr__(name: str) -> Any:
    if name not in _TORCH_NAMES:
        raise AttributeError(f"module 'hessence' has no attribute {name!r}")
    try:
        module = import_module(f"hessence.models.{_TORCH_NAMES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        needed = f"hessence.{name} needs PyTorch: pip install 'hessence[torch]'."
        raise ImportError(needed) from error
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    special = [name for name in globals() if name.startswith("__") and name.endswith("__")]
    return sorted([*__all__, *_TORCH_NAMES, *special])
