"""How a text is told by templates: the right one, its places, joints, columns; and which language is meant."""

from __future__ import annotations

import io
import re
import sys

import pytest
from click.testing import CliRunner
from rich.text import Text

from rlbox.cli.root import root, run_root
from rlbox.cli.verbs import VERBS
from rlbox.messages.catalogue import Messages
from rlbox.messages.language import LANGUAGES, PSEUDO, language_of, messages, teller
from rlbox.messages.layout import cells_told, wrapped
from rlbox.messages.template import PLACE
from rlbox.printable import isolated
from rlbox.report.act.run_view import told_line

ZH = {
    "rlbox: error: {error}": "rlbox: 错误：{error!}",
    "unknown job '{name}'{hint}": "没有名为 '{name}' 的任务{hint!}",
    "did you mean '{near}'?": "是否指 '{near}'？",
    "{count} of {total} files": "{total} 个文件中的 {count} 个",
    "{name} and {other}": "{name} 和 {other}",
    "{count} refusal{s}": "{count} 处拒绝",
    "nothing was loaded": "未加载任何内容",
    "free space there": "请在该处腾出空间",
    "the file": "该文件",
    "{what} cannot be read": "{what!} 无法读取",
    "this would {would}": "将会{would!}",
    "start {count} stages": "启动 {count} 个阶段",
    "where": "位置",
    "next": "下一步",
    "running": "进行中",
    ": ": "：",
    ":": "：",
    "(": "（",
    "; ": "；",
    ", ": "，",
    " (": "（",
    ")": "）",
    ".": "。",
}


@pytest.fixture(scope="module")
def zh() -> Messages:
    """A small catalogue."""
    return Messages(ZH)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nothing was loaded", "未加载任何内容"),
        ("nothing was loaded.", "未加载任何内容。"),
        ("unknown job 'smok' (did you mean 'smoke'?)", "没有名为 'smok' 的任务 （是否指 'smoke'？）"),
        ("unknown job 'the file'", "没有名为 'the file' 的任务"),  # what is quoted is a name
        ("3 of 7 files", "7 个文件中的 3 个"),
        ("the file cannot be read", "该文件 无法读取"),  # a message in a message
        ("1 refusal", "1 处拒绝"),
        ("2 refusals", "2 处拒绝"),
        ("this would start 3 stages", "将会启动 3 个阶段"),
        ("rlbox: error: the file cannot be read; free space there", "rlbox: 错误：该文件 无法读取；请在该处腾出空间"),
        ("  next:  free space there", "  下一步：请在该处腾出空间"),
        ("# nothing was loaded", "# 未加载任何内容"),
        ("/data/the file", "/data/the file"),  # a path
        ("salt of many and pepper of few, in a log", "salt of many and pepper of few, in a log"),
        (f"where  {isolated('1 of 2 files (the file): nothing')}", "位置  1 of 2 files (the file): nothing"),
        (f"the file {isolated('the file')}", "该文件 the file"),
        ("a line that nobody here wrote", "a line that nobody here wrote"),
        ("", ""),
        ("   ", "   "),
        ("---", "---"),
        ("nothing was loaded\n\nthe file", "未加载任何内容\n\n该文件"),
    ],
)
def test_a_text_is_told(zh: Messages, text: str, told: str) -> None:
    assert zh.told(text) == told


def test_the_longest_message_is_meant() -> None:
    one = Messages(
        {"{a} of {b}": "乙", "run of {job} on {target}, place {place}": "{job} 在 {target} 上，{place}", "place": "位"}
    )
    assert one.told("run of smoke on local, place docker") == "smoke 在 local 上，docker"


def test_columns_stay_where_they_are(zh: Messages) -> None:
    rows = ["name   running     8 GiB", "other  ready       9 GiB"]
    told = zh.told("\n".join(rows)).split("\n")
    assert told == ["name   进行中      8 GiB", "other  ready       9 GiB"]


def test_a_cell_that_grows_moves_the_next() -> None:
    assert cells_told("a  b", lambda cell: cell * 5) == "aaaaa  bbbbb"


