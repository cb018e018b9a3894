"""Judge the stack in an image: is all there that the lock and the packages' own lists name, whole and fitting?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rlbox.doctor.facts import Demands
from rlbox.doctor.judge.judge import Judge
from rlbox.findings import Finding, listed

PROGRAMS = ("torch-*", "ray-*", "extension-*", "jit-*", "gpu-*")
# Checks of fixes that look at the packages themselves.
_LOOKS = ("numpy2-abi", "cuda-*", "flashinfer-*", "hf-old-switches", "libnuma-missing", "vllm-*", "path-in-every-shell")
_PINS = 4  # how many packages a remedy puts back


@dataclass(frozen=True, kw_only=True)
class FileDamage:
    """A file that is not what it was; `kind` is missing, short, changed or broken, `what` says it with numbers."""

    package: str
    path: str
    kind: str
    what: str


@dataclass(frozen=True, kw_only=True)
class AbiGap:
    """An extension that wants symbols of torch which the installed torch does not have."""

    path: str
    count: int
    example: str


@dataclass(frozen=True, kw_only=True)
class PackageFacts:
    """The stack as it lies on the disk; `installed` maps canonical names to the versions that are there."""

    site: str
    missing: str = ""
    installed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    damages: tuple[FileDamage, ...] = ()
    gaps: tuple[AbiGap, ...] = ()
    linked: tuple[str, ...] = ()
    files: int = 0


def _there(facts: PackageFacts, demands: Demands) -> Iterator[Finding]:
    if facts.missing:
        yield Finding(
            id="stack-missing",
            title="the stack's environment is not there",
            seen=facts.missing,
            where=facts.site,
            remedy=_rebuild(demands),
            breaks=("*",),
        )


def _rebuild(demands: Demands) -> str:
    return f"start a new container; if it is in the image: rlbox build --rebuild {demands.target or 'TARGET'}"


def _differing(facts: PackageFacts, demands: Demands) -> Iterator[tuple[str, str, str]]:
    """Yield name, locked version and what is there of every package that is not as locked."""
    for name, version in sorted(demands.packages.items()):
        there = facts.installed.get(name, ())
        if there != (version,):
            yield name, version, " and ".join(there)


def _as_locked(facts: PackageFacts, demands: Demands) -> Iterator[Finding]:
    rows = list(_differing(facts, demands))
    if not rows:
        return
    gone = [name for name, _, there in rows if not there]
    texts = [f"{name} {there or 'is gone'} (locked: {version})" for name, version, there in rows]
    pins = " ".join(f"{name}=={version}" for name, version, _ in rows[:_PINS])
    yield Finding(
        id="package-missing" if len(gone) == len(rows) else "package-overwritten",
        title="packages of the stack are not those of the lock",
        seen=listed(texts),
        where=facts.site,
        remedy=f"start a new container, or put back: uv pip install --no-deps {pins}",
        breaks=(*PROGRAMS, *_LOOKS, "file-*"),
        covers=("numpy2-abi", "python-constraints"),
    )


def _damaged(facts: PackageFacts, demands: Demands) -> Iterator[Finding]:
    packages = dict.fromkeys(damage.package for damage in facts.damages)
    for package in packages:
        rows = [damage for damage in facts.damages if damage.package == package]
        compiled = [row for row in rows if row.kind in ("short", "broken")]
        kind = (compiled or rows)[0].kind
        yield Finding(
            id={"missing": "file-missing", "changed": "file-changed"}.get(kind, "file-truncated"),
            title=f"files of {package} are damaged" if package else "a compiled extension is damaged",
            seen=listed([f"{row.path} {row.what}" for row in (compiled or rows)]),
            where=rows[0].path,
            remedy=_rebuild(demands),
            breaks=(*PROGRAMS, *_LOOKS),
        )


def _gaps(facts: PackageFacts, demands: Demands) -> Iterator[Finding]:
    version = demands.packages.get("torch", "") or "".join(facts.installed.get("torch", ()))
    for gap in facts.gaps:
        yield Finding(
            id="torch-abi",
            title="an extension was built for another torch",
            seen=f"{gap.path.rpartition('/')[2]} wants {gap.count} symbols that torch {version} lacks: {gap.example}",
            where=gap.path,
            remedy=f"install the build of it that is made for torch {version} and its C++ ABI, lock and build again",
            breaks=("extension-*",),
            covers=("torch-ext-abi-mismatch",),
        )


judge_packages = Judge(first=_there, checks=(_as_locked, _damaged, _gaps))
"""What is wrong with the stack's files."""
