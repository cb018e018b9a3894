"""Resolve a target's Python packages with uv, and split them into layer groups by who needs what."""

from __future__ import annotations

import re
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from uv import find_uv_bin

from rlbox.artifacts.mirrors import PipUvEnvAndLocalWheels
from rlbox.errors import WorkFailed
from rlbox.foreign import parse_untrusted_toml
from rlbox.i18n import _
from rlbox.system.command import run_command_or_raise
from rlbox.system.http import HttpClient, NoFullResponseError, create_netrc_client, describe_response_error, retry
from rlbox.system.network_settings import NetworkSettings
from rlbox.target.lock import Deb, Lock, LockedPackageGroup, Package, compute_lock_spec_checksum
from rlbox.target.target import PythonLayerSpec, Target
from rlbox.values import Command

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)(?:\s*;.*)?$")
_VIA = re.compile(r"^\s+#\s+(?:via\s+)?(\S.*)$")
PINS, PYLOCK = "pins.txt", "pylock.toml"


@dataclass(frozen=True, kw_only=True)
class UpgradeRequest:
    """What may leave the version of the lock before: everything, or the packages named."""

    all_packages: bool = False
    packages: frozenset[str] = frozenset()

    def allows(self, normalized_name: str) -> bool:
        return self.all_packages or normalized_name in self.packages


@dataclass(frozen=True, kw_only=True)
class ResolverOutput:
    """What uv printed: `requirements` as a requirements file with notes of who asked, `pylock` as a parsed pylock.toml.

    `size_by_sha256` maps the sha256 of a file to its bytes.
    """

    requirements: str
    pylock: Mapping[str, Any]
    size_by_sha256: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ResolverInputs:
    """What is resolved together: the files uv reads, by name; `.in` files are roots, one for each group."""

    name: str
    files: Mapping[str, str]


def plan_stack_runtime_and_build_inputs(
    target: Target, rlbox_requirements: tuple[str, ...], preferred_versions_by_purpose: Mapping[str, Mapping[str, str]]
) -> tuple[ResolverInputs, ...]:
    """Return what has to be resolved: the stack, rlbox's own environment, the tools that build source archives.

    Each group's roots are a file of their own, so that uv's notes say which group asked for a package.
    `preferred_versions` maps the name of a resolution to package versions of the lock before, which uv prefers.
    """
    stack = {f"{group.name}.in": "".join(f"{line}\n" for line in group.packages) for group in target.stack}
    left_out = (
        *target.python.exclude,
        *target.base.holds,
        *(entry.distribution_name for __, entry in target.compile_entries),
    )
    stack["excluded.txt"] = "".join(f"{name} ; python_version < '0'\n" for name in left_out)
    own = {"runtime.in": "".join(f"{line}\n" for line in sorted(rlbox_requirements))}
    tools = {"build.in": "".join(f"{line}\n" for line in sorted(target.python.build))}
    return tuple(
        ResolverInputs(name=name, files={**files, PINS: format_pins(preferred_versions_by_purpose.get(name, {}))})
        for name, files in (("stack", stack), ("runtime", own), ("build", tools))
    )


