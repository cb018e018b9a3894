"""Findings as SARIF 2.1.0, which code hosts and editors read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rlbox.errors import get_main_docs_url
from rlbox.lint.drift import DriftRule
from rlbox.lint.rules import LintFinding
from rlbox.version import __version__

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def create_sarif_log(
    findings: Sequence[LintFinding], rules: Iterable[DriftRule], unread_file_problems: Sequence[str]
) -> dict[str, Any]:
    """Return a log with one run; it has the rules with findings. File names are relative to the working directory."""
    used = [rule for rule in rules if any(finding.rule == rule.id for finding in findings)]
    index_by_rule = {rule.id: index for index, rule in enumerate(used)}
    driver = {"name": "rlbox lint", "version": __version__, "informationUri": get_main_docs_url("lint")}
    notifications = [{"level": "error", "message": {"text": problem}} for problem in unread_file_problems]
    run = {
        "tool": {"driver": {**driver, "rules": [_rule_to_json(rule) for rule in used]}},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not notifications, "toolExecutionNotifications": notifications}],
        "results": [_result_to_json(finding, index_by_rule[finding.rule]) for finding in findings],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule_to_json(rule: DriftRule) -> dict[str, Any]:
    what, use = (text.replace("{{", "{").replace("}}", "}") for text in (rule.what, rule.next))
    return {
        "id": rule.id,
        "shortDescription": {"text": what},
        "help": {"text": "\n".join([f"Use: {use}", *(f"Source: {source}" for source in rule.source)])},
        "helpUri": get_main_docs_url("lint"),
        "defaultConfiguration": {"level": rule.severity},
    }


def _result_to_json(finding: LintFinding, rule_index: int) -> dict[str, Any]:
    path, folder = Path(os.path.abspath(finding.file)), Path.cwd()
    place = {"uri": path.as_uri()}
    if path.is_relative_to(folder):
        place = {"uri": quote(path.relative_to(folder).as_posix()), "uriBaseId": "%SRCROOT%"}
    region = {"startLine": finding.line, "startColumn": finding.column}
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": finding.severity,
        "message": {"text": f"{finding.what}\nUse: {finding.next_step}"},
        "locations": [{"physicalLocation": {"artifactLocation": place, "region": region}}],
    }
