"""Arrays of any kind: checked by name on the way in, the same kind on the way out.

Every public function passes its array arguments through :func:`floating`, which turns a user's
mistake into one sentence that names the argument, and hands back the array API namespace that the
closed forms are written in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import array_api_compat as api
import numpy as np

Array = Any
"""An array of any library that follows the Python array API standard."""

Numbers = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array."""

_EXTENDED = ContextVar("extended", default=False)

Namespace = Any
"""The module that holds the functions for one kind of array."""


def floating(reference: tuple[str, Array] | None = None, /, **arguments: Any) -> tuple[Any, ...]:
    """Check named arrays and bring them to one floating-point type.

    Integers are promoted to the floating-point type of the other arguments, or to float64. Lists
    and numbers become arrays of the others' kind, or NumPy's. The `reference`, a name and an array
    already checked, must be of the same kind. Returns the array namespace, then the arrays.

    Raises a TypeError for anything but arrays, of one kind, of real numbers in single or double
    precision; a ValueError for empty arrays, NaN or infinity, and different devices.

    Examples
    --------
    >>> xp, w, v = floating(w=[1, 2], v=np.asarray([0.5, 0.25]))
    >>> w
    array([1., 2.])
    """
    checked = dict([reference] if reference else [])
    xp = _common_namespace(checked | arguments)
    arrays = {name: _as_array(name, value) for name, value in arguments.items()}
    given = {name: a for name, a in arrays.items() if arguments[name] is a}
    if checked or given:
        _require_one_device(checked | given)
    dtype = _common_dtype(given, xp, default=reference[1].dtype if reference else xp.float64)
    place = api.device(next(iter((checked | given).values()))) if checked or given else None
    for name in arrays.keys() - given.keys():
        # Python's numbers take the type of the arrays they come with.
        arrays[name] = xp.asarray(arrays[name].tolist(), dtype=dtype, device=place)
    for name, array in arrays.items():
        if 0 in array.shape:
            raise ValueError(f"{name} is empty: its shape is {tuple(array.shape)}.")
        arrays[name] = xp.astype(array, dtype, copy=False)
        if not is_finite(arrays[name]):
            raise ValueError(f"{name} contains NaN or infinity.")
    return (xp, *arrays.values())


def require_shape(name: str, array: Array, expected: Sequence[int | str], *, batch: bool) -> None:
    """Refuse an array whose trailing shape is not `expected`; letters stand for any length.

    With `batch`, any number of leading dimensions may come before.
    """
    rank, shape = len(expected), tuple(array.shape)
    fits = len(shape) >= rank if batch else len(shape) == rank
    tail = zip(reversed(expected), reversed(shape), strict=False)
    if not fits or any(e != s for e, s in tail if not isinstance(e, str)):
        wanted = ", ".join(map(str, (*["..."] * batch, *expected)))
        comma = "," * (rank + batch == 1)
        raise ValueError(f"{name} must have shape ({wanted}{comma}), got {shape}.")


def require_same_shape(**arguments: Array) -> None:
    """Refuse arrays whose shapes differ."""
    (first, reference), *others = arguments.items()
    shape = tuple(reference.shape)
    for name, array in others:
        if tuple(array.shape) != shape:
            raise ValueError(
                f"{name} must have the shape of {first}, {shape}, got {tuple(array.shape)}."
            )


class NotFiniteError(ValueError):
    """A product or a Hessian has NaN or infinity in it."""


def require_finite(image: Array, hint: str) -> None:
    """Refuse a product H @ v with NaN or infinity in it; the hint says where to look."""
    if not is_finite(image):
        raise NotFiniteError(f"H @ v contains NaN or infinity; {hint}.")


def is_finite(array: Array) -> bool:
    """Tell whether all entries are finite."""
    # A finite sum of squares proves every entry finite at the price of one dot product, which takes
    # half as long as a plain sum; one that overflows proves nothing.
    xp = api.array_namespace(array)
    flat = xp.reshape(array, (-1,))
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(xp.isfinite(flat @ flat)) or bool(xp.all(xp.isfinite(flat)))


