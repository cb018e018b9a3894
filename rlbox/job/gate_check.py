"""Rules of a gate that cannot be meant: contradictions, and conditions that nothing could fulfil or break."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rlbox.spec.check import suggest
from rlbox.spec.pattern import check_pattern, compile_re2, tokens

if TYPE_CHECKING:
    from rlbox.job.gate import BenignRule, FileRule, ForbidRule, Gate, MetricRule, Probe, RequireRule
    from rlbox.job.job import Stage

WILD = re.compile(r"[*?\[]")
_PATH = re.compile(r"(?:[^.\[\]\s]+|\[\d+\])(?:\.[^.\[\]\s]+|\[\d+\])*")
_FOLDERS = ("{run}", "{data}", "{job}")
_NUMBERS = ("nan", "inf", "-inf", "1", "-1.5", "1e-05")
"""What a metric's value group must take: a pattern for digits alone is blind to NaN."""


def file_problems(rule: FileRule) -> list[str]:
    """Return what is wrong with one file rule, each with its key."""
    return [*_folder_problems(rule), *_content_problems(rule)]


def _folder_problems(rule: FileRule) -> Iterator[str]:
    if rule.path.endswith("/") or rule.path in _FOLDERS:
        yield (
            f"path: {rule.path!r} is a folder, and a folder is there before the stage; name a file in it, "
            f"or all of them: {rule.path.rstrip('/')}/*"
        )
    if rule.count > 1 and not WILD.search(rule.path):
        yield f"count: {rule.path!r} names one file; put * into the path to count several"


def _content_problems(rule: FileRule) -> Iterator[str]:
    if rule.manifest and rule.format not in ("", "json"):
        yield f"format: a manifest is JSON, not {rule.format}"
    if rule.min_bytes == 0 and (rule.manifest or rule.format in ("json", "safetensors")):
        yield f"min_bytes: an empty file is no {rule.format or 'manifest'}; leave min_bytes out"


def metric_problems(rule: MetricRule) -> list[str]:
    """Return what is wrong with one metric rule, each with its key."""
    return [*_source_problems(rule), *_value_problems(rule), *_condition_problems(rule)]


def _source_problems(rule: MetricRule) -> Iterator[str]:
    if bool(rule.pattern) == bool(rule.key):
        yield "pattern: a metric needs its points from somewhere: set either pattern (a log) or key (a row of `file`)"
    if rule.pattern and rule.where:
        yield "where: chooses rows of `file`; it says nothing about a log"
    if rule.key and rule.log != "stage":
        yield "log: the points come from `file`, not from a log"


def _value_problems(rule: MetricRule) -> Iterator[str]:
    if not rule.pattern:
        return
    names = compile_re2(rule.pattern).groupindex
    if "value" not in names:
        yield r"pattern: has no group (?P<value>…) that takes the number; write for example loss (?P<value>\S+)"
    elif rule.finite and (missed := [n for n in _NUMBERS if not _takes(rule.pattern, n)]):
        yield (
            f"pattern: its group value does not take {missed[0]!r}, so that such a line would go unseen; "
            r"write (?P<value>\S+)"
        )
    if rule.steps_rise and "step" not in names:
        yield r"steps_rise: the pattern has no group (?P<step>\d+)"


def _condition_problems(rule: MetricRule) -> Iterator[str]:
    limits = rule.at_least is not None or rule.at_most is not None
    if rule.at_least is not None and rule.at_most is not None and rule.at_least > rule.at_most:
        yield f"at_least: {rule.at_least:g} is above at_most {rule.at_most:g}: no value fits"
    if not rule.trend:
        yield from (f"{key}: says nothing without trend = 'falls' or 'rises'" for key in _set_keys(rule))
    if rule.when == "always" and not limits:
        yield "when: says nothing without at_least or at_most"
    if rule.trend and rule.within_steps and rule.points > rule.within_steps:
        yield f"points: {rule.points} points do not fit into {rule.within_steps} steps"


def _set_keys(rule: MetricRule) -> list[str]:
    return [key for key, is_set in (("within_steps", rule.within_steps), ("by", rule.by)) if is_set]


def _takes(pattern: str, number: str) -> bool:
    """Return whether the group `value` of a pattern, taken by itself, fits a number as a log writes it."""
    inside = group_text(pattern, "value")
    try:
        return compile_re2(f"^(?:{inside})$").search(number) is not None
    except ValueError:
        return True


def group_text(pattern: str, name: str) -> str:
    """Return what stands between the brackets of the named group of a pattern that compiles."""
    depth, text = 0, ""
    for _, part in tokens(pattern):
        if depth:
            depth += part.startswith("(") - (part == ")")
            if not depth:
                return text
            text += part
        elif part in (f"(?P<{name}>", f"(?<{name}>"):
            depth = 1
    return text


def probe_problems(rule: Probe) -> list[str]:
    """Return what is wrong with one probe, each with its key."""
    problems = []
    if rule.url and not rule.url.startswith(("http://", "https://")):
        problems.append(f"url: {rule.url!r} is no address; write http://127.0.0.1:{{port.NAME}}/…")
    if rule.equals is not None and not rule.json_path:
        problems.append("equals: says nothing without json_path")
    if rule.json_path and not _PATH.fullmatch(rule.json_path):
        problems.append(f"json_path: {rule.json_path!r} is no path; write for example choices[0].message.content")
    if rule.body and rule.method == "GET":
        problems.append("body: is sent with POST only; set method = 'POST'")
    return problems


