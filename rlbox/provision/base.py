"""What a target takes of its base image, on a machine without that image: is it here, and in the right versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

from rlbox.errors import NodeError
from rlbox.findings import listed
from rlbox.i18n import _
from rlbox.target.target import Target

_DRIVER = "libcuda.so.1"


@dataclass(frozen=True, kw_only=True)
class MachinePython:
    """An interpreter of the machine: version (`3.12`), folders of its packages, which of those asked for it has.

    `error` is why it cannot be asked.
    """

    path: str
    version: str = ""
    folders: tuple[str, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class AdoptedBase:
    """What the environment of a place has behind its own packages: those of an interpreter of the machine."""

    python: str
    folders: tuple[str, ...] = ()
    packages: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class TriedImport:
    """How the module of a package was imported; `error` is empty when it was."""

    name: str
    error: str = ""


def held_by(target: Target) -> dict[str, str]:
    """Return what a target takes of its base image: canonical name to version."""
    return {canonicalize_name(name): version for name, version in target.base.holds.items()}


def adopt(target: Target, found: MachinePython, accepted: Mapping[str, str], command: str) -> AdoptedBase:
    """Return what the machine's interpreter gives of the target's base image.

    Parameters
    ----------
    accepted
        Other versions that the user says will do, by canonical name.
    command
        The command line that applies the target there, for what is advised.

    Raises
    ------
    NodeError
        Something is missing, or of another version; all of it is named.
    """
    holds = held_by(target)
    if gaps := tuple(_gaps(target, holds, found, accepted)):
        raise NodeError(
            _("this machine does not hold what target {target} takes of its base image: {gaps}").format(
                target=target.name, gaps="; ".join(gaps)
            ),
            where=f"{found.path}{f' (Python {found.version})' if found.version else ''}",
            next_step=_next_step(target, holds, found, accepted, command),
        )
    return AdoptedBase(
        python=found.path,
        folders=found.folders,
        packages={name: found.packages[name] for name in holds},
    )


def _gaps(target: Target, holds: Mapping[str, str], found: MachinePython, accepted: Mapping[str, str]) -> Iterator[str]:
    if found.error:
        yield found.error
        return
    if found.version != target.python.version:
        yield f"Python is {found.version}, and {target.python.version} is wanted"
    missing = [f"{name} {version}" for name, version in holds.items() if not found.packages.get(name)]
    if missing:
        yield f"{len(missing)} of {len(holds)} packages are missing ({listed([*map(str, missing)], len(missing))})"
    for name, version in _others(holds, found, accepted).items():
        yield f"{name} is {version}, and {holds[name]} is wanted"


def _others(holds: Mapping[str, str], found: MachinePython, accepted: Mapping[str, str]) -> dict[str, str]:
    """Return the packages that are here in another version that nobody accepted."""
    here = {name: found.packages.get(name, "") for name in holds}
    return {name: text for name, text in here.items() if text and text not in (holds[name], accepted.get(name))}


def _next_step(
    target: Target,
    holds: Mapping[str, str],
    found: MachinePython,
    accepted: Mapping[str, str],
    command: str,
) -> str:
    missing = found.error or found.version != target.python.version or not all(map(found.packages.get, holds))
    if not missing:
        command += f" --python {found.path}" if found.path != target.python.interpreter else ""
        taken = {**accepted, **_others(holds, found, accepted)}
        words = " ".join(f"--accept {name}=={text}" for name, text in taken.items())
        return _("install those versions there, or say that these will do: {command} {words}").format(
            command=command, words=words
        )
    return _("name the interpreter that has them: {command} --python FILE").format(command=command)


def judge_imports(base: AdoptedBase, found: tuple[TriedImport, ...], last: str) -> tuple[str, ...]:
    """Return what could not be proven for want of a GPU driver, one sentence each.

    Parameters
    ----------
    last
        The package whose import ended the program without a word; empty: none did.

    Raises
    ------
    NodeError
        A package cannot be imported.
    """
    broken = [row for row in found if row.error and _DRIVER not in row.error]
    told = [f"{row.name}: {row.error}" for row in broken]
    told += [f"{last}: its import ended the interpreter"] if last else []
    if told:
        words = "; ".join(told)
        raise NodeError(
            _("what this machine has of the target's base image does not work: {words}").format(words=words),
            where=base.python,
            next_step=_("repair it there, or name another interpreter with --python FILE"),
        )
    return tuple(f"{row.name} is not proven: it wants the GPU driver, which is not here" for row in found if row.error)
