"""Checks of `drift.toml` that take more than names and patterns."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from rlbox.foreign import whole_number
from rlbox.job.expression import evaluate_expression
from rlbox.lint.calls import Argument, Call, command_behind
from rlbox.lint.document import Document
from rlbox.lint.drift import Check, DriftRule, Hit, Severity, make_hit_at_call, make_hit_at_setting
from rlbox.lint.shell import Position

Versions = Mapping[str, str]
_OTHER_NAMES = {"python -m vllm.entrypoints.openai.api_server": "vllm serve"}
_BRANCH = re.compile(r"(?m)^\s*(?:if|elif|else|fi|case|esac)\b|;;")
_CONSTRAINED = ("--no-deps", "-c", "--constraint", "--target", "--dry-run")
_STACK_IMAGE = re.compile(r"verl|slime|vllm|sglang|openrlhf|nemo|pytorch|megatron|swift|llamafactory|axolotl", re.I)


def _unpinned(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find installs that may replace what the image matched to its CUDA, driver and torch."""
    has_stack = any(_STACK_IMAGE.search(image.text) for image in document.images)
    for call in document.calls:
        if call.program != "pip" or call.word_texts[:1] != ["install"] or call.find_argument(*_CONSTRAINED):
            continue
        names = rule.name + ("|ray" if call.find_argument("-U", "--upgrade", "--force-reinstall") else "")
        loose = [
            word for word in call.words if re.fullmatch(rf"(?:{names})(?:\[[^\]]*\])?(?:[>!][^<]*)?", word.text, re.I)
        ]
        if any(value.startswith("torch==") for value in call.word_texts):
            loose = [word for word in loose if not word.text.startswith("torch")]
        reinstalls = [word for word in call.words if word.text in ("-e", "--force-reinstall")]
        if loose:
            yield make_hit_at_call(call, loose[0].position, name=", ".join(word.text for word in loose))
        elif has_stack and reinstalls and not any(value.endswith(".whl") for value in call.word_texts):
            yield make_hit_at_call(call, reinstalls[0].position, name=f"pip {' '.join(call.word_texts)}")


@cache
def _load_known_options() -> dict[str, dict[str, dict[str, frozenset[str]]]]:
    """Return package, program (or prefix of variables), release and names; written by `scripts/lint_options.py`."""
    programs: dict[str, dict[str, dict[str, frozenset[str]]]] = {}
    for program, record in json.loads(Path(__file__).with_name("options.json").read_text("utf-8")).items():
        names: dict[str, set[str]] = {release: set() for release in record["releases"]}
        for mask, text in record["options"].items():
            for release, is_there in zip(record["releases"], mask, strict=True):
                names[release] |= set(_expand(text)) if is_there == "1" else set()
        programs.setdefault(record["package"], {})[program] = {key: frozenset(value) for key, value in names.items()}
    return programs


def _expand(text: str) -> Iterator[str]:
    """Yield names out of a line in which `a.{b,c}` stands for a.b and a.c."""
    for word in text.split():
        parent, _brace, keys = word.removesuffix("}").partition("{")
        yield from (f"{parent}{key}" for key in keys.split(","))


class _KnownNames:
    """The names that a program knows in the version at hand, or in any recorded release where that is not recorded."""

    def __init__(self, package: str, releases: Mapping[str, frozenset[str]], versions: Versions) -> None:
        release = versions.get(package, "")
        self.names = releases.get(release) or frozenset().union(*releases.values())
        self.versions = f"{package} {release if release in releases else ', '.join(releases)}"
        self.severity: Severity = "error" if release in releases else "warning"

    def suggest(self, name: str) -> str:
        return next(iter(difflib.get_close_matches(name, self.names, cutoff=0.7)), "--help lists what there is")


