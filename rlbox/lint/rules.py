"""Match the rules of `drift.toml` against a document, and show what they find."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rlbox.amounts import counted, padded
from rlbox.lint import package_checks, shell_checks
from rlbox.lint.document import Call, Document, Setting
from rlbox.lint.drift import Check, DriftRule, Hit, MachineInfo, make_call_hit, make_setting_hit
from rlbox.lint.formats import read_document
from rlbox.lint.text import SEVERITIES, Defect, Severity, find_ignored_rules

CHECKS: dict[str, Check] = {
    name: one
    for module in (package_checks, shell_checks)
    for name, one in inspect.getmembers(module, inspect.isfunction)
    if one.__module__ == module.__name__ and not name.startswith("_")
}


def find_defects(
    rule: DriftRule, document: Document, versions: Mapping[str, str], where: MachineInfo
) -> Iterator[tuple[Defect, int]]:
    """Yield what a rule finds in a document, each with the number of the line that its command begins on."""
    state = rule.state(versions)
    if state == "works" or not _is_about(rule, document, where):
        return
    severity: Severity = rule.severity
    if state == "unknown":
        severity = rule.unknown or rule.severity
    elif state == "warns":
        severity = "warning"
    for hit in _hits(rule, document, where):
        line, column = document.lines.place(hit.start)
        yield (
            Defect(
                file=document.name,
                line=line,
                column=column,
                rule=rule.id,
                severity="warning" if severity == "error" and "prose" in hit.within else severity,
                what=_fill(rule.what, hit.fields) + _versions(rule, versions),
                next_step=_fill(rule.next, hit.fields),
                covers=rule.covers,
            ),
            document.lines.number(hit.begin if hit.begin >= 0 else hit.start),
        )


def _is_about(rule: DriftRule, document: Document, where: MachineInfo) -> bool:
    """Whether a rule is for what a document says, and for the machine that it is for."""
    rented = bool(where.platform) if rule.platform == "rented" else rule.platform in ("", where.platform)
    said = not rule.says or document.says(rule.says)
    return said and not (rule.unless and document.says(rule.unless)) and rented and rule.region in ("", where.region)


def _fill(text: str, fields: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda hit: _short(fields.get(hit.group(1), hit.group())), text)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:79] + "…"


def _versions(rule: DriftRule, versions: Mapping[str, str]) -> str:
    """Return in which versions it works, as far as that decides."""
    if not (rule.works or rule.warns or rule.fails):
        return ""
    parts = [f"not with {rule.package} {rule.fails}" if rule.fails else ""]
    parts += [f"works with {rule.package} {rule.works}" if rule.works else ""]
    parts += [
        f"{'still accepted by' if not rule.works else 'with a warning,'} {rule.package} {rule.warns}"
        if rule.warns
        else ""
    ]
    here = f", and here it is {versions[rule.package]}" if rule.package in versions else ""
    return f" ({', '.join(part for part in parts if part)}{here})"


def _hits(rule: DriftRule, document: Document, where: MachineInfo) -> Iterable[Hit]:
    if rule.check:
        return CHECKS[rule.check](document, rule, where)
    if rule.kind == "variable":
        return (make_setting_hit(setting) for setting in find_settings(rule, document))
    if rule.names or rule.renamed:
        return _flags(rule, document)
    return (
        make_call_hit(call, name=call.program)
        for call in _candidates(rule, document)
        if matches_call(rule, document, call)
    )


def find_settings(rule: DriftRule, document: Document) -> Iterator[Setting]:
    """Yield the settings that a rule is about."""
    for setting in document.settings:
        unread = rule.value or setting.name not in document.reads  # a script may pass it on to what does read it
        if setting.name in rule.names and unread and rule.how in ("", setting.how):
            value = document.names.resolve(setting.value, setting.start)
            if not rule.value or re.search(rule.value, value):
                yield setting


def _candidates(rule: DriftRule, document: Document) -> list[Call]:
    """Return the calls whose program begins as the rule's command does."""
    first = re.match(r"[a-z][a-z-]*", rule.command)
    return document.by_program.get(first.group(), []) if first else document.calls


