"""Which releases of a library have a name that a failure says is missing; `scripts/api_names.py` writes the table."""

from __future__ import annotations

import functools
import json
import lzma
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from rlbox.i18n import _

_TABLE = Path(__file__).with_name("api_names.json.xz")
_MISSING = (
    (re.compile(r"cannot import name '(\w+)' from '([\w.]+)'"), r"\2.\1"),
    (re.compile(r"No module named '([\w.]+)'"), r"\1"),
    (re.compile(r"module '?([\w.]+?)'? has no attribute '?(\w+)"), r"\1.\2"),
    (re.compile(r"'(?:_?Unsloth|Axolotl)?(\w+)'(?: object)? has no attribute '(\w+)'"), r"\1#\2"),
    (re.compile(r"\b(?:_?Unsloth|Axolotl)?((?:\w+\.)?\w+)\(\) got an unexpected keyword argument '(\w+)'"), r"\1(\2"),
)
"""Messages, and the key of the table that they name."""
_VERSION = r"`?(?:==|-| version:? |: | +)v?(\d+(?:\.\d+)+(?:\.?(?:post|dev|rc)\d+)?)"
_BASES = (
    (re.compile(r"^(?:[A-Z]{3,}|Reward|\w+Training)(?:Config|Arguments)\b"), "TrainingArguments"),
    (re.compile(r"^(?:Seq2SeqTrainer\b|\w+Trainer(?=#))"), "Trainer"),
    (re.compile(r"^AsyncEngineArgs\b"), "EngineArgs"),
    (re.compile(r"^transformers\.utils\.import_utils(?=\.is_)"), "transformers.utils"),
    (re.compile(r"^\w+Tokenizer(?:Fast)?(?=#)"), "PreTrainedTokenizerBase"),
)
"""Classes, and the one of another package that they inherit from."""


class _Span(NamedTuple):
    """The first release with a name, the last one, and the one after it; empty where there is none before or after."""

    package: str
    first: str
    last: str
    following: str


def format_missing_name_remedy_or_empty(texts: Iterable[str], context: str = "", caller: str = "") -> str:
    """Return which releases have the name that one of `texts` lacks, and what to install; empty when that is unknown.

    `context` may show the installed version; `caller` is the package whose code needs the name.
    """
    for key in (match.expand(form) for text in texts for pattern, form in _MISSING for match in pattern.finditer(text)):
        keys = [key, *(pattern.sub(base, key) for pattern, base in _BASES if pattern.match(key))]
        keys += [one.replace("#", ".__init__(") for one in keys] + [
            find_transformers_model_module_or_empty(key, _load_table()[0])
        ]
        spans = next((found for one in keys if (found := _load_table()[0].get(one))), ())
        if len(spans) == 1:
            return _describe(key, spans[0], context, caller)
    return ""


def find_transformers_model_module_or_empty(name: str, names: Collection[str]) -> str:
    """Return the module of transformers for a model's class: `transformers.models.qwen3_vl` for Qwen3VLModel."""
    word = name.removeprefix("transformers.").replace("_", "").lower()
    families = (one for one in names if one.startswith("transformers.models.") and one.count(".") == 2)
    own = [one for one in families if word.startswith(one.rpartition(".")[2].replace("_", ""))]
    return max(own, key=len, default="") if name.startswith("transformers.") and name.count(".") == 1 else ""


def _describe(key: str, span: _Span, context: str, caller: str) -> str:
    shown = re.search(rf"(?i)\b{span.package}{_VERSION}", context)
    installed = shown[1] if shown else ""
    if installed and Version(span.first or "0") <= Version(installed) < Version(span.following or "9999"):
        return ""  # this release has the name: something else is wrong
    owner, mark, name = re.findall(r"(.+?)(?:\.__init__)?([(#.])(\w+)$", key)[0]
    what = f"`{key}`" if mark == "." else _("`{name}` of {owner}").format(name=name, owner=owner)
    other = _("leave the argument out") if mark == "(" else _("change the code that uses it")
    if caller not in ("", span.package.partition("-")[0]):
        other = _("a release of {caller} that fits").format(caller=caller)
    elif span.following and (new := _load_table()[1].get(name)):
        other = _("use `{name}` instead").format(name=new)
    if span.first and span.following:
        has = _("{package} has {what} from {first} up to {last}: install '{package}>={first},<{following}', or {other}")
    elif span.first:
        has = _("{package} has {what} from {first} on: install '{package}>={first}', or {other}")
    else:
        has = _("{package} had {what} up to {last}: install '{package}<{following}', or {other}")
    text = has.format(what=what, other=other, **span._asdict())
    shows = _("the log shows {package} {installed}; {text}")
    return shows.format(package=span.package, installed=installed, text=text) if installed else text


@functools.cache
def _load_table() -> tuple[dict[str, tuple[_Span, ...]], dict[str, str]]:
    """Return each name's span in the packages that have it, and the new names of old ones."""
    packages = json.loads(lzma.decompress(_TABLE.read_bytes()))
    spans, renamed = dict[str, tuple[_Span, ...]](), packages.pop("renamed")
    for package, record in packages.items():
        releases = record["releases"]
        for parent, *groups in map(str.split, record["names"].splitlines()):
            for first, last, names in (group.split(":") for group in groups):
                around = (*releases[int(last) : int(last) + 2], "")
                minor = [".".join(one.split(".")[: record.get("parts", 2)]) for one in around]
                span = _Span(package, releases[int(first)] if int(first) else "", minor[0], minor[1])
                for name in names.split(","):
                    spans[parent + name] = (*spans.get(parent + name, ()), span)
    return spans, renamed
