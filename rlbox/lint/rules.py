"""Match the rules of `drift.toml` against a document, and show what they find."""

from __future__ import annotations

import difflib
import json
import lzma
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, takewhile
from pathlib import Path
from textwrap import shorten

from rlbox.foreign import parse_digits
from rlbox.i18n import _
from rlbox.job.expression import evaluate_expression
from rlbox.lint.calls import Argument, Call, get_wrapped_command_words
from rlbox.lint.document import Document, VariableSetting
from rlbox.lint.drift import DriftRule, Matcher, Severity, load_drift_rules
from rlbox.lint.formats import parse_document
from rlbox.lint.shell import Position, replace_angle_bracket_placeholders
from rlbox.system.bash import find_syntax_error_if_bash_available
from rlbox.target.engine_images import map_packages_to_tagged_version

_LONGEST_STATEMENT = 8_000  # characters
_OPTIONS = Path(__file__).with_name("options.json.xz")
_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, kw_only=True)
class LintFinding:
    """One defect: `line` and `column` count from 1; `next_step` is the form that works."""

    file: str
    line: int
    column: int
    rule: str
    severity: Severity
    what: str
    next_step: str


@dataclass(frozen=True, kw_only=True)
class _Hit:
    """Where a rule found its defect; `first_line` is its command's, if any, `severity` replaces the rule's."""

    position: Position
    first_line: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    severity: Severity | None = None


Check = Callable[[Document, DriftRule, Mapping[str, str]], Iterable[_Hit]]


def _make_hit_at_call(call: Call, position: Position | None = None, /, **message_fields: str) -> _Hit:
    start = call.command.statement.start
    return _Hit(position=position or call.position, first_line=start.line, fields=message_fields)


def _make_hit_at_setting(setting: VariableSetting, **fields: str) -> _Hit:
    return _Hit(position=setting.position, fields={"name": setting.name, "value": setting.value, **fields})


def _find_hits(matcher: Matcher, document: Document) -> Iterator[_Hit]:
    if matcher.text:
        for source in document.shells:
            for match in re.finditer(matcher.text, source.text):
                yield _Hit(position=source.position_at(match.start("value")), fields=match.groupdict())
    elif matcher.kind == "variable":
        yield from _hits_in_settings(matcher, document)
    elif matcher.kind == "image":
        for image in document.images:
            if name := re.search(matcher.value, image.text):
                yield _Hit(position=image.position, fields={"value": image.text} | name.groupdict())
    else:
        for call in document.calls:
            yield from _hits_in_call(matcher, document, call)


def _runs_where(matcher: Matcher, context_tags: frozenset[str]) -> bool:
    return context_tags.issuperset(matcher.inside.split()) and not context_tags & {*matcher.outside}


def _hits_in_settings(matcher: Matcher, document: Document) -> Iterator[_Hit]:
    for setting in document.settings:
        if setting.name not in matcher.names and not (matcher.name and re.fullmatch(matcher.name, setting.name)):
            continue
        is_passed_on = not matcher.value and setting.name in document.variables_read  # to what does read it, maybe
        if is_passed_on or matcher.how not in ("", setting.set_by) or not _runs_where(matcher, setting.context_tags):
            continue
        value = setting.value if matcher.literal else document.expand_variables(setting.value, setting.position)
        if match := re.search(matcher.value, value.strip("\"'")):
            yield _make_hit_at_setting(setting, **match.groupdict())


def _hits_in_call(matcher: Matcher, document: Document, call: Call) -> Iterator[_Hit]:
    is_command = not matcher.command or re.match(rf"(?:{matcher.command})(?:\s|$)", call.unquoted_command_line)
    if not is_command or not _runs_where(matcher, call.context_tags):
        return
    text = document.expand_variables(call.unquoted_command_line, call.position)
    if not all(re.search(need, text) for need in matcher.needs) or any(re.search(no, text) for no in matcher.without):
        return
    source = call.command.statement
    statements = [*re.finditer(matcher.statement or "^", source.text[:_LONGEST_STATEMENT])]
    if matcher.word:
        for word in call.words if statements and not call.outer else ():
            if match := re.search(matcher.word, word.raw):
                fields = {"name": call.program, "value": word.text, **match.groupdict()}
                yield _make_hit_at_call(call, word.position, **fields)
    elif matcher.names or matcher.name or matcher.renamed:
        yield from _hits_in_arguments(matcher, document, call) if statements else ()
    else:
        for statement in statements:
            groups = {name: text for name, text in statement.groupdict().items() if text is not None}
            position = source.position_at(statement.start("value")) if "value" in groups else None
            yield _make_hit_at_call(call, position, **{"name": call.program, **groups})


