"""Signatures of known failures, from the files of fixes: which of them an event shows."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlbox.config.pattern import compile_re2, create_re2_options, validate_selective_re2_pattern
from rlbox.diagnose.events import FailureEvent
from rlbox.diagnose.patterns import load_patterns
from rlbox.errors import SpecError
from rlbox.foreign import parse_untrusted_json, parse_untrusted_toml
from rlbox.i18n import _
from rlbox.system.safe_files import read_bytes

CausalRoleOrBenign = Literal["root", "relayed", "victim", "death", "benign"]
_ORDER: dict[str, int] = {"root": 0, "victim": 1, "death": 2, "relayed": 3, "benign": 4}
_TAIL = 12
_SET_MEMORY = 256 << 20
"""Bytes that RE2 may use for all signatures at once: with its own 8 MiB it gives up, and finds nothing."""


class Specificity(NamedTuple):
    rank: int
    has_context_pattern: bool
    pattern_length: int


@dataclass(frozen=True, slots=True)
class LogSignature:
    """One way in which a cause shows in logs; `_FIELDS` names the keys of a fix's `[[signature]]`.

    `context_pattern` must match a frame of the traceback, the writer or the place of the logging statement, and
    `excluded_context` none; `above_pattern` must match the 40 lines above. Of two that match one statement the one of
    higher `rank` counts, then the more specific one. `prefilter_literals` are texts that the scan looks for, needed
    where the line has none of the common words of failures.
    """

    cause: str
    fix: str
    title: str
    remedy: str
    pattern: str
    excluded_pattern: str = ""
    context_pattern: str = ""
    excluded_context: str = ""
    above_pattern: str = ""
    role: CausalRoleOrBenign = "root"
    rank: int = 0
    benign_only_after: str = ""
    prefilter_literals: tuple[str, ...] = ()

    @property
    def has_generic_remedy(self) -> bool:
        """Whether its remedy names no package, as that of any missing module."""
        return self.rank < 2 or self.pattern.startswith("No module named")

    @property
    def specificity(self) -> Specificity:
        return Specificity(self.rank, bool(self.context_pattern or self.above_pattern), len(self.pattern))


@dataclass(frozen=True, slots=True)
class SignatureMatch:
    """A signature that an event shows, in its statement at the place `statement_index_in_event` of them.

    `index_in_statement_tail` is the place, among the lines that the statement goes on with, of the one that alone
    shows it; None where the statement's own line does, or only all of them together.
    """

    signature: LogSignature
    statement_index_in_event: int
    index_in_statement_tail: int | None = None


class SignatureSet:
    def __init__(self, signatures: Iterable[LogSignature]) -> None:
        self.signatures = tuple(signatures)
        self._patterns = tuple(one.pattern for one in self.signatures)

    @functools.cached_property
    def line_prefilter_expressions(self) -> tuple[str, ...]:
        """What a scan looks for, so that it reads few lines of a log: words of failures, and anchors of signatures.

        What is harmless need not be found.
        """
        anchors = {anchor for one in self.signatures if one.role != "benign" for anchor in one.prefilter_literals}
        return tuple(_expression(text) for text in (*load_patterns("scan", "triggers"), *sorted(anchors)))

    def find_matching_in_catalogue_order(self, text: str) -> list[LogSignature]:
        """Return signatures that match one line of a text, or all its lines joined by blanks."""
        if not self.signatures:
            return []
        lines = [*text.split("\n"), text.replace("\n", " ")] if "\n" in text else [text]
        indexes = sorted({index for line in lines for index in _compile_set(self._patterns).Match(line) or ()})
        fitting = (self.signatures[index] for index in indexes)
        full = "\n".join(lines)
        return [one for one in fitting if not (one.excluded_pattern and compile_re2(one.excluded_pattern).search(full))]

    def has_match(self, text: str) -> bool:
        return bool(self.find_matching_in_catalogue_order(text))

    def match_event(self, event: FailureEvent, log_context: str = "") -> list[SignatureMatch]:
        """Return what an event shows, the best first: a root's before a victim's, the first statement's first.

        `text_for_near_regex` are words of the whole log that say which programs it is of.
        """
        found = []
        around = _list_surroundings(event, log_context)
        for index, statement in enumerate(event.exceptions_or_line):
            lines = [statement.text, *(line for _number, line in statement.tail[:_TAIL])]
            whole = "\n".join(lines)
            for signature in self.find_matching_in_catalogue_order(whole):
                is_above = not signature.above_pattern or compile_re2(signature.above_pattern).search(event.lines_above)
                if is_above and _fits_surroundings(signature, around):
                    pattern = compile_re2(signature.pattern)
                    place = next((at for at, line in enumerate(lines) if pattern.search(line)), 0)
                    found.append(SignatureMatch(signature, index, place - 1 if place else None))
        return sorted(found, key=_precedence)


@functools.lru_cache(maxsize=4)
def _compile_set(patterns: tuple[str, ...]) -> Any:
    """Return an RE2 set: 0.3 s for the shipped patterns, which a log without errors never needs."""
    import re2

    options = create_re2_options(capture=False)
    options.max_mem = _SET_MEMORY
    compiled = re2.Set.SearchSet(options)
    for pattern in patterns:
        compiled.Add(pattern)
    compiled.Compile()
    return compiled


def _expression(text: str) -> str:
    """Return a text as a pattern; a line feed at an end stands for that end of a line."""
    begins, ends = "^" * text.startswith("\n"), "$" * text.endswith("\n")
    return f"{begins}{re.escape(text.strip(chr(10)))}{ends}"


def _precedence(match: SignatureMatch) -> tuple[int, ...]:
    signature = match.signature
    less = (-int(value) for value in signature.specificity)
    return (_ORDER[signature.role], match.statement_index_in_event, *less)


def _fits_surroundings(signature: LogSignature, around: tuple[str, ...]) -> bool:
    if signature.context_pattern and not any(map(compile_re2(signature.context_pattern).search, around)):
        return False
    return not (signature.excluded_context and any(map(compile_re2(signature.excluded_context).search, around)))


def _list_surroundings(event: FailureEvent, program_kinds: str) -> tuple[str, ...]:
    row = event.log_line
    all_frames = event.frames_of_all_exceptions
    frames = dict.fromkeys(f"{frame.file}:{frame.function}" for frame in all_frames)
    tail = [line for __, line in event.tail if line.startswith("File ")]
    tail += [f"code {frame.code}" for frame in all_frames[-1:]]
    return (*frames, *tail, f"lane {row.writer}", f"source {row.logging_call_site}", row.text[:300], program_kinds)


_KEYS = {
    "excluded_pattern": "unless", "context_pattern": "near", "excluded_context": "far",
    "above_pattern": "above", "benign_only_after": "after", "prefilter_literals": "anchor",
}  # fmt: skip
_FIELDS = {_KEYS.get(field.name, field.name): field.name for field in fields(LogSignature)}
"""Key of a `[[signature]]`, and of a run's file of signatures, to the field that holds it."""