def epsilon(array: Array) -> float:
    """Return the machine epsilon of the array's floating-point type."""
    return float(api.array_namespace(array).finfo(array.dtype).eps)


def dtype_name(array: Array) -> str:
    """Return the name of the array's type, such as "float64", in any library."""
    return str(array.dtype).removeprefix("torch.")


def to_numpy(array: Array) -> Numbers:
    """Copy or view any array as NumPy, off its device and out of any autograd graph."""
    if api.is_torch_array(array):
        numbers: Numbers = array.detach().cpu().numpy()
        return numbers
    return np.asarray(array)


def to_double(array: Array) -> Numbers:
    """Copy any array as NumPy's in double precision."""
    return to_numpy(array).astype(np.float64)


def like(values: Any, reference: Array) -> Array:
    """Make an array of the reference's kind, type and device out of NumPy or Python numbers."""
    xp = api.array_namespace(reference)
    return xp.asarray(values, dtype=reference.dtype, device=api.device(reference))


def identity(size: int, reference: Array) -> Array:
    """Make an identity matrix of the reference's kind, type and device."""
    xp = api.array_namespace(reference)
    return xp.eye(size, dtype=reference.dtype, device=api.device(reference))


def integers(values: Any, reference: Array) -> Array:
    """Make an int64 array of the reference's kind on its device."""
    xp = api.array_namespace(reference)
    return xp.asarray(values, dtype=xp.int64, device=api.device(reference))


def largest(array: Array) -> float:
    """Return the largest magnitude in an array."""
    return float(np.abs(to_numpy(array)).max(initial=0.0))


def numerical_rank(singular: Array, shape: Sequence[int]) -> int:
    """Return how many singular values of a matrix of that shape are more than rounding.

    Rounding is the longer side of the matrix times ε times the largest singular value.
    """
    values = to_numpy(singular)
    rounding = max(shape) * epsilon(singular) * values.max(initial=0.0)
    return int((values > rounding).sum())


def constant(array: Array) -> Array:
    """Take an array out of PyTorch's autograd graph; any other array is constant as it is."""
    return array.detach() if api.is_torch_array(array) else array


def requires_gradient(*arrays: Array) -> bool:
    """Tell whether PyTorch is recording what happens to any of the arrays."""
    return any(api.is_torch_array(a) and a.requires_grad for a in arrays)


def kind(array: Any) -> str:
    """Name the library an array belongs to, as a user would."""
    if api.is_numpy_array(array):
        return "NumPy"
    if api.is_torch_array(array):
        return "PyTorch"
    return type(array).__module__.split(".")[0]


def _common_namespace(arguments: dict[str, Any]) -> Namespace:
    first: str | None = None
    for name, value in arguments.items():
        if not api.is_array_api_obj(value):
            continue
        if first is None:
            first = name
        elif kind(value) != kind(arguments[first]):
            raise TypeError(
                f"{first} is a {kind(arguments[first])} array and {name} a {kind(value)} array; "
                "give all arrays of one kind."
            )
    return api.array_namespace(np.empty(0) if first is None else arguments[first])


def _as_array(name: str, value: Any) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be a masked array: drop or fill what it masks.")
    if api.is_array_api_obj(value):
        if api.is_torch_array(value) and str(value.layout) != "torch.strided":
            raise TypeError(f"{name} must be dense, got the layout {value.layout}.")
        return value
    if isinstance(value, (list, tuple, int, float)):
        try:
            plain = np.asarray(value)
        except ValueError as error:
            raise ValueError(f"{name} must be a rectangular array of numbers.") from error
        if plain.dtype.kind in "biuf":
            return plain
        raise TypeError(f"{name} must hold real numbers, got a list of type {plain.dtype}.")
    raise TypeError(f"{name} must be an array of real numbers, got {type(value).__name__}.")


