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

from hessence import activations, init, losses
from hessence.dynamics.descent import gradient_descent
from hessence.dynamics.trajectory import Trajectory
from hessence.krylov.extremal import eigenpairs
from hessence.krylov.results import ConvergenceWarning, Eigenpairs
from hessence.moments import Moments
from hessence.networks.decoupled import DecoupledInputs, DecoupledOutputs
from hessence.networks.deep_linear import DeepLinear
from hessence.networks.matrix_attention import MatrixAttention
from hessence.networks.scalar_affine import ScalarAffine
from hessence.networks.scalar_linear import ScalarLinear
from hessence.networks.scalar_relu import KinkWarning, ScalarReLU
from hessence.networks.self_attention import SelfAttention
from hessence.networks.two_layer_linear import TwoLayerLinear
from hessence.solutions import solution_spectrum, whiten
from hessence.spectra import Eigenspace, Spectrum, load
from hessence.twin import narrow_twin

__version__ = "0.1.0"

__all__ = [
    "ConvergenceWarning",
    "DecoupledInputs",
    "DecoupledOutputs",
    "DeepLinear",
    "Eigenpairs",
    "Eigenspace",
    "KinkWarning",
    "MatrixAttention",
    "Moments",
    "ScalarAffine",
    "ScalarLinear",
    "ScalarReLU",
    "SelfAttention",
    "Spectrum",
    "Trajectory",
    "TwoLayerLinear",
    "activations",
    "eigenpairs",
    "gradient_descent",
    "init",
    "load",
    "losses",
    "narrow_twin",
    "solution_spectrum",
    "whiten",
]
