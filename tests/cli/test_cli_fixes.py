"""`rlbox fixes`: the catalogue, one fix, what a target gets and why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from fakes import CHECKOUT, TARGET, Folder, Rlbox, load_cases

from rlbox.config.toml_files import parse_toml
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.render import render_fix_check_manifest_json, render_signatures_json
from rlbox.target.target import load_target

CASES = load_cases("cli", "test_cli_fixes")
FIX = CASES["FIX"]
WARNING = CASES["WARNING"]
HARDWARE = TARGET + '[hardware]\ngpu = "NVIDIA A800"\n'


@pytest.fixture
def mine(folder: Folder) -> Folder:
    """A project with two fixes of its own, and a target with and one without a GPU."""
    folder.write("templates/fixes/my-answer.toml", FIX)
    folder.write("templates/fixes/my-warning.toml", WARNING)
    folder.target("with-gpu", HARDWARE)
    folder.target("without", TARGET)
    return folder


def test_the_list(rlbox: Rlbox, mine: Folder) -> None:
    said = rlbox("fixes")
    assert (said.code, said.err) == (0, "next: rlbox fixes show ID\n")
    lines = [line.split() for line in said.out.splitlines()]
    assert [line for line in lines if line[0].startswith("my-")] == [
        ["my-answer", "baked", "the", "answer", "is", "baked"],
        ["my-warning", "benign", "a", "warning"],
    ]
    shipped = {path.stem for path in (CHECKOUT / "templates/fixes").glob("*.toml")}
    assert {line[0] for line in lines} == shipped | {"my-answer", "my-warning"}
    assert any(
        line[2] == "答案已固化" for line in map(str.split, rlbox("fixes", "ls", "--lang", "zh").out.splitlines())
    )


def test_one_fix(rlbox: Rlbox, mine: Folder, golden: Callable[[str, str], None]) -> None:
    said = rlbox("fixes", "show", "my-answer")
    assert (said.code, said.err) == (0, "")
    golden("cli/fixes-show.txt", said.out)


def test_what_a_target_gets(rlbox: Rlbox, mine: Folder, golden: Callable[[str, str], None]) -> None:
    said = rlbox("fixes", "explain", "with-gpu")
    assert (said.code, said.err) == (0, "next: rlbox fixes show ID\n")
    explained = said.out[said.out.index("my-answer (baked)") :]
    golden("cli/fixes-explain.txt", explained[: explained.index("\n\n")])
    advice = said.out.partition(" more only know ")[2].partition("\n# ")[0]
    assert ["my-warning", "a", "warning"] in [line.split() for line in advice.splitlines()]
    assert "\n  : ${ANSWER:=42}" not in said.out
    assert "    : ${ANSWER:=42}; export ANSWER\n" in rlbox("fixes", "explain", "with-gpu", "-v").out


def test_what_a_target_gets_as_json(rlbox: Rlbox, mine: Folder) -> None:
    data = rlbox("fixes", "explain", "with-gpu", "--json").data
    assert (data["schema"], data["target"], data["refused"]) == (1, "with-gpu", None)
    (given,) = [row for row in data["applied"] if row["id"] == "my-answer"]
    assert given["because"] == ["GPU NVIDIA A800", "six 1.16.0 is >=1.15"]
    assert {"kind": "env", "name": "ANSWER_OF", "value": "NVIDIA A800", "text": ""} in given["baked"]
    assert {"kind": "file", "name": "/etc/answer", "value": "0644", "text": "answer of with-gpu\n"} in given["baked"]
    skipped = rlbox("fixes", "explain", "without", "--json").data["skipped"]
    assert {"id": "my-answer", "because": ["no GPU"]} in skipped


def test_a_fix_that_is_switched_off(rlbox: Rlbox, mine: Folder) -> None:
    mine.target("with-gpu", HARDWARE + '[fixes.off]\nmy-answer = "known already"\n')
    out = rlbox("fixes", "explain", "with-gpu").out
    assert "switched off by the target: known already" in out.partition(" skipped\n")[2]


def test_a_target_that_is_refused_is_explained_all_the_same(rlbox: Rlbox, mine: Folder) -> None:
    row = '\n[[bake.refuse]]\nif = "hardware.gpus < 2"\nsays = "one GPU is too few"\nnext = "rent two"\n'
    mine.write("templates/fixes/my-answer.toml", FIX + row)
    said = rlbox("fixes", "explain", "with-gpu")
    assert said.code == 2
    assert "refuse  hardware.gpus < 2  one GPU is too few; rent two" in said.out
    assert "rlbox: error: one GPU is too few" in said.err
    said = rlbox("fixes", "explain", "with-gpu", "--json")
    assert (said.code, said.data["refused"].partition(" (")[0]) == (2, "one GPU is too few")


ENGLISH = "".join(line + "\n" for line in FIX.splitlines() if "_zh" not in line)
CHINESE = "".join(line + "\n" for line in FIX.splitlines() if not line.startswith(("title =", "remedy =")))


@pytest.mark.parametrize(
    ("text", "title", "remedy"),
    [(ENGLISH, "the answer is baked", "Say 42."), (CHINESE, "答案已固化", "说 42。")],
    ids=["English", "Chinese"],
)
def test_a_fix_of_ones_own_needs_one_language(rlbox: Rlbox, folder: Folder, text: str, title: str, remedy: str) -> None:
    """In either, and whatever language is asked for."""
    folder.write("templates/fixes/answer.toml", text)
    folder.target("mine", TARGET + '[hardware]\ngpu = "NVIDIA A800"\n')
    for words in ((), ("--lang", "zh")):
        shown = rlbox("fixes", "show", "answer", *words)
        assert (shown.code, shown.err) == (0, "")
        assert shown.out.startswith("# answer")
        assert title in shown.out.splitlines()[0]
        assert remedy in shown.out.splitlines()
        for verb in (("ls",), ("explain", "mine")):
            said = rlbox("fixes", *verb, *words)
            assert (said.code, title in said.out) == (0, True)
    data = rlbox("fixes", "show", "answer", "--json").data["fix"]
    assert [data[key] for key in ("title", "title_zh", "remedy", "remedy_zh")] == [title, title, remedy, remedy]
    assert rlbox("render", "mine").code == 0
    [fix] = [fix for fix in load_fix_catalogue(folder.project) if fix.id == "answer"]
    [row] = json.loads(render_signatures_json([fix]))
    assert (row["pattern"], row["fix"], row["title"], row["remedy"]) == ("no answer", "answer", title, remedy)
    target = load_target(folder.project, "mine").target
    [row] = json.loads(render_fix_check_manifest_json([fix], target, {}, {}))["fixes"]
    assert (row["title"], row["remedy"]) == (title, remedy)


def test_a_fix_without_any_language_is_refused(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("templates/fixes/answer.toml", ENGLISH.replace('title = "the answer is baked"\n', ""))
    said = rlbox("fixes", "show", "answer")
    assert said.code == 2
    assert "title" in said.err


def test_what_is_shipped_speaks_both_languages() -> None:
    """A user's own fix needs one."""
    wanted = ("title", "title_zh", "remedy", "remedy_zh")
    for path in sorted((CHECKOUT / "templates/fixes").glob("*.toml")):
        data = parse_toml(path.read_text(encoding="utf-8"), path.name)
        assert [key for key in wanted if not data.get(key)] == [], path.name
        assert re.search("[\u4e00-\u9fff]", data["title_zh"]), path.name


