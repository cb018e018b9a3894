"""What an environment of a place is made with, and what a machine must hold of a framework's image."""

from __future__ import annotations

import sys

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.errors import NodeError
from rlbox.provision.base import MachinePython, adopt_python, choose_venv_python_or_version
from rlbox.target.target import Target, load_target

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER = "3.99"


def target(name: str, **python: str) -> Target:
    found = load_target(Project(folder=CHECKOUT), name).target
    return found.model_copy(update={"python": found.python.model_copy(update=python)})


@pytest.mark.allow("processes")
def test_the_interpreter_of_the_spec_is_taken() -> None:
    assert (
        choose_venv_python_or_version(target("local", interpreter=sys.executable, version=PYTHON), "") == sys.executable
    )
    assert (
        choose_venv_python_or_version(target("local", interpreter="/nowhere/python", version=PYTHON), sys.executable)
        == sys.executable
    )


@pytest.mark.allow("processes")
@pytest.mark.parametrize(
    ("interpreter", "version", "named", "says"),
    [
        (sys.executable, OTHER, "", f"wants Python {OTHER}: it is Python {PYTHON}"),
        ("/nowhere/python", PYTHON, "", "no such program"),
        ("/usr/bin/python3", OTHER, sys.executable, f"it is Python {PYTHON}"),
    ],
)
def test_one_that_was_named_is_not_passed_over(interpreter: str, version: str, named: str, says: str) -> None:
    with pytest.raises(NodeError) as refused:
        choose_venv_python_or_version(target("local", interpreter=interpreter, version=version), named)
    assert says in refused.value.what


@pytest.mark.allow("processes")
def test_the_systems_own_is_none_that_was_named() -> None:
    assert choose_venv_python_or_version(target("local", interpreter="/usr/bin/python3", version=OTHER), "") == OTHER


def test_all_that_is_missing_is_told_at_once() -> None:
    """Of a target on slime's own image, on AutoDL where that image cannot be loaded."""
    desired = target("local", version="3.12")
    held = {"flash-attn": "2.7.4.post1", "sglang": "0.5.6.post2", "torch": "2.9.1+cu129"}
    base = {"image": f"example/slime:v0.2.1@sha256:{'0' * 64}", "holds": held, "bootstrap": ""}
    desired = desired.model_copy(update={"base": desired.base.model_copy(update=base)})
    whole = MachinePython(path="/env/bin/python", version="3.12", site_dirs=("/env/site",), version_by_package=held)
    assert adopt_python(desired, whole, {}, "rlbox apply held").version_by_package == held
    some = {**held, "torch": "2.9.1+cu128"}
    del some["flash-attn"]
    with pytest.raises(NodeError) as refused:
        adopt_python(
            desired,
            MachinePython(path="/env/bin/python", version="3.11", version_by_package=some),
            {},
            "rlbox apply held",
        )
    for words in (
        "Python is 3.11, and 3.12 is wanted",
        "1 of 3 packages are missing (flash-attn 2.7.4.post1)",
        "torch is 2.9.1+cu128, and 2.9.1+cu129 is wanted",
    ):
        assert words in refused.value.what
