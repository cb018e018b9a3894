"""Schema of a fix (`templates/fixes/<id>.toml`)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, model_validator

from rlbox.config.pattern import matches_unless_excluded
from rlbox.config.schema import (
    AbsolutePath,
    AptPackage,
    EnvName,
    Name,
    OptionalPattern,
    PatternText,
    SingleLine,
    SpecModel,
    ValidationProblems,
    are_patterns_checked,
)
from rlbox.i18n import _
from rlbox.target.target import PatchFacts

NonEmptyLine = Annotated[SingleLine, StringConstraints(min_length=1)]
CommitOrVersion = NonEmptyLine
FolderInImage = SingleLine
_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class FixPatch(PatchFacts):
    """One diff of a fix, matched on content; it leaves its mark in every file, so that it can be found and listed."""

    name: Name = Field(description="name of the patch")
    into: FolderInImage = Field("", description="directory that the diff's paths are relative to; empty: the package's")
    made_for: CommitOrVersion = Field(description="commit or version that the diff was made for")
    reason: NonEmptyLine = Field(description="failure that the patch prevents")
    marker: NonEmptyLine = Field(description="text that every patched file contains")
    diff: Annotated[str, StringConstraints(min_length=1)] = Field(description="unified diff")

    @model_validator(mode="after")
    def _diff_is_marked(self) -> FixPatch:
        added = map_files_to_added_text(self.diff)
        problems = [] if added else [_("diff: not a unified diff")]
        problems += [
            _("diff: {path} does not get the marker").format(path=path)
            for path, text in added.items()
            if self.marker not in text
        ]
        known = ["/".join(path.split("/")[self.strip :]) for path in added]
        problems += [
            _("files: the diff does not change {path}").format(path=path) for path in self.files if path not in known
        ]
        if problems:
            raise ValidationProblems(problems)
        return self


def map_files_to_added_text(diff: str) -> dict[str, str]:
    """Return what a diff adds to each file, by the name in its `+++` line."""
    found: dict[str, str] = {}
    name, old, new = "", 0, 0  # lines that are left of the hunk
    for line in diff.split("\n"):
        if old > 0 or new > 0:
            found[name] += line[1:] + "\n" if line.startswith("+") else ""
            old, new = old - (line[:1] in " -"), new - (line[:1] in " +")
        elif line.startswith("+++ "):
            name = line[4:].split("\t")[0].strip()
            found[name] = ""
        elif (head := _HUNK.match(line)) and name:
            old, new = int(head[1] or 1), int(head[2] or 1)
    return found


Text = Annotated[str, StringConstraints(min_length=1)]
Title = Annotated[SingleLine, StringConstraints(min_length=1, max_length=120)]
Failure = Annotated[SingleLine, StringConstraints(max_length=160)]
CountCondition = Annotated[str, StringConstraints(pattern=r"^(>=|<=|==|<|>)\d+$")]
Mode = Annotated[str, StringConstraints(pattern=r"^0[0-7]{3}$")]
ScanLiteral = Annotated[str, StringConstraints(min_length=5)]
GpuArch = SingleLine
JinjaExpression = Text
ShellScript = Text
LocationPattern = OptionalPattern
"""Fits the file and function of a traceback's frames, the lane of a line, or the place of its logger."""
ExcludedLocationPattern = LocationPattern
TEXT_KEYS = ("title", "failure", "remedy")
"""What a fix says in one language or in two: `title`, `title_zh`."""


class Applies(SpecModel):
    """When a fix is needed; every condition that is given must hold, none given holds for every target."""

    gpu: bool | None = Field(None, description="true: the target has a GPU; false: it has none; absent: any")
    arch: tuple[GpuArch, ...] = Field((), description="GPU architectures, any of: sm_80, sm_120; empty: any")
    grade: Literal["", "datacenter", "consumer"] = Field("", description="GPU class; empty: any")
    gpus: CountCondition | None = Field(None, description="GPUs of a node, a comparison: >=2; absent: any")
    nodes: CountCondition | None = Field(None, description="number of nodes, a comparison: >=2; absent: any")
    rented: bool | None = Field(None, description="true: a rented machine; false: your own; absent: any")
    platform: tuple[SingleLine, ...] = Field((), description="providers, any of: vast, autodl; empty: any")
    region: tuple[SingleLine, ...] = Field((), description="regions, any of: cn; empty: any")
    stack: tuple[SingleLine, ...] = Field((), description="requirements that the stack must all meet: vllm>=0.12")
    any_stack: tuple[SingleLine, ...] = Field((), description="requirements of which the stack must meet at least one")
    no_stack: tuple[SingleLine, ...] = Field((), description="requirements of which the stack must meet none")
    base: Literal["", "image", "bootstrap"] = Field("", description="kind of base; empty: any")