def _hits_in_arguments(matcher: Matcher, document: Document, call: Call) -> Iterator[_Hit]:
    for argument in call.arguments:
        is_named = argument.name in matcher.names or argument.name in matcher.renamed
        if is_named or (matcher.name and re.fullmatch(matcher.name, argument.name)):
            value = document.expand_variables(argument.value, argument.position)
            if match := re.search(matcher.value, value):
                new = matcher.renamed.get(argument.name, _("--help lists the options"))
                fields = {"name": argument.name, "value": value, "new": new} | match.groupdict()
                yield _make_hit_at_call(call, argument.position, **fields)


def lint_text(
    name: str, text: str, rules: Iterable[DriftRule], versions: Mapping[str, str] | None = None
) -> tuple[LintFinding, ...]:
    """Return what is wrong, by line, in the `versions` that a target pins and those that the text itself installs."""
    document = parse_document(name, text)
    known = map_packages_to_tagged_version(one.text for one in document.images) | document.pins | dict(versions or {})
    findings: list[LintFinding] = []
    for rule in rules:
        commands, found = dict[int, list[tuple[LintFinding, str]]](), set[object]()
        for hit in _hits_of(rule, document, known):
            finding = _finding(rule, document, known, hit)
            first_line = hit.first_line or finding.line
            ignored = document.get_ignored_rules(finding.line) | document.get_ignored_rules(first_line)
            same = finding.what if rule.kind == "path" else (finding.line, finding.column)
            if same not in found and not {rule.id, "all"} & ignored:
                commands.setdefault(0 if rule.once else first_line, []).append((finding, hit.fields.get("name") or ""))
                found.add(same)
        for pairs in commands.values():
            group = sorted((one for one, __ in pairs), key=lambda one: (one.line, one.column))
            if len(group) > (1 if rule.once else 3):
                lines = ", ".join(map(str, sorted({one.line for one in group})))
                names = shorten(", ".join(dict.fromkeys(name for __, name in pairs)), 300, placeholder=" …")
                folded = _("{what} ({count} in all: {names}; line(s) {lines})")
                what = folded.format(what=group[0].what, count=len(group), names=names, lines=lines)
                steps = shorten("; ".join(dict.fromkeys(one.next_step for one in group)), 300, placeholder=" …")
                group = [replace(group[0], what=what, next_step=steps)]
            findings += group
    return tuple(sorted(findings, key=lambda one: (one.line, one.column, _ORDER[one.severity], one.rule)))


def _hits_of(rule: DriftRule, document: Document, versions: Mapping[str, str]) -> Iterator[_Hit]:
    is_ruled_out = rule.unless and re.search(rule.unless, document.text, re.IGNORECASE)
    is_here = rule.judge_pinned_version(versions) != "works" and re.search(rule.says, document.text, re.IGNORECASE)
    if is_here and not is_ruled_out:
        for matcher in (rule, *rule.also):
            find = CHECKS.get(matcher.check)
            yield from find(document, rule, versions) if find else _find_hits(matcher, document)


def _finding(rule: DriftRule, document: Document, versions: Mapping[str, str], hit: _Hit) -> LintFinding:
    severities: dict[str, Severity] = {"unknown": rule.unknown or rule.severity, "warns": "warning"}
    severity = hit.severity or severities.get(rule.judge_pinned_version(versions), rule.severity)
    what = _fill(rule.what, hit.fields) + rule.format_versions_suffix_or_empty(versions)
    (line, column), next_step = hit.position, _fill(rule.next, hit.fields)
    return LintFinding(
        file=document.name, line=line, column=column, rule=rule.id, severity=severity, what=what, next_step=next_step
    )