def contradictions(gate: Gate) -> list[str]:
    """Return rules of a gate that contradict each other or say a thing twice, each with its key."""
    return [
        *_twice("require", gate.require),
        *_twice("forbid", gate.forbid),
        *_twice("benign", gate.benign),
        *_same_name(gate),
        *(line for i, rule in enumerate(gate.require) for line in _required(i, rule, gate)),
        *(line for i, rule in enumerate(gate.forbid) for line in _forbidden(i, rule, gate)),
        *_order(gate),
    ]


def stage_problems(stage: Stage) -> list[str]:
    """Return what is wrong with a gate as part of its stage, each with its path in the job."""
    where, gate = f"stages.{stage.name}.gate", stage.gate
    problems = []
    named: dict[str, tuple[RequireRule | ForbidRule | BenignRule | MetricRule, ...]]
    named = {"require": gate.require, "forbid": gate.forbid, "benign": gate.benign, "metrics": gate.metrics}
    for what, rules in named.items():
        for index, rule in enumerate(rules):
            if rule.log != "stage" and rule.log not in stage.services:
                near = suggest(rule.log, ["stage", *stage.services])
                problems.append(f"{where}.{what}[{index}].log: {rule.log!r} is not a service of the stage{near}")
    for index, line in enumerate(gate.require):
        if line.within_s is not None and line.within_s > stage.limits.total_s:
            limit = f"limits.total_s is {stage.limits.total_s:g}"
            problems.append(f"{where}.require[{index}].within_s: the stage is stopped before, {limit}")
    problems += [f"stages.{stage.name}.command[{index}]: {told}" for index, told in _hidden_exits(stage.command)]
    if stage.ray and gate.exit_codes != (0,):
        problems.append(f"{where}.exit_codes: Ray calls a driver that ends with anything but 0 FAILED; leave it out")
    return problems


def _hidden_exits(command: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yield the words of a command, a shell's script, that end well whatever happened in them."""
    if command[0].rsplit("/", 1)[-1] not in ("sh", "bash", "dash", "zsh"):
        return
    for index, word in enumerate(command[1:], start=1):
        if re.search(r"\|&?\s*tee\b", word) and "pipefail" not in word and "PIPESTATUS" not in word:
            yield index, "ends with the exit code of tee; leave tee out (the log is kept), or use set -o pipefail"
        if re.search(r"(?:\|\||;|\n)\s*(?:true|:)\s*;?\s*$", word):
            yield index, "ends well whatever happened before; leave the last `true` out"
        if re.search(r"[^&]&\s*$", word):
            yield index, "leaves its work in the background and ends at once; leave the last & out"


def _twice(what: str, rules: Iterable[RequireRule | ForbidRule | BenignRule]) -> Iterator[str]:
    seen: dict[tuple[str, str, str], int] = {}
    for index, rule in enumerate(rules):
        first = seen.setdefault((rule.log, rule.pattern, rule.after), index)
        if first != index:
            yield f"{what}[{index}].pattern: {rule.pattern!r} is the same as {what}[{first}]; leave one out"


def _same_name(gate: Gate) -> Iterator[str]:
    names = [rule.name for rule in gate.metrics]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"metrics[{index}].name: {name!r} is the name of metrics[{names.index(name)}] too; give it another"
    for what, texts in (("files", [f.path for f in gate.files]), ("probes", [p.url + p.body for p in gate.probes])):
        for index, text in enumerate(texts):
            if text in texts[:index]:
                yield f"{what}[{index}]: the same as {what}[{texts.index(text)}]; make one rule of both"


def _required(index: int, rule: RequireRule, gate: Gate) -> Iterator[str]:
    where = f"require[{index}]"
    if rule.at_most is not None and rule.at_most < rule.count:
        yield f"{where}.at_most: {rule.at_most} is below count {rule.count}: no log fits"
    if rule.after == rule.pattern:
        yield f"{where}.after: is the pattern itself; use count = 2 for a second such line"
    for number, other in enumerate(gate.forbid):
        if other.log == rule.log and not other.after and not other.until and _covers(other.pattern, rule.pattern):
            yield (
                f"{where}.pattern: every line that fits {rule.pattern!r} is forbidden by forbid[{number}]; "
                "leave one out, or give the forbidden one `after` or `until`"
            )


def _forbidden(index: int, rule: ForbidRule, gate: Gate) -> Iterator[str]:
    where = f"forbid[{index}]"
    if rule.until and rule.until == rule.after:
        yield f"{where}.until: is the same marker as `after`: nothing lies between"
    if rule.until and rule.until == rule.pattern:
        yield f"{where}.until: is the pattern itself: the line that ends it would be the forbidden one"
    for number, other in enumerate(gate.benign):
        if other.pattern == rule.pattern and other.log == rule.log and not other.after:
            yield f"{where}.pattern: benign[{number}] allows every such line; leave one out, or give benign `after`"


def _order(gate: Gate) -> Iterator[str]:
    logs = [rule.log for rule in gate.require]
    if gate.ordered and not any(logs.count(log) > 1 for log in logs):
        yield "ordered: needs two or more lines of `require` in one log"


def _covers(wide: str, narrow: str) -> bool:
    """Return whether `wide` fits every line that fits `narrow`; True only where that is certain."""
    if wide == narrow:
        return True
    plain = _literal(narrow)
    return bool(plain) and compile_re2(check_pattern(wide)).search(plain) is not None and not _anchored(wide)


def _literal(pattern: str) -> str:
    """Return the text that a pattern stands for when it holds no operator, else an empty text."""
    parts = [part for _, part in tokens(pattern)]
    if any(part[0] in "^$.*+?{}[]|()" or (part[0] == "\\" and part[1].isalnum()) for part in parts):
        return ""
    return "".join(part[1:] if part[0] == "\\" else part for part in parts)


def _anchored(pattern: str) -> bool:
    return any(part in ("^", "$", r"\A", r"\z", r"\b", r"\B") for _, part in tokens(pattern))
