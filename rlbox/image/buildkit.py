"""The build command, and the reading of what BuildKit says while it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rlbox.image.plan import ImagePlan
from rlbox.values import Command

BASE_CONTEXT = "rlbox-base"
LINKED_COPIES = (23,)  # the first engine whose BuildKit has them (0.10; source: Docker Engine 23.0 release notes)

# zstd at level 3 makes smaller layers than gzip in half of its time. Provenance inside the image would give every build
# another digest. Clients with BuildKit built in refuse these options.
_OUTPUT = ("--output=type=image,compression=zstd,compression-level=3,oci-mediatypes=true", "--provenance=false")


def dockerfile_for(text: str, engine: tuple[int, ...], base: str = "") -> str:
    """Return the Dockerfile as an engine's own BuildKit reads it: before 23 it knows no linked copies.

    The image has the same files then, but a changed layer takes all above it along, and the engine promises no digest.

    Parameters
    ----------
    base
        The base image, when it is to be taken from the named context `BASE_CONTEXT`; empty otherwise.
    """
    if base:
        text = text.replace(f"FROM {base} AS", f"FROM {BASE_CONTEXT} AS")
    return text.replace("COPY --link ", "COPY ") if engine and engine < LINKED_COPIES else text


@dataclass(frozen=True, kw_only=True)
class Builder:
    """What can drive BuildKit, as the words before `build`; `integrated` is a client before 23 without buildx."""

    words: tuple[str, ...]
    integrated: bool


@dataclass(frozen=True, kw_only=True)
class BuildFiles:
    """What the build command reads and writes, as paths; an empty one is not used.

    `base` is where BuildKit gets the base image: `docker-image://NAME@…` or `oci-layout://FOLDER@…`.
    """

    context: str
    sources: str
    ca: str
    metadata: str = ""
    base: str = ""


def plan_build(
    plan: ImagePlan,
    builder: Builder,
    files: BuildFiles,
    labels: Mapping[str, str],
    *,
    tag: str = "",
    cache: bool = True,
    network: str = "",
    proxies: Mapping[str, str],
) -> Command:
    """Return the command that builds and tags the image.

    The mirror settings and the CA bundle are secrets: they are part of no layer, no history and no cache key.

    Parameters
    ----------
    labels
        Those of `build_labels`, by which an unchanged image is recognised.
    tag
        The plan's own unless given.
    cache
        False: every step is run again.
    network
        Of every step, the plan's own unless given: `host`, `default`, `none`.
    """
    program = (*builder.words, "build", *(() if builder.integrated else _OUTPUT))
    secrets = [("sources", files.sources), ("ca", files.ca)]
    argv = [
        *program,
        "--progress=plain",
        f"--network={network or plan.network}",
        f"--tag={tag or plan.tag}",
        *(f"--label={name}={value}" for name, value in labels.items()),
        f"--build-arg=SOURCE_DATE_EPOCH={plan.epoch}",
        *(("--metadata-file", files.metadata) if files.metadata and not builder.integrated else ()),
        *((f"--build-context={BASE_CONTEXT}={files.base}",) if files.base else ()),
        *(f"--build-arg={name}" for name in sorted(proxies)),  # values stay in the environment: they may hold passwords
        *(word for name, path in secrets if path for word in ("--secret", f"id={name},src={path}")),
        *(() if cache else ("--no-cache",)),
        files.context,
    ]
    env = {"DOCKER_BUILDKIT": "1"} if builder.integrated else {}
    return Command(argv=tuple(argv), env=env)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a build; `state` is running, done, cached or failed, `seconds` is known once it ended."""

    number: int
    name: str
    state: str = "running"
    seconds: float | None = None


class BuildLog:
    """Follows BuildKit's plain progress, line by line.

    Source: the plain format is the same from BuildKit 0.8 (Docker 20.10) on: `#5 [base 2/6] RUN …`, `#5 CACHED`,
    `#5 DONE 1.2s`, `#5 ERROR: …`, and `#5 0.123 text` for a step's own output.
    """

    _LINE = re.compile(r"^#(?P<number>\d+) (?P<rest>.*)$")
    _DONE = re.compile(r"^DONE (?P<seconds>[0-9.]+)s$")
    _MOUNT = re.compile(r"--(?:mount|network|security)=\S+\s+")

    def __init__(self) -> None:
        self.steps: dict[int, Step] = {}

    def feed(self, line: str) -> Step | None:
        """Take one line; return the step that began or ended with it, if one did."""
        match = self._LINE.match(line.rstrip())
        if not match:
            return None
        number, rest = int(match["number"]), match["rest"]
        if number == 0:  # the client speaks of itself: `#0 building with "default" instance using docker driver`
            return None
        known = self.steps.get(number)
        if known is None:
            return self._set(Step(number=number, name=self._MOUNT.sub("", rest)))
        if done := self._DONE.match(rest):
            return self._set(Step(number=number, name=known.name, state="done", seconds=float(done["seconds"])))
        if rest == "CACHED":
            return self._set(Step(number=number, name=known.name, state="cached"))
        if rest.startswith("ERROR"):
            return self._set(Step(number=number, name=known.name, state="failed"))
        return None

    def _set(self, step: Step) -> Step | None:
        """Remember `step`; BuildKit may end a step, take it up again and end it once more, which is told once."""
        known = self.steps.get(step.number)
        self.steps[step.number] = step
        return None if known and known.state == step.state else step


_PASSING = (
    (r"context canceled", "another build of the same steps was stopped, and the engine stopped them for both"),
    # Source: moby/buildkit#6521, under load.
    (r"parent snapshot \S+ does not exist", "the engine lost a layer while it unpacked the image"),
)


def passing_failure(text: str) -> str:
    """Return why a build that said `text` failed, if that was none of its own doing; empty otherwise.

    Only the client's last word counts, never what a step wrote.
    """
    last = "\n".join(re.findall(r"^(?:ERROR: )?failed to .*", text, re.M))
    return next((why for sign, why in _PASSING if re.search(sign, last)), "")


@dataclass(frozen=True, kw_only=True)
class BuildWish:
    """What was asked of a build; `forced` is the contradiction of its stack that `--force` overrides."""

    no_cache: bool = False
    rebuild: bool = False
    hermetic: bool = False
    verify: bool = False
    sources: str = ""
    forced: str = ""
