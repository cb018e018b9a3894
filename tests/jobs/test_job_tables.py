"""What every job would run, as tables: its parameters, what each profile changes, the options of its programs.

The plan is the one that a run carries out: commands with the defaults filled in, limits, services, gates. A changed
default or a dropped argument is a changed line: `pytest --update-golden` rewrites the tables, the diff is reviewed.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jobplan import job_of, plan_of
from pydantic import BaseModel

from rlbox.job.plan import RunPlan, replan_stages_for_resume

JOBS = Path(__file__).parents[2] / "jobs"
NAMES = sorted(path.stem for path in JOBS.glob("*.toml"))
READ_BY_PEOPLE = {"title", "why", "remedy", "digest", "origins", "units"}


@pytest.mark.parametrize("job", NAMES)
def test_what_a_job_runs(job: str, golden: Callable[[str, str], None]) -> None:
    golden(f"jobs/{job}.txt.xz", "".join(f"{line}\n" for line in table(job)))


def table(job: str) -> Iterator[str]:
    """The lines of a job's table, each made when it is asked for."""
    found = job_of(job)
    plain = _lines(plan_of(job))
    yield from ("# The plan of the defaults", "", *plain, "", f"target {found.target}")
    yield from (f"secrets {found.secrets} {found.optional_secrets}", "", "# Parameters", "")
    yield from (_parameter(name, param) for name, param in found.params.items())
    if found.fits:
        yield from ("", "# What it needs", "", *_flat("fits", found.fits.model_dump(exclude_defaults=True)))
    if found.cluster:
        yield from ("", "# On a cluster", "", *_flat("cluster", found.cluster.model_dump(exclude_defaults=True)))
    for profile in found.profiles:
        yield from ("", f"# Profile {profile}", "", *_changes(plain, _lines(plan_of(job, profile))))
    for name, param in found.params.items():
        if isinstance(param.default, bool):
            yield from _switched(job, name, ["", *sorted({one for stage in found.stages for one in stage.profiles})])
    for stage in found.stages:
        if stage.resume or found.resume.params:
            before = plan_of(job, next(iter(stage.profiles), ""))
            again = _lines(replan_stages_for_resume(found, before, {stage.name: 2}))
            yield from ("", f"# {stage.name} again", "", *_changes(_lines(before), again))


def _switched(job: str, name: str, profiles: list[str]) -> Iterator[str]:
    """What a switch changes, in the first profile where it changes more than itself."""
    for profile in profiles:
        before = plan_of(job, profile)
        after = plan_of(job, profile, {name: str(not before.params[name]).lower()})
        changes = _changes(_lines(before), _lines(after))
        if len(changes) > 2 or profile == profiles[-1]:
            yield from ("", f"# {profile} --set {name}={after.params[name]}", "", *changes)
            return


def _parameter(name: str, param: Any) -> str:
    aside = {"help"} if isinstance(param.default, bool) else {"help", "true", "false"}
    told = {key: value for key, value in param if key not in aside and value not in (None, (), "")}
    return f"{name}: " + ", ".join(f"{key} {value!r}" for key, value in told.items())


def _changes(before: list[str], after: list[str]) -> list[str]:
    """Return what is new, and what is gone for good: the old value of a place stands in the defaults."""
    found = [line for line in difflib.unified_diff(before, after, n=0, lineterm="") if not line.startswith("@@")][2:]
    added = {_place(line[1:]) for line in found if line.startswith("+")}
    return [line for line in found if line.startswith("+") or _place(line[1:]) not in added]


def _place(line: str) -> str:
    """Return the key of a line, with the name of the option where it is an argument."""
    at, _, value = line.partition(" ")
    return at if value.startswith("=") else f"{at} {value.split(' ')[0]}"


def _lines(plan: RunPlan) -> list[str]:
    return list(_flat("", plan))


def _flat(at: str, value: Any) -> Iterator[str]:
    """A plan as lines, place and value, without what is as always; a command has a line for each option."""
    if isinstance(value, BaseModel):
        defaults = {
            name: field.get_default(call_default_factory=True) for name, field in type(value).model_fields.items()
        }
        value = {name: item for name, item in value if item != defaults[name]}
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if _is_set(field, value)}
    if isinstance(value, Mapping):
        for key, item in sorted(value.items()):
            if key not in READ_BY_PEOPLE and item not in (None, (), {}):
                yield from _flat(f"{at}.{key}" if at else str(key), item)
    elif at.endswith("argv"):
        yield from (f"{at} {option}" for option in _options(value))
    elif isinstance(value, tuple):
        for item in value:
            yield from _flat(f"{at}.{item.name}" if hasattr(item, "name") else f"{at}[]", item)
    else:
        yield f"{at} = {value!r}"


def _is_set(field: dataclasses.Field[Any], value: Any) -> bool:
    """Whether a field has another value than where nothing is said."""
    made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    return getattr(value, field.name) != made


def _options(words: tuple[str, ...]) -> Iterator[str]:
    index = 0
    while index < len(words):
        behind = words[index + 1 : index + 2]
        named = words[index].startswith("--") and "=" not in words[index]
        two = named and bool(behind) and not behind[0].startswith("-")
        yield " ".join(words[index : index + 1 + two])
        index += 1 + two


class Parsed(Exception):
    """A program has said which options it takes."""


def _programs() -> list[str]:
    found = sorted(JOBS.glob("*/*.py"))
    return [f"{path.parent.name}.{path.stem}" for path in found if "ArgumentParser(" in path.read_text("utf-8")]


@pytest.mark.parametrize("job", NAMES)
def test_what_the_programs_of_a_job_take(
    job: str, golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(parser: argparse.ArgumentParser, words: Any = None) -> None:
        raise Parsed(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", tell)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    lines = []
    for name in _programs():
        if name.partition(".")[0] == job:
            if job == "smoke":
                pytest.importorskip("pokerkit", reason="pokerkit needs Python 3.11")
            with pytest.raises(Parsed) as raised:
                importlib.import_module(name).main()
            lines += [f"# {name}", "", *map(_option, raised.value.args[0]._actions[1:]), ""]
    golden(f"jobs/{job}-programs.txt", "\n".join(lines))


def _option(action: argparse.Action) -> str:
    told = [" ".join(action.option_strings) or action.dest]
    told += ["required"] if action.required else []
    told += [f"default {action.default!r}"] if action.default is not None else []
    told += [f"one of {list(action.choices)}"] if action.choices else []
    return ", ".join(told)
