"""Match the rows of the table against a document: names and patterns here, what takes more in the checks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from rlbox.lint.checks import CHECKS
from rlbox.lint.drift import DriftRule
from rlbox.lint.hits import Hit, Where, hit_call, hit_setting
from rlbox.lint.read.calls import Call
from rlbox.lint.read.document import Document, Setting
from rlbox.lint.read.text import Defect, Severity


def find(
    rule: DriftRule, document: Document, versions: Mapping[str, str], where: Where
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


def _is_about(rule: DriftRule, document: Document, where: Where) -> bool:
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


def _hits(rule: DriftRule, document: Document, where: Where) -> Iterable[Hit]:
    if rule.check:
        return CHECKS[rule.check](document, rule, where)
    if rule.kind == "variable":
        return (hit_setting(setting) for setting in settings(rule, document))
    if rule.names or rule.renamed:
        return _flags(rule, document)
    return (hit_call(call, name=call.program) for call in _candidates(rule, document) if matches(rule, document, call))


def settings(rule: DriftRule, document: Document) -> Iterator[Setting]:
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


def matches(rule: DriftRule, document: Document, call: Call) -> bool:
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
        if not matches(rule, document, call):
            continue
        for option in call.options():
            if option.name in rule.names or option.name in rule.renamed:
                value = document.value(option)
                if not rule.value or re.search(rule.value, value):
                    new = rule.renamed.get(option.name, "")
                    yield hit_call(call, option.start, name=option.name, value=value, new=new)
