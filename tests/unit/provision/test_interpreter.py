"""The interpreter that the environment of a place is made with."""

from __future__ import annotations

import sys

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.errors import MachineError
from rlbox.provision.provision import require_venv_python_or_version
from rlbox.target.target import Target, load_target

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER = "3.99"


def target(name: str, **python: str) -> Target:
    found = load_target(Project(folder=CHECKOUT), name).target
    return found.model_copy(update={"python": found.python.model_copy(update=python)})


@pytest.mark.allow("processes")
def test_the_interpreter_of_the_spec_is_taken() -> None:
    assert (
        require_venv_python_or_version(target("local", interpreter=sys.executable, version=PYTHON), "")
        == sys.executable
    )
    assert (
        require_venv_python_or_version(target("local", interpreter="/nowhere/python", version=PYTHON), sys.executable)
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
    with pytest.raises(MachineError) as refused:
        require_venv_python_or_version(target("local", interpreter=interpreter, version=version), named)
    assert says in refused.value.what


@pytest.mark.allow("processes")
def test_the_systems_own_is_none_that_was_named() -> None:
    assert require_venv_python_or_version(target("local", interpreter="/usr/bin/python3", version=OTHER), "") == OTHER