def _common_dtype(arrays: dict[str, Array], xp: Namespace, default: Any) -> Any:
    found = []
    for name, array in arrays.items():
        dtype = array.dtype
        if dtype in (xp.float32, xp.float64) or _is_extended(array):
            found.append(dtype)
        elif not _is_integer(dtype, xp):
            label = dtype_name(array)
            advice = (
                "cast it to float32 or float64 first; sums in half precision overflow at 65504."
                if label in ("float16", "bfloat16")
                else "expected float32, float64 or integers."
            )
            raise TypeError(f"{name} has type {label}: {advice}")
    if not found:
        return default
    if any(map(_is_extended, arrays.values())):
        return np.longdouble
    return xp.float64 if xp.float64 in found else xp.float32


@contextmanager
def extended_precision() -> Iterator[None]:
    """Admit NumPy's long double, in which everything but linear algebra works."""
    token = _EXTENDED.set(True)
    try:
        yield
    finally:
        _EXTENDED.reset(token)


def _is_extended(array: Array) -> bool:
    return _EXTENDED.get() and api.is_numpy_array(array) and array.dtype == np.longdouble


def _is_integer(dtype: Any, xp: Namespace) -> bool:
    try:
        return bool(xp.isdtype(dtype, "integral"))
    except (TypeError, ValueError):
        return False


def _require_one_device(arrays: dict[str, Array]) -> None:
    (first, reference), *others = arrays.items()
    for name, array in others:
        if api.device(array) != api.device(reference):
            raise ValueError(
                f"{first} is on device {api.device(reference)} and {name} on "
                f"{api.device(array)}; move them to one device."
            )


def stack_rows(*parts: Array) -> Array:
    """Join arrays (..., a_i, n) along their rows after broadcasting everything else."""
    xp = api.array_namespace(*parts)
    lead = np.broadcast_shapes(*(tuple(p.shape[:-2]) for p in parts))
    columns = max(int(p.shape[-1]) for p in parts)
    rows = [xp.broadcast_to(p, (*lead, int(p.shape[-2]), columns)) for p in parts]
    return xp.concat(rows, axis=-2)


def zero_rows(count: int, reference: Array) -> Array:
    """Return `count` rows of zeros that fit below the reference, (..., a, n)."""
    xp = api.array_namespace(reference)
    shape = (*tuple(reference.shape[:-2]), count, int(reference.shape[-1]))
    return xp.zeros(shape, dtype=reference.dtype, device=api.device(reference))


def unit(vectors: Array) -> Array:
    """Normalise along the last axis without overflow or underflow; zero vectors stay zero."""
    xp = api.array_namespace(vectors)
    scaled = vectors / nonzero(xp.max(xp.abs(vectors), axis=-1, keepdims=True))
    return scaled / nonzero(xp.sqrt(xp.sum(scaled * scaled, axis=-1, keepdims=True)))


def nonzero(array: Array) -> Array:
    """Replace zeros by ones, to divide by what may vanish together with the numerator."""
    xp = api.array_namespace(array)
    return xp.where(array == 0, xp.ones_like(array), array)


def picked(array: Array, index: Any) -> Array:
    """Return ``array[index]`` for an index into the first dimensions only.

    NumPy appends the ellipsis that the array API standard asks for.
    """
    parts = index if isinstance(index, tuple) else (index,)
    return array[parts if any(part is Ellipsis for part in parts) else (*parts, Ellipsis)]


def as_scalar(array: Array) -> Array:
    """Return NumPy's scalar of an array without dimensions, and any other array as it is."""
    return array[()] if array.ndim == 0 else array


def transpose(matrix: Array) -> Array:
    """Exchange the last two axes."""
    return api.array_namespace(matrix).matrix_transpose(matrix)