def _fill(text: str, fields: Mapping[str, str]) -> str:
    given = {name: fields.get(name, f"{{{name}}}") for name in re.findall(r"\{(\w+)\}", text)}
    plain = {name: shorten(one, 80, placeholder="…") for name, one in given.items() if type(one) is str}
    return _(text).format(**{"name": ""} | given | plain)  # without any field no doubled brace becomes one


_BRANCH = re.compile(r"(?m)^\s*(?:if|elif|else|fi|case|esac)\b|;;")
_CONSTRAINED = ("--no-deps", "-c", "--constraint", "--target", "--dry-run")
_STACK_IMAGE = re.compile(r"verl|slime|vllm|sglang|openrlhf|nemo|pytorch|megatron|swift|llamafactory|axolotl", re.I)


def _unpinned(document: Document, rule: DriftRule, versions: Mapping[str, str]) -> Iterator[_Hit]:
    """Find installs that may replace what the image matched to its CUDA, driver and torch; engines pin their torch."""
    images = " ".join(image.text for image in document.images)
    is_rebuilt = any(call.program == "pip" and "uninstall" in call.word_texts for call in document.calls)
    engines = r"|(?:vllm|sglang)(?:\[[^\]]*\])?==.+" if "nvcr.io/nvidia/" in images and not is_rebuilt else ""
    for call in document.calls:
        if call.program != "pip" or call.word_texts[:1] != ["install"] or call.find_first_argument(*_CONSTRAINED):
            continue
        names = rule.name + ("|ray" if call.find_first_argument("-U", "--upgrade", "--force-reinstall") else "")
        unpinned = rf"(?:{names})(?:\[[^\]]*\])?(?:[>!][^<]*)?{engines}"
        loose = [word for word in call.words if re.fullmatch(unpinned, word.text, re.I)]
        if any(value.startswith("torch==") for value in call.word_texts):
            loose = [word for word in loose if not word.text.startswith("torch")]
        is_alone = re.search(r"\.whl|torch_memory_saver", call.unquoted_command_line)
        reinstalls = [word for word in call.words if word.text in ("-e", "--force-reinstall")]
        if loose:
            yield _make_hit_at_call(call, loose[0].position, name=", ".join(word.text for word in loose))
        elif reinstalls and _STACK_IMAGE.search(images) and not is_alone:
            yield _make_hit_at_call(call, reinstalls[0].position, name=f"pip {' '.join(call.word_texts)}")


@cache
def _load_known_options() -> dict[str, dict[str, dict[str, list[str]]]]:
    """Return package, program (or prefix of variables), release and names; written by `scripts/lint_options.py`."""
    packages: dict[str, dict[str, dict[str, list[str]]]] = json.loads(lzma.decompress(_OPTIONS.read_bytes()))
    return packages


class _KnownNames:
    """The names that a program knows in the version at hand, or in any recorded release where that is not recorded."""

    def __init__(self, package: str, releases: Mapping[str, Iterable[str]], versions: Mapping[str, str]) -> None:
        release = versions.get(package, "")
        self.names = frozenset(releases.get(release) or chain(*releases.values()))
        self.versions = f"{package} {release if release in releases else ', '.join(releases)}"
        self.underscore = "-" if package == "vllm" else "_"  # vLLM reads it as a dash in options, others do not
        self.common = self.names.intersection(*([] if release in releases else releases.values()))
        self.severity: Severity = "error" if release in releases else "warning"

    def suggest(self, name: str) -> str:
        return next(iter(difflib.get_close_matches(name, self.names, cutoff=0.83)), _("--help lists what there is"))


