"""A fix in words: when it applies, and what it bakes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlbox.amounts import asked_text
from rlbox.fixes.bake import HOOKS
from rlbox.fixes.fix import Applies, Bake, Fix
from rlbox.fixes.patches import patch_lines


@dataclass(frozen=True, kw_only=True)
class BakedRow:
    """One thing that a fix bakes: its kind, its name, what it is set to; `text` are the lines of a file."""

    kind: str
    name: str
    value: str = ""
    text: str = ""


def kind_of(fix: Fix) -> str:
    """Return what sort of fix it is: `baked`, `check` (it only looks), `remedy` (it only advises) or `benign`."""
    if fix.benign:
        return "benign"
    if fix.bakes:
        return "baked"
    return "check" if fix.check else "remedy"


def condition_words(applies: Applies) -> tuple[str, ...]:
    """Return every condition as a clause; nothing when the fix is for every target."""
    return (*_machine_words(applies), *_stack_words(applies))


def _machine_words(applies: Applies) -> Iterator[str]:
    if applies.gpu is not None:
        yield "the target has a GPU" if applies.gpu else "the target has no GPU"
    if applies.arch:
        yield f"its GPU is {_or(applies.arch)}"
    if applies.grade:
        yield f"its GPU is of {applies.grade} grade"
    for count, what in ((applies.gpus, "GPUs a node"), (applies.nodes, "nodes")):
        if count is not None:
            yield f"{what}: {count}"
    if applies.rented is not None:
        yield "the machine is rented" if applies.rented else "the machine is one's own"
    if applies.platform:
        yield f"the machine is rented from {_or(applies.platform)}"
    if applies.region:
        yield f"the machine stands in {_or(applies.region)}"
    if applies.pids_per_core_below is not None:
        yield f"fewer than {applies.pids_per_core_below} processes for each core are allowed"


def _stack_words(applies: Applies) -> Iterator[str]:
    yield from (f"the stack has {text}" for text in applies.stack)
    if applies.any_stack:
        yield f"the stack has {_or(applies.any_stack)}"
    if applies.no_stack:
        yield f"the stack has no {_or(applies.no_stack)}"
    if applies.base:
        yield "the base is bootstrapped from apt" if applies.base == "bootstrap" else "the base is an image"
    if applies.network:
        yield f"containers are on the network {_or(applies.network)}"


def _or(values: tuple[str, ...]) -> str:
    return " or ".join(values)


def baked_rows(fix: Fix, bake: Bake) -> tuple[BakedRow, ...]:
    """Return what `bake`, the fix's own or filled in for a target, consists of."""
    return (*_image_rows(fix, bake), *_start_rows(bake), *_source_rows(bake))


def _image_rows(fix: Fix, bake: Bake) -> Iterator[BakedRow]:
    yield from (BakedRow(kind="package", name=name) for name in bake.packages)
    yield from (BakedRow(kind="env", name=name, value=value) for name, value in sorted(bake.env.items()))
    for name, folders in sorted(bake.path.items()):
        yield BakedRow(kind="path", name=name, value=":".join(folders))
    for file in bake.file:
        yield BakedRow(kind="file", name=file.path, value=file.mode, text=file.text)
    yield from (BakedRow(kind="link", name=link.path, value=link.to) for link in bake.link)
    if bake.hook:
        yield BakedRow(kind="hook", name=f"{HOOKS}/{fix.order:02d}-{fix.id}.sh", text=bake.hook)


def _start_rows(bake: Bake) -> Iterator[BakedRow]:
    if bake.run.shm_gib:
        yield BakedRow(kind="run", name="shared memory", value=f"at least {asked_text(bake.run.shm_gib)}")
    if bake.run.pids:
        yield BakedRow(kind="run", name="processes", value=f"at least {bake.run.pids}")
    yield from (BakedRow(kind="secret", name=group[0], value=" ".join(group[1:])) for group in bake.aliases)
    for name, limit in sorted(bake.run.ulimits.items()):
        yield BakedRow(kind="run", name=f"ulimit {name}", value=limit)
    yield from (BakedRow(kind="run", name="capability", value=name) for name in bake.run.cap_add)
    for role, words in (("both", bake.ray.common), ("head", bake.ray.head), ("worker", bake.ray.worker)):
        yield from (BakedRow(kind="ray", name=role, value=word) for word in words if word)
    if bake.ray.before:
        yield BakedRow(kind="ray", name="before it starts", text=bake.ray.before)


def _source_rows(bake: Bake) -> Iterator[BakedRow]:
    for row in bake.refuse:
        yield BakedRow(kind="refuse", name=row.condition, value=f"{row.says}; {row.next}")
    for patch in bake.patch:
        facts = [line.strip() for line in patch_lines(patch)[1:]]
        yield BakedRow(kind="patch", name=patch.name, value=patch.reason, text="\n".join([*facts, "", patch.diff]))