def test_a_line_of_a_log_leads_to_its_fix(rlbox: Rlbox) -> None:
    said = rlbox("fixes", "find", "ld: cannot find -lcuda")
    assert said.code == 0
    assert said.out.startswith("# lcuda-link: ")
    assert "## remedy" in said.out
    assert rlbox("fixes", "find", "ld: cannot find -lcuda", "--json").data["fixes"][0]["id"] == "lcuda-link"
    old = rlbox("fixes", "find", "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB")
    assert old.out.startswith("# gpu-oom-training: ")
    said = rlbox("fixes", "find", "all is well")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("rlbox: error: no fix knows that line\n")


def test_a_broken_fix_is_named_and_hides_no_run(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("templates/fixes/own.toml", "title = \n")
    (folder.path / "disk").mkdir()
    said = rlbox("fixes", "ls")
    assert said.code == 2
    assert "templates/fixes/own.toml: broken TOML" in said.err
    assert rlbox("runs", "--data", str(folder.path / "disk")).code == 0
    assert rlbox("show", "local").code == 2


def test_find_searches_titles_and_texts_by_words(rlbox: Rlbox) -> None:
    found = rlbox("fixes", "find", "undefined symbol")
    assert (found.code, "torch-ext-abi-mismatch" in found.out) == (0, True)
    missing = rlbox("fixes", "find", "qwertyuiop zxcvbnm")
    assert (missing.code, "rlbox diagnose LOG" in missing.err) == (1, True)
