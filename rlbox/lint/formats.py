"""Read a document by its format: Dockerfiles, notes with commands in them, scripts, data files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from rlbox.foreign import toml_table
from rlbox.lint.data_files import parse_json_words, parse_toml, read_yaml
from rlbox.lint.document import Document
from rlbox.lint.reader import Reader
from rlbox.lint.shell import read_shell
from rlbox.lint.text import Lines, Piece, join

_INSTRUCTION = re.compile(r"\s*(?P<name>[A-Za-z]+)[ \t]+")
_STEP_OPTIONS = re.compile(r"(?:--[a-z][a-z-]*=\S+\s+)*")
_HEREDOC = re.compile(r"<<-?[\"']?(\w+)[\"']?")
_STEP = frozenset({"image"})
_FROM = re.compile(r"(?:--platform=\S+\s+)?(?P<image>\S+)(?:\s+AS\s+(?P<stage>\S+))?", re.IGNORECASE)


def read_dockerfile(reader: Reader, piece: Piece) -> None:
    """Read a Dockerfile, as far as it goes."""
    _Dockerfile(reader, piece).read()


class _Dockerfile:
    def __init__(self, reader: Reader, piece: Piece) -> None:
        self.reader, self.lines = reader, piece.lines()
        self.i = 0
        self.stages = {"scratch"}

    def read(self) -> None:
        first = self.lines[0] if self.lines else Piece("", [0])
        if re.match(r"#\s*syntax\s*=", first.text):
            self.reader.document.flags.append(("syntax", first.at[0]))
        while self.i < len(self.lines):
            line = self._logical()
            if hit := _INSTRUCTION.match(line.text):
                self._instruction(hit["name"].upper(), line.cut(hit.end(), len(line.text)))

    def _logical(self) -> Piece:
        """Return the next line with those that continue it, and without comments between them."""
        parts: list[Piece] = []
        while self.i < len(self.lines):
            line = self.lines[self.i]
            self.i += 1
            if line.text.lstrip().startswith("#"):
                if not parts:
                    return Piece("", [0])
                continue
            if parts and not line.text.strip():  # an empty line ends no instruction
                continue
            parts.append(line)
            if not line.text.rstrip().endswith("\\"):
                break
        return join(parts) if parts else Piece("", [0])

    def _instruction(self, name: str, rest: Piece) -> None:
        if name == "FROM":
            self._from(rest)
        elif name == "ARG":
            hit = re.match(r"(\w+)=[\"']?([^\"'\s]*)", rest.text)
            if hit:
                self.reader.document.names.note(hit.group(1), hit.group(2), rest.at[0])
        elif name == "ENV":
            self._env(rest)
        elif name == "ONBUILD" and (hit := _INSTRUCTION.match(rest.text)):
            self._instruction(hit["name"].upper(), rest.cut(hit.end(), len(rest.text)))
        elif name in ("RUN", "CMD", "ENTRYPOINT"):
            self._run(rest, _STEP if name == "RUN" else _STEP | {"entry"})
        elif name == "HEALTHCHECK" and (hit := re.search(r"\bCMD\s+", rest.text)):
            self._run(rest.cut(hit.end(), len(rest.text)), _STEP | {"healthcheck"})
        elif name == "SHELL" and "pipefail" in rest.text:
            self.reader.document.flags.append(("pipefail", rest.at[0]))

    def _from(self, rest: Piece) -> None:
        hit = _FROM.match(rest.text)
        if hit is None:
            return
        start = rest.at[hit.start("image")]
        image = self.reader.document.names.resolve(hit["image"], start)
        if hit["stage"]:
            self.stages.add(hit["stage"].lower())
        if image.lower() not in self.stages:
            self.reader.image(image, start)

    def _env(self, rest: Piece) -> None:
        self.reader.block += 1
        hit = re.match(r"(\w+)[ \t]+(?!\\\n)", rest.text)
        if hit:
            self.reader.set(hit.group(1), rest.text[hit.end() :].strip(), rest.at[0], "dockerfile")
            return
        for pipeline in read_shell(rest, powershell=False).pipelines:
            for word in pipeline.commands[0].assigns:
                name, _, value = word.value.partition("=")
                self.reader.set(name, value, word.start, "dockerfile")

    def _run(self, rest: Piece, within: frozenset[str]) -> None:
        hit = _STEP_OPTIONS.match(rest.text)
        rest = rest.cut(hit.end(), len(rest.text)) if hit else rest
        if words := parse_json_words(self.reader, rest):
            self.reader.argv(words, within)
            return
        marks = _HEREDOC.findall(rest.text)
        body = [rest]
        for mark in marks:
            while self.i < len(self.lines):
                line = self.lines[self.i]
                self.i += 1
                body.append(line)
                if line.text.strip() == mark:
                    break
        if marks and rest.text.lstrip().startswith("<<"):  # the here-document is the step itself
            body = body[1:-1] or [Piece("", [rest.at[0]])]
        self.reader.shell(join(body), within, powershell=False)


_LONGEST = 2_000  # characters of a line of prose; a longer one is data
_FENCE = re.compile(r"(?P<margin>[ \t>]*)(?P<fence>`{3,}|~{3,})[ \t]*\{?[.]?(?P<language>[\w+#.-]*)")
_SHELL = {"bash", "sh", "shell", "zsh", "ksh", "fish", "shellscript", "env", "dotenv", "slurm"}
_CONSOLE = {"console", "shell-session", "sh-session", "terminal", "session", "bash-session"}
_POWERSHELL = {"powershell", "ps1", "pwsh", "ps", "posh"}
_PROMPT = re.compile(r"[ \t]*(?:\([\w.-]+\)[ \t]*)?(?:[\w.-]+@[\w.-]+[:~/\w.-]*)?[$%][ \t]+")
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(?P<text>[^`\n]+)\1(?!`)")
_PROGRAM = re.compile(
    r"(?:sudo |(?:[A-Z][A-Z0-9_]*=\S* )+)?(?:ray|python3?|pip3?|uv|conda|mamba|docker|podman|torchrun|deepspeed"
    r"|accelerate|vllm|bash|sh|source|export|curl|wget|ssh|scp|rsync|pkill|killall|kill|grep|tail|cat|cd|ls|ln|cp|mv|rm|du|tmux|git"
    r"|apt|apt-get|huggingface-cli|hf|wandb|vastai|env|ps|srun|sbatch|kubectl|ulimit|nvidia-smi|watch|make|unset|set"
    r"|[a-z]+:)[ \t]+\S"
)
_EXPORT = re.compile(r"(?:export[ \t]+|ENV[ \t]+|-e[ \t]+)?[A-Z][A-Z0-9]*_\w+=\S")
# A sentence that begins with a program's name is none of its commands.
_SENTENCE = re.compile(
    r"[.。，,;:；：!?！？]$|(?:^|\s)(?:is|are|was|the|a|an|of|to|not|does|do|will|can|must|should|when|which|that|with|for"
    r"|and|or|on|by|has|have|it|this|you|your|no|only|never|before|after)(?:\s|$)|[一-鿿]"
)
# What a sentence warns of is not what it recommends.
_WARNED = re.compile(
    r"\b(?:not|never|no longer|don't|doesn't|isn't|instead|avoid|wrong|deprecated|removed|renamed|replaced|obsolete"
    r"|fails?|broken|invalid|unset|ignored?|rather than|bad|error|was|were|used to|without|forbidden|pitfall)\b"
    r"|n't\b|->|→|✗|❌"
    r"|不|勿|禁|废|弃|改用|改为|替代|错误|无效|避免|不再|报错|失败",
    re.IGNORECASE,
)
_NAMED = re.compile(r"参数|变量|parameter|variable|\benv|setting|option|名称|\bname\b", re.IGNORECASE)
_GIVEN = re.compile(r"值|默认|推荐|建议|调优|设置|value|default|recommend|tune|set to", re.IGNORECASE)
_IMAGED = re.compile(r"镜像|\bimage\b", re.IGNORECASE)
_IMAGE = re.compile(r"[a-z0-9][\w.-]*(?:[/:][\w.-]+)*/[\w.-]+:[\w.-]+")
_NAME = re.compile(r"[A-Z][A-Z0-9]*_\w+")
PROSE = frozenset({"prose"})
READERS: dict[str, Callable[[Reader, Piece], None]] = {
    "dockerfile": read_dockerfile,
    "json": read_yaml,
    "python": lambda reader, piece: reader.python(piece, "file"),
    "toml": parse_toml,
    "yaml": read_yaml,
}
"""What reads a file, or a fence, of a format that is no shell's."""
_ALIASES = {"docker": "dockerfile", "jsonc": "json", "py": "python", "python3": "python", "yml": "yaml"}


