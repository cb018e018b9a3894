"""Whatever decides a score is changed, one thing at a time: `compare` refuses the two and names what differs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playbox import Player, adding, export, judge_argv, playing, write_rows

from rlbox.cli.root import run_root
from rlbox.evaluation import evaluate
from rlbox.evaluation.sandbox_client import SandboxClient

ROWS = adding(1)


class Site(NamedTuple):
    """What is judged: a folder with problems, suite and export, the server, the words behind `judge`, patches."""

    folder: Path
    player: Player
    words: list[str]
    patch: pytest.MonkeyPatch

    def rows(self, rows: list[dict[str, Any]]) -> None:
        write_rows(self.folder / "problems/adding.jsonl", rows)

    def suite(self, text: str) -> None:
        path = self.folder / "suites/adding.toml"
        path.write_text(path.read_text() + text)

    def export(self, name: str, text: str) -> None:
        (self.folder / "export" / name).write_text(text)

    def probed(self, **other: Any) -> None:
        probe = SandboxClient.probe_strength_and_versions
        self.patch.setattr(SandboxClient, "probe_strength_and_versions", lambda sandbox: probe(sandbox) | other)

    def started(self, **settings: Any) -> None:
        engine = {"settings": settings, "environment": {}}
        self.patch.setattr("rlbox.cli.eval.describe_own_engine_settings_and_env", lambda url, settings: engine)

    def served(self, **other: Any) -> None:
        for name, value in other.items():
            setattr(self.player, name, value)


PROBLEMS = ("suites.adding.sha256",)
PROMPTS = ("prompts.adding.sha256",)
CHANGES: dict[str, tuple[Callable[[Site], Any], tuple[str, ...]]] = {
    "a problem more": (lambda site: site.rows(adding(2)), ("suites.adding.problems", *PROBLEMS, *PROMPTS)),
    "how it is asked": (lambda site: site.suite('ask_function = "Do: {statement}"\n'), PROBLEMS + PROMPTS),
    "a word of the tokenizer": (lambda site: site.export("tokenizer.json", '{"a": 1}'), ("tokenizer.sha256",)),
    "the template": (lambda site: site.export("chat_template.jinja", "{{ 1 }}"), ("tokenizer.chat_template",)),
    "how the server tokenizes": (lambda site: site.served(bos=True), PROMPTS),
    "the engine's version": (lambda site: site.served(version="0.0.2"), ("engine.version",)),
    "its context": (lambda site: site.served(context=8192), ("engine.max_model_len",)),
    "a setting of it": (lambda site: site.started(dtype="half"), ("engine.settings.dtype",)),
    "temperature": (lambda site: site.suite("[decoding]\ntemperature = 0.1\n"), ("decoding.adding.temperature",)),
    "memory": (lambda site: site.suite("[limits]\nmemory_mb = 512\n"), ("sandbox.limits.adding.memory_mb",)),
    "the walls": (lambda site: site.probed(strength="other"), ("sandbox.strength",)),
    "the sandbox": (lambda site: site.probed(version=99), ("sandbox.version",)),
    "the interpreter": (lambda site: site.probed(python="2.7"), ("sandbox.python",)),
    "extraction": (lambda site: site.patch.setattr(evaluate, "EXTRACTION_VERSION", 99), ("extraction.version",)),
    "scoring": (lambda site: site.patch.setattr(evaluate, "SCORING_VERSION", 99), ("scoring.version",)),
}
"""What is changed, how, and the fields that are named for it: those, all of them, and no other."""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, sandbox_url: str) -> Path:
    """The result that others are held against."""
    with pytest.MonkeyPatch.context() as patch:
        return judged(tmp_path_factory.mktemp("first"), sandbox_url, patch, lambda site: None)


def judged(folder: Path, sandbox: str, patch: pytest.MonkeyPatch, change: Callable[[Site], Any]) -> Path:
    write_rows(folder / "problems/adding.jsonl", ROWS)
    (folder / "suites").mkdir()
    (folder / "suites/adding.toml").write_text('title = "adding"\nfile = "adding.jsonl"\n')
    directory = export(folder / "export")
    with playing(Player(lambda ask, number: "```python\ndef add(x):\n    return x\n```")) as player:
        site = Site(folder, player, judge_argv(folder, directory, player.url, sandbox), patch)
        change(site)
        assert run_root(site.words) == 0
    return folder / "out/export/summary.json"


@pytest.mark.parametrize("what", CHANGES)
def test_it_is_noticed_and_named(
    what: str,
    tmp_path: Path,
    first: Path,
    sandbox_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change, fields = CHANGES[what]
    other = judged(tmp_path, sandbox_url, monkeypatch, change)
    capsys.readouterr()
    assert run_root(["eval", "compare", str(other), str(first)]) == 1
    said = capsys.readouterr()
    assert sorted(re.findall(r"^  \| (\S+): ", said.err, re.MULTILINE)) == sorted(fields)
    assert said.out == ""
    across = [word for field in fields for word in ("--across", field)]
    assert run_root(["eval", "compare", str(other), str(first), *across]) == 0
    assert capsys.readouterr().out.count("across ") == len(fields)
    for left in fields[1:]:  # all but one of them are not enough
        kept = [word for field in fields if field != left for word in ("--across", field)]
        assert run_root(["eval", "compare", str(other), str(first), *kept]) == 1


def test_the_same_is_comparable(
    tmp_path: Path, first: Path, sandbox_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def other_weights(site: Site) -> None:
        shard = site.folder / "export/model.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")

    other = judged(tmp_path, sandbox_url, monkeypatch, other_weights)
    assert run_root(["eval", "compare", str(other), str(first)]) == 0
    assert "across" not in capsys.readouterr().out


def test_settings_and_variables_of_vllm_are_locked_where_it_is_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlbox.evaluation.model_server import describe_own_engine_settings_and_env

    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    monkeypatch.setenv("VLLM_API_KEY", "a secret")
    settings = {"dtype": "float32"}
    started = {"settings": settings, "environment": {"VLLM_BATCH_INVARIANT": "1"}}
    assert describe_own_engine_settings_and_env("", settings) == started
    assert describe_own_engine_settings_and_env("http://127.0.0.1:1", settings) == {"settings": {}, "environment": {}}
