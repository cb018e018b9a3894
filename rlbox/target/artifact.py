"""An artifact: one file of a lock as the store, the mirrors and the build see it; and what the torch index has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlbox.config.hub import LockedHubRepo
    from rlbox.target.lock import CompileInputs, Deb, GitTree, Lock, Package
    from rlbox.target.target import Target

TORCH_WHEEL_INDEX_URL = "https://download.pytorch.org/whl"
ArtifactKind = Literal["apt", "compiled", "git", "http", "huggingface", "modelscope", "oci", "python", "torch-wheels"]


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One file to fetch.

    `kind`: Which rules of a mirror profile find it.
    `name`: What people call it: distribution, apt package, name in the spec.
    `file`: File name as sources offer it; for `apt` the path below the archive (`pool/main/…/x.deb`), of a hub the path
      in its repository.
    `sha256`, `size`: Of its bytes, hex and bytes; a size of 0 is not known.
    `group`: Where it ends up: `os`, `runtime`, `build`, a group of the stack, `git`, `http`, `base`, `hub`.
    `origin`: What the kind needs besides: apt the archive (`debian`), torch-wheels the channel (`cu128`), python
      nothing, git `URL COMMIT`, http the address, oci `NAME@sha256:DIGEST`, compiled the recipe: no source has it,
      huggingface and modelscope `models/REPO COMMIT` or `datasets/REPO COMMIT`.
    """

    kind: ArtifactKind
    name: str
    file: str
    sha256: str
    size: int
    group: str
    origin: str = ""


def list_artifacts_without_compile_inputs(lock: Lock) -> tuple[Artifact, ...]:
    """Return every file of a lock that has to be fetched, in the order of the image's layers.

    The base image is not among them: its manifest names its blobs.
    """
    debs = (_deb(deb, "os") for deb in lock.debs)
    groups = (lock.runtime, lock.build, *lock.groups)
    packages = (_package(package, group.name) for group in groups for package in group.packages)
    trees = (_tree(tree, "git") for tree in lock.git)
    files = (
        Artifact(
            kind="http",
            name=file.name,
            file=file.url.rpartition("/")[2] or file.name,
            sha256=file.sha256,
            size=file.size,
            group="http",
            origin=file.url,
        )
        for file in lock.http
    )
    return (*debs, *packages, *trees, *files)


def list_artifacts_without_os_and_rlbox(lock: Lock) -> tuple[Artifact, ...]:
    """Return the files that a machine without an image takes: no base, no operating system, no environment of rlbox."""
    own = {"os", lock.runtime.name}
    return tuple(file for file in list_artifacts_without_compile_inputs(lock) if file.group not in own)


def list_compile_inputs(lock: Lock, inputs: CompileInputs) -> tuple[Artifact, ...]:
    """Return every file that a wheel is compiled from: the system's packages, the tools, the source."""
    from rlbox.target.lock import GitTree

    source = inputs.source
    files = [_deb(deb, "compile") for deb in lock.toolchain]
    files += [_package(package, "compile") for package in inputs.tools]
    return (*files, _tree(source, "compile") if isinstance(source, GitTree) else _package(source, "compile"))


def list_all_artifacts_with_repeats(lock: Lock) -> tuple[Artifact, ...]:
    """Return every file that a lock names, those that `rlbox compile` alone takes among them."""
    return (
        *list_artifacts_without_compile_inputs(lock),
        *(file for row in lock.compiled for file in list_compile_inputs(lock, row)),
    )


def list_hub_artifacts(repos: Iterable[LockedHubRepo]) -> tuple[Artifact, ...]:
    return tuple(
        Artifact(
            kind=repo.source,
            name=repo.name,
            file=file.path,
            sha256=file.sha256,
            size=file.size,
            group="hub",
            origin=f"{repo.kind}s/{repo.repo} {repo.commit}",
        )
        for repo in repos
        for file in repo.files
    )


def _deb(deb: Deb, group: str) -> Artifact:
    return Artifact(
        kind="apt", name=deb.name, file=deb.path, sha256=deb.sha256, size=deb.size, group=group, origin=deb.archive
    )


def _tree(tree: GitTree, group: str) -> Artifact:
    return Artifact(
        kind="git",
        name=tree.name,
        file=f"{tree.name}-{tree.commit[:12]}.tar",
        sha256=tree.sha256,
        size=tree.size,
        group=group,
        origin=f"{tree.url} {tree.commit}",
    )


_KINDS: dict[str, ArtifactKind] = {"compiled": "compiled", "python": "python", "torch-wheels": "torch-wheels"}


def _package(package: Package, group: str) -> Artifact:
    source, _, channel = package.source.partition("/")
    by_address = "://" in package.source
    return Artifact(
        kind="http" if by_address else _KINDS[source],
        name=package.name,
        file=package.file,
        sha256=package.sha256,
        size=package.size,
        group=group,
        origin=package.source if by_address else channel,
    )


@dataclass(frozen=True, kw_only=True)
class TorchWheelGroup:
    """Requirements (`name==version`) that come from one channel of the torch wheel index."""

    packages: tuple[str, ...]
    channel: str


def list_pytorch_index_groups(target: Target) -> tuple[TorchWheelGroup, ...]:
    found = (group for group in target.stack if group.source == "torch-wheels")
    return tuple(TorchWheelGroup(packages=group.packages, channel=group.channel) for group in found)
