"""Lines that were once told badly in Chinese: each is typed, and read as it stands now."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes import ON_IMAGE, Folder, Rlbox
from rich.cells import cell_len

from rlbox.cli.images.images import verb as images
from rlbox.cli.rented.vast import verb as vast
from rlbox.cli.runs.runs import verb as runs
from rlbox.cli.verbs import VERBS
from rlbox.messages.language import teller

pytestmark = [pytest.mark.usefixtures("no_engine"), pytest.mark.allow("processes")]
LINE = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB"
ENGLISH = re.compile(r"[a-z]{3,} [a-z]{3,} [a-z]{2,}")
COMMAND = re.compile(r"`[^`]*`")
GROUPED = (
    [("runs", name) for name in runs.commands]
    + [("images", name) for name in images.commands]
    + [("vast", name) for name in vast.commands]
)
TITLES = (
    "dies of no memory",
    "box of Ann, without network",
    "copy of the data: one of many, read and write",
)


@pytest.fixture(autouse=True)
def chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLBOX_LANG", "zh")


@pytest.mark.parametrize("verb", ["run", "build", "push"])
def test_a_command_stays_as_it_is_typed(rlbox: Rlbox, verb: str) -> None:
    said = rlbox(verb, "smoke", "--bogus")
    assert f"用 'rlbox {verb} --help' 查看帮助。" in said.err.splitlines()


@pytest.mark.parametrize("words", [*((name,) for name in VERBS), *GROUPED])
def test_no_help_is_left_in_english(rlbox: Rlbox, words: tuple[str, ...]) -> None:
    lines = rlbox(*words, "--help").out.splitlines()
    shown = [line for line in lines if not line.startswith((" " * 4, "用法"))]
    assert [line for line in shown if ENGLISH.search(COMMAND.sub("", line))] == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("build",), "错误：缺少参数 'TARGET'。"),
        (("push", "local"), "错误：缺少选项 '--to'。"),
        (("build", "local", "--bogus"), "错误：没有选项 '--bogus'。是否指 '--verbose'？"),
        (("plan", "sft", "--target", "local"), "未评判：每卡显存：images/local/target.toml 没有说明"),
        (("run", "--from", "nosuch", "smoke", "--dry-run"), "# 结论：这将被拒绝：1 处拒绝，退出码 2"),
    ],
)
def test_a_line(rlbox: Rlbox, words: tuple[str, ...], line: str) -> None:
    said = rlbox(*words)
    assert line in (said.err + said.out).splitlines(), said.err + said.out


def test_what_a_machine_lacks(rlbox: Rlbox) -> None:
    assert (
        rlbox("plan", "sft", "--target", "local").err.splitlines()[1]
        == "  smoke：需要一台机器的 1 块 GPU，只有 0；target 没有说明：请设 hardware.gpu，或用 --gpus"
    )


def test_what_else_is_closed() -> None:
    told = teller("zh")("5 more are closed by settings of the target: rlbox egress local --closed")
    assert told == "另有 5 个被 target 的设置关闭：rlbox egress local --closed"


def test_no_checkpoint_is_torn(rlbox: Rlbox, tmp_path: Path) -> None:
    assert rlbox("ckpt", "ls", str(tmp_path)).err.splitlines()[-1] == "ckpt：0 个检查点，无残缺"


def test_what_happens_to_be_a_message_is_still_a_title(rlbox: Rlbox, folder: Folder) -> None:
    for at, title in enumerate(TITLES):
        folder.target(f"own{at}", ON_IMAGE.replace("smallest target on an image", title))
    rows = [line.split(maxsplit=2) for line in rlbox("targets").out.splitlines()]
    assert [title for _, name, title in rows if name.startswith("own")] == [*TITLES]


def test_a_command_of_a_stage_keeps_its_signs(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("mine", ON_IMAGE)
    folder.lock("mine")
    program = f"import time; print('begins', flush=True); raise RuntimeError('{LINE}')"
    stage = f'[[stages]]\nname = "one"\ntitle = "t"\ncommand = ["python", "-c", "{program}"]\n'
    folder.job("own", f'title = "j"\ntarget = "mine"\n{stage}')
    said = rlbox("run", "own", "--dry-run")
    assert "import time; print(" in said.out
    assert LINE in said.out


def test_columns_stand_below_each_other(rlbox: Rlbox) -> None:
    rows = rlbox("stack", "vast-5090").out.split("依据：\n")[0].splitlines()[1:]
    begins = {cell_len(row[: row.index(row.split()[-1])]) for row in rows}
    assert len(rows) > 10
    assert len(begins) == 1
