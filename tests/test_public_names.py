"""What ``hessence`` offers by name."""

import inspect

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
