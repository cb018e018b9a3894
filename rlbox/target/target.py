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
from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema, model_validator

from rlbox.config.hub import HubEntry, find_repeated_hub_name_problems
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
    did_you_mean_hint,
    validate_spec,
)
from rlbox.config.toml_files import format_spec_path, load_toml, merge_tables_and_named_lists, require_key_absent
from rlbox.errors import SpecError
from rlbox.i18n import _
from rlbox.secrets.masks import is_literal_secret
from rlbox.target.compiled import Compile
from rlbox.target.platform import PLATFORM_FILES

NODE = r"^[A-Za-z0-9_.:\[][A-Za-z0-9_.:%\[\]@-]{0,252}$"
"""What ssh takes as a destination: a name of its configuration, a host, an address, with a user before it."""

NodeName = Annotated[str, StringConstraints(pattern=NODE)]
FirstOfTwentyPorts = Annotated[int, Field(ge=0, le=65000)]


class ClusterNode(SpecModel):
    """One node; `local` is the machine that rlbox is typed on."""

    name: NodeName = Field(description="SSH destination, or local for this machine")
    data: SingleLine = Field("", description="data disk of the node; empty: disk.host")
    address: SingleLine = Field("", description="address that other nodes use; empty: the address that SSH uses")
    here: bool = Field(False, description="run Ray without a container on this node")


class Cluster(SpecModel):
    """The nodes, the head first, and what they share."""

    nodes: tuple[NodeName | ClusterNode, ...] = Field(
        description="SSH destinations, or tables with name, data, address, here; the head first"
    )
    name: Annotated[str, StringConstraints(pattern=f"^$|{NAME_PATTERN}")] = Field(
        description="name that distinguishes your clusters on the same nodes; empty: the target's name"
    )
    port: FirstOfTwentyPorts = Field(
        description="first of 20 consecutive ports, the same on all nodes; 0: the first free ones"
    )


