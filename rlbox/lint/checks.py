"""Checks of `drift.toml` that take more than names and patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rlbox.foreign import whole_number
from rlbox.lint.calls import Argument, Call
from rlbox.lint.document import Document
from rlbox.lint.drift import DriftRule, Hit, call_hit, setting_hit
from rlbox.lint.shell import PLACEHOLDER
from rlbox.lint.text import Fragment

Versions = Mapping[str, str]


def flagged(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find what the reader itself has marked with a name of the rule, as `syntax`, a Dockerfile's syntax line."""
    return (Hit(start=start, fields={"name": name}) for name, start in document.flags if name in rule.names)


# ---- patterns, paths, values ----

_LETTER_SET = re.compile(r"(?<!\\)(?<!\[)\[(?P<set>[A-Za-z_][A-Za-z0-9_ ]{2,40})\](?![+*?{\]])")


def bracket_pattern(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find words in square brackets that a pattern takes for a set of letters."""
    for call in document.calls_of("grep", "egrep", "zgrep", "rg"):
        if not any(re.fullmatch(r"-[a-zA-Z]*F[a-zA-Z]*|--fixed-strings", value) for value in call.values):
            patterns = [word for word in call.words if not re.match(r"-\D", word.text) and not word.text.isdigit()][:1]
            for word in patterns:
                if match := _word_in_brackets(word.text):
                    new = _LETTER_SET.sub(r"\[\g<set>\]", word.text)
                    yield call_hit(call, word.offsets[match.start()], value=match.group(), new=new)
    for pattern in document.patterns:
        if match := _word_in_brackets(pattern.text):
            new = _LETTER_SET.sub(r"\[\g<set>\]", pattern.text)
            yield Hit(start=pattern.offsets[match.start()], fields={"value": match.group(), "new": new})


def _word_in_brackets(pattern: str) -> re.Match[str] | None:
    for match in _LETTER_SET.finditer(pattern):
        letters = match["set"]
        if "-" in letters:
            continue
        ends = pattern[: match.start()][-1:] + pattern[match.end() :][:1]
        stands_alone = len(letters) > 3 and not set(ends) - set('|( ^)."$') and list(letters) != sorted(letters)
        if len(set(letters)) < len(letters) or (stands_alone and not set(letters.upper()) <= set("KMGTPEBI")):
            return match
    return None


def quoted_glob(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find patterns of file names in quotes, where a program gets them as they are."""
    for call in document.calls:
        if re.fullmatch(rule.command, call.program) and "ssh" not in call.within:
            for word in call.words:
                is_path = not re.match(r"-|.*[\n;|]|.*\$\(", word.text)
                if is_path and (quoted := re.search(r"\"([^\"]*[*?][^\"]*)\"|'([^']*[*?][^']*)'", word.raw)):
                    directory, slash, name = (quoted[1] or quoted[2]).rpartition("/")
                    new = f'"{directory}{slash}"{name}' if directory and "*" not in directory else word.text
                    yield call_hit(call, word.start, name=call.program, value=word.text, new=new)


def broken_continuation(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find options on a line of their own, which the line above does not reach."""
    lines = document.lines
    for call in document.calls:
        if call.program.startswith("--") and not call.index and not call.outer:
            number = lines.number(call.start) - 1
            is_comment = lines.line(number).lstrip().startswith("#")
            while lines.line(number).lstrip().startswith("#"):
                number -= 1
            above = lines.line(number)
            if re.search(r"\\[ \t]+$", above) or (is_comment and above.rstrip().endswith("\\")):
                yield call_hit(call, name=call.program)


def empty_path_element(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find search paths that get an empty element, the working directory, when the variable was not set before."""
    set_before: set[tuple[str, int]] = set()
    for setting in document.settings:
        if setting.name not in rule.names or rule.how not in ("", setting.how):
            continue
        value = setting.value.strip("\"'")
        expanded = rf"\$(?:{setting.name}|\{{{setting.name}(?::?-)?\}})"
        joined = re.search(rf"(?:^|:){expanded}:|:{expanded}(?:$|:)", value)
        if (joined and (setting.name, setting.block) not in set_before) or re.search(r"^:|::|:$", value):
            yield setting_hit(setting)
        if value and not re.fullmatch(expanded, value):
            set_before.add((setting.name, setting.block))


_UNREPLACED = re.compile(
    r"(?:^|[^\w.])(?P<path>/path/to(?:/|\b)\S*)|(?P<dots>(?<=/)\.\.\.(?=/|$))"
    r"|(?:^|(?<=[/<{\[=\"' :@(,]))(?P<your>my[-_][a-z][\w-]*[-_](?:here|key|token|host|ip)\b"
    r"|your[-_][a-z]\w*|YOUR_[A-Z]\w*|CHANGE_?ME|REPLACE_?(?:ME|WITH_\w+)|hf_[xX.]{3,}\w*|sk-[xX.]{3,}|x{6,}|(?:xx?x?\.){2,}x+)"
)
_TOKENS = re.compile(r"<(?:IMAGE|VIDEO|AUDIO|FILE|NAME|USER|MODEL)>", re.IGNORECASE)


def _unreplaced(text: str) -> re.Match[str] | None:
    return PLACEHOLDER.search(text) or _UNREPLACED.search(text) if len(text) < 20_000 else None


def placeholder(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find what the reader was to replace: `/path/to/…`, `<PORT>`, `YOUR_TOKEN`, `a/.../b`; the first on each line."""
    lines: set[int] = set()
    for fragment, begin, within in _literals(document):
        match = _unreplaced(fragment.text)
        if match and not _TOKENS.fullmatch(fragment.text):
            start = fragment.offsets[min(match.start(), len(fragment.offsets) - 1)]
            if document.lines.number(start) not in lines:
                lines.add(document.lines.number(start))
                value = next((group for group in match.groups() if group), match.group())
                yield Hit(start=start, begin=begin, within=within, fields={"value": value})


def _literals(document: Document) -> Iterator[tuple[Fragment, int, frozenset[str]]]:
    for call in document.calls:
        if not (call.outer or call.program in ("echo", "printf", "grep", "sed", "awk", "rg") or "prose" in call.within):
            yield from ((word, call.start, call.within) for word in call.words)
    for setting in document.settings:
        if "prose" not in setting.within:
            yield Fragment(setting.value, [setting.start]), setting.start, setting.within
    yield from ((string, string.start, frozenset()) for string in document.strings if len(string.text) < 4000)


_SECRET_NAME = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|SECRET_KEY|API_?KEY|ACCESS_KEY(?:_ID)?|AUTH_TOKEN|TOKEN|WANDB_KEY)$"
)
_TOKEN_SHAPE = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|ghp_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16})\b")
_NOT_SECRET = re.compile(r"[$`<>{}*]|^/|^https?:|xxx|\.\.\.|…|^(?i:true|false|none|null|dummy|empty)$|^.{0,5}$")


def secret_in_clear(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find passwords and tokens that are written out; their values are not repeated."""
    if document.kind == "env":
        return
    for setting in document.settings:
        value = setting.value.strip("\"'")
        if _SECRET_NAME.search(setting.name) and not _NOT_SECRET.search(value) and not _unreplaced(value):
            yield Hit(start=setting.start, within=setting.within, fields={"name": setting.name})
    for call in document.calls:
        for word in call.words if not call.outer else ():
            if match := _TOKEN_SHAPE.search(word.text):
                yield call_hit(call, word.offsets[match.start()], name=match.group()[:3] + "…")


# ---- packages ----

_COMPILED = re.compile(r"flash[-_]attn|transformer[-_]engine|apex|deep[-_]ep")  # have a rule of their own
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?(?P<bound>.*)", re.DOTALL)
_WITH_VALUE = re.compile(
    r"-[iftrcCbdp]|--[^=]*(?:index|url|links|host|python|prefix|target|root|platform|constraint|requirement|dir)"
)
_CONSTRAINED = ("--no-deps", "-c", "--constraint", "--target", "--dry-run")
_STACK_IMAGE = re.compile(r"verl|slime|vllm|sglang|openrlhf|nemo|pytorch|megatron|swift|llamafactory|axolotl", re.I)


def _requirements(call: Call) -> Iterator[tuple[str, str, int]]:
    """Yield name, bound and place of what a `pip install` asks for by name."""
    skip = False
    for word in call.words if call.values[:1] == ["install"] else ():
        is_option = word.text.startswith("-")
        if not skip and not is_option and word.text != "install":
            match = _REQUIREMENT.fullmatch(word.text)
            if match and "/" not in word.text and not word.text.endswith((".whl", ".gz", ".txt")):
                yield match["name"], match["bound"], word.start
        skip = not skip and is_option and _WITH_VALUE.fullmatch(word.text) is not None


def unpinned(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find installs that may replace what the image matched to its CUDA, driver and torch."""
    if any(setting.name in ("PIP_CONSTRAINT", "UV_CONSTRAINT") for setting in document.settings):
        return
    has_stack = any(_STACK_IMAGE.search(image.name) for image in document.images)
    for call in document.calls_of("pip"):
        if call.argument(*_CONSTRAINED):
            continue
        wanted = list(_requirements(call))
        upgrade = call.argument("-U", "--upgrade", "--force-reinstall")
        decides_torch = any(name == "torch" and "==" in bound for name, bound, _start in wanted)
        loose = [
            (name, start)
            for name, bound, start in wanted
            if not (decides_torch and name.startswith("torch"))
            and (re.fullmatch(rule.name, name, re.I) or (upgrade and name == "ray"))
            and not _COMPILED.fullmatch(name)
            and not re.search(r"==|<|~=|@|\$", bound)
        ]
        is_wheel = any(value.endswith(".whl") for value in call.values)
        reinstalled = [word for word in call.words if word.text in ("-e", "--force-reinstall") and not is_wheel]
        if loose:
            yield call_hit(call, loose[0][1], name=", ".join(name for name, _start in loose))
        elif has_stack and reinstalled and call.values[:1] == ["install"]:
            yield call_hit(call, reinstalled[0].start, name=f"pip {' '.join(call.values)}")


def redirected_bound(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find version bounds without quotes, which a shell takes for a redirection."""
    for call in document.calls_of("pip", "uv add", "uv tool", "conda install", "conda create"):
        for operator, word in call.pipeline.commands[call.index].redirects:
            if operator in ("<", ">") and re.match(r"=?\d", word.text):
                yield call_hit(call, word.start, value=f"{operator}{word.text}")


def isolated_build(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find builds of extensions that cannot see the torch that they are built for."""
    if any(setting.name in ("PIP_NO_BUILD_ISOLATION", "UV_NO_BUILD_ISOLATION") for setting in document.settings):
        return
    for call in document.calls_of("pip"):
        if not call.argument("--no-build-isolation", "--only-binary", "--no-build-isolation-package"):
            for name, bound, start in _requirements(call):
                if _COMPILED.fullmatch(name) and "@" not in bound:
                    yield call_hit(call, start, name=name)


# ---- Ray ----

_WORKER_PORTS = range(10002, 20000)  # Ray's own choice for its workers
# `<temp>/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store` is a Unix socket: 107 bytes at most.
_SOCKET_TAIL = len("/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")


def _port(document: Document, argument: Argument | None) -> int:
    value = document.resolve(argument.value, argument.start) if argument else ""
    return whole_number(value, digits=5) or 0


def ray_ports(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find ports of Ray's services inside the range that it gives to its workers."""
    for call in document.calls_of("ray start"):
        low = _port(document, call.argument("--min-worker-port")) or _WORKER_PORTS.start
        high = _port(document, call.argument("--max-worker-port")) or _WORKER_PORTS.stop - 1
        for argument in call.arguments if not call.argument("--worker-port-list") else ():
            port = _port(document, argument) if argument.name in rule.names else 0
            if low <= port <= high:
                yield call_hit(call, argument.start, name=argument.name, value=str(port))


def service_ports(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find ports of other services inside that range, where Ray is started with it."""
    starts = list(document.calls_of("ray start"))
    if not starts or any(call.argument("--min-worker-port", "--worker-port-list") for call in starts):
        return
    words = {document.resolve(word.text, word.start) for call in starts for word in call.words}
    for setting in document.settings:
        value = setting.value.strip("\"'")
        is_taken_by_ray = any(value in word for word in words)  # the other rule says it
        is_port = setting.name.endswith("PORT") or setting.name.startswith("ports.")
        if is_port and whole_number(value, digits=5) in _WORKER_PORTS and not is_taken_by_ray:
            yield setting_hit(setting)
    for call in document.calls:
        if call.program not in ("ray start", "ssh", "scp", "docker run", "curl"):
            argument = call.argument("--port")
            if argument and whole_number(argument.value) and _port(document, argument) in _WORKER_PORTS:
                yield call_hit(call, argument.start, name=argument.name, value=argument.value)


def long_temp_dir(document: Document, rule: DriftRule, versions: Versions) -> Iterator[Hit]:
    """Find directories that are too long for Ray's sockets below them."""
    hits = [setting_hit(setting) for setting in document.settings if setting.name in rule.names]
    for call in document.calls_of("ray start"):
        if argument := call.argument("--temp-dir"):
            hits.append(call_hit(call, argument.start, value=argument.value))
    for hit in hits:
        path = document.resolve(hit.fields["value"], hit.start)
        size = len(re.sub(r"\$\w+|\$\{[^}]*\}|\{[\w.]+\}", "", path).rstrip("/").encode())
        if size > 107 - _SOCKET_TAIL:
            fields = {"value": path, "size": str(size + _SOCKET_TAIL), "most": str(107 - _SOCKET_TAIL)}
            yield Hit(start=hit.start, begin=hit.begin, within=hit.within, fields=fields)