def matches_call(rule: DriftRule, document: Document, call: Call) -> bool:
    """Whether a rule is about a command line: what it begins with, what it has, what it has not."""
    if (rule.inside and rule.inside not in call.within) or call.within & {*rule.outside}:
        return False
    if not rule.command and not rule.needs:
        return True
    text = call.text
    if rule.command and not re.match(rf"(?:{rule.command})(?:\s|$)", text):
        return False
    text = document.names.resolve(text, call.start) if "$" in text else text
    return all(re.search(one, text) for one in rule.needs) and not any(re.search(one, text) for one in rule.without)


def _flags(rule: DriftRule, document: Document) -> Iterator[Hit]:
    for call in _candidates(rule, document):
        if not matches_call(rule, document, call):
            continue
        for option in call.options():
            if option.name in rule.names or option.name in rule.renamed:
                value = document.value(option)
                if not rule.value or re.search(rule.value, value):
                    new = rule.renamed.get(option.name, "")
                    yield make_call_hit(call, option.start, name=option.name, value=value, new=new)


def lint_text(
    name: str,
    text: str,
    rules: Iterable[DriftRule],
    versions: Mapping[str, str] | None = None,
    where: MachineInfo | None = None,
) -> tuple[Defect, ...]:
    """Return what is wrong in a text, in the order of its lines.

    Parameters
    ----------
    name
        The file's name, which decides how the text is read.
    versions
        Distribution to version, as pinned by a target; what the text itself installs by `==` is known as well.
    where
        What is known of the machine.
    """
    document = read_document(name, text)
    known = {**document.pins, **(versions or {})}
    found: dict[tuple[str, int, int], Defect] = {}
    for rule in rules:
        for finding, begin in find_defects(rule, document, known, where or MachineInfo()):
            off = find_ignored_rules(document.lines, finding.line) | find_ignored_rules(document.lines, begin)
            if not {rule.id, "all"} & off:
                found.setdefault((rule.id, finding.line, finding.column), finding)
    order = {severity: number for number, severity in enumerate(SEVERITIES)}
    return tuple(sorted(found.values(), key=lambda one: (one.line, one.column, order[one.severity], one.rule)))


def format_defects(findings: Sequence[Defect]) -> str:
    """Return two lines for each finding: place and defect, and the form that works."""
    lines = []
    for one in findings:
        lines.append(f"{one.file}:{one.line}:{one.column}: {one.severity}: {one.what} [{one.rule}]")
        lines.append(f"  next: {one.next_step}")
    return "\n".join(lines)


def defects_to_json(findings: Sequence[Defect]) -> list[dict[str, Any]]:
    """Return findings as plain values."""
    rows = []
    for one in findings:
        row = asdict(one)
        row["next"] = row.pop("next_step")
        rows.append({**row, "covers": list(one.covers)})
    return rows


def format_summary(findings: Sequence[Defect], files: int, notes_shown: bool) -> str:
    """Return one line: how much was read, how much is wrong, and where the rest is."""
    counts = {severity: sum(one.severity == severity for one in findings) for severity in SEVERITIES}
    parts = [counted(count, name, f"{name}s") for name, count in counts.items() if count]
    text = f"{counted(files, 'file', 'files')}: {', '.join(parts) or 'nothing found'}"
    return text + (" (-v shows the notes)" if counts["note"] and not notes_shown else "")


def format_rules(rules: Sequence[DriftRule]) -> str:
    """Return the table: rule, severity, versions, what is wrong and what works."""
    wide = max(len(rule.id) for rule in rules)
    lines = []
    for rule in rules:
        versions = f"  ({rule.package}: {_version_ranges(rule)})" if rule.package else ""
        lines.append(f"{padded(rule.id, wide)}  {rule.severity:7}  {rule.what}{versions}")
        lines.append(f"{'':{wide}}           next: {rule.next}  [{rule.dated}]")
    return "\n".join(lines)


def _version_ranges(rule: DriftRule) -> str:
    ranges = {"works with": rule.works, "warns with": rule.warns, "fails with": rule.fails}
    return ", ".join(f"{word} {text}" for word, text in ranges.items() if text)