def test_a_column_that_grows_moves_the_next_in_all_its_lines() -> None:
    rows = ["head     b    3.5 GB", "a thing  b   12.0 GB", "# one    c     1 GB", "", "x    y"]
    told = cells_told("\n".join(rows), lambda cell: cell.replace("head", "head of it").replace("# one", "项"))
    lines = ["head of it  b    3.5 GB", "a thing     b   12.0 GB", "项          c     1 GB", "", "x    y"]
    assert told.split("\n") == lines


def test_lines_break_by_what_letters_are_wide() -> None:
    lines = wrapped("每个目标一份规格，全部修复均已固化。 rlbox run smoke", 12)
    assert "".join(lines).replace(" ", "") == "每个目标一份规格，全部修复均已固化。rlboxrunsmoke"
    assert all(Text(line).cell_len <= 12 for line in lines)
    assert not any(line.startswith(("，", "。")) for line in lines)


def test_a_styled_line_keeps_its_styles(zh: Messages) -> None:
    line = Text("  train  ")
    line.append("running", style="cyan")
    told = told_line(line, zh.told, 40)
    assert told.plain == "  train  进行中"
    assert [(told.plain[span.start : span.end], span.style) for span in told.spans if span.style] == [
        ("进行中", "cyan")
    ]
    assert told_line(line, zh.told, 11).cell_len <= 11


@pytest.mark.parametrize(
    ("words", "env", "language"),
    [
        ((), {}, "en"),
        ((), {"LANG": "zh_CN.UTF-8"}, "zh"),
        ((), {"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ((), {"LANG": "de_DE.UTF-8", "RLBOX_LANG": "zh"}, "zh"),
        ((), {"LANG": "de_DE.UTF-8"}, "en"),
        (("run", "--lang", "en"), {"RLBOX_LANG": "zh"}, "en"),
        (("run", "--lang=zh"), {}, "zh"),
        (("shell", "local", "--", "prog", "--lang=zh"), {}, "en"),
        (("run", "--lang"), {}, "en"),
    ],
)
def test_the_language_that_is_meant(words: tuple[str, ...], env: dict[str, str], language: str) -> None:
    assert language_of(words, env) == language


def test_english_is_what_the_code_says() -> None:
    assert teller("en")("the file") == "the file"


@pytest.mark.parametrize("language", [*LANGUAGES[1:], PSEUDO])
def test_help_is_told(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLBOX_LANG", language)
    said = CliRunner().invoke(root, ["run", "--help"], prog_name="rlbox").output
    assert "Take RUN up again" not in said
    assert "--resume RUN" in said
    assert all(Text(line).cell_len <= 100 for line in said.splitlines())


def test_a_terminal_without_the_letters_is_told_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLBOX_LANG", "zh")
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), "ascii"))
    run_root(["nosuch"])
    sys.stderr.flush()
    assert b"unknown verb 'nosuch'" in sys.stderr.buffer.getvalue()  # type: ignore[attr-defined]


def test_every_half_has_the_places_of_the_other() -> None:
    """One behind a letter makes an English plural, and may go; one that is there twice may stand once."""
    wrong = []
    for english, other in messages("zh").items():
        needed = {name.rstrip("0123456789") for name in PLACE.findall(re.sub(r"(?<=\w)\{\w+\}", "", english))}
        there = {name.rstrip("0123456789") for name in PLACE.findall(other or "")}
        if other and not (needed <= there and set(PLACE.findall(other)) <= set(PLACE.findall(english))):
            wrong.append((english, other))
    assert wrong == []


COMMAND = re.compile(rf"rlbox (?:{'|'.join(VERBS)})\b(?: (?:--?[\w-]+|\{{\w+\}}|[A-Z]{{2,}}))*")


def test_a_command_is_the_same_in_both_halves() -> None:
    """Nothing in a command is told: neither its words nor what stands in its places."""
    wrong = []
    for english, other in messages("zh").items():
        commands = [hit[0] for hit in COMMAND.finditer(english) if "that rlbox" not in english]
        wrong += [(one, other) for one in commands if other and one not in other]
    assert wrong == []
