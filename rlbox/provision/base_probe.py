"""Ask interpreters of the machine what they have of a framework's image, and which of it can be imported."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlbox.doctor.stack import parse_steps
from rlbox.errors import NodeError, RlboxError
from rlbox.i18n import _
from rlbox.provision.base import AdoptedBase, MachinePython, TriedImport, adopt, held_by, judge_imports
from rlbox.provision.environment import handed_on
from rlbox.provision.layout import Layout
from rlbox.system.command import run_command
from rlbox.target.target import Target
from rlbox.values import VENV, Command

_PROGRAM = Path(__file__).with_name("programs") / "probe_base.py"
_USUAL = "/usr/bin/python3"
"""The interpreter of a spec that names none."""
_VERSIONS_S, _IMPORTS_S = 120.0, 900.0


def probe_python(path: str, names: Iterable[str] = ()) -> MachinePython:
    """Return what an interpreter is, and which of the distributions `names` it has."""
    try:
        rows, said = _ask(path, "versions", tuple(names), _VERSIONS_S)
    except RlboxError as error:
        return MachinePython(path=path, error=error.what)
    python = next((row for row in rows if row["step"] == "python"), None)
    if python is None:
        return MachinePython(path=path, error=f"it is no interpreter that answers: {said}")
    packages = {str(row["name"]): str(row["version"]) for row in rows if row["step"] == "held" and row["version"]}
    return MachinePython(path=path, version=str(python["version"]), folders=tuple(python["folders"]), packages=packages)


def adopt_base(target: Target, path: str, accepted: Mapping[str, str], layout: Layout) -> AdoptedBase:
    """Return what the interpreter `path` gives of the target's base image.

    Raises
    ------
    NodeError
        Something is missing or of another version, or it lies where the place's own environment goes.
    """
    own = layout.at(VENV)
    found = probe_python(path, held_by(target))
    if any(f"{folder}/".startswith(f"{own}/") for folder in (os.path.abspath(path), *found.folders)):
        raise NodeError(
            _("the interpreter lies in {own}, where the place's own environment goes").format(own=own),
            where=path,
            next_step=f"rlbox apply {target.name} --prefix DIR",
        )
    return adopt(target, found, accepted, layout.apply(target.name))


def prove_base(base: AdoptedBase) -> tuple[str, ...]:
    """Import every adopted package with the machine's interpreter; return what no import could prove here.

    Raises
    ------
    NodeError
        One cannot be imported, or they take too long.
    """
    rows, __ = _ask(base.python, "imports", tuple(base.packages), _IMPORTS_S)
    done = tuple(TriedImport(name=str(row["name"]), error=str(row["error"])) for row in rows if row["step"] == "import")
    begun = [str(row["name"]) for row in rows if row["step"] == "begun"]
    last = next((name for name in reversed(begun) if name not in {row.name for row in done}), "")
    return judge_imports(base, done, last or next((name for name in base.packages if name not in begun), ""))


def chosen_python(target: Target, named: str) -> str:
    """Return what an environment is made with: the interpreter that is named, or that of the spec, else a version.

    Raises
    ------
    NodeError
        An interpreter that was named is not there, or of another version.
    """
    path = named or target.python.interpreter
    found = probe_python(path)
    if not found.error and found.version == target.python.version:
        return path
    if path == _USUAL and not named:
        return target.python.version  # the system's is another: any of that version will do
    why = found.error or _("it is Python {version}").format(version=found.version)
    raise NodeError(
        _("target {target} wants Python {version}: {why}").format(
            target=target.name, version=target.python.version, why=why
        ),
        where=path,
        next_step=_("name another with --python FILE")
        if named
        else _("correct python.interpreter, or give --python FILE"),
    )


def _ask(path: str, what: str, names: Sequence[str], timeout_s: float) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """Return what the program says, and its last words; its environment is that of runs."""
    argv = (path, "-I", "-B", str(_PROGRAM), what, *names)
    try:
        done = run_command(Command(argv=argv, timeout_s=timeout_s), environ=handed_on(os.environ))
    except OSError as error:
        raise NodeError(_("it cannot be run: {strerror}").format(strerror=error.strerror), where=path) from error
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return parse_steps(done.stdout), lines[-1][:300] if lines else f"exit code {done.exit_code}"
