"""Schema of a fix (`templates/fixes/<id>.toml`)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from rlbox.config.pattern import matches_except
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
)
from rlbox.i18n import _
from rlbox.target.target import PatchFacts

NonEmptyLine = Annotated[SingleLine, StringConstraints(min_length=1)]
CommitOrVersion = NonEmptyLine
_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


class FixPatch(PatchFacts):
    """One diff of a fix, matched on content; it leaves its mark in every file, so that it can be found and listed."""

    name: Name
    into: SingleLine = Field("", description="folder that the diff's paths start in; empty: that of the package")
    made_for: CommitOrVersion = Field(description="commit or version that the diff was made from")
    reason: NonEmptyLine = Field(description="what goes wrong without it")
    marker: NonEmptyLine = Field(description="text that each patched file holds")
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
TEXT_KEYS = ("title", "failure", "remedy")
"""What a fix says in one language or in two: `title`, `title_zh`."""


class Applies(SpecModel):
    """When a fix is needed; every condition that is given must hold, none given holds for every target."""

    gpu: bool | None = Field(None, description="the target has a GPU")
    arch: tuple[GpuArch, ...] = Field((), description="GPU architecture, one of: sm_80, sm_120, …")
    grade: Literal["", "datacenter", "consumer"] = Field("", description="kind of the GPU")
    gpus: CountCondition | None = Field(None, description="GPUs of a node: >=2")
    nodes: CountCondition | None = Field(None, description="number of nodes: >=2")
    rented: bool | None = Field(None, description="the machine is a rented container")
    platform: tuple[SingleLine, ...] = Field((), description="platform of a rented machine, one of")
    region: tuple[SingleLine, ...] = Field((), description="where the machine stands, one of: cn")
    stack: tuple[SingleLine, ...] = Field((), description="packages that are all in the stack: vllm>=0.12")
    any_stack: tuple[SingleLine, ...] = Field((), description="packages of which one is in the stack")
    no_stack: tuple[SingleLine, ...] = Field((), description="packages of which none is in the stack")
    base: Literal["", "image", "bootstrap"] = Field("", description="what the base is made from")


def _not_linked(path: str) -> str:
    if re.match(r"/(?:bin|sbin|lib\w*)/", path):
        raise ValueError(
            _("{path}: a layer would put a folder in the place of the link to /usr; write /usr{path}").format(path=path)
        )
    return path


ImagePath = Annotated[AbsolutePath, AfterValidator(_not_linked)]


class BakedFile(SpecModel):
    """A file that a fix puts into the image."""

    path: ImagePath
    mode: Mode = "0644"
    text: Text


class BakedLink(SpecModel):
    """A symbolic link that a fix puts into the image."""

    path: ImagePath
    to: Text


class BakedRun(SpecModel):
    """How containers are started: floors under the target's own `[run]`; sizes in GiB, 0 asks for nothing."""

    shm_gib: Annotated[float, Field(ge=0)] = 0.0
    ulimits: dict[Name, SingleLine] = Field(default_factory=dict)


class RayStartOptions(SpecModel):
    """Words of `ray-start head` and `ray-start worker`; shell text, expanded when Ray starts.

    `before` is run first, with the role in `$role` and the user's arguments in `"$@"`; if it fails, Ray is not started.
    """

    before: str = ""

    common: tuple[SingleLine, ...] = ()
    head: tuple[SingleLine, ...] = ()
    worker: tuple[SingleLine, ...] = ()


class Refusal(SpecModel):
    """A spec that cannot work: the condition is an expression over what templates of fixes see."""

    condition: JinjaExpression = Field(alias="if")
    says: Text
    next: Text


class Bake(SpecModel):
    """What a fix puts into the image and around its containers."""

    packages: tuple[AptPackage, ...] = ()
    env: dict[EnvName, str] = Field(default_factory=dict)
    path: dict[EnvName, tuple[Text, ...]] = Field(default_factory=dict)
    file: tuple[BakedFile, ...] = ()
    link: tuple[BakedLink, ...] = ()
    hook: str = ""
    aliases: tuple[tuple[EnvName, ...], ...] = Field((), description="variables that hold the same secret")
    run: BakedRun = BakedRun()
    ray: RayStartOptions = RayStartOptions()
    refuse: tuple[Refusal, ...] = ()
    patch: tuple[FixPatch, ...] = ()


class Check(SpecModel):
    """A command that fails, and says in one line why, when the fix is absent."""

    run: ShellScript
    when: tuple[Literal["build", "run", "doctor"], ...] = Field(("build", "run", "doctor"), min_length=1)


class Signature(SpecModel):
    """What a log says when the fault bites, with a real line that shows it and perhaps a near miss that does not.

    It is judged on the line that says what failed and on what that line goes on with, never on a neighbour's.
    """

    pattern: PatternText
    unless: OptionalPattern = Field("", description="a line that fits this too is another story")
    near: LocationPattern = Field(
        "", description="what the traceback's frames, the lane or the logger's place must fit"
    )
    far: LocationPattern = Field("", description="what they must not fit")
    role: Literal["", "root", "relayed", "victim", "death", "benign"] = Field(
        "", description="what the line is: a root, a wrapper of another, a victim, an end, or nothing"
    )
    rank: Annotated[int, Field(ge=-3, le=5)] = Field(0, description="of two that fit, the higher one counts")
    anchor: tuple[ScanLiteral, ...] = Field((), description="what a scan looks for, where the line has no common word")
    example: Text
    unlike: str = ""
    after: PatternText | Literal[""] = Field("", description="of a benign line: it is so only behind a line like this")

    @model_validator(mode="after")
    def _example_fits(self) -> Signature:
        if not self.matches_line(self.example):
            raise ValueError(_("{pattern!r} does not match its own example").format(pattern=self.pattern))
        if self.unlike and self.matches_line(self.unlike):
            raise ValueError(_("{pattern!r} matches the line that it must not").format(pattern=self.pattern))
        return self

    def matches_line(self, line: str) -> bool:
        return matches_except(self.pattern, self.unless, line)


_NOTHING = Bake()


class Fix(SpecModel):
    """One fix. `id` is the name of its file, and the id of the cause that it heals where there is one.

    Title, failure and remedy are told in English and in Chinese; a file may have one of both, which then stands for the
    other.
    """

    id: Name
    title: Title
    title_zh: Title = Field("", description="the title in Chinese; where one of both is missing the other is told")
    why: Text
    source: tuple[SingleLine, ...] = Field(
        default=(), description="where it is known from: issues, files, measurements"
    )
    heals: tuple[Name, ...] = Field((), description="ids of the causes whose lines it repairs")
    failure: Failure = Field("", description="what is wrong where its lines are found: what `rlbox diagnose` says")
    failure_zh: Failure = Field("", description="the same in Chinese; where one of both is missing the other is told")
    remedy: Text
    remedy_zh: Text = Field("", description="the remedy in Chinese; where one of both is missing the other is told")
    benign: bool = Field(False, description="a warning that must not alarm")
    order: Annotated[int, Field(ge=0, le=99)] = Field(50, description="order among hooks and directories of a path")
    untested: str = Field("", description="why there is no fault test")
    applies: Applies = Applies()
    bake: Bake = Bake()
    check: Check | None = None
    signature: tuple[Signature, ...] = ()

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