def _not_linked(path: str) -> str:
    if re.match(r"/(?:bin|sbin|lib\w*)/", path):
        raise ValueError(
            _("{path}: a layer would put a folder in the place of the link to /usr; write /usr{path}").format(path=path)
        )
    return path


ImagePath = Annotated[AbsolutePath, AfterValidator(_not_linked)]


class BakedFile(SpecModel):
    """A file that a fix puts into the image."""

    path: ImagePath = Field(description="absolute path in the image")
    mode: Mode = Field("0644", description="octal file mode, as in chmod")
    text: Text = Field(description="content of the file")


class BakedLink(SpecModel):
    """A symbolic link that a fix puts into the image."""

    path: ImagePath = Field(description="absolute path of the link in the image")
    to: Text = Field(description="target of the link")


class BakedContainerLimits(SpecModel):
    """How containers are started: floors under the target's own `[run]`; sizes in GiB, 0 asks for nothing."""

    shm_gib: Annotated[float, Field(ge=0)] = Field(0.0, description="minimum size of /dev/shm, GiB; 0: no minimum")
    ulimits: dict[Name, SingleLine] = Field(
        default_factory=dict, description="limits by name, SOFT or SOFT:HARD; the target's override them"
    )


class RayStartOptions(SpecModel):
    """Words of `ray-start head` and `ray-start worker`; shell text, expanded when Ray starts.

    `before` is run first, with the role in `$role` and the user's arguments in `"$@"`; if it fails, Ray is not started.
    """

    before: str = Field("", description="shell script to run before Ray starts; if it fails, Ray does not start")

    common: tuple[SingleLine, ...] = Field((), description="arguments of ray start for the head and workers")
    head: tuple[SingleLine, ...] = Field((), description="arguments of ray start for the head")
    worker: tuple[SingleLine, ...] = Field((), description="arguments of ray start for workers")


class Refusal(SpecModel):
    """A spec that cannot work: the condition is an expression over what templates of fixes see."""

    condition: JinjaExpression = Field(
        alias="if", description="Jinja expression; if it is true, the target is rejected"
    )
    says: Text = Field(description="error message")
    next: Text = Field(description="next step in the error message")


class Bake(SpecModel):
    """What a fix puts into the image and around its containers."""

    packages: tuple[AptPackage, ...] = Field((), description="apt packages to install")
    env: dict[EnvName, str] = Field(default_factory=dict, description="environment variables to set in the image")
    path: dict[EnvName, tuple[Text, ...]] = Field(
        default_factory=dict, description="directories to prepend to path variables, by variable"
    )
    file: tuple[BakedFile, ...] = Field((), description="files to write into the image")
    link: tuple[BakedLink, ...] = Field((), description="symbolic links to create in the image")
    hook: str = Field("", description="shell code that the container's entrypoint sources")
    aliases: tuple[tuple[EnvName, ...], ...] = Field((), description="groups of variable names for the same secret")
    run: BakedContainerLimits = Field(BakedContainerLimits(), description="container limits that the fix needs")
    ray: RayStartOptions = Field(RayStartOptions(), description="arguments for ray start")
    refuse: tuple[Refusal, ...] = Field((), description="conditions that reject a target")
    patch: tuple[FixPatch, ...] = Field((), description="diffs to apply to installed packages")


class Check(SpecModel):
    """A command that fails, and says in one line why, when the fix is absent."""

    run: ShellScript = Field(description="shell script; fails and prints one line if the fix is missing")
    when: tuple[Literal["build", "run", "doctor"], ...] = Field(
        ("build", "run", "doctor"),
        min_length=1,
        description="when to run it: after the build, before a run, in the doctor",
    )


