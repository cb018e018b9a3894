"""Whether two tokenizers are the same: vocabulary, merges, added tokens, the steps around them, chat template."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlbox.foreign import parse_json
from rlbox.i18n import _

TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "tokenizer_config.json"),
    *("chat_template.jinja", "chat_template.json"),
)
"""What words are read from; a folder has some of them."""
_STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_SPECIAL = ("bos_token", "eos_token", "unk_token")
"""`pad_token` is not among them: trainers set it, and no answer of a model depends on it."""


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """What a tokenizer is, as far as its files say so; empty parts are not told by them."""

    vocabulary: Mapping[str, int] = field(default_factory=dict)
    merges: tuple[str, ...] = ()
    added: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, Any] = field(default_factory=dict)
    model: bytes = b""
    special: Mapping[str, str] = field(default_factory=dict)
    template: str = ""

    @property
    def there(self) -> bool:
        """Whether any tokenizer was found."""
        return bool(self.vocabulary or self.model)


def parse_tokenizer(files: Mapping[str, bytes]) -> Tokenizer:
    """Return the tokenizer that the files of a folder make; `ValueError` where one cannot be read."""
    whole, settings = _table(files, "tokenizer.json"), _table(files, "tokenizer_config.json")
    model = whole.get("model") or {}
    vocabulary = model.get("vocab") or _table(files, "vocab.json")
    if isinstance(vocabulary, list):  # Unigram: pieces with their scores, in the order of their ids
        vocabulary = {str(piece[0]): number for number, piece in enumerate(vocabulary)}
    merges = model.get("merges") or _lines(files.get("merges.txt", b""))
    added = {str(row["content"]): int(row["id"]) for row in whole.get("added_tokens") or ()}
    return Tokenizer(
        vocabulary={str(word): int(number) for word, number in vocabulary.items()},
        merges=tuple(one if isinstance(one, str) else " ".join(one) for one in merges),
        added=added,
        steps={name: whole.get(name) for name in _STEPS} if whole else {},
        model=files.get("tokenizer.model", b""),
        special={name: text for name in _SPECIAL if (text := _text(settings.get(name)))},
        template=_template(files, settings),
    )


def compare_tokenizers(export: Tokenizer, own: Tokenizer) -> Iterator[tuple[str, str]]:
    """Yield what differs, as a part of the tokenizer and a sentence; what one of two does not tell is left out."""
    if not export.there:
        yield "tokenizer", "the export has none"
        return
    yield from _tables(export, own)
    if export.steps and own.steps:
        if export.added != own.added:
            yield "added tokens", _difference(export.added, own.added)
        for name in _STEPS:
            if export.steps[name] != own.steps[name]:
                yield name, f"{_short(export.steps[name])}, not {_short(own.steps[name])}"
    for name, wanted in own.special.items():
        if (found := export.special.get(name, "")) != wanted:
            yield name, f"{found!r}, not {wanted!r}"
    if export.template != own.template:
        yield "chat template", "it is another" if export.template else "the export has none"


def _tables(export: Tokenizer, own: Tokenizer) -> Iterator[tuple[str, str]]:
    if export.vocabulary and own.vocabulary and export.vocabulary != own.vocabulary:
        yield "vocabulary", _difference(export.vocabulary, own.vocabulary)
    if export.model and own.model and export.model != own.model:
        yield "tokenizer.model", "other bytes"
    if export.merges and own.merges and export.merges != own.merges:
        count = sum(one != other for one, other in zip(export.merges, own.merges, strict=False))
        yield "merges", f"{count + abs(len(export.merges) - len(own.merges))} of {len(own.merges)} differ"


def _difference(one: Mapping[str, int], other: Mapping[str, int]) -> str:
    wrong = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    first = wrong[0]
    return f"{len(wrong)} of {len(other)} differ; {first!r} is {one.get(first)}, not {other.get(first)}"


def _template(files: Mapping[str, bytes], settings: Mapping[str, Any]) -> str:
    """Return the template, wherever it lies; blank ends aside, which savers cut."""
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode("utf-8", "replace").strip()
    told = _table(files, "chat_template.json").get("chat_template") or settings.get("chat_template") or ""
    return told.strip() if isinstance(told, str) else json.dumps(told, sort_keys=True)


def _table(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        found = parse_json(files[name])
    except ValueError as error:
        raise ValueError(_("{name} is no JSON: {error}").format(name=name, error=error)) from error
    if not isinstance(found, dict):
        raise ValueError(_("{name} is no table").format(name=name))
    return found


def _lines(text: bytes) -> list[str]:
    lines = text.decode("utf-8", "replace").splitlines()
    return [line for line in lines if line and not line.startswith("#version")]


def _text(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