def _unknown_options(document: Document, rule: DriftRule, versions: Mapping[str, str]) -> Iterator[_Hit]:
    """Find options and overrides that no parser of the recorded releases takes, and commands that do not exist."""
    for package, programs in _load_known_options().items():
        own = {name for one in load_drift_rules() if one.package == package for name in (*one.names, *one.renamed)}
        for call in document.calls:
            program = rule.renamed.get(call.program, call.program)
            program = program if program in programs else program.rpartition(" ")[0]
            if program in programs:
                known = _KnownNames(package, programs[program], versions)
                find_better = _better_name if rule.names else _appended_key
                inner = get_wrapped_command_words(call)  # another program has the arguments from there on
                given = (one for one in call.arguments if not inner or one.position < inner[0].position)
                for argument in takewhile(lambda one: one.name not in ("--", "--args"), given):
                    if argument.name not in own.union(rule.names) and (new := find_better(argument.name, known)):
                        fields = {"name": argument.name, "value": call.program, "new": new, "versions": known.versions}
                        yield replace(_make_hit_at_call(call, argument.position, **fields), severity=known.severity)
            elif package == "vastai" and rule.names and call.program.startswith("vastai "):
                known = _KnownNames(package, dict.fromkeys(programs["vastai logs"], programs), versions)
                if not any(name.startswith(f"{call.program} ") for name in programs):
                    fields = {"name": call.program, "value": _("the CLI"), "versions": known.versions}
                    yield _make_hit_at_call(call, **fields, new=known.suggest(call.program))


def _better_name(name: str, known: _KnownNames) -> str:
    """Return the name that was meant, or where to look; empty for one that is known, or no option at all."""
    if not name.startswith("-"):
        parts = name.split(".")
        is_open = any(".".join(parts[:i]) + "." in known.names for i in range(1, len(parts) + 1))
        is_key = re.fullmatch(r"(?!hydra\.)[a-z][\w.]*", name) and "trainer.device" in known.names
        has_key = is_open or any(key == name or key.startswith(f"{name}.") for key in known.names)
        return known.suggest(name) if is_key and not has_key else ""
    if re.fullmatch(r"-[a-z][a-z-]{2,}", name):  # one dash where it takes two
        return f"-{name}" if f"-{name}" in known.names else ""
    has_dots = any(option.count(".") for option in known.names)
    is_older = has_dots and "." not in name  # OpenRLHF's older options have a rule of their own
    if "trainer.device" in known.names or is_older or not re.fullmatch(r"--[A-Za-z][\w.-]*", name):
        return ""
    spellings = {name, name.replace("_", known.underscore)}
    spellings |= {re.sub(r"^--no-", "--", spelling) for spelling in spellings}
    spellings |= set() if has_dots else {spelling.partition(".")[0] for spelling in spellings}
    is_known = bool(spellings & known.names) or any(option.startswith(tuple(spellings)) for option in known.names)
    return "" if is_known else known.suggest(name)


def _appended_key(name: str, known: _KnownNames) -> str:
    """Return the key of Hydra's `+key` that the config has already; empty for any other name."""
    return name[1:] if name[:1] == "+" and name[1:] in known.common else ""


def _unknown_variables(document: Document, rule: DriftRule, versions: Mapping[str, str]) -> Iterator[_Hit]:
    for package, programs in _load_known_options().items():
        for prefix, releases in programs.items():
            for setting in document.settings if prefix.endswith("_") else ():
                is_passed_on = setting.set_by == "shell" or setting.name in document.variables_read
                if is_passed_on or not setting.name.startswith(prefix) or re.fullmatch(rule.name, setting.name):
                    continue
                known = _KnownNames(package, releases, versions)
                is_typo = difflib.get_close_matches(setting.name, known.names, cutoff=0.9)
                if setting.name not in known.names and (is_typo or known.severity == "error"):
                    yield _make_hit_at_setting(setting, new=known.suggest(setting.name), versions=known.versions)


def _shell_syntax(document: Document, rule: DriftRule, versions: Mapping[str, str]) -> Iterator[_Hit]:
    """Find the line that bash cannot read in a script, which a template is not yet."""
    text = document.text.replace("\r\n", "\n")
    is_named = re.search(r"\.(?:sh|bash|slurm|sbatch)$", document.name) and not text.startswith("#!")
    is_bash = is_named or re.match(r"#!.*\b(?:ba|da)?sh\b", text)
    is_broken = is_bash and not re.search(r"\{\{[^{}\n]*\}\}|\{%", text) and find_syntax_error_if_bash_available(text)
    if is_broken and (error := find_syntax_error_if_bash_available(replace_angle_bracket_placeholders(text))):
        yield _Hit(position=Position(min(error.line, len(document.lines)), 1), fields={"value": error.message})