def _unknown_options(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find options and overrides that no parser of the recorded releases takes, and commands that do not exist."""
    for package, programs in _load_known_options().items():
        for call in document.calls:
            program = _OTHER_NAMES.get(call.program, call.program)
            program = program if program in programs else program.rpartition(" ")[0]
            if program in programs:
                known = _KnownNames(package, programs[program], versions)
                for argument in _arguments(call):
                    if argument.name not in rule.names and (new := _better_name(argument.name, known)):
                        fields = {"name": argument.name, "value": program, "new": new, "versions": known.versions}
                        yield replace(make_hit_at_call(call, argument.position, **fields), severity=known.severity)
            elif package == "vastai" and call.program.startswith("vastai "):
                commands = {release: frozenset(programs) for release in programs["vastai logs"]}
                known = _KnownNames(package, commands, versions)
                if not any(name.startswith(f"{call.program} ") for name in programs):
                    new = known.suggest(call.program)
                    yield make_hit_at_call(call, name=call.program, value="the CLI", versions=known.versions, new=new)


def _arguments(call: Call) -> Iterator[Argument]:
    """Yield the arguments that the program itself parses: not those of the command that it runs."""
    inner = command_behind(call)
    for argument in call.arguments:
        if argument.name in ("--", "--args") or (inner and argument.position >= inner[0].position):
            return
        yield argument


def _better_name(name: str, known: _KnownNames) -> str:
    """Return the name that was meant, or where to look; empty for one that is known, or no option at all."""
    if not name.startswith("-"):
        parts = name.split(".")
        is_open = any(".".join(parts[:i]) + "." in known.names for i in range(1, len(parts) + 1))
        is_key = "." in name and re.fullmatch(r"(?!hydra\.)[a-z][\w.]*", name) and "trainer.device" in known.names
        has_key = is_open or any(key == name or key.startswith(f"{name}.") for key in known.names)
        return known.suggest(name) if is_key and not has_key else ""
    if re.fullmatch(r"-[a-z]{3,}", name):  # one dash where it takes two
        return f"-{name}" if f"-{name}" in known.names else ""
    if "trainer.device" in known.names or not re.fullmatch(r"--[A-Za-z][\w.-]*", name):
        return ""
    has_dots = any(option.count(".") for option in known.names)
    if has_dots and "." not in name:  # OpenRLHF's older options have a rule of their own
        return ""
    spellings = {name, name.replace("_", "-")}
    spellings |= {re.sub(r"^--no-", "--", spelling) for spelling in spellings}
    spellings |= set() if has_dots else {spelling.partition(".")[0] for spelling in spellings}
    is_known = bool(spellings & known.names) or any(option.startswith(tuple(spellings)) for option in known.names)
    return "" if is_known else known.suggest(name)


def _unknown_variables(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find variables that begin as a program's do, and that it does not mention anywhere."""
    for package, programs in _load_known_options().items():
        for prefix, releases in programs.items():
            for setting in document.settings if prefix.endswith("_") else ():
                is_passed_on = setting.set_by == "shell" or setting.name in document.variables_read
                if is_passed_on or not setting.name.startswith(prefix) or re.fullmatch(rule.name, setting.name):
                    continue
                known = _KnownNames(package, releases, versions)
                is_typo = difflib.get_close_matches(setting.name, known.names, cutoff=0.9)
                if setting.name not in known.names and (is_typo or known.severity == "error"):
                    yield make_hit_at_setting(setting, new=known.suggest(setting.name), versions=known.versions)


def _repeated_arguments(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find overrides and options that one command gives two values: the last one counts, without a word."""
    for call in document.calls:
        if not re.match(rule.command, call.unquoted_command_line):
            continue
        last: dict[str, Argument] = {}
        for argument in call.arguments:
            before = last.get(argument.name)
            is_single = re.fullmatch(r"[a-z][\w]*(?:\.\w+)+|--[a-z][\w-]+", argument.name) and argument.has_value
            if before and is_single and before.value != argument.value and argument.name not in rule.names:
                first, second = sorted((before.position.line, argument.position.line))
                if not _BRANCH.search("\n".join(document.lines[first - 1 : second])):
                    fields = {"name": argument.name, "value": before.value, "new": argument.value}
                    yield make_hit_at_call(call, argument.position, **fields)
            last[argument.name] = argument


def _arithmetic(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find numbers of a command that do not fit together: the rule's formula over them is false."""
    for call in document.calls:
        if not re.match(rule.command, call.unquoted_command_line) or not all(
            re.search(need, call.unquoted_command_line) for need in rule.needs
        ):
            continue
        numbers: dict[str, int] = {}
        position: Position | None = None
        for name, text in rule.numbers.items():
            options, _equals, default = text.partition("=")
            argument = call.find_argument(*options.split())
            variables = re.findall(r"\$\{?(\w+)", argument.value) if argument else []
            if any(len({value for _position, value in document.values.get(name, [])}) > 1 for name in variables):
                break  # it depends on a branch
            value = document.resolve(argument.value, argument.position) if argument else default
            if (number := whole_number(value.strip("\"'"))) is None or not number:
                break
            position = position or (argument.position if argument else None)
            numbers[name] = number
        else:
            if not evaluate_expression(rule.holds, numbers):
                yield make_hit_at_call(call, position, **{name: str(number) for name, number in numbers.items()})


CHECKS: dict[str, Check] = {
    "arithmetic": _arithmetic, "repeated_arguments": _repeated_arguments, "unknown_options": _unknown_options,
    "unknown_variables": _unknown_variables, "unpinned": _unpinned,
}  # fmt: skip
