"""Every example of the guides and of the verbs' own help is typed here, as far as it goes without an engine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from fakes import CHECKOUT, Folder, Rlbox

from rlbox.plan.egress import EgressFacts
from rlbox.plan.mirrors import Machine
from rlbox.spec.load import load_profile

GUIDES = (
    "README.md",
    "README.zh-CN.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/apply.md",
    "docs/targets.md",
    "docs/coverage.md",
    "docs/doctor.md",
    "docs/evidence.md",
    "docs/fixes/README.md",
    "docs/hangs.md",
    "docs/images.md",
    "docs/jobs.md",
    "docs/registry.md",
    "docs/report.md",
    "docs/runs.md",
    "docs/sources.md",
    "docs/store.md",
)
pytestmark = pytest.mark.allow("processes")  # click asks bash for its version
NEED_RUNS = (
    "attach",
    "bundle",
    "logs",
    "load",
    "report",
)  # there is no run, no archive yet: they must say so, in their own words
NEED_IMAGE = "rlbox show rlbox/local:latest"  # and no image
CHANGING = ("build", "fetch", "render", "run", "shell", "lock", "push", "save")


def blocks(language: str, name: str) -> list[str]:
    text = (CHECKOUT / name).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def commands(name: str) -> list[str]:
    lines = [line for block in blocks("console", name) for line in block.splitlines()]
    return [line[2:].partition("#")[0].strip() for line in lines if line.startswith("$ ")]


def examples_of_verbs() -> list[str]:
    text = "".join(path.read_text(encoding="utf-8") for path in (CHECKOUT / "rlbox/cli").glob("*.py"))
    return sorted(set(re.findall(r"^ +(rlbox [a-z].*)$", text, re.MULTILINE)))


TYPED = sorted(
    {line for name in GUIDES for line in commands(name) if line.startswith("rlbox")} | set(examples_of_verbs())
)


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `egress` and `mirrors probe` ask the network, and `show` the engine, is not asked here."""
    monkeypatch.setattr("rlbox.cli.show_image.find_image", lambda name: None)
    monkeypatch.setattr("rlbox.act.mirrors.probe_machine", lambda site: Machine(site=site))
    monkeypatch.setattr("rlbox.act.egress.probe_egress", lambda *asked: EgressFacts())
    monkeypatch.setattr("rlbox.act.mirror_probe.probe_mirrors", lambda *asked: ())


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("line", TYPED)
def test_an_example_works(rlbox: Rlbox, line: str) -> None:
    words = shlex.split(line.partition(">")[0].partition("  ")[0])[1:]
    if words[0] in CHANGING and "--check" not in words:
        words[1:1] = ["--dry-run"]
    if words[0] == "lock":
        words = ["lock", "local", "--check", "--offline"]
    if words[0] == "render" and "--check" in words:
        assert rlbox("render").code == 0
    said = rlbox(*words)
    needs_run = words[0] in NEED_RUNS or "--resume" in words or words[:2] == ["runs", "diff"]
    needs_run |= words[0] == "stop" and words[1:2] != [] and not words[1].startswith("-")
    assert said.code == (2 if needs_run else 4 if line == NEED_IMAGE else 0), said.err
    assert "Traceback" not in said.err


def test_both_readmes_have_the_same_commands() -> None:
    assert commands("README.md") == commands("README.zh-CN.md") != []
    assert blocks("toml", "README.md") == blocks("toml", "README.zh-CN.md") != []


def test_the_two_commands_are_make_targets() -> None:
    targets = re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    made = [line.split()[1] for line in commands("README.md") if line.startswith("make ")]
    assert made == ["smoke", "test"]
    assert set(made) <= set(targets)


def test_the_readmes_own_target_works(rlbox: Rlbox, folder: Folder) -> None:
    (block,) = blocks("toml", "README.md")
    folder.write(block.splitlines()[0].removeprefix("# "), block)
    assert rlbox("render", "mine").code == 0


def test_the_guides_own_profile_works(folder: Folder) -> None:
    (block,) = blocks("toml", "docs/sources.md")
    folder.write(block.splitlines()[0].removeprefix("# "), block)
    profile = load_profile(folder.project, "office")
    assert [rule.protocol for rule in profile.rules("python")][:2] == ["index", "index"]
    assert profile.rules("git")[0].protocol == "direct"


@pytest.mark.parametrize("name", [*GUIDES, "docs/lint.md"])  # its examples are those of test_cli_lint.py
def test_links_of_a_guide_lead_somewhere(name: str) -> None:
    text = (CHECKOUT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (CHECKOUT / Path(name).parent / link).exists(), link
