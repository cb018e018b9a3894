"""In Chinese no sentence of help, errors, findings or diagnoses is left in English; words of others stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from fakes import CHECKOUT, ON_IMAGE, Folder, Rlbox, load_cases

from rlbox.cli.root import root

CASES = load_cases("cli", "test_cli_zh")
pytestmark = [pytest.mark.usefixtures("no_engine"), pytest.mark.allow("processes")]
ENGLISH = re.compile(r"[a-z]{3,} [a-z]{2,} [a-z]{2,}")
COMMAND = re.compile(r"`[^`]*`|rlbox [\w -]+|cannot connect to Docker|this test uses a socket.*")
FIXES = Path(__file__).parents[2] / "templates/fixes"
LINE = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB"


@pytest.fixture(autouse=True)
def chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLBOX_LANG", "zh")


def find_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every command and group by the words that are typed."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from find_commands(command, (*path, name))


def english_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if ENGLISH.search(COMMAND.sub("", line))]


def test_no_help_is_left_in_english(rlbox: Rlbox) -> None:
    for words in ((), *find_commands(root)):
        lines = rlbox(*words, "--help").out.splitlines()
        shown = [line for line in lines if not line.startswith((" " * 4, "用法"))]
        assert english_lines("\n".join(shown)) == [], words


@pytest.mark.parametrize(("words", "line"), CASES["an_error_is_translated"])
def test_an_error_is_translated(rlbox: Rlbox, words: tuple[str, ...], line: str) -> None:
    error = rlbox(*words).err
    assert line in error
    assert english_lines(error) == []


@pytest.mark.parametrize("path", sorted(FIXES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_fix_is_explained_in_chinese(rlbox: Rlbox, path: Path) -> None:
    page = rlbox("fixes", "show", path.stem).out
    why = page.partition("## 原因\n")[2].partition("\n## ")[0]
    assert re.search(r"[\u4e00-\u9fff]{2}", why)
    untested = page.partition("## 没有故障测试\n")[2].partition("\n## ")[0]
    assert english_lines(untested) == []


@pytest.mark.parametrize("job", ["gkd", "grpo", "holdem", "sft", "smoke", "xdan"])
def test_parameters_and_plan_of_a_job_are_chinese(rlbox: Rlbox, job: str) -> None:
    declared = rlbox("show", job).out.partition("\n\n")[0]
    assert english_lines(declared) == []
    assert english_lines(rlbox("plan", job).out) == []
    assert english_lines(rlbox("targets").out) == []


@pytest.mark.allow("processes", "sockets")
def test_rules_of_a_dry_run_are_chinese(rlbox: Rlbox) -> None:
    dry = rlbox("run", "smoke", "--place", "here", "--dry-run")
    said = dry.out + dry.err
    assert "验收条件：除任务声明的端口外不监听任何端口\n" in said
    assert "验收条件：metric loss: 下降（前 10 步）超过 0.1, 步数递增, 5 个值, 有限值\n" in said


def test_titles_are_chinese_in_a_checkout_too(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CHECKOUT)
    assert english_lines(rlbox("targets").out) == []


def test_a_spec_that_is_wrong(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("own", ON_IMAGE + '\n[hardware]\ngpus = "many"\ncolour = 1\n')
    error = rlbox("show", "own").err
    assert "hardware.gpus" in error
    assert english_lines(error) == []


def test_an_error_is_english_in_json(rlbox: Rlbox) -> None:
    assert rlbox("show", "nosuch", "--json").data["error"]["what"] == "unknown target or job 'nosuch'"


def test_a_diagnosis_is_translated_but_for_the_log(rlbox: Rlbox, folder: Folder) -> None:
    (folder.path / "train.log").write_text(f"INFO loading\n{LINE}\n")
    said = rlbox("diagnose", "train.log", "--why")
    assert LINE in said.out
    assert "训练进程显存不足" in said.out
    assert english_lines(said.out.replace(LINE, "")) == []
    assert rlbox("diagnose", "train.log", "--json").data["cause"] == "gpu-oom-training"


def test_a_title_that_happens_to_be_a_message_stays(rlbox: Rlbox, folder: Folder) -> None:
    folder.target("own", ON_IMAGE.replace("smallest target on an image", "nothing found"))
    assert any(line.endswith("nothing found") for line in rlbox("targets").out.splitlines())
