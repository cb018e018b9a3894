"""Every example of the guides and of the verbs' own help is typed here, as far as it goes without an engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fakes import CHECKOUT, Folder, Rlbox
from typedbox import Typed, typed_of, words_of

from rlbox.artifacts.profile import load_profile

LINT = "docs/lint.md"  # its examples are those of test_cli_lint.py
DOCS = {path.relative_to(CHECKOUT).as_posix() for path in CHECKOUT.glob("docs/**/*.md") if path.parent.name != "fixes"}
TOP = ("README.md", "README.zh-CN.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/fixes/README.md")
GUIDES = (*TOP, *sorted(DOCS - {LINT}))
pytestmark = pytest.mark.allow("processes")  # click asks bash for its version
NEED_RUNS = ("attach", "bundle", "diagnose", "logs", "report", "watch")
NEED_FILES = ("data", "load", "warm")
"""There is no run, no archive, no model yet, and the store is empty: they must say so, in their own words."""
NEED_DISK = (
    "rlbox apply a800-cn --dry-run --data /root/autodl-tmp",
    "rlbox apply local --dry-run --data /root/autodl-tmp --prefix /root/autodl-tmp/rlbox",
    "rlbox apply vast-5090 --dry-run --data /workspace",
    "rlbox run smoke --set rollouts=4 --data /mnt/data",
)
NEED_NODES = ("cluster",)  # of these there are none, which is told of each
NEED_ENGINE = ("rlbox doctor", "rlbox doctor --json", "rlbox doctor local", "rlbox doctor local --json")
NEED_IMAGE = ("rlbox show rlbox/local:work-0a1b2c", "rlbox components local", "rlbox engine status", "rlbox engine up")


def blocks(language: str, name: str) -> list[str]:
    text = (CHECKOUT / name).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(name: str) -> list[str]:
    lines = [line for block in blocks("console", name) for line in block.splitlines()]
    return [line[2:].partition("#")[0].strip() for line in lines if line.startswith("$ ")]


def examples_of_verbs() -> set[str]:
    text = "".join(path.read_text(encoding="utf-8") for path in (CHECKOUT / "rlbox/cli").rglob("*.py"))
    return set(re.findall(r"^ +(rlbox [a-z].*)$", text, re.MULTILINE))


TYPED = typed_of({line for name in GUIDES for line in commands(name) if line.startswith("rlbox")} | examples_of_verbs())
TYPED = [line for line in TYPED if line != "rlbox mcp"]  # it waits for a client: test_cli_mcp.py


@pytest.mark.usefixtures("unasked", "remembering")
@pytest.mark.parametrize("line", TYPED)
def test_an_example_works(rlbox: Rlbox, line: str) -> None:
    words = words_of(line)
    if words[0] == "render" and "--check" in words:
        assert rlbox("render").code == 0
    if words[0] == "run" and "mine" in words:
        assert rlbox("init", "mine", "--machine", "cpu").code == 0
    missing = (
        words[0] in (*NEED_RUNS, *NEED_FILES)
        or "--resume" in words
        or words[:2] in (["runs", "diff"], ["runs", "export"], ["runs", "show"], ["runs", "rm"])
        or words[:2] in (["store", "rm"], ["store", "show"])
    )
    missing |= words[:2] == ["ckpt", "check"] and len(words) > 2
    missing |= words[:2] == ["lock", "mine"]  # a target that `init` makes
    missing |= words[0] == "eval" and words[1] not in ("suites", "--help")  # no result and no export yet
    missing |= words[0] == "stop" and words[1:2] != [] and not words[1].startswith("-")
    missing |= words[:2] in (["vast", "create"], ["vast", "up"], ["vast", "search"])  # an API key
    no_gpu = words[0] == "gpus"
    asked = words[:2] == ["cluster", "doctor"] and "--prove" not in words  # which there is nobody to give work to
    wrong = no_gpu or line in NEED_ENGINE or {"--import", "--hermetic"} & {*words} or asked
    away = line in NEED_DISK or words[0] in NEED_NODES or "--place cluster" in line
    image = line in NEED_IMAGE or words[0] == "images"
    Typed(rlbox)(line, 1 if wrong else 2 if missing else 4 if image else 5 if away else 0)


def test_both_readmes_have_the_same_commands() -> None:
    assert commands("README.md") == commands("README.zh-CN.md") != []
    assert blocks("toml", "README.md") == blocks("toml", "README.zh-CN.md") != []


def test_the_two_commands_are_make_targets() -> None:
    targets = re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    made = [line.split()[1] for line in commands("README.md") if line.startswith("make ")]
    assert made == ["smoke", "test"]
    assert set(made) <= set(targets)


def test_the_readmes_own_job_works(rlbox: Rlbox, folder: Folder) -> None:
    (block,) = blocks("toml", "README.md")
    folder.write(block.splitlines()[0].removeprefix("# "), block)
    assert rlbox("show", "mine").code == 0


def test_the_guides_own_profile_works(folder: Folder) -> None:
    (block,) = blocks("toml", "docs/sources.md")
    folder.write(block.splitlines()[0].removeprefix("# "), block)
    profile = load_profile(folder.project, "office")
    assert [rule.protocol for rule in profile.rules_or_direct_rule_for("python")][:2] == ["index", "index"]
    assert profile.rules_or_direct_rule_for("git")[0].protocol == "direct"


@pytest.mark.parametrize("name", [*GUIDES, LINT, "AGENTS.md", "docs/llms.txt"])
def test_links_of_a_guide_lead_somewhere(name: str) -> None:
    text = (CHECKOUT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (CHECKOUT / Path(name).parent / link).exists(), link


def test_index_has_every_page_and_agents_page_folders_and_make_targets_that_exist() -> None:
    names = ("docs/llms.txt", "AGENTS.md", "Makefile")
    index, agents, makefile = ((CHECKOUT / name).read_text("utf-8") for name in names)
    pages = {name.removeprefix("docs/") for name in DOCS if not name.startswith(("docs/zh/", "docs/internal/"))}
    assert pages - set(re.findall(r"\]\(([^)]+\.md)\)", index)) == set()
    made = [word for line in re.findall(r"^\$ make ([a-z ]+)", agents, re.MULTILINE) for word in line.split()]
    assert [name for name in made if f"\n{name}:" not in makefile] == []
    assert [path for path in re.findall(r"`([a-z/]+/)`", agents) if not (CHECKOUT / path).is_dir()] == []
