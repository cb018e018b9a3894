"""What is locked for a wheel that is compiled: its source, what its build imports, the system it is built in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from rlbox.artifacts.python_resolution import PINS, Inputs
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.target.compiled import COMPILER_WHEELS, Compile
from rlbox.target.lock import Compiled, Lock, LockedGroup, Package
from rlbox.target.target import Base, Target

# A C++ compiler with what it needs, and Python's headers.
_TOOLCHAIN = ("g++", "python3-dev")


def plan_source(entry: Compile) -> Inputs:
    """Return what uv is asked for the source archive of an entry; its metadata are given, for they need the build."""
    name, version = entry.distribution, entry.version
    settings = (
        f'no-binary-package = ["{name}"]\n'
        f'[[dependency-metadata]]\nname = "{name}"\nversion = "{version}"\nrequires-dist = []\n'
    )
    files = {"source.in": f"{name}=={version}\n", "uv.toml": settings, PINS: ""}
    return Inputs(name=f"source of {name}", files=files)


def plan_tools(entry: Compile, stack: Iterable[Package], before: Compiled | None, moved: Iterable[str]) -> Inputs:
    """Return what uv is asked for the packages that a build imports.

    Parameters
    ----------
    stack
        The packages of the stack: what is asked for without a version has theirs, and so have its requirements.
    before, moved
        Where the lock before has other packages, they are kept, but for the names that `--upgrade` moves.
    """
    versions = {str(canonicalize_name(package.name)): package.version for package in stack}
    kept = {package.name: package.version for package in before.tools} if before else {}
    pins: dict[str, str] = {**{name: version for name, version in kept.items() if name not in set(moved)}, **versions}
    roots = [_root(text, versions) for text in entry.needs]
    roots += [f"{name}=={entry.cuda}.*" for name in COMPILER_WHEELS if entry.cuda]
    return Inputs(
        name=f"tools of {entry.distribution}",
        files={
            "tools.in": "".join(f"{line}\n" for line in sorted(roots)),
            PINS: "".join(f"{name}=={version}\n" for name, version in sorted(pins.items())),
        },
    )


def _root(text: str, versions: Mapping[str, str]) -> str:
    try:
        asked = Requirement(text)
    except InvalidRequirement as error:
        raise SpecError(
            _("stack.compile.needs: {text!r} is no requirement: {error}").format(text=text, error=error)
        ) from error
    version = versions.get(canonicalize_name(asked.name))
    return f"{text}=={version}" if version and not asked.specifier else text


def toolchain_base(target: Target) -> Base | None:
    """Return the bootstrapped system that a target's wheels are compiled in; None where nothing is, or none is made."""
    if not target.compiled or not target.base.bootstrap:
        return None
    named = {package for __, entry in target.compiled for package in entry.packages}
    return target.base.model_copy(update={"packages": tuple(sorted({*_TOOLCHAIN, *named}))})


def with_wheels(lock: Lock, before: Lock | None) -> Lock:
    for row in lock.compiled:
        wheel = before.wheel(row) if before else None
        if wheel:
            lock = lock.with_wheel(row, wheel)
    return lock


def stack_packages(groups: Iterable[LockedGroup]) -> tuple[Package, ...]:
    return tuple(package for group in groups for package in group.packages if package.indexed)