def format_pins(versions: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def list_kept_versions_by_purpose(lock: Lock | None, upgrade: UpgradeRequest) -> dict[str, dict[str, str]]:
    """Return the versions that a new lock keeps, by what they are for: `stack`, `runtime`, `build`, `apt`."""
    if lock is None or upgrade.all_packages:
        return {}
    stack = [package for group in lock.groups for package in group.packages if package.is_from_python_or_torch_index]
    rows: dict[str, Iterable[Package | Deb]] = {
        "stack": stack,
        "runtime": lock.runtime.packages,
        "build": lock.build.packages,
        "apt": lock.debs,
    }
    return {
        name: {row.name: row.version for row in found if not upgrade.allows(row.name)} for name, found in rows.items()
    }


class ParsedPins(NamedTuple):
    """Package to version, and package to who asked for it: packages, or `-r FILE`."""

    versions: dict[str, str]
    requested_by: dict[str, list[str]]


def plan_uv_pin_and_pylock_commands(
    target: Target,
    inputs: ResolverInputs,
    uv: str,
    index_settings: PipUvEnvAndLocalWheels,
    cwd: str,
    upgrade: UpgradeRequest,
) -> tuple[Command, ...]:
    """Return the uv commands that pin versions (`pins.txt`) and that find the files of those (`pylock.toml`)."""
    overrides = ("--override", "excluded.txt") if "excluded.txt" in inputs.files else ()
    roots = sorted(name for name in inputs.files if name.endswith(".in"))
    local = [
        word
        for directory in sorted({w.rsplit("/", 1)[0] for w in index_settings.local_wheel_paths})
        for word in ("--find-links", directory)
    ]
    python = ("--python-version", target.python.version, "--python-platform", target.python.platform)
    moved = [word for name in sorted(upgrade.packages) for word in ("--upgrade-package", name)]
    moved += ["--upgrade"] if upgrade.all_packages else []
    before = ("--exclude-newer", target.python.before) if inputs.name == "stack" and target.python.before else ()
    compile_ = (uv, "pip", "compile", "--quiet", "--no-header", *python, *local, *before)
    pin_versions = (*compile_, *overrides, *moved, *roots, "-o", PINS)
    find_files = (*compile_, "--no-deps", "--format", "pylock.toml", PINS, "-o", PYLOCK)
    return tuple(
        Command(argv=argv, env=index_settings.env, cwd=cwd, timeout_s=600) for argv in (pin_versions, find_files)
    )


def build_python_lock(
    target: Target, rlbox_requirements: tuple[str, ...], resolver_outputs: Mapping[str, ResolverOutput]
) -> Lock:
    order = [group.name for group in target.stack]
    __, parents = parse_versions_and_requesters(resolver_outputs["stack"].requirements)
    owner = _first_group(order, parents)
    packages = select_package_files(target, resolver_outputs["stack"])
    own = select_package_files(target, resolver_outputs["runtime"])
    sdists = [package for package in (*packages.values(), *own.values()) if not package.is_wheel]
    tools = select_package_files(target, resolver_outputs["build"]) if sdists else {}
    return Lock(
        target=target.name,
        spec=compute_lock_spec_checksum(target, rlbox_requirements),
        python=target.python.version,
        platform=target.python.platform,
        base=target.base.bootstrap or target.base.image,
        runtime=LockedPackageGroup(name="runtime", packages=_sorted(own.values())),
        build=LockedPackageGroup(name="build", packages=_sorted(tools.values())),
        groups=tuple(
            LockedPackageGroup(
                name=spec.name,
                packages=_sorted((*(p for key, p in packages.items() if owner[key] == spec.name), *_wheels(spec))),
            )
            for spec in target.stack
        ),
    )


def _wheels(group: PythonLayerSpec) -> Iterator[Package]:
    for wheel in group.wheels:
        yield Package(
            name=wheel.distribution_name,
            version=wheel.version,
            file=wheel.file,
            sha256=wheel.sha256,
            size=wheel.size,
            source=wheel.url,
        )


def select_package_files(target: Target, resolution: ResolverOutput) -> dict[str, Package]:
    """Return the packages of a resolution by name, each with the one file that is installed.

    Raises WorkFailed: one is not pinned by version, has no sha256, or no file for the target's interpreter and
      platform.
    """
    versions, __ = parse_versions_and_requesters(resolution.requirements)
    channels = {group.channel for group in target.stack if group.channel}
    found = {}
    for row in resolution.pylock.get("packages", ()):
        file = _chosen_file(row, target)
        name, version = str(row["name"]), str(row["version"])
        local = version.partition("+")[2]
        found[name] = Package(
            name=name,
            version=version,
            file=parse_pylock_file_name(file),
            sha256=str(file["hashes"]["sha256"]),
            size=resolution.size_by_sha256.get(str(file["hashes"]["sha256"]), 0),
            source=f"torch-wheels/{local}" if local in channels else "python",
        )
    if missing := sorted(set(versions) - set(found)):
        raise WorkFailed(_("uv found no file for {missing}").format(missing=", ".join(missing)))
    return found


def map_chosen_sha256_to_url(target: Target, pylock: Mapping[str, Any]) -> dict[str, str]:
    chosen = [_chosen_file(row, target) for row in pylock.get("packages", ())]
    return {str(file["hashes"]["sha256"]): str(file.get("url") or file.get("path")) for file in chosen}


def _chosen_file(row: Mapping[str, Any], target: Target) -> Mapping[str, Any]:
    wheels = {parse_pylock_file_name(wheel): wheel for wheel in row.get("wheels", ())}
    best = choose_best_wheel(wheels, target.python.version, target.python.platform)
    file = wheels[best] if best else row.get("sdist") or row.get("archive")
    what = f"{row['name']} {row.get('version', '')}".strip()
    if file is None:
        raise WorkFailed(
            _("{what} has no file for Python {version} on {platform}").format(
                what=what, version=target.python.version, platform=target.python.platform
            ),
            where="python.version and python.platform",
        )
    if "version" not in row or "sha256" not in file.get("hashes", {}):
        raise WorkFailed(_("{what} is not pinned by version and sha256: {file}").format(what=what, file=file))
    return dict(file)


def parse_pylock_file_name(pylock_file: Mapping[str, Any]) -> str:
    place = str(pylock_file.get("name") or pylock_file.get("path") or urlsplit(str(pylock_file["url"])).path)
    return unquote(place.rpartition("/")[2])


def parse_versions_and_requesters(uv_output: str) -> ParsedPins:
    """Return the versions of `uv pip compile`'s output by package, and for each package who asked for it.

    Raises WorkFailed: there is none, or one is not pinned by version (an address, a folder).
    """
    versions: dict[str, str] = {}
    parents: dict[str, list[str]] = {}
    name = ""
    for line in uv_output.splitlines():
        if pin := _PIN.match(line):
            name = pin["name"]
            versions[name], parents[name] = pin["version"], []
        elif (via := _VIA.match(line)) and via[1] != "via":
            parents[name].append(via[1])
        elif line and line[0] not in " #":
            raise WorkFailed(_("uv resolved a package that is not pinned by version: {line}").format(line=line))
    if not versions:
        raise WorkFailed(_("uv resolved no package"), next_step=_("name packages in the groups of the target's stack"))
    return ParsedPins(versions, parents)


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


# glibc versions that manylinux tags name; uv has already left out what is too new for the platform.
_GLIBC = range(45, 4, -1)
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # source: PEP 600, "Legacy manylinux tags"


def choose_best_wheel(wheel_names: Iterable[str], python_version: str, platform: str) -> str | None:
    """Return the file name that an installer prefers, or None when there is no wheel for the interpreter.

    `python_version`: `3.11`.
    `platform`: uv's name: `x86_64-unknown-linux-gnu`, `aarch64-…`, `x86_64-manylinux_2_28`.
    """
    order = _order(python_version, platform.partition("-")[0])
    ranked = [(rank, name) for name in wheel_names if (rank := _rank(name, order))]
    return min(ranked)[1] if ranked else None


def _rank(name: str, order: dict[Tag, int]) -> tuple[int, int, str] | None:
    """Return what sorts wheels by preference: the tag, then the highest build number."""
    try:
        _name, _version, build, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return None
    number, suffix = build or (0, "")
    places = [order[tag] for tag in tags if tag in order]
    return (min(places), -number, suffix) if places else None


@cache
def _order(python: str, machine: str) -> dict[Tag, int]:
    major, minor = (int(part) for part in python.split("."))
    platforms = list(_platforms(machine))
    tags = [*cpython_tags((major, minor), platforms=platforms)]
    tags += compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms)
    return {tag: place for place, tag in enumerate(dict.fromkeys(tags))}


