"""The fix catalogue: read it, search it by log line or text, list the environment variables that it sets."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import display_path, parse_toml, read_utf8_text, reject_key
from rlbox.diagnose.events import make_line_event
from rlbox.diagnose.lines import parse_line
from rlbox.diagnose.signatures import SignatureSet, extract_signatures
from rlbox.errors import SpecError
from rlbox.fixes.conditions import list_stack_versions
from rlbox.fixes.fix import TEXT_KEYS, Fix
from rlbox.fixes.render import SIGNATURE_FIELDS, list_fix_apt_packages
from rlbox.fixes.view import FixEvaluation
from rlbox.foreign import toml_table
from rlbox.i18n import _
from rlbox.target.target import Target, load_target


@dataclass(frozen=True, kw_only=True)
class TargetWithFixes:
    """A target completed with the apt packages of its fixes, the files it was read from, which of them
    sets each key, and the catalogue.
    """

    target: Target
    files: tuple[Path, ...]
    fixes: tuple[Fix, ...]

    @property
    def includes(self) -> tuple[str, ...]:
        """The targets that it includes, the nearest first: between its own file and the defaults stand theirs."""
        return tuple(path.parent.name for path in self.files[1:-1])


def load_target_with_fixes(project: Project, target_name: str) -> TargetWithFixes:
    """Return the target `target_name` with what the fix catalogue adds to its base; errors are those of `load_target`.

    Only what the spec itself pins decides which packages are added, so that a lock does not depend on itself.
    """
    loaded, fixes = load_target(project, target_name), load_fixes(project)
    target = loaded.target
    asked = list_fix_apt_packages(fixes, target, list_stack_versions(target, None))
    if packages := [package for package in asked if package not in target.base.holds_apt]:
        base = target.base.model_copy(update={"packages": (*target.base.packages, *packages)})
        target = target.model_copy(update={"base": base})
    return TargetWithFixes(target=target, files=loaded.files, fixes=fixes)


def load_fixes(project: Project) -> tuple[Fix, ...]:
    """Return the fix catalogue, sorted by id; a file of the project takes the place of a shipped one of its name.

    Raises SpecError: broken TOML (with line), or wrong keys and values of one file.
    """
    fixes, broken = load_readable_fixes(project)
    if broken:
        raise broken[0]
    return fixes


def load_readable_fixes(project: Project) -> tuple[tuple[Fix, ...], tuple[SpecError, ...]]:
    """Return the fixes that can be read, sorted by id, and what is wrong with the files of the others."""
    fixes, broken = [], []
    for name, path in project.fix_files().items():
        shown = display_path(path, project)
        try:
            fixes.append(_fix(name, shown, read_utf8_text(path, shown)))
        except SpecError as error:
            broken.append(error)
    return tuple(fixes), tuple(broken)


@functools.lru_cache(maxsize=1024)
def _fix(name: str, shown: str, text: str) -> Fix:
    """Return the checked fix; a text that was read before is not read again: a catalogue is some ninety of them."""
    return validate_spec(Fix, {**reject_key(parse_toml(text, shown), shown, "id"), "id": name}, shown)


def read_fix_translations(fix_files: Iterable[Path]) -> dict[str, str]:
    """Return what fixes say in Chinese by what they say in English; files that cannot be read are left out."""
    pairs: dict[str, str] = {}
    for path in fix_files:
        with contextlib.suppress(OSError, ValueError):
            fix = toml_table(path.read_text("utf-8"))
            pairs |= {fix[key]: fix[f"{key}_zh"].strip() for key in TEXT_KEYS if key in fix and f"{key}_zh" in fix}
    return pairs | {text.strip(): translation for text, translation in pairs.items()}


_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, kw_only=True)
class EnvVariable:
    """A variable of an image's environment, what it is set to, and why; `fix` is empty for one of the target's own."""

    name: str
    value: str
    fix: str
    reason: str


def find_fixes_by_log(fixes: Iterable[Fix], log: str) -> tuple[Fix, ...]:
    """Return the fixes whose signature is in one of the lines of `log`, what tells more first, warnings last."""
    by_id = {fix.id: fix for fix in fixes}
    known = SignatureSet(extract_signatures(fix.model_dump(include=SIGNATURE_FIELDS) for fix in by_id.values()))
    lines = (make_line_event(parse_line(number, line), 1) for number, line in enumerate(log.splitlines(), start=1))
    found = dict.fromkeys(match.signature.fix for line in lines for match in known.match_event(line))
    return tuple(sorted((by_id[name] for name in found), key=lambda fix: fix.benign))


def search_fixes(fixes: Iterable[Fix], query: str) -> tuple[Fix, ...]:
    """Return the fixes that have `query`, or else all its words, in id, titles or the lines that they know."""
    wanted = " ".join(query.casefold().split())
    told = [(fix, " ".join((fix.id, fix.title, fix.title_zh, *_lines(fix))).casefold()) for fix in fixes]
    if whole := [fix for fix, known in told if wanted and wanted in known]:
        return tuple(whole)
    words = set(_WORD.findall(wanted))
    return tuple(fix for fix, known in told if words and words <= set(_WORD.findall(known)))


def _lines(fix: Fix) -> Iterator[str]:
    return (row.example for row in fix.signature)


def list_env_variables(evaluations: Iterable[FixEvaluation], target: Target) -> tuple[EnvVariable, ...]:
    """Return every variable that fixes and the target set, by name; what the target itself sets holds."""
    return tuple(sorted(_variables(evaluations, target), key=lambda row: (row.name, row.fix)))


def _variables(judged: Iterable[FixEvaluation], target: Target) -> Iterator[EnvVariable]:
    for one in judged:
        for row in one.bake_entries if one.applies else ():
            if row.kind in ("env", "path") and row.name not in target.env:
                yield EnvVariable(name=row.name, value=row.value, fix=one.fix.id, reason=_(one.fix.title))
    for name, value in target.env.items():
        reason = f"images/{target.name}/target.toml: env"
        yield EnvVariable(name=name, value=value, fix="", reason=reason)