def _unset_variables(document: Document, rule: DriftRule, versions: Mapping[str, str]) -> Iterator[_Hit]:
    is_script = [source.text for source in document.shells[:1]] == [document.text]
    # arithmetic reads a name without a dollar; a message with NAME=$NAME sets nothing
    text = re.sub(r"\$\(\(.*?\)\)|\becho .*\b(\w+)=\$\{?\1\b", "", document.text)
    hits = [*_find_hits(rule, document)] if rule.text else []
    for call in document.calls if not rule.text else ():
        for argument in call.arguments if not call.outer else ():
            for name in re.findall(rf"\A\$\{{?({rule.name})\}}?\Z", argument.value):
                hits.append(_make_hit_at_call(call, argument.position, name=argument.name, value=name))
    for hit in hits if is_script else ():
        name = hit.fields["value"]
        # set or read by its bare name, ${!NAME} or ${NAME:-…}; escaped or in single quotes: for another shell
        known = rf"(?<![\w$\{{.-]){name}\b|\{{!?{name}(\[@\])?[^\w}}\[]|\\\$\{{?{name}\b|'[^'\n]*\$\{{?{name}\b[^'\n]*'"
        if not re.search(known, text):
            yield hit


def _repeated_arguments(document: Document, rule: DriftRule, versions: Mapping[str, str]) -> Iterator[_Hit]:
    for call in (one for one in document.calls if re.match(rule.command, one.unquoted_command_line)):
        last: dict[str, Argument] = {}
        for argument in call.arguments:
            before = last.get(argument.name)
            is_single = re.fullmatch(r"[a-z][\w]*(?:\.\w+)+|--[a-z][\w-]+", argument.name) and argument.has_value
            if before and is_single and before.value != argument.value and argument.name not in rule.names:
                first, second = sorted((before.position.line, argument.position.line))
                if not _BRANCH.search("\n".join(document.lines[first - 1 : second])):
                    fields = {"name": argument.name, "value": before.value, "new": argument.value}
                    yield _make_hit_at_call(call, argument.position, **fields)
            last[argument.name] = argument


def _arithmetic(document: Document, rule: DriftRule, versions: Mapping[str, str]) -> Iterator[_Hit]:
    """Find numbers for which the formula does not hold; its `value` is each argument that the rule names, if any."""
    pairs = [(call, own) for call in document.calls for own in rule.names or ("",)]
    for call, own in pairs:
        line = call.unquoted_command_line
        if not any(len(document.values.get(name, [])) > 1 for name in re.findall(r"\$\{?(\w+)", line)):
            line = document.expand_variables(line, call.position)
        if not re.match(rule.command, line) or not all(re.search(need, line) for need in (own, *rule.needs)):
            continue
        numbers: dict[str, int] = {}
        position: Position | None = None
        for name, text in {**({"value": own} if own else {}), **rule.numbers}.items():
            options, _equals, default = text.partition("=")
            argument = call.find_first_argument(*options.split())
            variables = re.findall(r"\$\{?(\w+)", argument.value) if argument else []
            if any(len({value for _position, value in document.values.get(name, [])}) > 1 for name in variables):
                break  # it depends on a branch
            value = document.expand_variables(argument.value, argument.position) if argument else default
            if (number := parse_digits(value.strip("\"'"))) is None or not number:
                break
            position = position or (argument.position if argument else None)
            numbers[name] = number
        else:
            if not evaluate_expression(rule.holds, numbers):
                yield _make_hit_at_call(call, position, name=own, **{key: str(one) for key, one in numbers.items()})


CHECKS: dict[str, Check] = {
    "arithmetic": _arithmetic, "repeated_arguments": _repeated_arguments,
    "shell_syntax": _shell_syntax, "unknown_options": _unknown_options, "unknown_variables": _unknown_variables,
    "unpinned": _unpinned, "unset_variables": _unset_variables,
}  # fmt: skip