def read_notes(reader: Reader, piece: Piece) -> None:
    """Read notes: what stands in fences by its language, and what the prose around them sets or runs."""
    lines = piece.lines()
    i = 0
    while i < len(lines):
        hit = _FENCE.match(lines[i].text)
        if hit is None:
            i = _prose(reader, lines, i)
            continue
        body: list[Piece] = []
        i += 1
        closing = re.compile(rf"[ \t>]*{re.escape(hit['fence'][0])}{{{len(hit['fence'])},}}[ \t]*$")
        while i < len(lines) and not closing.match(lines[i].text.rstrip("\n")):
            body.append(_without(lines[i], hit["margin"]))
            i += 1
        i += 1
        if body:
            _fenced(reader, body, hit["language"].lower())


def _without(line: Piece, margin: str) -> Piece:
    """Return a line without the margin that its fence has: indentation, or the marks of a quotation."""
    if line.text.startswith(margin):
        return line.cut(len(margin), len(line.text))
    quoted = re.match(r"[ \t>]*", line.text) if ">" in margin else None
    return line.cut(quoted.end(), len(line.text)) if quoted else line


def _fenced(reader: Reader, body: list[Piece], language: str) -> None:
    language = _ALIASES.get(language, language)
    if language in READERS:
        READERS[language](reader, join(body))
    elif language in _POWERSHELL:
        reader.shell(join(body), frozenset({"powershell"}))
    elif language in _SHELL or language in _CONSOLE:
        reader.shell(join(_typed(body, _prompt) or body))
    elif not language or language in ("text", "txt", "plaintext"):
        _loose(reader, body)


