"""Checks of `drift.toml` about shell text and about values that are set."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlbox.lint.document import Call, Document, Setting
from rlbox.lint.drift import DriftRule, Hit, MachineInfo, make_call_hit, make_setting_hit
from rlbox.lint.shell import PLACEHOLDER, Word

# Programs whose arguments are files of this machine.
_FILE_PROGRAMS = {"tail", "cat", "ls", "rm", "cp", "mv", "du", "head", "less", "more", "wc", "stat", "zcat", "md5sum"}
_FILE_PROGRAMS |= {"sha256sum", "chmod", "chown", "touch", "gzip", "gunzip", "source", ".", "tee"}
_GREPS = {"grep", "egrep", "zgrep", "rg"}
_PATTERN_OPTIONS = ("-e", "--regexp")
_BRACKETS = re.compile(r"(?<!\\)(?<!\[)\[(?P<set>[A-Za-z_][A-Za-z0-9_ ]{2,40})\](?![+*?{\]])")
_WORKING = re.compile(
    r"(python|torchrun|deepspeed|accelerate|bash|sh|make|pytest|ray|docker|srun|mpirun|vllm|swift|llamafactory-cli|uv"
    r"|poetry|pip|conda|npm|cargo|cmake|go|\./.*|.*\.sh|.*\.py)(\s|$)"
)
_LINES_FILE = re.compile(r"\.(?:jsonl|ndjson)\b")
_PROBED = re.compile(
    r"localhost|127\.0\.0\.1|0\.0\.0\.0|//\$|health|ping|ready|/v1/|/status|/api/version|get_model_info"
)
_SCOPED = re.compile(r"-[PgsFGuU]\b|--(parent|pgroup|session|pidfile|uid|euid|cgroup|user|ns)")
_OWN = re.compile(r"whoami|\$USER|\$\{USER|id -u|pgrep\s.*-[uPgs]\b")


def powershell_line(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find lines of PowerShell in shell text."""
    for stray in document.strays:
        if stray.kind == "powershell":
            text = stray.piece.text.split(" ")[0].split("=")[0]
            yield Hit(start=stray.piece.at[0], fields={"name": text})
    for call in document.calls:
        for word in call.words if not call.outer and not call.within & {"powershell", "prose"} else ():
            if hit := re.search(r"\$(?i:env):[A-Za-z_]\w*", word.value):
                yield make_call_hit(call, word.at[hit.start()], name=hit.group())


