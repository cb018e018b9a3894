"""What a target takes of its base image, on a machine without that image: is it here, and in the right versions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from rlbox.doctor.stack import parse_steps
from rlbox.errors import NodeError, RlboxError
from rlbox.findings import listed
from rlbox.i18n import _
from rlbox.provision.layout import Layout
from rlbox.provision.shell_environment import filter_environment
from rlbox.system.command import run_command
from rlbox.target.target import Target
from rlbox.values import VENV, Command

_DRIVER = "libcuda.so.1"


@dataclass(frozen=True, kw_only=True)
class MachinePython:
    """An interpreter of the machine: version (`3.12`), folders of its packages, which of those asked for it has.

    `error` is why it cannot be asked.
    """

    path: str
    version: str = ""
    site_dirs: tuple[str, ...] = ()
    version_by_package: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class AdoptedBase:
    """What the environment of a place has behind its own packages: those of an interpreter of the machine."""

    python: str
    site_dirs: tuple[str, ...] = ()
    version_by_package: Mapping[str, str]


def _required_base_packages(target: Target) -> dict[str, str]:
    """Return what a target takes of its base image: canonical name to version."""
    return {canonicalize_name(name): version for name, version in target.base.holds.items()}


def adopt_python(
    target: Target, machine_python: MachinePython, accepted_version_by_package: Mapping[str, str], apply_command: str
) -> AdoptedBase:
    """Return what the machine's interpreter gives of the target's base image.

    Parameters
    ----------
    accepted_version_by_package
        Other versions that the user says will do, by canonical name.
    apply_command
        The command line that applies the target there, for what is advised.

    Raises
    ------
    NodeError
        Something is missing, or of another version; all of it is named.
    """
    holds = _required_base_packages(target)
    if gaps := tuple(_gaps(target, holds, machine_python, accepted_version_by_package)):
        raise NodeError(
            _("this machine does not hold what target {target} takes of its base image: {gaps}").format(
                target=target.name, gaps="; ".join(gaps)
            ),
            where=f"{machine_python.path}{f' (Python {machine_python.version})' if machine_python.version else ''}",
            next_step=_next_step(target, holds, machine_python, accepted_version_by_package, apply_command),
        )
    return AdoptedBase(
        python=machine_python.path,
        site_dirs=machine_python.site_dirs,
        version_by_package={name: machine_python.version_by_package[name] for name in holds},
    )


def _gaps(target: Target, holds: Mapping[str, str], found: MachinePython, accepted: Mapping[str, str]) -> Iterator[str]:
    if found.error:
        yield found.error
        return
    if found.version != target.python.version:
        yield f"Python is {found.version}, and {target.python.version} is wanted"
    missing = [f"{name} {version}" for name, version in holds.items() if not found.version_by_package.get(name)]
    if missing:
        yield f"{len(missing)} of {len(holds)} packages are missing ({listed([*map(str, missing)], len(missing))})"
    for name, version in _others(holds, found, accepted).items():
        yield f"{name} is {version}, and {holds[name]} is wanted"


def _others(holds: Mapping[str, str], found: MachinePython, accepted: Mapping[str, str]) -> dict[str, str]:
    """Return the packages that are here in another version that nobody accepted."""
    here = {name: found.version_by_package.get(name, "") for name in holds}
    return {name: text for name, text in here.items() if text and text not in (holds[name], accepted.get(name))}


def _next_step(
    target: Target,
    holds: Mapping[str, str],
    found: MachinePython,
    accepted: Mapping[str, str],
    command: str,
) -> str:
    missing = found.error or found.version != target.python.version or not all(map(found.version_by_package.get, holds))
    if not missing:
        command += f" --python {found.path}" if found.path != target.python.interpreter else ""
        taken = {**accepted, **_others(holds, found, accepted)}
        words = " ".join(f"--accept {name}=={text}" for name, text in taken.items())
        return _("install those versions there, or say that these will do: {command} {words}").format(
            command=command, words=words
        )
    return _("name the interpreter that has them: {command} --python FILE").format(command=command)


_PROGRAM = Path(__file__).with_name("programs") / "probe_base.py"
_USUAL = "/usr/bin/python3"
"""The interpreter of a spec that names none."""
_VERSIONS_S, _IMPORTS_S = 120.0, 900.0


def _probe_python(path: str, distributions: Iterable[str] = ()) -> MachinePython:
    """Return what an interpreter is, and which of the distributions `distributions` it has."""
    try:
        rows, user_options = _ask(path, "versions", tuple(distributions), _VERSIONS_S)
    except RlboxError as error:
        return MachinePython(path=path, error=error.what)
    python = next((row for row in rows if row["step"] == "python"), None)
    if python is None:
        return MachinePython(path=path, error=f"it is no interpreter that answers: {user_options}")
    packages = {str(row["name"]): str(row["version"]) for row in rows if row["step"] == "held" and row["version"]}
    return MachinePython(
        path=path, version=str(python["version"]), site_dirs=tuple(python["folders"]), version_by_package=packages
    )


def probe_and_require_base_packages(
    target: Target, python: str, accepted_version_by_package: Mapping[str, str], layout: Layout
) -> AdoptedBase:
    """Return what the interpreter `python` gives of the target's base image.

    Raises
    ------
    NodeError
        Something is missing or of another version, or it lies where the place's own environment goes.
    """
    own = layout.map_path(VENV)
    found = _probe_python(python, _required_base_packages(target))
    if any(f"{folder}/".startswith(f"{own}/") for folder in (os.path.abspath(python), *found.site_dirs)):
        raise NodeError(
            _("the interpreter lies in {own}, where the place's own environment goes").format(own=own),
            where=python,
            next_step=f"rlbox apply {target.name} --prefix DIR",
        )
    return adopt_python(target, found, accepted_version_by_package, layout.format_apply_command(target.name))


def require_base_imports(base: AdoptedBase) -> tuple[str, ...]:
    """Import every adopted package with the machine's interpreter; return what no import could verify here.

    Raises
    ------
    NodeError
        One cannot be imported, or they take too long.
    """
    rows, __ = _ask(base.python, "imports", tuple(base.version_by_package), _IMPORTS_S)
    errors = {str(row["name"]): str(row["error"]) for row in rows if row["step"] == "import"}
    crashed = next((name for name in base.version_by_package if name not in errors), None)
    broken = [f"{name}: {error}" for name, error in errors.items() if error and _DRIVER not in error]
    broken += [f"{crashed}: its import ended the interpreter"] if crashed else []
    if broken:
        raise NodeError(
            _("parts of the target's base image on this machine do not work: {words}").format(words="; ".join(broken)),
            where=base.python,
            next_step=_("repair it there, or name another interpreter with --python FILE"),
        )
    return tuple(
        f"{name} is not proven: it wants the GPU driver, which is not here" for name, error in errors.items() if error
    )


def choose_venv_python_or_version(target: Target, user_python: str) -> str:
    """Return what an environment is made with: the interpreter that is named, or that of the spec, else a version.

    Raises
    ------
    NodeError
        An interpreter that was named is not there, or of another version.
    """
    path = user_python or target.python.interpreter
    found = _probe_python(path)
    if not found.error and found.version == target.python.version:
        return path
    if path == _USUAL and not user_python:
        return target.python.version  # the system's is another: any of that version will do
    why = found.error or _("it is Python {version}").format(version=found.version)
    raise NodeError(
        _("target {target} wants Python {version}: {why}").format(
            target=target.name, version=target.python.version, why=why
        ),
        where=path,
        next_step=_("name another with --python FILE")
        if user_python
        else _("correct python.interpreter, or give --python FILE"),
    )


def _ask(path: str, what: str, names: Sequence[str], timeout_s: float) -> tuple[tuple[Mapping[str, Any], ...], str]:
    """Return what the program says, and its last words; its environment is that of runs."""
    argv = (path, "-I", "-B", str(_PROGRAM), what, *names)
    try:
        done = run_command(Command(argv=argv, timeout_s=timeout_s), environ=filter_environment(os.environ))
    except OSError as error:
        raise NodeError(_("it cannot be run: {strerror}").format(strerror=error.strerror), where=path) from error
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return parse_steps(done.stdout), lines[-1][:300] if lines else f"exit code {done.exit_code}"