def _platforms(machine: str) -> Iterator[str]:
    for minor in _GLIBC:
        yield f"manylinux_2_{minor}_{machine}"
        if minor in _LEGACY:
            yield f"{_LEGACY[minor]}_{machine}"
    yield f"linux_{machine}"


_SIZES_AT_ONCE = 16
_SILENT_S = 30.0


def resolve_packages(
    target: Target,
    inputs: ResolverInputs,
    index_settings: PipUvEnvAndLocalWheels,
    ca_bundle: str,
    upgrade: UpgradeRequest,
    size_by_sha256: Mapping[str, int],
) -> ResolverOutput:
    """Resolve one set of packages with uv for the target's interpreter and platform.

    `size_by_sha256`: sha256 to bytes, from the lock before: those files need not be asked about.
    Raises WorkFailed: uv finds no solution (quoted), or an index does not say how large a file is.
    """
    trust = {"SSL_CERT_FILE": ca_bundle} if ca_bundle else {}
    what = _("uv finds no set of packages for the {stack} of target {target}").format(
        stack=inputs.name, target=target.name
    )
    step = _("change the versions that uv names; if an index is not reachable, use mirrors: --sources cn")
    with tempfile.TemporaryDirectory(prefix="rlbox-lock-") as directory:
        for name, text in inputs.files.items():
            Path(directory, name).write_text(text, encoding="utf-8")
        for command in plan_uv_pin_and_pylock_commands(
            target, inputs, find_uv_bin(), index_settings, directory, upgrade
        ):
            run_command_or_raise(replace(command, env={**command.env, **trust}), what, next_step=step)
        pins = Path(directory, PINS).read_text(encoding="utf-8")
        files = parse_untrusted_toml(Path(directory, PYLOCK).read_text(encoding="utf-8"))
    urls = {sha: url for sha, url in map_chosen_sha256_to_url(target, files).items() if sha not in size_by_sha256}
    settings = NetworkSettings(ca_bundle=ca_bundle)
    # most indexes do not tell sizes, so each file's server is asked
    with create_netrc_client(settings, idle_timeout_s=_SILENT_S) as http, ThreadPoolExecutor(_SIZES_AT_ONCE) as pool:
        sizes = dict(zip(urls, pool.map(lambda url: _size(http, url), urls.values()), strict=True))
    return ResolverOutput(requirements=pins, pylock=files, size_by_sha256={**size_by_sha256, **sizes})


def _size(http: HttpClient, url: str) -> int:
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return Path(unquote(parts.path)).stat().st_size
    try:
        answer = retry(lambda: http.request("HEAD", url), attempts=3)
    except NoFullResponseError as error:
        fault = describe_response_error(error)
    else:
        if answer.status == 200 and answer.content_length is not None:
            return answer.content_length
        fault = _("the server answered {status}, Content-Length {length}").format(
            status=answer.status, length=answer.content_length
        )
    raise WorkFailed(
        _("{url}: {fault}").format(url=url, fault=fault), next_step=_("lock from another index: --sources PROFILE")
    )