# Parts of the image are build stages: source: BuildKit instructions/parse.go, `validStageName`.
Part = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
Channel = Annotated[str, StringConstraints(pattern=r"^[a-z0-9._/-]*$")]
Suite = Annotated[str, StringConstraints(pattern=r"^[a-z]+-(security|updates|backports)$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Device = Annotated[str, StringConstraints(pattern=r"^/dev/[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")]
DeviceUse = Annotated[str, StringConstraints(pattern=r"^r?w?m?$")]
Requirement = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,_-]+\])?[^\s#]*$")]

_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*@sha256:[0-9a-f]{64}")
_OWN = {"build", "runtime", "uv"}  # their requirement files lie beside those of the groups


class Base(SpecModel):
    """What the first layer is made of: an image by digest, or a distribution bootstrapped from apt alone."""

    bootstrap: Literal["", "debian:bookworm"] = Field(
        description="DISTRIBUTION:SUITE to install from apt packages only; empty: use image"
    )
    suites: tuple[Suite, ...] = Field(description="additional apt suites of a bootstrapped base: bookworm-security")
    image: str = Field(description="base image, NAME@sha256:DIGEST; empty: use bootstrap")
    packages: tuple[AptPackage, ...] = Field(description="apt packages to install in the base")
    holds: dict[Requirement, SingleLine] = Field(
        description="Python packages in the base image, name to version; not installed again"
    )
    holds_apt: tuple[AptPackage, ...] = Field(
        description="apt packages in the base image; fixes do not install them again"
    )

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

    version: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")] = Field(
        description="Python version of the stack: 3.11"
    )
    interpreter: AbsolutePath = Field(description="path of the Python interpreter in the base")
    platform: SingleLine = Field(description="platform to lock for, as uv names it: x86_64-manylinux_2_35")
    exclude: tuple[Requirement, ...] = Field(
        description="distributions to leave out, with the packages that only they require"
    )
    build: tuple[Requirement, ...] = Field(description="packages to build source archives with, if there is no wheel")
    before: Annotated[str, StringConstraints(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = Field(
        description="date YYYY-MM-DD: use only files uploaded before it; empty: no limit"
    )


class Wheel(SpecModel):
    """A wheel behind an address, for what the package index has as a source archive alone."""

    url: Annotated[SingleLine, StringConstraints(pattern=r"^https?://\S+\.whl$")] = Field(
        description="http or https address of the .whl file"
    )
    sha256: Sha256 = Field(description="sha256 of the wheel, 64 hexadecimal digits")
    size: Annotated[int, Field(ge=0)] = Field(0, description="size of the wheel, bytes; 0: unknown")

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


class PythonLayerSpec(SpecModel):
    """One Python layer of the image. Groups are listed from the least to the most often changed."""

    name: Part = Field(description="name of the layer, unique in the target")
    packages: tuple[Requirement, ...] = Field(
        min_length=1, description="requirements to lock and install: torch==2.11.0"
    )
    wheels: tuple[Wheel, ...] = Field(
        (), description="wheels by address and sha256, installed without their dependencies"
    )
    compile: tuple[Compile, ...] = Field(
        (), description="wheels to compile from source, installed without their dependencies"
    )
    source: Literal["python", "torch-wheels"] = Field(
        "python", description="python: the package index; torch-wheels: the PyTorch wheel index"
    )
    channel: Channel = Field("", description="directory of the PyTorch wheel index: cpu, cu128")

    @model_validator(mode="after")
    def _channel_is_named(self) -> PythonLayerSpec:
        if (self.source == "torch-wheels") != bool(self.channel):
            raise ValueError(_("set channel (cpu, cu128, …) together with source = 'torch-wheels'"))
        return self


class GitSource(SpecModel):
    """A repository whose tree at one commit is put into the image."""

    name: Part = Field(description="name of the repository, unique in the target")
    url: SingleLine = Field(description="address of the git repository")
    ref: SingleLine = Field(description="branch, tag or commit; the lock file pins the commit")
    into: AbsolutePath = Field(description="directory in the image for the tree")


class HttpSource(SpecModel):
    """A file behind an address that is put into the image."""

    name: Part = Field(description="name of the file, unique in the target")
    url: SingleLine = Field(description="address of the file")
    into: AbsolutePath = Field(description="path of the file in the image")
    executable: bool = Field(False, description="make the file executable")


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
        (), description="packages (verl>=0.6,<0.7) or [[git]] names; the first in the stack is patched; empty: any"
    )
    strip: Annotated[int, Field(ge=0, le=9)] = Field(1, description="leading path components to strip, as in patch -p")
    made_for: SingleLine = Field("", description="commit or version that the diff was made for")
    files: dict[SingleLine, Sha256] = Field(
        default_factory=dict, description="path to sha256 of the original file; informational only"
    )
    reason: SingleLine = Field("", description="failure that the patch prevents")
    upstream: SingleLine = Field("", description="pull request, issue or commit with the upstream change")
    upstream_has: Pattern = Field(
        "", description="regular expression; files that match have the upstream change and are skipped"
    )
    absent: SingleLine = Field("", description="why a patched file may be missing; empty: a missing file is a conflict")
    marker: SingleLine = Field("", description="text that every patched file contains")


class PatchSource(PatchFacts):
    """A unified diff, in the target's folder `patches/` or in one of its git parts, applied to files of the image."""

    file: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")] = (
        Field(description="file name of the diff in patches/, or its path in the [[git]] tree")
    )
    part: Literal[""] | Part = Field(
        "", description="name of the [[git]] entry that contains the diff; empty: patches/"
    )
    into: AbsolutePath = Field(description="directory in the image that the diff's paths are relative to")

    @model_validator(mode="after")
    def _beside_the_spec(self) -> PatchSource:
        if "/" in self.file and not self.part:
            raise ValueError(_("file names a file of the folder patches/; set part for one of a git part"))
        return self


def _check_platform(name: str) -> str:
    if name and name not in PLATFORM_FILES:
        raise ValueError(
            _("{given!r} is not one of {expected}").format(given=name, expected=", ".join(map(repr, PLATFORM_FILES)))
        )
    return name


PlatformName = Annotated[
    str, AfterValidator(_check_platform), WithJsonSchema({"type": "string", "enum": ["", *PLATFORM_FILES]})
]


class Hardware(SpecModel):
    """The machine that a target is for; an empty text and 0 say that nothing is known or demanded."""

    gpu: SingleLine = Field(description="GPU name, as nvidia-smi prints it; empty: no GPU")
    gpus: Annotated[int, Field(ge=0)] = Field(description="GPUs of a node; 0: all, or none without gpu")
    gpu_memory_gib: Annotated[float, Field(ge=0)] = Field(description="memory of one GPU, GiB; 0: unknown")
    arch: Annotated[str, StringConstraints(pattern=r"^(sm_\d{2,3})?$")] = Field(
        description="GPU architecture: sm_80, sm_120; empty: unknown"
    )
    grade: Literal["", "datacenter", "workstation", "consumer"] = Field(
        description="GPU class; only datacenter supports CUDA forward compatibility; empty: unknown"
    )
    nodes: Annotated[int, Field(ge=1)] = Field(description="number of nodes")
    cores: Annotated[int, Field(ge=0)] = Field(description="CPU cores of a node; 0: unknown")
    memory_gib: Annotated[float, Field(ge=0)] = Field(description="memory of a node, GiB; 0: unknown")
    pid_limit: Annotated[int, Field(ge=0)] = Field(
        description="process and thread limit of the platform; 0: no known limit"
    )
    platform: PlatformName = Field(description="provider of the rented machine; empty: your own machine")
    region: Literal["", "cn"] = Field(description="cn: mainland China; empty: elsewhere")
    cuda_driver: Annotated[str, StringConstraints(pattern=r"^(\d+\.\d+)?$")] = Field(
        description="newest CUDA version that the driver supports: 13.0; empty: unknown"
    )


