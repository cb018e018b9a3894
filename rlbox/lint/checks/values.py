"""Checks of values: search paths with an empty element, placeholders, secrets, variables that go together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlbox.lint.drift import DriftRule
from rlbox.lint.hits import Hit, Where, hit_call, hit_setting
from rlbox.lint.read.document import Document, Setting
from rlbox.lint.read.words import PLACEHOLDER

_EXPANDED = r"\$(?:{name}|\{{{name}(?::?-)?\}})"
_UNREPLACED = re.compile(
    r"(?:^|[^\w.])(?P<path>/path/to(?:/|\b)\S*)|(?P<dots>(?<=/)\.\.\.(?=/|$))"
    r"|(?:^|(?<=[/<{\[=\"' :@(,]))(?P<your>my[-_][a-z][\w-]*[-_](?:here|key|token|host|ip)\b"
    r"|your[-_][a-z]\w*|YOUR_[A-Z]\w*|CHANGE_?ME|REPLACE_?(?:ME|WITH_\w+)|hf_[xX.]{3,}\w*|sk-[xX.]{3,}|x{6,}|(?:xx?x?\.){2,}x+)"
)
_TOKENS = re.compile(r"<(?:IMAGE|VIDEO|AUDIO|FILE|NAME|USER|MODEL)>", re.IGNORECASE)
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|SECRET_KEY|API_?KEY|ACCESS_KEY(?:_ID)?|AUTH_TOKEN|TOKEN|WANDB_KEY)$"
)
_TOKEN_SHAPE = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|ghp_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16})\b")


def empty_element(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find search paths that get an empty element, the working directory, when the variable was not set before."""
    known: set[tuple[str, int]] = set()
    for setting in document.settings:
        if setting.name not in rule.names:
            continue
        before = (setting.name, setting.block) in known
        value = setting.value.strip("\"'")
        expanded = _EXPANDED.format(name=setting.name)
        joined = re.search(rf"(?:^|:){expanded}:|:{expanded}(?:$|:)", value)
        if (joined and not before) or re.search(r"^:|::|:$", value):
            yield hit_setting(setting)
        if value and not re.fullmatch(expanded, value):
            known.add((setting.name, setting.block))


def placeholder(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find what the reader was to replace: `/path/to/…`, `<PORT>`, `YOUR_TOKEN`, `a/.../b`; the first on each line."""
    lines: set[int] = set()
    for hit in _placeholders(document):
        number = document.lines.number(hit.start)
        if number not in lines:
            lines.add(number)
            yield hit


def _placeholders(document: Document) -> Iterator[Hit]:
    for call in document.calls:
        if call.outer or call.program in ("echo", "printf", "grep", "sed", "awk", "rg") or "prose" in call.within:
            continue
        for word in call.words:
            if (found := _unreplaced(word.value)) and not _TOKENS.fullmatch(word.value):
                yield hit_call(call, word.at[found.start()], value=_named(found))
    for setting in document.settings:
        if setting.how != "table" and "prose" not in setting.within and (found := _unreplaced(setting.value)):
            yield Hit(start=setting.start, within=setting.within, fields={"value": _named(found)})
    for word in document.strings:
        if len(word.value) < 4000 and (found := _unreplaced(word.value)):
            yield Hit(start=word.at[found.start()], fields={"value": _named(found)})


def _unreplaced(text: str) -> re.Match[str] | None:
    return PLACEHOLDER.search(text) or _UNREPLACED.search(text) if len(text) < 20_000 else None


def _named(found: re.Match[str]) -> str:
    return next((group for group in found.groups() if group), found.group())


def secret(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find passwords and tokens that are written out; their values are not repeated."""
    if document.kind == "env":
        return
    for setting in document.settings:
        if _SECRET_NAME.search(setting.name) and _is_literal(setting):
            yield Hit(start=setting.start, within=setting.within, fields={"name": setting.name})
    for call in document.calls:
        for word in call.words if not call.outer else ():
            if hit := _TOKEN_SHAPE.search(word.value):
                yield hit_call(call, word.at[hit.start()], name=hit.group()[:3] + "…")


def _is_literal(setting: Setting) -> bool:
    value = setting.value.strip("\"'")
    unsaid = re.search(r"[$`<>{}*]|^/|^https?:|xxx|\.\.\.|…", value) or _unreplaced(value)
    return len(value) >= 6 and not unsaid and value.lower() not in {"true", "false", "none", "null", "dummy", "empty"}