def extract_signatures(fix_manifests: Iterable[Mapping[str, Any]]) -> tuple[LogSignature, ...]:
    """Return the signatures of fixes (`id`, `title`, `failure`, `remedy`, `heals`, `signature`, from TOML or JSON).

    The title of a signature is the failure that its fix tells of, else what the fix is called.
    """
    signatures = []
    for fix in fix_manifests:
        common = {
            "cause": next(iter(fix.get("heals", ())), ""),
            "fix": fix["id"],
            "title": fix.get("failure") or fix.get("title", ""),
            "remedy": fix.get("remedy", ""),
            "role": "benign" if fix.get("benign") else "root",
        }
        for row in fix.get("signature", ()):
            own = {_FIELDS[key]: value for key, value in row.items() if key in _FIELDS and value}
            signatures.append(LogSignature(**{**common, **own, "prefilter_literals": tuple(row.get("anchor", ()))}))
    return tuple(signatures)


def dump_signatures_json(signatures: Sequence[LogSignature]) -> str:
    rows = [{key: getattr(one, name) for key, name in _FIELDS.items()} for one in signatures]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


_MOST_BYTES = 4 << 20


def load_signatures(fix_files: Mapping[str, Path], pack_directories: Sequence[Path] = ()) -> SignatureSet:
    """Return the catalogue of fixes (id to file) and of packs, folders with such files of other teams.

    A pack adds to the catalogue and takes no one's place: its fix of a known id keeps its own signatures beside those
    that are there.

    Raises SpecError: A file cannot be read, or a pattern of a pack is wrong.
    """
    rows = extract_signatures(_read_fixes(fix_files))
    for pack in pack_directories:
        rows = (*rows, *_read_pack(pack))
    return SignatureSet(rows)


def _read_fixes(files: Mapping[str, Path]) -> list[dict[str, Any]]:
    return [{**_read_toml(path), "id": name} for name, path in sorted(files.items())]


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return parse_untrusted_toml(path.read_bytes()[:_MOST_BYTES].decode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        what = _("broken TOML: {error}").format(error=error)
        raise SpecError(what, where=str(path), next_step=_("correct the file")) from error


def _read_pack(directory: Path) -> tuple[LogSignature, ...]:
    files = {path.stem: path for path in sorted(directory.glob("*.toml"))}
    if not files:
        what = _("{folder}: no signatures in it").format(folder=directory)
        raise SpecError(what, next_step=_("name a folder with files like templates/fixes/*.toml"))
    signatures = extract_signatures(_read_fixes(files))
    for signature in signatures:
        try:
            validate_selective_re2_pattern(signature.pattern)
        except ValueError as error:
            raise SpecError(str(error), where=str(files[signature.fix]), next_step=_("correct the pattern")) from error
    return signatures


def read_stored_signatures_or_empty(path: Path) -> SignatureSet:
    """Return the signatures stored with a run, as `dump_signatures_json` of this or another version wrote them.

    Keys that this version does not know are left out; a damaged file holds none.
    """
    signatures = []
    try:
        for row in parse_untrusted_json(read_bytes(path)):
            values = {_FIELDS[key]: value for key, value in row.items() if key in _FIELDS}
            signatures.append(LogSignature(**{**values, "prefilter_literals": tuple(row.get("anchor", ()))}))
            validate_selective_re2_pattern(signatures[-1].pattern)
    except (OSError, ValueError, TypeError, AttributeError):
        return SignatureSet(())
    return SignatureSet(signatures)