class Fixes(SpecModel):
    """What the target asks of the fix catalogue."""

    off: dict[Name, SingleLine] = Field(description="disabled fixes: id to reason")


class Compat(SpecModel):
    """What the target asks of the table of what fits together."""

    off: dict[Name, SingleLine] = Field(description="disabled compatibility facts: id to reason")


class Build(SpecModel):
    """How the image is built."""

    network: Literal["host", "default", "none"] = Field(
        description="network of build steps, as in docker build --network"
    )
    epoch: Annotated[int, Field(ge=0, le=253_402_300_799)] = Field(  # the year 9999: RFC 3339 ends there
        description="SOURCE_DATE_EPOCH: time stamp of all files, seconds since 1970"
    )
    own_layer_mib: Annotated[int, Field(ge=1)] = Field(
        description="wheels of this size or more get their own layer, MiB"
    )
    bake_ca: bool = Field(description="keep the CA bundle of the build machine in the image")


class Run(SpecModel):
    """Limits of the containers started from the image. Sizes in GiB; 0 means no limit."""

    network: Literal["own", "host", "bridge", "none"] = Field(
        description="as docker run --network; own: a new bridge per run; several nodes: host"
    )
    shm_gib: Annotated[float, Field(gt=0)] = Field(description="size of /dev/shm, GiB; a fix can raise it")
    memory_gib: Annotated[float, Field(ge=0)] = Field(description="memory limit of a container, GiB; 0: no limit")
    cpus: Annotated[float, Field(ge=0)] = Field(description="CPU limit of a container, cores; 0: no limit")
    pids: Annotated[int, Field(ge=0)] = Field(
        description="process and thread limit of a container; 0: Docker's default"
    )
    user: Literal["caller", "root"] = Field(description="user in the container; caller: the user who runs the command")
    ulimits: dict[Name, SingleLine] = Field(
        description="limits by name, SOFT or SOFT:HARD; empty: not set, even if a fix sets it"
    )
    cap_add: tuple[SingleLine, ...] = Field(description="Linux capabilities to add to containers: SYS_PTRACE")
    devices: dict[Device, DeviceUse] = Field(
        description="/dev paths with r read, w write, m mknod; empty: remove an included device"
    )
    open: bool = Field(description="allow Ray without authentication, as --allow-unauthenticated")


class Disk(SpecModel):
    """The data disk: the only place that a stage writes to."""

    mount: AbsolutePath = Field(description="path of the data disk in the container")
    host: SingleLine = Field(description="data disk on the host, may start with ~; --data and RLBOX_DATA override it")
    create: bool = Field(description="create the directory if it is missing")
    need_gib: Annotated[float, Field(ge=0)] = Field(
        description="disk space to rent, and free space for jobs without [fits], GiB"
    )
    archive: SingleLine = Field(
        description="directory on a second disk for archives; empty: none; not part of the image"
    )


class Vast(SpecModel):
    """How an instance is rented on vast.ai. Prices in dollars; 0 and an empty text set nothing."""

    mode: Literal["ssh", "jupyter"] = Field(
        description="launch mode of the instance; both replace the image's entrypoint"
    )
    gpu_name: SingleLine = Field(description="GPU name on vast.ai; empty: derived from hardware.gpu")
    image: SingleLine = Field(description="image to pull, pushed from this target; --image overrides it")
    options: SingleLine = Field(description="docker options of the template: -e NAME=VALUE -p PORT:PORT -h NAME")
    max_price: Annotated[float, Field(ge=0)] = Field(
        description="highest price per hour with disk, dollars; 0: none, --price is required to rent"
    )
    min_reliability: Annotated[float, Field(ge=0, le=1)] = Field(description="lowest reliability of a machine, 0 to 1")


class LayerAndCompileEntry(NamedTuple):
    group: PythonLayerSpec
    compile: Compile