def _prompt(text: str) -> re.Match[str] | None:
    return _PROMPT.match(text[:200])


def _typed(body: list[Piece], begins: Callable[[str], object]) -> list[Piece]:
    """Return the lines that begin a command, without their prompts, and those that continue one."""
    taken: list[Piece] = []
    continued = False
    for line in body:
        if continued or begins(line.text):
            hit = _prompt(line.text)
            taken.append(line.cut(hit.end() if hit else 0, len(line.text)))
            continued = line.text.rstrip().endswith("\\")
    return taken


def _loose(reader: Reader, body: list[Piece]) -> None:
    """Read a fence that names no language: the lines of it that are commands, and images that stand alone."""
    taken = _typed(body, lambda text: is_command_text(text.strip()))
    for line in body:
        if line not in taken and _IMAGE.fullmatch(text := line.text.strip()):
            reader.image(text, line.at[line.text.index(text)])
    if taken:
        reader.shell(join(taken))


def is_command_text(text: str) -> bool:
    """Whether a line or a span of a text is a command or a setting rather than words about one."""
    hit = _prompt(text)
    text = text[hit.end() :] if hit else text
    if _EXPORT.match(text):
        return not _SENTENCE.search(text)
    return bool(_PROGRAM.match(text)) and not _SENTENCE.search(text.partition(" #")[0])


def _prose(reader: Reader, lines: list[Piece], i: int) -> int:
    """Read what stands outside fences from line `i` on; return the number of the line to go on with."""
    line = lines[i]
    if (
        line.text.lstrip(" >").startswith("|")
        and i + 1 < len(lines)
        and re.match(r"[ >]*\|?[ :|-]*-[ :|-]*$", lines[i + 1].text[:_LONGEST])
    ):
        return _table(reader, lines, i)
    text = line.text.strip()
    margin = len(line.text) - len(line.text.lstrip())
    typed = _prompt(line.text) or text.startswith("export ") or margin >= 4 or _EXPORT.match(text)
    if typed and is_command_text(text):
        end = i + 1
        while end < len(lines) and lines[end - 1].text.rstrip().endswith("\\"):
            end += 1
        prompt = _prompt(line.text)
        first = line.cut(prompt.end(), len(line.text)) if prompt else line
        reader.shell(join([first, *lines[i + 1 : end]]), PROSE)
        return end
    if not text.startswith("#") and not _WARNED.search(_SPAN.sub("", line.text)):
        for hit in _SPAN.finditer(line.text):
            if is_command_text(hit["text"].strip()):
                reader.shell(line.cut(hit.start("text"), hit.end("text")), PROSE)
    return i + 1


def _table(reader: Reader, lines: list[Piece], i: int) -> int:
    """Read a table whose head says that its rows give parameters and values, or images."""
    head = [cell.text for cell in _cells(lines[i])]
    named = bool(head) and bool(_NAMED.search(head[0])) and any(_GIVEN.search(cell) for cell in head[1:])
    imaged = [number for number, cell in enumerate(head) if _IMAGED.search(cell)]
    i += 2
    while i < len(lines) and lines[i].text.lstrip(" >").startswith("|"):
        cells = _cells(lines[i])
        for number, cell in enumerate(cells):
            span = _SPAN.search(cell.text)
            if span and _IMAGE.fullmatch(span["text"]) and (number in imaged or (named and number == 1)):
                reader.image(span["text"], cell.at[span.start("text")], PROSE)
        span = _SPAN.fullmatch(cells[0].text.strip("* ")) if cells and named else None
        if span and _NAME.fullmatch(span["text"]) and not _WARNED.search(lines[i].text):
            reader.block += 1
            start = cells[0].at[cells[0].text.index(span["text"])]
            value = cells[1].text.strip() if cells[1:] else ""
            given = _SPAN.search(value)
            reader.set(span["text"], given["text"] if given else value, start, "table", PROSE)
        i += 1
    return i


