"""Target specs: schema of `images/<name>/target.toml`, and its reader with includes and defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Asked
from packaging.utils import canonicalize_name, parse_wheel_filename
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from rlbox.config.project import Project
from rlbox.config.schema import (
    NAME_PATTERN,
    AbsolutePath,
    AptPackage,
    EnvName,
    Name,
    SingleLine,
    SpecModel,
    ValidationProblems,
    suggest_similar,
    validate_spec,
)
from rlbox.config.toml_files import display_path, load_toml, merge_tables_and_named_lists, require_key_absent
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.target.compiled import Compile

NODE = r"^[A-Za-z0-9_.:\[][A-Za-z0-9_.:%\[\]@-]{0,252}$"
"""What ssh takes as a destination: a name of its configuration, a host, an address, with a user before it."""

NodeName = Annotated[str, StringConstraints(pattern=NODE)]
PeerAddress = SingleLine
RayOutsideContainer = bool
FirstOfTwentyPorts = Annotated[int, Field(ge=0, le=65000)]


class ClusterNode(SpecModel):
    """One node; `local` is the machine that rlbox is typed on."""

    name: NodeName = Field(description="what ssh calls it, or local")
    data: SingleLine = Field("", description="its data disk; empty: disk.host")
    address: PeerAddress = Field("", description="where the other nodes reach it; empty: where ssh reaches it")
    here: RayOutsideContainer = Field(False, description="run Ray as processes there, as on a node without an engine")


class Cluster(SpecModel):
    """The nodes, the head first, and what they share."""

    nodes: tuple[NodeName | ClusterNode, ...] = Field(description="names, or tables with name, data, address, here")
    name: Annotated[str, StringConstraints(pattern=f"^$|{NAME_PATTERN}")] = Field(
        description="tells clusters of one user on the same nodes apart; empty: the target's name"
    )
    port: FirstOfTwentyPorts = Field(
        description="first of the 20 ports of its parts, the same on all nodes; 0: the first 20 that are free"
    )


# Parts of the image are build stages: source: BuildKit instructions/parse.go, `validStageName`.
Part = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
Channel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9._/-]*$")]
Suite = Annotated[str, StringConstraints(pattern=r"^[a-z]+-(security|updates|backports)$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FolderInImage = AbsolutePath
FileInImage = AbsolutePath
HostFolder = SingleLine
Reason = SingleLine
Device = Annotated[str, StringConstraints(pattern=r"^/dev/[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")]
DeviceUse = Annotated[str, StringConstraints(pattern=r"^r?w?m?$")]
Requirement = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,_-]+\])?[^\s#]*$")]
PackageInImage = Requirement
VersionInImage = SingleLine
AptInImage = AptPackage
PathToPatch = SingleLine
UnpatchedSha256 = Sha256
MissingFileReason = Reason
GitPart = Part
AllowUnauthenticatedPorts = bool

_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*@sha256:[0-9a-f]{64}")
_OWN = {"build", "runtime", "uv"}  # their requirement files lie beside those of the groups


class Base(SpecModel):
    """What the first layer is made of: an image by digest, or a distribution bootstrapped from apt alone."""

    bootstrap: Literal["", "debian:bookworm"] = Field(description="distribution:suite to bootstrap from apt")
    suites: tuple[Suite, ...] = Field(description="further suites of a bootstrapped base: bookworm-security, …")
    image: str = Field(description="NAME@sha256:DIGEST to build on")
    packages: tuple[AptPackage, ...] = Field(description="apt packages of the operating system layer")
    holds: dict[PackageInImage, VersionInImage] = Field(
        description="packages of an image's own Python, with versions: the stack goes without them, and on top of them"
    )
    holds_apt: tuple[AptInImage, ...] = Field(description="apt packages that an image has, so that no fix adds them")

    @model_validator(mode="after")
    def _one_source(self) -> Base:
        if bool(self.bootstrap) == bool(self.image):
            raise ValueError(_("set exactly one of bootstrap and image"))
        if self.bootstrap and (self.holds or self.holds_apt):
            raise ValueError(
                _("holds and holds_apt describe the content of an image: a bootstrapped base has nothing but packages")
            )
        if self.image and not _PINNED.fullmatch(self.image):
            raise ValueError(_("image must be pinned: NAME@sha256:DIGEST"))
        return self


class Python(SpecModel):
    """The interpreter that the stack's virtual environment is made with."""

    version: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]
    interpreter: AbsolutePath
    platform: SingleLine = Field(description="uv's name of the platform to lock for")
    exclude: tuple[Requirement, ...] = Field(description="distributions resolved away, with all that only they need")
    build: tuple[Requirement, ...] = Field(description="what source archives are built with, where there is no wheel")
    before: Annotated[str, StringConstraints(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = Field(
        description="the stack takes no file that was published on that day or later; empty: the newest that fits"
    )


class Wheel(SpecModel):
    """A wheel behind an address, for what the package index has as a source archive alone."""

    url: Annotated[SingleLine, StringConstraints(pattern=r"^https?://\S+\.whl$")]
    sha256: Sha256
    size: Annotated[int, Field(ge=0)] = Field(0, description="bytes; 0: not known")

    @model_validator(mode="after")
    def _named(self) -> Wheel:
        parse_wheel_filename(self.file)
        return self

    @property
    def file(self) -> str:
        return unquote(self.url.rpartition("/")[2])

    @property
    def distribution_name(self) -> str:
        return str(parse_wheel_filename(self.file)[0])

    @property
    def version(self) -> str:
        """Version of the package, with its local part (`2.8.3+cu12torch2.6cxx11abifalse`)."""
        return str(parse_wheel_filename(self.file)[1])


class Group(SpecModel):
    """One Python layer of the image. Groups are listed from the least to the most often changed."""

    name: Part
    packages: tuple[Requirement, ...] = Field(min_length=1)
    wheels: tuple[Wheel, ...] = Field((), description="wheels by address and sha256, installed without what they need")
    compile: tuple[Compile, ...] = Field(
        (), description="wheels compiled from source, installed without what they need"
    )
    source: Literal["python", "torch-wheels"] = "python"
    channel: Channel = Field("", description="folder of the torch wheel index: cpu, cu128, …")

    @model_validator(mode="after")
    def _channel_is_named(self) -> Group:
        if (self.source == "torch-wheels") != bool(self.channel):
            raise ValueError(_("set channel (cpu, cu128, …) together with source = 'torch-wheels'"))
        return self


class GitSource(SpecModel):
    """A repository whose tree at one commit is put into the image."""

    name: Part
    url: SingleLine
    ref: SingleLine = Field(description="branch, tag or commit; the lock holds the commit")
    into: FolderInImage = Field(description="folder of the image that gets the tree")


class HttpSource(SpecModel):
    """A file behind an address that is put into the image."""

    name: Part
    url: SingleLine
    into: FileInImage = Field(description="path of the file in the image")
    executable: bool = False


def _distribution(text: str) -> str:
    try:
        return canonicalize_name(Asked(text).name)
    except InvalidRequirement:  # the lock refuses it with a better message
        return ""


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(_("{text!r} is not a regular expression: {error}").format(text=text, error=error)) from error
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]


class PatchFacts(SpecModel):
    """What is known of a patch besides its diff; content alone decides whether it fits."""

    package: tuple[Requirement, ...] = Field(
        (), description="what it changes, the first that the stack has: a package (verl>=0.6,<0.7) or a git part"
    )
    strip: Annotated[int, Field(ge=0, le=9)] = Field(1, description="leading parts of the diff's paths to drop")
    made_for: SingleLine = Field("", description="commit or version that the diff was made from")
    files: dict[PathToPatch, UnpatchedSha256] = Field(
        default_factory=dict, description="path to sha256 it was made from; shown only"
    )
    reason: Reason = Field("", description="what goes wrong without it")
    upstream: SingleLine = Field("", description="where upstream changed the same: pull request, issue, commit")
    upstream_has: Pattern = Field(
        "", description="regular expression; a file that holds it has upstream's change, and is left as it is"
    )
    absent: MissingFileReason = Field("", description="why a file of it may be missing; empty: then it is a conflict")
    marker: SingleLine = Field("", description="text that each patched file holds")


class PatchSource(PatchFacts):
    """A unified diff, in the target's folder `patches/` or in one of its git parts, applied to files of the image."""

    file: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")]
    part: Literal[""] | GitPart = Field("", description="git part whose tree has the diff; empty: the folder patches/")
    into: FolderInImage = Field(description="folder of the image that the diff's paths start in")

    @model_validator(mode="after")
    def _beside_the_spec(self) -> PatchSource:
        if "/" in self.file and not self.part:
            raise ValueError(_("file names a file of the folder patches/; set part for one of a git part"))
        return self


class Hardware(SpecModel):
    """The machine that a target is for; an empty text and 0 say that nothing is known or demanded."""

    gpu: SingleLine = Field(description="name of the GPU as the driver tells it; empty: none")
    gpus: Annotated[int, Field(ge=0)] = Field(description="GPUs of a node")
    gpu_memory_gib: Annotated[float, Field(ge=0)] = Field(description="memory of one GPU, GiB")
    arch: Annotated[str, StringConstraints(pattern=r"^(sm_\d{2,3})?$")] = Field(
        description="architecture: sm_80, sm_120"
    )
    grade: Literal["", "datacenter", "workstation", "consumer"] = Field(
        description="kind of the GPU; datacenter alone takes CUDA's forward compatibility"
    )
    nodes: Annotated[int, Field(ge=1)] = Field(description="number of nodes")
    cores: Annotated[int, Field(ge=0)] = Field(description="cores of a node, as its programs see them")
    memory_gib: Annotated[float, Field(ge=0)] = Field(description="memory of a node, GiB")
    pid_limit: Annotated[int, Field(ge=0)] = Field(description="most processes and threads that the platform allows")
    platform: Literal["", "vast", "autodl"] = Field(description="who rents it out; empty: a machine of one's own")
    region: Literal["", "cn"] = Field(description="where it stands, as far as that decides what it can reach")
    cuda_driver: Annotated[str, StringConstraints(pattern=r"^(\d+\.\d+)?$")] = Field(
        description="newest CUDA that its driver takes"
    )


class Fixes(SpecModel):
    """What the target asks of the fix catalogue."""

    off: dict[Name, Reason] = Field(description="fixes that are left out, each with the reason")


class Compat(SpecModel):
    """What the target asks of the table of what fits together."""

    off: dict[Name, Reason] = Field(description="facts that are left out, each with the reason")


class Build(SpecModel):
    """How the image is built."""

    network: Literal["host", "default", "none"]
    epoch: Annotated[int, Field(ge=0)] = Field(description="SOURCE_DATE_EPOCH, seconds")
    own_layer_mib: Annotated[int, Field(ge=1)] = Field(description="a wheel of this size or more is a layer of its own")
    bake_ca: bool = Field(description="keep the CA bundle of the building machine in the image")


class Run(SpecModel):
    """Limits of the containers started from the image. Sizes in GiB; 0 means no limit."""

    network: Literal["own", "host", "bridge", "none"] = Field(
        description="own: made for each container, others reach nothing in it; several nodes need host"
    )
    shm_gib: Annotated[float, Field(gt=0)]
    memory_gib: Annotated[float, Field(ge=0)]
    cpus: Annotated[float, Field(ge=0)]
    pids: Annotated[int, Field(ge=0)]
    user: Literal["caller", "root"]
    ulimits: dict[Name, SingleLine] = Field(
        description="soft limit, or soft:hard; empty: not set, whatever a fix wants"
    )
    cap_add: tuple[SingleLine, ...] = Field(description="capabilities of containers, which have no other")
    devices: dict[Device, DeviceUse] = Field(
        description="devices of the machine, or folders of them, for containers: r read, w write, m make; empty: not"
    )
    open: AllowUnauthenticatedPorts = Field(
        description="run though whoever reaches the ports runs code there, as `--allow-unauthenticated` does"
    )


class Disk(SpecModel):
    """The data disk: the only place that a stage writes to."""

    mount: AbsolutePath = Field(description="where the container sees it")
    host: HostFolder = Field(description="directory on the host; ~ is expanded; --data and RLBOX_DATA override it")
    create: bool = Field(description="make the directory when it is missing")
    need_gib: Annotated[float, Field(ge=0)] = Field(
        description="free space that it has, GiB: what a job without [fits] needs, and what is rented"
    )
    archive: HostFolder = Field(
        description="folder of a second disk, for archives alone; empty: none; no part of the image"
    )


class Vast(SpecModel):
    """How an instance is rented on vast.ai. Prices in dollars; 0 and an empty text set nothing."""

    mode: Literal["ssh", "jupyter"] = Field(description="launch mode; both replace the image's entrypoint")
    gpu_name: SingleLine = Field(description="the platform's name of the GPU; empty: made of hardware.gpu")
    image: SingleLine = Field(
        description="image that the platform pulls: the target's own, pushed; --image overrides it"
    )
    options: SingleLine = Field(
        description="docker options in the template's form: -e NAME=VALUE, -p PORT:PORT, -h NAME"
    )
    max_price: Annotated[float, Field(ge=0)] = Field(description="most that an hour may cost, disk included")
    min_reliability: Annotated[float, Field(ge=0, le=1)] = Field(description="least reliability of a machine")


class CompileEntry(NamedTuple):
    """What a group of the stack compiles."""

    group: Group
    compile: Compile


class Target(SpecModel):
    """One place to run, completed with the defaults."""

    name: Name
    title: SingleLine
    hardware: Hardware
    fixes: Fixes
    compat: Compat
    base: Base
    python: Python
    stack: tuple[Group, ...] = Field(min_length=1, description="Python layers, the least often changed first")
    git: tuple[GitSource, ...] = Field(description="repositories put into the image")
    http: tuple[HttpSource, ...] = Field(description="files put into the image")
    patches: tuple[PatchSource, ...] = Field(description="diffs applied to the image, in order")
    sources: Name = Field(description="where files come from: direct, cn, or a profile of yours; no part of the image")
    env: dict[EnvName, SingleLine] = Field(description="environment baked into the image")
    build: Build
    run: Run
    disk: Disk
    vast: Vast = Field(description="no part of the image")
    cluster: Cluster = Field(description="no part of the image")

    @model_validator(mode="after")
    def _names_differ(self) -> Target:
        names = [group.name for group in self.stack]
        names += [tree.name for tree in self.git] + [file.name for file in self.http]
        twice = sorted({name for name in names if names.count(name) > 1})
        problems = [_("two parts of the image have the name {name!r}").format(name=name) for name in twice]
        if self.hardware.nodes > 1 and self.run.network != "host":
            problems.append(
                _("run.network: must be 'host' for hardware.nodes = {nodes}: nodes reach each other on it").format(
                    nodes=self.hardware.nodes
                )
            )
        problems += [
            _("the name {name!r} of a part of the image is rlbox's own").format(name=name)
            for name in sorted(_OWN & set(names))
        ]
        parts = {tree.name for tree in self.git}
        wanted = sorted({patch.part for patch in self.patches} - parts - {""})
        problems += [_("patches: there is no git part {name!r}").format(name=name) for name in wanted]
        problems += self._compile_problems()
        if problems:
            raise ValidationProblems(problems)
        return self

    def _compile_problems(self) -> list[str]:
        indexed = frozenset(filter(None, (_distribution(text) for group in self.stack for text in group.packages)))
        names = [entry.distribution_name for __, entry in self.list_compile_entries]
        twice = sorted({name for name in names if names.count(name) > 1})
        problems = [_("stack.compile: {name} is compiled twice").format(name=name) for name in twice]
        return problems + [
            text for __, one in self.list_compile_entries for text in one.find_spec_errors(self.hardware.arch, indexed)
        ]

    @property
    def list_compile_entries(self) -> tuple[CompileEntry, ...]:
        return tuple(CompileEntry(group, entry) for group in self.stack for entry in group.compile)

    @property
    def own_patches(self) -> tuple[str, ...]:
        """The files of the folder `patches/`, in order; what a git part has is pinned with it."""
        return tuple(patch.file for patch in self.patches if not patch.part)


DEFAULTS = Path(__file__).with_name("defaults.toml")


@dataclass(frozen=True, kw_only=True)
class LoadedTarget:
    """A checked target, and the files it was read from, the target's own first."""

    target: Target
    files: tuple[Path, ...]


def find_cuda12_variant(project: Project, target_name: str) -> str:
    """Return the target `NAME-cu12`, which runs on drivers older than 580, where there is one; else nothing."""
    variant = f"{target_name}-cu12"
    return variant if variant in project.targets() else ""


def load_target(project: Project, target_name: str) -> LoadedTarget:
    """Return the target `target_name`, completed with its includes and the defaults.

    Raises SpecError: unknown target, broken TOML (with line), include cycle, or wrong keys and values (all of them).
    """
    data, files = _load_included(project, target_name, ())
    data.pop("include", None)
    data["name"] = target_name
    target = validate_spec(
        Target,
        merge_tables_and_named_lists(load_toml(DEFAULTS), data),
        display_path(files[0], project),
        extra_known_keys=("include",),
    )
    return LoadedTarget(target=target, files=(*files, DEFAULTS))


def _load_included(project: Project, name: str, above: tuple[str, ...]) -> tuple[dict[str, Any], tuple[Path, ...]]:
    path = project.require_target_file(name)
    if name in above:
        raise SpecError(
            _("targets include each other: {value}").format(value=" -> ".join((*above, name))),
            where=display_path(path, project),
            next_step=_("include another target here, or none"),
        )
    data = require_key_absent(load_toml(path, project), display_path(path, project), "name")
    include = data.get("include")
    if include is None:
        return data, (path,)
    if not isinstance(include, str):
        raise SpecError(
            _("{path}: include: must be the name of one target (got {include!r})").format(
                path=display_path(path, project), include=include
            )
        )
    if include not in project.targets():
        near = suggest_similar(include, list(project.targets()))
        raise SpecError(
            _("{path}: include: unknown target {include!r}{near}").format(
                path=display_path(path, project), include=include, near=near
            ),
            next_step=_("choose one of: {targets}").format(targets=", ".join(project.targets())),
        )
    under, files = _load_included(project, include, (*above, name))
    return merge_tables_and_named_lists(under, data), (path, *files)