class Signature(SpecModel):
    """What a log says when the fault bites, with a real line that shows it and perhaps a near miss that does not.

    It is judged on the line that says what failed and on what that line goes on with, never on a neighbour's.
    """

    pattern: PatternText = Field(description="RE2 pattern of the log line")
    unless: OptionalPattern = Field("", description="RE2 pattern that must not match the same message; empty: none")
    near: LocationPattern = Field(
        "", description="RE2 pattern of the context: frame, last frame's `code`, log stream, logger or line; empty: any"
    )
    far: ExcludedLocationPattern = Field(
        "", description="RE2 pattern that must not match the same context; empty: none"
    )
    above: OptionalPattern = Field(
        "", description="RE2 pattern that the 40 lines above the message, as one text, must match; empty: any"
    )
    remedy: str = Field("", description="suggested fix for this message; empty: the fix's remedy")
    remedy_zh: str = Field("", description="remedy in Chinese")
    role: Literal["", "root", "relayed", "victim", "death", "benign"] = Field(
        "", description="root cause, relayed error, victim, process death or harmless; empty: root, benign if benign"
    )
    rank: Annotated[int, Field(ge=-3, le=5)] = Field(0, description="priority if several signatures match; higher wins")
    anchor: tuple[ScanLiteral, ...] = Field(
        (), description="literal texts that find the line, if it contains no common error word"
    )
    example: Text = Field(description="real log line that must match")
    unlike: str = Field("", description="similar log line that must not match; empty: none")
    after: PatternText | Literal[""] = Field(
        "", description="RE2 pattern; a benign line counts only after a match; empty: always"
    )

    @model_validator(mode="after")
    def _example_fits(self, info: ValidationInfo) -> Signature:
        if not are_patterns_checked(info):
            return self
        if not self.matches_line_unless_excluded(self.example):
            raise ValueError(_("{pattern!r} does not match its own example").format(pattern=self.pattern))
        if self.unlike and self.matches_line_unless_excluded(self.unlike):
            raise ValueError(_("{pattern!r} matches the line that it must not").format(pattern=self.pattern))
        return self

    def matches_line_unless_excluded(self, line: str) -> bool:
        return matches_unless_excluded(self.pattern, self.unless, line)


_NOTHING = Bake()


class Fix(SpecModel):
    """One fix. `id` is the name of its file, and the id of the cause that it heals where there is one.

    Title, failure and remedy are told in English and in Chinese; a file may have one of both, which then stands for the
    other.
    """

    id: Name
    title: Title = Field(description="one-line description of the fix; one language is enough")
    title_zh: Title = Field("", description="title in Chinese; one language is enough")
    why: Text = Field(description="cause of the failure and how the fix works")
    why_zh: str = Field("", description="why in Chinese; empty: English")
    source: tuple[SingleLine, ...] = Field(default=(), description="evidence: issues, source files, measurements")
    heals: tuple[Name, ...] = Field((), description="ids of the failures that the fix resolves")
    failure: Failure = Field("", description="cause that `rlbox diagnose` prints for its log lines; empty: title")
    failure_zh: Failure = Field("", description="failure in Chinese; one language is enough")
    remedy: Text = Field(description="suggested fix for the user; one language is enough")
    remedy_zh: Text = Field("", description="remedy in Chinese; one language is enough")
    benign: bool = Field(False, description="harmless warning that must not raise an alarm")
    order: Annotated[int, Field(ge=0, le=99)] = Field(
        50, description="order of hooks and path entries, 0 to 99; lower comes first"
    )
    untested: str = Field("", description="why there is no fault test; empty: tested or benign")
    applies: Applies = Field(Applies(), description="conditions on the target, all required; empty: every target")
    bake: Bake = Field(Bake(), description="changes to the image and its containers")
    check: Check | None = Field(None, description="test that the fix is in effect; absent: none")
    signature: tuple[Signature, ...] = Field((), description="log patterns of the failure")

    @model_validator(mode="before")
    @classmethod
    def _one_language_is_enough(cls, data: dict[str, Any]) -> dict[str, Any]:
        told = {key: data.get(key, data.get(f"{key}_zh")) for key in TEXT_KEYS}
        told |= {f"{key}_zh": data.get(f"{key}_zh", data.get(key)) for key in TEXT_KEYS}
        return {**data, **{key: text for key, text in told.items() if text is not None}}

    @model_validator(mode="after")
    def _benign_does_nothing(self) -> Fix:
        if self.benign and (self.bake != _NOTHING or self.check):
            raise ValueError(_("a benign warning needs no bake and no check"))
        if self.benign and any(signature.unless for signature in self.signature):
            raise ValueError(_("a benign warning needs no `unless`: write a pattern that fits the harmless line alone"))
        return self

    @property
    def has_bake_entries(self) -> bool:
        """Whether it puts anything into an image, beside a container, or in the way of a spec."""
        return self.bake != _NOTHING
