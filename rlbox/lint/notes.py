"""Notes in Markdown: the commands of their fences, and what the prose around them recommends."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping

from rlbox.lint.document import PROSE, Document, Image
from rlbox.lint.text import Fragment, join

Readers = Mapping[str, Callable[[Document, Fragment], None]]
"""What reads a fence of a format."""
_LONGEST = 2_000  # characters of a line of prose; a longer one is data
_FENCE = re.compile(r"(?P<margin>[ \t>]*)(?P<fence>`{3,}|~{3,})[ \t]*\{?[.]?(?P<language>[\w+#.-]*)")
_FORMATS = {
    **dict.fromkeys(("bash", "sh", "zsh", "ksh", "fish", "shellscript", "dotenv", "slurm"), "shell"),
    **dict.fromkeys(("console", "shell-session", "sh-session", "terminal", "session", "bash-session"), "shell"),
    **dict.fromkeys(("ps1", "pwsh", "ps", "posh"), "powershell"),
    **dict.fromkeys(("py", "python3"), "python"),
    **dict.fromkeys(("", "text", "txt", "plaintext"), "any"),
    "docker": "dockerfile",
    "jsonc": "json",
    "yml": "yaml",
    "env": "shell",
}
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
_WARNING = re.compile(
    r"\b(?:not|never|no longer|don't|doesn't|isn't|instead|avoid|wrong|deprecated|removed|renamed|replaced|obsolete"
    r"|fails?|broken|invalid|unset|ignored?|rather than|bad|error|was|were|used to|without|forbidden|pitfall)\b"
    r"|n't\b|->|→|✗|❌"
    r"|不|勿|禁|废|弃|改用|改为|替代|错误|无效|避免|不再|报错|失败",
    re.IGNORECASE,
)
_NAME_COLUMN = re.compile(r"参数|变量|parameter|variable|\benv|setting|option|名称|\bname\b", re.IGNORECASE)
_VALUE_COLUMN = re.compile(r"值|默认|推荐|建议|调优|设置|value|default|recommend|tune|set to", re.IGNORECASE)
_IMAGE_COLUMN = re.compile(r"镜像|\bimage\b", re.IGNORECASE)
_IMAGE = re.compile(r"[a-z0-9][\w.-]*(?:[/:][\w.-]+)*/[\w.-]+:[\w.-]+")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_\w+")


def read_notes(document: Document, source: Fragment, readers: Readers) -> None:
    """Read notes: what stands in fences by its language, and what the prose around them sets or runs."""
    lines = source.lines()
    i = 0
    while i < len(lines):
        fence = _FENCE.match(lines[i].text)
        if fence is None:
            i = _read_prose(document, lines, i)
            continue
        closing = re.compile(rf"[ \t>]*{re.escape(fence['fence'][0])}{{{len(fence['fence'])},}}[ \t]*$").match
        end = next((n for n in range(i + 1, len(lines)) if closing(lines[n].text.rstrip("\n"))), len(lines))
        body = lines[i + 1 : end]
        i = end + 1
        if body:
            lines_inside = [_without_margin(line, fence["margin"]) for line in body]
            _read_fence(document, lines_inside, fence["language"].lower(), readers)


def _without_margin(line: Fragment, margin: str) -> Fragment:
    """Return a line without the margin that its fence has: indentation, or the marks of a quotation."""
    if line.text.startswith(margin):
        return line.cut(len(margin))
    quoted = re.match(r"[ \t>]*", line.text) if ">" in margin else None
    return line.cut(quoted.end()) if quoted else line


def _read_fence(document: Document, body: list[Fragment], language: str, readers: Readers) -> None:
    kind = _FORMATS.get(language, language)
    if kind == "shell":
        document.add_shell(join(_typed_lines(body, _prompt) or body))
    elif kind in readers:
        readers[kind](document, join(body))
    elif kind == "any":  # the lines of it that are commands, and images that stand alone
        typed = _typed_lines(body, lambda text: is_command_text(text.strip()))
        for line in body:
            if line not in typed and _IMAGE.fullmatch(text := line.text.strip()):
                document.images.append(Image(text, line.offsets[line.text.index(text)]))
        if typed:
            document.add_shell(join(typed))


def _prompt(text: str) -> re.Match[str] | None:
    return _PROMPT.match(text[:200])


def _typed_lines(body: list[Fragment], begins: Callable[[str], object]) -> list[Fragment]:
    """Return the lines that begin a command, without their prompts, and those that continue one."""
    typed: list[Fragment] = []
    is_continued = False
    for line in body:
        if is_continued or begins(line.text):
            prompt = _prompt(line.text)
            typed.append(line.cut(prompt.end() if prompt else 0))
            is_continued = line.text.rstrip().endswith("\\")
    return typed


def is_command_text(text: str) -> bool:
    """Whether a line or a span of a text is a command or a setting rather than words about one."""
    prompt = _prompt(text)
    text = text[prompt.end() :] if prompt else text
    if _EXPORT.match(text):
        return not _SENTENCE.search(text)
    return bool(_PROGRAM.match(text)) and not _SENTENCE.search(text.partition(" #")[0])


def _read_prose(document: Document, lines: list[Fragment], i: int) -> int:
    """Read what stands outside fences from line `i` on; return the number of the line to go on with."""
    line = lines[i]
    below = lines[i + 1].text[:_LONGEST] if i + 1 < len(lines) else ""
    if line.text.lstrip(" >").startswith("|") and re.match(r"[ >]*\|?[ :|-]*-[ :|-]*$", below):
        return _read_table(document, lines, i)
    text = line.text.strip()
    is_typed = _prompt(line.text) or text.startswith("export ") or _EXPORT.match(text)
    if (is_typed or line.text.startswith(("    ", "\t"))) and is_command_text(text):
        end = i + 1
        while end < len(lines) and lines[end - 1].text.rstrip().endswith("\\"):
            end += 1
        prompt = _prompt(line.text)
        document.add_shell(join([line.cut(prompt.end() if prompt else 0), *lines[i + 1 : end]]), PROSE)
        return end
    if not text.startswith("#") and not _WARNING.search(_SPAN.sub("", line.text)):
        for span in _SPAN.finditer(line.text):
            if is_command_text(span["text"].strip()):
                document.add_shell(line.cut(*span.span("text")), PROSE)
    return i + 1


def _read_table(document: Document, lines: list[Fragment], i: int) -> int:
    """Read a table whose head says that its rows give parameters and values, or images."""
    head = [cell.text for cell in _cells(lines[i])]
    has_values = bool(head) and bool(_NAME_COLUMN.search(head[0])) and any(map(_VALUE_COLUMN.search, head[1:]))
    images = {number for number, cell in enumerate(head) if _IMAGE_COLUMN.search(cell)} | ({1} if has_values else set())
    i += 2
    while i < len(lines) and lines[i].text.lstrip(" >").startswith("|"):
        cells = _cells(lines[i])
        spans = [_SPAN.search(cell.text) for cell in cells]
        for number, (cell, span) in enumerate(zip(cells, spans, strict=True)):
            if span and number in images and _IMAGE.fullmatch(span["text"]):
                document.images.append(Image(span["text"], cell.offsets[span.start("text")], PROSE))
        name = _SPAN.fullmatch(cells[0].text.strip("* ")) if cells and has_values else None
        if name and _VARIABLE.fullmatch(name["text"]) and not _WARNING.search(lines[i].text):
            document.block += 1
            start = cells[0].offsets[cells[0].text.index(name["text"])]
            value = spans[1]["text"] if spans[1:] and spans[1] else cells[1].text.strip() if cells[1:] else ""
            document.add_setting(name["text"], value, start, "table", PROSE)
        i += 1
    return i


def _cells(row: Fragment) -> list[Fragment]:
    bars = [match.start() for match in re.finditer(r"(?<!\\)\|", row.text)]
    return [row.cut(start + 1, end) for start, end in itertools.pairwise(bars)]