def _cells(line: Piece) -> list[Piece]:
    """Return the cells of a row."""
    marks = [hit.start() for hit in re.finditer(r"(?<!\\)\|", line.text)]
    return [line.cut(start + 1, end) for start, end in itertools.pairwise(marks)]


_SUFFIXES = {
    **dict.fromkeys(("sh", "bash", "zsh", "ksh", "slurm", "sbatch", "pbs", "bashrc", "profile"), "shell"),
    **dict.fromkeys(("md", "markdown", "rst", "txt", "mdx"), "notes"),
    **dict.fromkeys(("yaml", "yml"), "yaml"),
    **dict.fromkeys(("ps1", "psm1"), "powershell"),
    "py": "python",
    "toml": "toml",
    "json": "json",
    "env": "env",
    "mk": "make",
    "dockerfile": "dockerfile",
}


def detect_format(name: str, text: str) -> str:
    """Return the format of a document, by its name, else by its first lines."""
    return get_format_by_name(name) or _guess(text[:4000])


def get_format_by_name(name: str) -> str:
    """Return the format of a file by its name; empty when that says nothing."""
    base = name.replace("\\", "/").rsplit("/", 1)[-1].lower()
    if hit := re.match(r"(?:gnu)?(makefile)(?![a-z])|(dockerfile|containerfile)(?![a-z])", base):
        return "make" if hit.group(1) else "dockerfile"
    if base.startswith(".env"):
        return "env"
    return _SUFFIXES.get(base.rpartition(".")[2], "") if "." in base else ""


def _guess(text: str) -> str:
    first = text.lstrip().partition("\n")[0]
    if first.startswith("#!"):
        return "python" if "python" in first else "shell"
    if re.search(r"^[ \t>]*```", text, re.MULTILINE) or re.match(r"# .*\n+[^#\n]*[.。]", text):
        return "notes"
    if re.search(r"^FROM \S+", text, re.MULTILINE) and re.search(r"^(RUN|ENV|COPY|CMD|WORKDIR) ", text, re.MULTILINE):
        return "dockerfile"
    if first.startswith(("{", "[ ")):
        return "json"
    if re.match(r"\[{1,2}[\w.-]+\]{1,2}\s*(#.*)?$", first) or re.match(r"[\w.-]+ = [\"'\[{\d]", first):
        return "toml"
    if re.match(r"(import|from) \w+|def \w+\(|class \w+[(:]|\"\"\"", first):
        return "python"
    return "yaml" if re.match(r"(---|[\w-]+:(\s|$))", first) else "shell"


def _read_make(reader: Reader, piece: Piece) -> None:
    recipes = [line.cut(1, len(line.text)) for line in piece.lines() if line.text.startswith("\t")]
    if recipes:
        reader.shell(join(recipes), powershell=False)


_READERS: dict[str, Callable[[Reader, Piece], None]] = {
    **READERS,
    "env": lambda reader, piece: reader.shell(piece, powershell=False),
    "make": _read_make,
    "notes": read_notes,
    "powershell": lambda reader, piece: reader.shell(piece, frozenset({"powershell"})),
    "shell": lambda reader, piece: reader.shell(piece),
}


def read_document(name: str, text: str) -> Document:
    """Return what a text sets, runs and names; the end of a line may be either system's."""
    crlf = "\r\n" in text
    text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    document = Document(name=name, kind=detect_format(name, text), text=text, lines=Lines.of(text))
    if crlf and document.kind == "shell":
        document.flags.append(("crlf", 0))
    if get_format_by_name(name) == "toml" and (broken := _broken_at(document)) is not None:
        document.flags.append(("broken", broken))
    _READERS[document.kind](Reader(document), Piece.whole(text))
    return document


def _broken_at(document: Document) -> int | None:
    """Return where a TOML file ceases to be one; None for a whole one."""
    try:
        toml_table(document.text)
    except ValueError as error:
        place = re.search(r"at line (\d+), column", str(error))
        line = int(place[1]) if place else document.text.rstrip().count("\n") + 1
        return document.lines.starts[line - 1]
    return None
