"""Messages keep what they need to be printed in another language, and the translations are up to date with the code."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from fakes import CHECKOUT
from rich.cells import cell_len

from rlbox.cli.help import wrap_text_by_cell_width
from rlbox.cli.root import root, run_root
from rlbox.errors import SpecError
from rlbox.i18n import (
    EnglishMessage,
    _,
    detect_language,
    join,
    ngettext,
    parse_po,
    read_translations_and_set_language,
    translate,
)
from rlbox.i18n import _current as current


@pytest.fixture(autouse=True)
def chinese(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RLBOX_LANG", "zh")
    read_translations_and_set_language("zh")
    current.translations = {
        "no target {name}": "没有 target {name}",
        "{what} is {state:.1f}": "{what} 为 {state:.1f}",
        "the file": "该文件",
        "{count} files": "{count} 个文件",
    }
    yield
    read_translations_and_set_language("en")


def test_a_message_is_english_and_is_translated() -> None:
    message = _("no target {name}").format(name="x")
    assert (message, translate(message)) == ("no target x", "没有 target x")
    assert json.dumps({"what": message}) == '{"what": "no target x"}'


def test_a_message_that_is_filled_in_keeps_its_values() -> None:
    assert _("job {job} has no stage").format(job="sft").format(count=2) == "job sft has no stage"


def test_messages_in_messages_are_translated() -> None:
    message = _("{what} is {state:.1f}").format(what=_("the file"), state=2)
    assert translate(join("; ", ("{}", message + " (x)"))) == "{}; 该文件 为 2.0 (x)"
    assert str(message) + "" == "the file is 2.0"
    assert translate(_("no target {name}").format(name=ValueError(_("the file")))) == "没有 target 该文件"


def test_a_number_has_one_form() -> None:
    texts = [ngettext("{count} file", "{count} files", count).format(count=count) for count in (1, 2)]
    assert texts == ["1 file", "2 files"]
    entry = 'msgid "{count} file"\nmsgid_plural "{count} files"\nmsgstr[0] ""\n"{count} "\n"个"\n'
    assert parse_po(entry) == {"{count} file": "{count} 个", "{count} files": "{count} 个"}


def test_an_error_is_translated_with_where_and_next() -> None:
    error = SpecError(_("the file"), where="{x}", next_step="rlbox targets")
    assert str(error) == "the file\n  where: {x}\n  next:  rlbox targets"
    assert translate(str(error)).splitlines()[0] == "该文件"


@pytest.mark.parametrize("made", [copy.deepcopy, lambda text: pickle.loads(pickle.dumps(text))])
def test_a_copy_is_translated(made: object) -> None:
    assert translate(made(_("no target {name}").format(name="x"))) == "没有 target x"  # type: ignore[operator]


def test_texts_that_are_not_in_the_catalogue_are_looked_up_once() -> None:
    asked: list[int] = []
    current.more = lambda: asked.append(1) or {"a title": "标题"}  # type: ignore[func-returns-value]
    assert [translate(EnglishMessage(text)) for text in ("a title", "the file", "other")] == ["标题", "该文件", "other"]
    assert asked == [1]


@pytest.mark.parametrize(
    ("argv", "env", "language"),
    [
        ((), {}, "en"),
        ((), {"LANG": "zh_CN.UTF-8"}, "zh"),
        ((), {"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ((), {"LANG": "de_DE.UTF-8", "RLBOX_LANG": "zh"}, "zh"),
        (("--lang", "zh", "targets"), {}, "zh"),
        (("run", "--lang=en"), {"RLBOX_LANG": "zh"}, "en"),
        (("shell", "local", "--", "prog", "--lang=zh"), {}, "en"),
        (("run", "--lang"), {}, "en"),
    ],
)
def test_the_language_of_a_command_line(argv: tuple[str, ...], env: dict[str, str], language: str) -> None:
    assert detect_language(argv, env) == language


def test_lines_break_by_what_letters_are_wide() -> None:
    lines = wrap_text_by_cell_width("每个目标一份规格，全部修复均已固化。 rlbox run smoke", 12)
    assert all(cell_len(line) <= 12 for line in lines)
    assert not any(line.startswith(("，", "。")) for line in lines)


def test_help_is_translated() -> None:
    read_translations_and_set_language("zh")
    help_text = CliRunner().invoke(root, ["run", "--help"], prog_name="rlbox").output
    assert "Take RUN up again" not in help_text
    assert "--resume RUN" in help_text
    assert all(cell_len(line) <= 100 for line in help_text.splitlines())


def test_a_terminal_without_the_letters_gets_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), "ascii"))
    run_root(["nosuch"])
    sys.stderr.flush()
    assert b"unknown command 'nosuch'" in sys.stderr.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.allow("processes")
def test_the_translations_are_up_to_date() -> None:
    check = [sys.executable, "scripts/messages.py", "--check"]
    done = subprocess.run(check, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr  # make messages, then fill in rlbox.po
