"""Match the rules of `drift.toml` against a document, and show what they find."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rlbox.lint import checks, option_checks
from rlbox.lint.calls import Call
from rlbox.lint.document import Document, Setting
from rlbox.lint.drift import Check, DriftRule, Hit, MachineInfo, Matcher, Severity, State, call_hit, setting_hit
from rlbox.lint.formats import read_document

CHECKS: dict[str, Check] = {
    name: check
    for module in (checks, option_checks)
    for name, check in inspect.getmembers(module, inspect.isfunction)
    if check.__module__ == module.__name__ and not name.startswith(("_", "load_"))
}
_LONGEST_STATEMENT = 8_000  # characters
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One defect: `line` and `column` count from 1; `next_step` is the form that works."""

    file: str
    line: int
    column: int
    rule: str
    severity: Severity
    what: str
    next_step: str


def find_hits(matcher: Matcher, document: Document) -> Iterator[Hit]:
    """Yield what a matcher without a check finds."""
    if matcher.kind == "variable":
        yield from map(setting_hit, _matching_settings(matcher, document))
    elif matcher.kind == "image":
        for image in document.images:
            if match := re.search(matcher.value, image.name):
                fields = {"value": match["value"] if "value" in match.groupdict() else image.name}
                yield Hit(start=image.start, within=image.within, fields=fields)
    elif matcher.kind == "python" and matcher.names:
        for keyword in document.keywords:
            if keyword.name in matcher.names and matcher.command in ("", keyword.function):
                yield Hit(start=keyword.start, fields={"name": keyword.name})
    else:
        first = re.match(r"[a-z][a-z-]*(?![\w(|?*\[])", matcher.command)
        for call in document.calls_by_first_word(first.group()) if first else document.calls:
            yield from _hits_in_call(matcher, document, call)


def _matching_settings(matcher: Matcher, document: Document) -> Iterator[Setting]:
    for setting in document.settings:
        if setting.name not in matcher.names and not (matcher.name and re.fullmatch(matcher.name, setting.name)):
            continue
        is_passed_on = not matcher.value and setting.name in document.reads  # to what does read it, maybe
        value = document.resolve(setting.value, setting.start).strip("\"'")
        if not is_passed_on and matcher.how in ("", setting.how) and re.search(matcher.value, value):
            yield setting


def _hits_in_call(matcher: Matcher, document: Document, call: Call) -> Iterator[Hit]:
    if not call.within.issuperset(matcher.inside.split()) or call.within & {*matcher.outside}:
        return
    if matcher.command and not re.match(rf"(?:{matcher.command})(?:\s|$)", call.text):
        return
    text = document.resolve(call.text, call.start)
    if not all(re.search(need, text) for need in matcher.needs) or any(re.search(no, text) for no in matcher.without):
        return
    sources = [other.program for other in document.calls_before(call) if re.match(matcher.behind, other.text)]
    if matcher.behind and not sources:
        return
    statement = re.search(matcher.statement, call.pipeline.source.text[:_LONGEST_STATEMENT])
    if statement is None:
        return
    if not (matcher.names or matcher.name or matcher.renamed):
        groups = {name: text for name, text in statement.groupdict().items() if text is not None}
        start = call.pipeline.source.offsets[statement.start("value")] if "value" in groups else None
        yield call_hit(call, start, **{"name": sources[-1] if matcher.behind else call.program, **groups})
        return
    for argument in call.arguments:
        is_named = argument.name in matcher.names or argument.name in matcher.renamed
        if is_named or (matcher.name and re.fullmatch(matcher.name, argument.name)):
            value = document.resolve(argument.value, argument.start)
            if match := re.search(matcher.value, value):
                new = matcher.renamed.get(argument.name, "--help lists the options")
                yield call_hit(
                    call, argument.start, **{"name": argument.name, "value": value, "new": new} | match.groupdict()
                )


def _is_for(rule: DriftRule, document: Document, machine: MachineInfo) -> bool:
    """Whether a rule is for what a document says, and for the machine that it is for."""
    is_there = bool(machine.platform) if rule.platform == "rented" else rule.platform in ("", machine.platform)
    if not is_there or rule.region not in ("", machine.region):
        return False
    about = f"{machine.platform} {machine.arch}" if machine.target or machine.arch else document.text
    return re.search(rule.machine, about, re.IGNORECASE) is not None


def lint_text(
    name: str,
    text: str,
    rules: Iterable[DriftRule],
    versions: Mapping[str, str] | None = None,
    machine: MachineInfo | None = None,
) -> tuple[Finding, ...]:
    """Return what is wrong in a text, in the order of its lines.

    Parameters
    ----------
    name
        The file's name, which decides how the text is read.
    versions
        Distribution to version, as pinned by a target; what the text itself installs by `==` is known as well.
    machine
        What is known of the machine.
    """
    document = read_document(name, text)
    known = {**document.pins, **(versions or {})}
    findings: dict[tuple[str, int, int], Finding] = {}
    for rule in rules:
        for hit in _hits_of(rule, document, known, machine or MachineInfo()):
            finding = _finding(rule, document, known, hit)
            begin = document.lines.number(hit.begin if hit.begin >= 0 else hit.start)
            ignored = document.lines.ignored_rules(finding.line) | document.lines.ignored_rules(begin)
            if not {rule.id, "all"} & ignored:
                findings.setdefault((rule.id, finding.line, finding.column), finding)
    order = {severity: number for number, severity in enumerate(SEVERITIES)}
    return tuple(sorted(findings.values(), key=lambda one: (one.line, one.column, order[one.severity], one.rule)))


def _hits_of(rule: DriftRule, document: Document, versions: Mapping[str, str], machine: MachineInfo) -> Iterator[Hit]:
    if rule.judge_versions(versions) != "works" and _is_for(rule, document, machine):
        for matcher in (rule, *rule.also):
            if not document.contains(matcher.says) or (matcher.unless and document.contains(matcher.unless)):
                continue
            yield from (
                CHECKS[matcher.check](document, rule, versions) if matcher.check else find_hits(matcher, document)
            )


def _finding(rule: DriftRule, document: Document, versions: Mapping[str, str], hit: Hit) -> Finding:
    severities: dict[State, Severity] = {"unknown": rule.unknown or rule.severity, "warns": "warning"}
    severity = hit.severity or severities.get(rule.judge_versions(versions), rule.severity)
    line, column = document.lines.line_and_column(hit.start)
    return Finding(
        file=document.name,
        line=line,
        column=column,
        rule=rule.id,
        severity="warning" if severity == "error" and "prose" in hit.within else severity,
        what=_fill(rule.what, hit.fields) + rule.describe_versions(versions),
        next_step=_fill(rule.next, hit.fields),
    )


def _fill(text: str, fields: Mapping[str, str]) -> str:
    """Return the text with the fields put in, each on one line of at most 80 characters."""

    def put(match: re.Match[str]) -> str:
        value = " ".join(fields.get(match[1], match.group()).split())
        return value if len(value) <= 80 else value[:79] + "…"

    return re.sub(r"\{(\w+)\}", put, text)
