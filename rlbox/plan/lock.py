"""How a target's Python packages are pinned: one resolution by uv, split into layer groups by who needs what."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping

from rlbox.errors import WorkFailed
from rlbox.plan.sources import SourcePlan
from rlbox.spec.lock import Lock, LockedGroup, Package, lock_checksum
from rlbox.spec.target import Target
from rlbox.values import Command

_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?$"
)
_MORE = " \\"
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"^\s+#\s+(?:via\s+)?(\S.*)$")


def plan_inputs(target: Target, runtime: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the requirement files to resolve, stack and runtime apart: file name to text.

    Each group's roots are a file of their own, so that uv's notes say which group asked for a package.
    """
    stack = {f"{group.name}.in": "".join(f"{line}\n" for line in group.packages) for group in target.stack}
    stack["excluded.txt"] = "".join(f"{name} ; python_version < '0'\n" for name in target.python.exclude)
    return stack, {"runtime.in": "".join(f"{line}\n" for line in sorted(runtime))}


def plan_compile(target: Target, files: Iterable[str], uv: str, sources: SourcePlan, cwd: str) -> Command:
    """Return the uv command that resolves the `.in` files for the target's interpreter, with hashes."""
    overrides = [word for name in files if name == "excluded.txt" for word in ("--override", name)]
    roots = sorted(name for name in files if name.endswith(".in"))
    local = [
        word for folder in sorted({w.rsplit("/", 1)[0] for w in sources.wheels}) for word in ("--find-links", folder)
    ]
    python = ("--python-version", target.python.version, "--python-platform", target.python.platform)
    return Command(
        argv=(uv, "pip", "compile", "--quiet", "--generate-hashes", "--no-header", *python, *local, *overrides, *roots),
        env=sources.env,
        cwd=cwd,
        timeout_s=600,
    )


def plan_lock(target: Target, runtime: tuple[str, ...], stack_text: str, runtime_text: str) -> Lock:
    """Return the lock from what `plan_compile`'s two commands printed."""
    order = [group.name for group in target.stack]
    packages, parents = parse_compiled(stack_text)
    owner = _first_group(order, parents)
    own, _ = parse_compiled(runtime_text)
    return Lock(
        target=target.name,
        spec=lock_checksum(target, runtime),
        runtime=LockedGroup(name="runtime", packages=_sorted(own.values())),
        groups=tuple(
            LockedGroup(name=name, packages=_sorted(p for key, p in packages.items() if owner[key] == name))
            for name in order
        ),
    )


def parse_compiled(text: str) -> tuple[dict[str, Package], dict[str, list[str]]]:
    """Return the packages of `uv pip compile`'s output by name, and for each who asked for it.

    Raises
    ------
    WorkFailed
        There is none, one is not pinned by version (an address, a folder), or one has no sha256.
    """
    packages: dict[str, Package] = {}
    parents: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if pin := _PIN.match(line):
            name = pin["name"]
            packages[name] = Package(name=name, version=pin["version"], sha256=(), marker=pin["marker"] or "")
            parents[name] = []
        elif digests := _HASH.findall(line):
            package = packages[name]
            known = tuple(sorted({*package.sha256, *digests}))
            packages[name] = Package(name=name, version=package.version, sha256=known, marker=package.marker)
        elif (via := _VIA.match(line)) and via[1] != "via":
            parents[name].append(via[1])
        elif line and line[0] not in " #":
            raise WorkFailed(f"uv resolved a package that is not pinned by version: {line.removesuffix(_MORE)}")
    if not packages:
        raise WorkFailed("uv resolved no package", next_step="name packages in the groups of the target's stack")
    if bare := [name for name, package in packages.items() if not package.sha256]:
        raise WorkFailed(f"uv gave no sha256 for {', '.join(bare)}", next_step="use an index or folder that has hashes")
    return packages, parents


def _first_group(order: list[str], parents: Mapping[str, list[str]]) -> dict[str, str]:
    children: dict[str, list[str]] = {}
    for child, asked_by in parents.items():
        for parent in asked_by:
            children.setdefault(parent, []).append(child)
    owner: dict[str, str] = {}
    for group in order:
        queue = deque(children.get(f"-r {group}.in", ()))
        while queue:
            package = queue.popleft()
            if package not in owner:
                owner[package] = group
                queue.extend(children.get(package, ()))
    return owner | {name: order[-1] for name in parents if name not in owner}


def _sorted(packages: Iterable[Package]) -> tuple[Package, ...]:
    return tuple(sorted(packages, key=lambda package: package.name))
