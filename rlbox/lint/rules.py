"""Match the rules of `drift.toml` against a document, and show what they find."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from textwrap import shorten

from rlbox.lint.calls import Call
from rlbox.lint.checks import CHECKS
from rlbox.lint.document import Document
from rlbox.lint.drift import DriftRule, Hit, Matcher, Severity, make_hit_at_call, make_hit_at_setting
from rlbox.lint.formats import read_document

_LONGEST_STATEMENT = 8_000  # characters
_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


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
    if matcher.text:
        for source in document.shells:
            for match in re.finditer(matcher.text, source.text):
                position = source.position(match.start("value"))
                yield Hit(position=position, first_line=position.line, fields=match.groupdict())
    elif matcher.kind == "variable":
        yield from _hits_in_settings(matcher, document)
    elif matcher.kind == "image":
        for image in document.images:
            if name := re.search(matcher.value, image.text):
                fields = {"value": image.text} | name.groupdict()
                yield Hit(position=image.position, first_line=image.position.line, fields=fields)
    else:
        for call in document.calls:
            yield from _hits_in_call(matcher, document, call)


def _runs_where(matcher: Matcher, context_tags: frozenset[str]) -> bool:
    return context_tags.issuperset(matcher.inside.split()) and not context_tags & {*matcher.outside}


def _hits_in_settings(matcher: Matcher, document: Document) -> Iterator[Hit]:
    for setting in document.settings:
        if setting.name not in matcher.names and not (matcher.name and re.fullmatch(matcher.name, setting.name)):
            continue
        is_passed_on = not matcher.value and setting.name in document.variables_read  # to what does read it, maybe
        if is_passed_on or matcher.how not in ("", setting.set_by) or not _runs_where(matcher, setting.context_tags):
            continue
        value = setting.value if matcher.literal else document.resolve(setting.value, setting.position)
        if match := re.search(matcher.value, value.strip("\"'")):
            yield make_hit_at_setting(setting, **match.groupdict())


def _hits_in_call(matcher: Matcher, document: Document, call: Call) -> Iterator[Hit]:
    if not _runs_where(matcher, call.context_tags):
        return
    if matcher.command and not re.match(rf"(?:{matcher.command})(?:\s|$)", call.unquoted_command_line):
        return
    text = document.resolve(call.unquoted_command_line, call.position)
    if not all(re.search(need, text) for need in matcher.needs) or any(re.search(no, text) for no in matcher.without):
        return
    source = call.command.statement
    statement = re.search(matcher.statement, source.text[:_LONGEST_STATEMENT])
    if statement is None:
        return
    if matcher.word:
        for word in call.words if not call.outer else ():
            if match := re.search(matcher.word, word.raw):
                yield make_hit_at_call(
                    call, word.position, **{"name": call.program, "value": word.text, **match.groupdict()}
                )
    elif not (matcher.names or matcher.name or matcher.renamed):
        groups = {name: text for name, text in statement.groupdict().items() if text is not None}
        position = source.position(statement.start("value")) if "value" in groups else None
        yield make_hit_at_call(call, position, **{"name": call.program, **groups})
    else:
        yield from _hits_in_arguments(matcher, document, call)


def _hits_in_arguments(matcher: Matcher, document: Document, call: Call) -> Iterator[Hit]:
    for argument in call.arguments:
        is_named = argument.name in matcher.names or argument.name in matcher.renamed
        if is_named or (matcher.name and re.fullmatch(matcher.name, argument.name)):
            value = document.resolve(argument.value, argument.position)
            if match := re.search(matcher.value, value):
                new = matcher.renamed.get(argument.name, "--help lists the options")
                fields = {"name": argument.name, "value": value, "new": new} | match.groupdict()
                yield make_hit_at_call(call, argument.position, **fields)


def lint_text(
    name: str, text: str, rules: Iterable[DriftRule], versions: Mapping[str, str] | None = None
) -> tuple[Finding, ...]:
    """Return what is wrong in a text, in the order of its lines.

    `versions`, by distribution, are those that a target pins; what the text itself installs by `==` is known as well.
    """
    document = read_document(name, text)
    known = {**document.pins, **(versions or {})}
    findings: dict[tuple[str, int, int], Finding] = {}
    for rule in rules:
        for hit in _hits_of(rule, document, known):
            finding = _finding(rule, document, known, hit)
            ignored = document.ignored_rules(finding.line) | document.ignored_rules(hit.first_line)
            if not {rule.id, "all"} & ignored:
                findings.setdefault((rule.id, finding.line, finding.column), finding)
    return tuple(sorted(findings.values(), key=lambda one: (one.line, one.column, _ORDER[one.severity], one.rule)))


def _hits_of(rule: DriftRule, document: Document, versions: Mapping[str, str]) -> Iterator[Hit]:
    is_ruled_out = rule.unless and document.contains_regex_even_in_comments(rule.unless)
    if (
        rule.judge_versions(versions) != "works"
        and document.contains_regex_even_in_comments(rule.says)
        and not is_ruled_out
    ):
        for matcher in (rule, *rule.also):
            check = CHECKS.get(matcher.check)
            yield from check(document, rule, versions) if check else find_hits(matcher, document)


def _finding(rule: DriftRule, document: Document, versions: Mapping[str, str], hit: Hit) -> Finding:
    severities: dict[str, Severity] = {"unknown": rule.unknown or rule.severity, "warns": "warning"}
    severity = hit.severity or severities.get(rule.judge_versions(versions), rule.severity)
    return Finding(
        file=document.name,
        line=hit.position.line,
        column=hit.position.column,
        rule=rule.id,
        severity=severity,
        what=_fill(rule.what, hit.fields) + rule.describe_working_versions(versions),
        next_step=_fill(rule.next, hit.fields),
    )


def _fill(text: str, fields: Mapping[str, str]) -> str:
    """Return the text with the fields put in, each on one line."""
    return re.sub(r"\{(\w+)\}", lambda match: shorten(fields.get(match[1], match[0]), 80, placeholder="…"), text)
