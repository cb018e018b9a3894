"""The fix catalogue: read it, find the fixes of a log line, search its texts."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import format_spec_path, parse_toml, read_utf8_text, require_key_absent
from rlbox.diagnose.events import make_line_event
from rlbox.diagnose.lines import parse_line
from rlbox.diagnose.signatures import SignatureSet, extract_signatures
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.fix import TEXT_KEYS, Fix
from rlbox.fixes.render import SIGNATURE_FIELDS, select_applicable_fixes
from rlbox.foreign import parse_untrusted_toml
from rlbox.target.target import Target, load_target


@dataclass(frozen=True, kw_only=True)
class TargetAndCatalogue:
    """A target completed with the apt packages of its fixes, the files it was read from, which of them
    sets each key, and the catalogue.
    """

    target: Target
    spec_files: tuple[Path, ...]
    all_fixes: tuple[Fix, ...]

    @property
    def included_target_names(self) -> tuple[str, ...]:
        """The targets that it includes, the nearest first: between its own file and the defaults stand theirs."""
        return tuple(path.parent.name for path in self.spec_files[1:-1])


def load_target_with_fix_apt_packages(project: Project, target_name: str) -> TargetAndCatalogue:
    """Return the target `target_name` with what the fix catalogue adds to its base; errors are those of `load_target`.

    Only what the spec itself pins decides which packages are added, so that a lock does not depend on itself.
    """
    loaded, fixes = load_target(project, target_name), load_fix_catalogue(project)
    target = loaded.target
    needed = {
        name
        for fix in select_applicable_fixes(fixes, target, map_packages_to_version_or_empty(target, None))
        for name in fix.bake.packages
    }
    if packages := sorted(needed - {*target.base.packages, *target.base.holds_apt}):
        base = target.base.model_copy(update={"packages": (*target.base.packages, *packages)})
        target = target.model_copy(update={"base": base})
    return TargetAndCatalogue(target=target, spec_files=loaded.files, all_fixes=fixes)


def load_fix_catalogue(project: Project) -> tuple[Fix, ...]:
    """Return the fix catalogue, sorted by id; a file of the project takes the place of a shipped one of its name.

    Raises SpecError: broken TOML (with line), or wrong keys and values of one file.
    """
    fixes = []
    for name, path in project.own_pack_and_shipped_fix_files().items():
        shown = format_spec_path(path, project)
        fixes.append(_fix(name, shown, read_utf8_text(path, shown), is_shipped=project.is_shipped(path)))
    return tuple(fixes)


@functools.lru_cache(maxsize=1024)
def _fix(name: str, shown: str, text: str, *, is_shipped: bool) -> Fix:
    """Return the checked fix; a text that was read before is not read again: a catalogue is hundreds of them."""
    data = {**require_key_absent(parse_toml(text, shown), shown, "id"), "id": name}
    return validate_spec(Fix, data, shown, is_shipped=is_shipped)


def read_chinese_by_english_texts(fix_files: Iterable[Path]) -> dict[str, str]:
    """Return what fixes say in Chinese by what they say in English; files that cannot be read are left out."""
    pairs: dict[str, str] = {}
    for path in fix_files:
        with contextlib.suppress(OSError, ValueError):
            fix = parse_untrusted_toml(path.read_text("utf-8"))
            for told in (fix, *fix.get("signature", ())):
                pairs |= {
                    told[key]: told[f"{key}_zh"].strip() for key in TEXT_KEYS if told.get(key) and f"{key}_zh" in told
                }
    return pairs | {text.strip(): translation for text, translation in pairs.items()}


_WORD = re.compile(r"[^\W_]+")


def select_fixes_with_all_words(fixes: Iterable[Fix], query: str) -> tuple[Fix, ...]:
    words = set(_WORD.findall(query.casefold()))
    found = []
    for fix in fixes:
        texts = (fix.id, fix.title, fix.title_zh, fix.failure, fix.failure_zh, fix.remedy)
        text = " ".join((*texts, *(row.example for row in fix.signature)))
        if words and words <= set(_WORD.findall(text.casefold())):
            found.append(fix)
    return tuple(found)


def find_fixes_matching_log_lines(fixes: Iterable[Fix], log_text: str) -> tuple[Fix, ...]:
    """Return the fixes whose signature is in one of the lines of `log_text`, what tells more first, warnings last."""
    by_id = {fix.id: fix for fix in fixes}
    known = SignatureSet(extract_signatures(fix.model_dump(include=SIGNATURE_FIELDS) for fix in by_id.values()))
    lines = (make_line_event(parse_line(number, line), 1) for number, line in enumerate(log_text.splitlines(), start=1))
    found = dict.fromkeys(match.signature.fix for line in lines for match in known.match_event(line))
    return tuple(sorted((by_id[name] for name in found), key=lambda fix: fix.benign))
