"""What ``hessence`` offers by name."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import hessence as hs


def test_only_what_is_meant_for_users_is_listed():
    listed = [name for name in dir(hs) if not name.startswith("__")]
    assert set(hs.__all__) < set(listed)
    assert not {"Any", "TYPE_CHECKING", "import_module", "krylov"} & set(listed)
    assert len(listed) == len(set(listed))
    assert "__version__" in dir(hs)


def test_everything_listed_is_there_and_ours():
    pytest.importorskip("torch")
    for name in dir(hs):
        value = getattr(hs, name)
        if not name.startswith("__"):
            home = value.__name__ if inspect.ismodule(value) else value.__module__
            assert home.startswith("hessence.")


RECEIVED = """
    Anatomy AttentionBounds AttentionStatistics CellwiseAnatomy Certificate Check CheckWarning
    ConvergenceWarning Density Eigenpairs Eigenspace Estimate History IndependentCells Inertia
    KinkWarning LayerSpectra LinearBounds Measurement NarrowTwin Operator Outcome Spectrum Trace
    Trajectory
"""


@pytest.mark.parametrize("name", RECEIVED.split())
def test_what_users_receive_can_be_imported(name):
    assert inspect.isclass(getattr(hs, name))
    assert getattr(hs, name).__name__ == name
    assert getattr(hs, name).__doc__


def test_every_public_class_and_function_has_an_example():
    pytest.importorskip("torch")
    public = [getattr(hs, name) for name in dir(hs) if not name.startswith("__")]
    told = [v for v in public if inspect.isfunction(v)]
    told += [v for v in public if inspect.isclass(v) and not issubclass(v, Exception)]
    missing = {value.__name__ for value in told if ">>>" not in str(value.__doc__)}
    assert not missing


def test_the_import_is_light():
    heavy = ["torch", "matplotlib", "scipy", "pandas"]
    code = f"import sys, hessence; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_private_modules_are_imported_from_their_own_folder_only():
    source = Path(hs.__file__).parent
    for path in source.rglob("*.py"):
        folder = ".".join(("hessence", *path.relative_to(source).parent.parts))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hessence."):
                home, _, name = str(node.module).rpartition(".")
                private = name.startswith("_") and name not in ("_common", "_loading")
                assert not private or home == folder, f"{path.name} imports {node.module}"


def test_every_method_that_users_can_call_is_documented_by_its_class_or_a_base():
    pytest.importorskip("torch")
    for owner in (getattr(hs, name) for name in dir(hs) if name[0].isupper()):
        for name, member in inspect.getmembers(owner):
            ours = inspect.isfunction(member) or isinstance(member, property)
            if ours and not name.startswith("_"):
                assert inspect.getdoc(member), f"{owner.__name__}.{name}"