def quoted_glob(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find patterns of file names in quotes, where a program gets them as they are."""
    for call in document.calls:
        if call.program in _FILE_PROGRAMS and "ssh" not in call.within:
            for word in call.words:
                hit = re.search(r"[*?]", word.value)
                path = not word.value.startswith("-") and not re.search(r"[\n;|]|\$\(", word.value)
                if hit and path and word.mask[hit.start()] in "ds":
                    yield make_call_hit(call, word.start, name=call.program, value=word.value, new=_unquoted(word))


def _unquoted(word: Word) -> str:
    """Return the word with quotes around what needs them, and the pattern outside of them."""
    folder, slash, rest = word.value.rpartition("/")
    while re.search(r"[*?]", folder):
        folder, slash, more = folder.rpartition("/")
        rest = f"{more}/{rest}"
    return f'"{folder}{slash}"{rest}' if folder else rest


def bracket_grep(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find words in square brackets that a pattern takes for a set of letters."""
    for call in document.calls:
        if call.program in _GREPS and not any(
            re.fullmatch(r"-[a-zA-Z]*F[a-zA-Z]*|--fixed-strings", v) for v in call.values
        ):
            for word in _patterns(call):
                if hit := _word_in_brackets(word.value):
                    yield make_call_hit(call, word.at[hit.start()], value=hit.group(), new=_escaped(word.value))
    for word in document.patterns:
        if hit := _word_in_brackets(word.value):
            yield Hit(start=word.at[hit.start()], fields={"value": hit.group(), "new": _escaped(word.value)})


def _patterns(call: Call) -> list[Word]:
    """Return the patterns of a grep: those of -e, else the first plain word."""
    given = [option.value_word for option in call.options() if option.name in _PATTERN_OPTIONS]
    if any(given):
        return [word for word in given if word]
    combined = next((i for i, word in enumerate(call.words) if re.fullmatch(r"-[a-zA-Z]*e", word.value)), None)
    words = call.words[combined + 1 :] if combined is not None else call.words
    return next(([word] for word in words if not re.match(r"-\D", word.value) and not word.value.isdigit()), [])


def _word_in_brackets(pattern: str) -> re.Match[str] | None:
    for hit in _BRACKETS.finditer(pattern):
        letters = hit["set"]
        if "-" in letters or letters.startswith("^"):
            continue
        twice = len(set(letters)) < len(letters)
        ends = pattern[: hit.start()][-1:] + pattern[hit.end() :][:1]
        alone = len(letters) > 3 and not set(ends) - set('|( ^)."$') and list(letters) != sorted(letters)
        if twice or (alone and not set(letters.upper()) <= set("KMGTPEBI")):
            return hit
    return None


def _escaped(pattern: str) -> str:
    return _BRACKETS.sub(lambda hit: rf"\[{hit['set']}\]", pattern)


def tee_status(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find programs whose exit status is lost behind `| tee`."""
    if "PIPESTATUS" in document.reads or any(flag == "pipefail" for flag, _ in document.flags):
        return
    safe = {call.block for call in document.called("set", "bash", "sh") if "pipefail" in call.values}
    if re.match(r"#!.*pipefail", document.text):
        return
    for call in document.called("tee"):
        chain = document.before(call)
        works = any(_WORKING.match(f"{one.program} ") for one in chain)
        if call.block not in safe and works and not _throwaway(chain[-1]):
            yield make_call_hit(call, name=chain[-1].program)


def _throwaway(call: Call) -> bool:
    """Whether a command only shows something: `python -V`, `pip list`, `docker ps`, `ray status`."""
    return bool(re.search(r"\s(-V|--version|--help|list|freeze|show|ps|images|status|info)(\s|$)", f" {call.text} "))


def curl_status(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find curls that are taken for healthy by an exit status that an answer of 404 or 500 leaves at 0."""
    for call in document.called("curl"):
        address = next((value for value in call.values if _PROBED.search(value)), "")
        asked = call.pipeline.asked or call.pipeline.after in ("&&", "||")
        used = call.last and (asked or "healthcheck" in call.within)
        short = "".join(value[1:] for value in call.values if re.fullmatch(r"-[a-zA-Z]+", value))
        judged = "f" in short or re.search(r"--fail|http_code|response_code", call.text)
        if used and address and not judged:
            yield make_call_hit(call, value=address)


def json_lines(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find files of many JSON documents that are read as one."""
    for call in document.called("python -m json.tool"):
        if call.has("--json-lines"):
            continue
        given = [word.value for operator, word in call.redirects if operator == "<"]
        pieces = [call.text, *given] + ([_source(document, call)] if call.index else [])
        if any(_LINES_FILE.search(text) for text in pieces):
            yield make_call_hit(call, name="python -m json.tool")


def _source(document: Document, call: Call) -> str:
    """Return what stands in front of a call in its pipeline; empty when that takes a single line out of a file."""
    texts = []
    for command in call.pipeline.commands[: call.index]:
        text = " ".join(word.value for word in (*command.words, *(word for _, word in command.redirects)))
        if re.match(r"(head|tail)\s(.*\s)?-(n\s*)?1(\s|$)|sed\s+-n\s|grep\s.*-m\s*1|shuf\s+-n\s*1", text):
            return ""
        texts.append(text)
    return " ".join(texts)


def kill_by_name(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find commands that end processes by a name, whoever they belong to."""
    for call in document.calls:
        if "container" in call.within:
            continue
        if call.program in ("pkill", "killall"):
            harmless = {"--help", "-0", "--version", "-l"} & set(call.values)
            if call.words and not harmless and not any(map(_SCOPED.match, call.values)):
                yield make_call_hit(call, name=call.program, value=" ".join(call.values))
        elif call.program == "kill" and (text := _searched(call)) and not _OWN.search(text):
            yield make_call_hit(call, name="kill", value=text)


def _searched(call: Call) -> str:
    """Return the search that a kill gets its processes from; empty when it is given their numbers."""
    inner = [piece.text for word in call.words for piece in word.inner]
    if call.outer and call.outer.program == "xargs":
        inner += [" ".join(word.value for word in one.words) for one in call.pipeline.commands[: call.index]]
    text = " | ".join(inner)
    return text if re.search(r"\b(ps|pgrep|pidof)\b", text) else ""


def dead_pattern(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find patterns in a search or a kill that no title of a process fits."""
    for call in document.calls:
        if call.program in (*_GREPS, "pgrep", "pkill", "awk", "killall"):
            for word in call.words:
                if hit := re.search(rule.value, word.value):
                    yield make_call_hit(call, word.start, value=hit.group())


def split_path(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find paths with a space that are left without quotes, and so are two words."""
    spaced = _spaced_names(document)
    for call in document.calls:
        plain = [word for word in call.words if not word.value.startswith("-")]
        if (
            call.program == "cd"
            and len(plain) > 1
            and "{{" not in plain[0].value
            and not {"p"} - set(plain[0].mask + plain[1].mask)
        ):
            yield make_call_hit(call, plain[0].start, value=f"{plain[0].value} {plain[1].value}")
            continue
        for first, second in zip(call.words, call.words[1:], strict=False):
            head, tail = first.value.rsplit("/", 1)[-1], second.value.split("/", 1)[0]
            if f"{head} {tail}" in spaced and set(first.mask[-1:] + second.mask[:1]) == {"p"}:
                yield make_call_hit(call, first.start, value=f"{first.value} {second.value}")


def _spaced_names(document: Document) -> set[str]:
    """Return the parts of quoted paths that hold one space."""
    found: set[str] = set()
    for call in document.calls:
        for word in call.words:
            if "/" in word.value and len(word.value) < 1000 and "\n" not in word.value:
                for part in word.value.split("/"):
                    if re.fullmatch(r"[\w.-]+ [\w.-]+", part):
                        found.add(part)
    return found


def option_line(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find options on a line of their own, which the line above does not reach."""
    for call in document.calls:
        if call.program.startswith("--") and not call.index and not call.outer:
            above = document.lines.line(document.lines.number(call.start) - 1)
            if re.search(r"\\[ \t]+$", above) or (above.lstrip().startswith("#") and _continued_above(document, call)):
                yield make_call_hit(call, name=call.program)


def _continued_above(document: Document, call: Call) -> bool:
    number = document.lines.number(call.start) - 1
    while document.lines.line(number).lstrip().startswith("#"):
        number -= 1
    return document.lines.line(number).rstrip().endswith("\\")


def flagged(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find what the reader itself has marked with a name of the rule, as `syntax`, a Dockerfile's syntax line."""
    return (Hit(start=start) for name, start in document.flags if name in rule.names)


def background_log(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find services in the background whose output and end nobody gets to see."""
    for call in document.calls:
        kept = any(operator in (">", ">>", "&>", "&>>") for operator, _ in call.redirects)
        alone = call.pipeline.after == "&" and call.last and not call.outer and not kept
        if alone and re.match(r"python -m|uvicorn|vllm", call.program):
            yield make_call_hit(call, name=call.program)


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


def empty_element(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
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
            yield make_setting_hit(setting)
        if value and not re.fullmatch(expanded, value):
            known.add((setting.name, setting.block))


def placeholder(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
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
                yield make_call_hit(call, word.at[found.start()], value=_named(found))
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


def secret(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find passwords and tokens that are written out; their values are not repeated."""
    if document.kind == "env":
        return
    for setting in document.settings:
        if _SECRET_NAME.search(setting.name) and _is_literal(setting):
            yield Hit(start=setting.start, within=setting.within, fields={"name": setting.name})
    for call in document.calls:
        for word in call.words if not call.outer else ():
            if hit := _TOKEN_SHAPE.search(word.value):
                yield make_call_hit(call, word.at[hit.start()], name=hit.group()[:3] + "…")


def _is_literal(setting: Setting) -> bool:
    value = setting.value.strip("\"'")
    unsaid = re.search(r"[$`<>{}*]|^/|^https?:|xxx|\.\.\.|…", value) or _unreplaced(value)
    return len(value) >= 6 and not unsaid and value.lower() not in {"true", "false", "none", "null", "dummy", "empty"}
