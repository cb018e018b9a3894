"""Decide whether a target needs a fix: its conditions against spec and pinned versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from rlbox.fixes.fix import Applies, Fix
from rlbox.i18n import _, join, ngettext
from rlbox.job.expression import satisfies_comparison
from rlbox.target.lock import Lock
from rlbox.target.target import GitSource, Target

VersionMap = Mapping[str, str]
"""Canonical name of each package of the stack to its version; an empty version is not known."""

_LOCAL = re.compile(r"(?:^|[+/])cu(\d+)(\d)$")
"""CUDA in a local version (`2.9.0+cu129`) or in the name of a channel of the torch wheel index."""


@dataclass(frozen=True, kw_only=True)
class FixDecision:
    """Whether a fix applies; `reasons` are the facts for it, or all that speak against it."""

    applies: bool
    reasons: tuple[str, ...]


def map_packages_to_version_or_empty(target: Target, lock: Lock | None) -> dict[str, str]:
    """Return the packages of a target's stack with their versions: what the spec pins, else what the lock has.

    Git parts are among them by their own name and that of their repository, without a version.
    """
    found: dict[str, str] = {}
    for part in target.git:
        found |= dict.fromkeys(get_own_and_repo_package_names(part), "")
    found |= {canonicalize_name(name): version for name, version in target.base.holds.items()}
    for group in lock.groups if lock else ():
        found |= {canonicalize_name(package.name): package.version for package in group.packages}
    found |= {wheel.distribution_name: wheel.version for group in target.stack for wheel in group.wheels}
    for text in (text for group in target.stack for text in group.packages):
        try:
            asked = Requirement(text)
        except InvalidRequirement:  # the lock refuses it with a better message
            continue
        pins = [spec.version for spec in asked.specifier if spec.operator == "=="]
        name = canonicalize_name(asked.name)
        found[name] = pins[0] if pins else found.get(name, "")
    return found


def find_torch_cuda_or_empty(target: Target, versions: VersionMap) -> str:
    """Return the CUDA that the stack's torch is built with, as `13.0`; empty where spec and lock do not say.

    Its own version says it before the channel it comes from, and that before the runtime that is locked with it.
    """
    channels = [group.channel for group in target.stack if any(text.startswith("torch=") for text in group.packages)]
    for text in (versions.get("torch", ""), *channels):
        if found := _LOCAL.search(text):
            return f"{found[1]}.{found[2]}"
    runtimes = [text for name, text in sorted(versions.items()) if name.startswith("nvidia-cuda-runtime") and text]
    return ".".join(runtimes[0].split(".")[:2]) if runtimes else ""


def get_own_and_repo_package_names(source: GitSource) -> tuple[str, str]:
    """Return the canonical names by which a git part counts as a package: its own, and that of its repository."""
    repository = source.url.rstrip("/").removesuffix(".git").rpartition("/")[2]
    return canonicalize_name(source.name), canonicalize_name(repository)


def evaluate_fix(fix: Fix, target: Target, versions: VersionMap) -> FixDecision:
    if (reason := target.fixes.off.get(fix.id)) is not None:
        return FixDecision(applies=False, reasons=(_("switched off by the target: {off}").format(off=reason),))
    facts = list(_facts(fix.applies, target, versions))
    against = tuple(fact for holds, fact in facts if not holds)
    if against:
        return FixDecision(applies=False, reasons=against)
    return FixDecision(applies=True, reasons=tuple(fact for __, fact in facts) or (_("every target"),))


class PackageCheckResult(NamedTuple):
    """Whether the stack has a package in a version that fits, and the fact that decides it."""

    holds: bool
    explanation: str


def check_package_requirement(requirement: str, versions: VersionMap) -> PackageCheckResult:
    asked = Requirement(requirement)
    name = canonicalize_name(asked.name)
    if name not in versions:
        return PackageCheckResult(False, _("{name} is not in the stack").format(name=name))
    version = versions[name]
    if not asked.specifier:
        return PackageCheckResult(True, _("{name} is in the stack").format(name=f"{name} {version}".rstrip()))
    if not version:
        return PackageCheckResult(False, _("the version of {name} is not known before `rlbox lock`").format(name=name))
    try:
        holds = asked.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        what = _("{name} has the version {version!r}, which cannot be compared")
        return PackageCheckResult(False, what.format(name=name, version=version))
    what = _("{shown} is {wanted}") if holds else _("{shown} is not {wanted}")
    wanted = ",".join(sorted(str(part) for part in asked.specifier))
    return PackageCheckResult(holds, what.format(shown=f"{name} {version}", wanted=wanted))


def _facts(applies: Applies, target: Target, versions: VersionMap) -> Iterator[tuple[bool, str]]:
    hardware = target.hardware
    if applies.gpu is not None:
        yield bool(hardware.gpu) == applies.gpu, f"GPU {hardware.gpu}" if hardware.gpu else "no GPU"
    if applies.gpus is not None:
        count = ngettext("{count} GPU a node", "{count} GPUs a node", hardware.gpus).format(count=hardware.gpus)
        yield _judge(satisfies_comparison(hardware.gpus, applies.gpus), count, applies.gpus)
    if applies.nodes is not None:
        count = ngettext("{count} node", "{count} nodes", hardware.nodes).format(count=hardware.nodes)
        yield _judge(satisfies_comparison(hardware.nodes, applies.nodes), count, applies.nodes)
    if applies.rented is not None:
        rented = bool(hardware.platform)
        place = _("rented from {platform}").format(platform=hardware.platform) if rented else _("your own machine")
        yield rented == applies.rented, place
    for what, value, wanted in (
        ("GPU architecture", hardware.arch, applies.arch),
        ("GPU grade", hardware.grade, (applies.grade,)),
        ("platform", hardware.platform, applies.platform),
        ("region", hardware.region, applies.region),
        (_("base is of kind"), "bootstrap" if target.base.bootstrap else "image", (applies.base,)),
    ):
        if any(wanted):
            fact = _("{what} {value}").format(what=what, value=value or _("not given"))
            yield _judge(value in wanted, fact, " or ".join(wanted))
    yield from (check_package_requirement(text, versions) for text in applies.stack)
    if applies.any_stack:
        answers = [check_package_requirement(text, versions) for text in applies.any_stack]
        held = [fact for holds, fact in answers if holds]
        yield bool(held), held[0] if held else join("; ", (fact for __, fact in answers))
    for text in applies.no_stack:
        holds, fact = check_package_requirement(text, versions)
        yield not holds, fact


def _judge(holds: bool, fact: str, wanted: str) -> tuple[bool, str]:
    return holds, fact if holds else _("{fact}, not {wanted}").format(fact=fact, wanted=wanted)