class Target(SpecModel):
    """One place to run, completed with the defaults."""

    name: Name
    title: SingleLine = Field(description="one-line description of the target")
    hardware: Hardware = Field(description="the machine: GPUs, nodes, cores, memory, provider")
    fixes: Fixes = Field(description="settings of the fix catalog")
    compat: Compat = Field(description="settings of the compatibility check")
    base: Base = Field(description="base of the image: a pinned image or a bootstrapped distribution")
    python: Python = Field(description="interpreter and limits for the lock file")
    stack: tuple[PythonLayerSpec, ...] = Field(
        min_length=1, description="Python layers; the layer that changes least comes first"
    )
    git: tuple[GitSource, ...] = Field(description="git repositories to copy into the image")
    http: tuple[HttpSource, ...] = Field(description="files to download into the image")
    hub: tuple[HubEntry, ...] = Field(description="models and data sets for {hub.NAME} in jobs; not part of the image")
    patches: tuple[PatchSource, ...] = Field(description="diffs to apply to files of the image, in order")
    sources: Name = Field(description="mirror profile: direct, cn or your own; not part of the image")
    env: dict[EnvName, SingleLine] = Field(description="environment variables of the image")
    build: Build = Field(description="settings of the image build")
    run: Run = Field(description="network and limits of containers")
    disk: Disk = Field(description="the data disk that runs write to")
    vast: Vast = Field(description="settings for renting on vast.ai; not part of the image")
    cluster: Cluster = Field(description="nodes and ports of a multi-node target; not part of the image")

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
        problems += [*find_repeated_hub_name_problems(self.hub), *self._compile_problems()]
        problems += [
            _("env.{name}: looks like a secret, and the image would hold it; write it into .env").format(name=name)
            for name, value in self.env.items()
            if is_literal_secret(name, value)
        ]
        if problems:
            raise ValidationProblems(problems)
        return self

    def _compile_problems(self) -> list[str]:
        indexed = frozenset(filter(None, (_distribution(text) for group in self.stack for text in group.packages)))
        names = [entry.distribution_name for __, entry in self.compile_entries]
        twice = sorted({name for name in names if names.count(name) > 1})
        problems = [_("stack.compile: {name} is compiled twice").format(name=name) for name in twice]
        return problems + [
            text for __, one in self.compile_entries for text in one.find_spec_errors(self.hardware.arch, indexed)
        ]

    @property
    def compile_entries(self) -> tuple[LayerAndCompileEntry, ...]:
        return tuple(LayerAndCompileEntry(group, entry) for group in self.stack for entry in group.compile)

    @property
    def patches_folder_file_names(self) -> tuple[str, ...]:
        """The files of the folder `patches/`, in order; what a git part has is pinned with it."""
        return tuple(patch.file for patch in self.patches if not patch.part)


DEFAULTS = Path(__file__).with_name("defaults.toml")


@dataclass(frozen=True, kw_only=True)
class TargetWithSpecFiles:
    """A checked target, and the files it was read from, the target's own first."""

    target: Target
    files: tuple[Path, ...]


def find_cuda12_variant_or_empty(project: Project, target_name: str) -> str:
    """Return the target `NAME-cu12`, which runs on drivers older than 580, where there is one; else nothing."""
    variant = f"{target_name}-cu12"
    return variant if variant in project.own_pack_and_shipped_target_files() else ""


def load_target(project: Project, target_name: str) -> TargetWithSpecFiles:
    """Return the target `target_name`, completed with its includes and the defaults.

    Raises SpecError: unknown target, broken TOML (with line), include cycle, or wrong keys and values (all of them).
    """
    data, files = _load_included(project, target_name, ())
    data.pop("include", None)
    data["name"] = target_name
    target = validate_spec(
        Target,
        merge_tables_and_named_lists(load_toml(DEFAULTS), data),
        format_spec_path(files[0], project),
        extra_known_keys=("include",),
    )
    return TargetWithSpecFiles(target=target, files=(*files, DEFAULTS))


def _load_included(project: Project, name: str, above: tuple[str, ...]) -> tuple[dict[str, Any], tuple[Path, ...]]:
    path = project.require_target_file(name)
    if name in above:
        raise SpecError(
            _("targets include each other: {value}").format(value=" -> ".join((*above, name))),
            where=format_spec_path(path, project),
            next_step=_("include another target here, or none"),
        )
    data = require_key_absent(load_toml(path, project), format_spec_path(path, project), "name")
    include = data.get("include")
    if include is None:
        return data, (path,)
    if not isinstance(include, str):
        raise SpecError(
            _("{path}: include: must be the name of one target (got {include!r})").format(
                path=format_spec_path(path, project), include=include
            )
        )
    if include not in project.own_pack_and_shipped_target_files():
        near = did_you_mean_hint(include, list(project.own_pack_and_shipped_target_files()))
        raise SpecError(
            _("{path}: include: unknown target {include!r}{near}").format(
                path=format_spec_path(path, project), include=include, near=near
            ),
            next_step=_("choose one of: {targets}").format(
                targets=", ".join(project.own_pack_and_shipped_target_files())
            ),
        )
    under, files = _load_included(project, include, (*above, name))
    return merge_tables_and_named_lists(under, data), (path, *files)
