"""What every command line costs before its verb works, what help says, and how completion is answered."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fakes import CHECKOUT, Rlbox

from rlbox.cli import main
from rlbox.cli.root import COMMANDS

HEAVY = ("docker", "jinja2", "psutil", "pydantic", "requests", "rich", "urllib3", "uv", "yaml")
ASK = """
import json, sys
from rlbox.cli import main
code = main(json.loads(sys.argv[1]))
sys.stderr.write("\\n" + json.dumps([code, sorted(sys.modules)]))
"""


@pytest.mark.allow("processes")
@pytest.mark.parametrize(
    ("words", "code"),
    [(["--help"], 0), (["-h"], 0), ([], 0), (["--version"], 0), (["build", "--help"], 0), (["buidl"], 2)],
    ids=str,
)
def test_nothing_heavy_is_imported(words: list[str], code: int) -> None:
    argv = [sys.executable, "-c", ASK, json.dumps(words)]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    got, names = json.loads(done.stderr.splitlines()[-1])
    assert got == code
    assert sorted({name.partition(".")[0] for name in names} & set(HEAVY)) == []
    verbs = [name for name in names if name in {f"rlbox.cli.{command}" for command in COMMANDS}]
    assert verbs == [f"rlbox.cli.{word}" for word in words[:1] if word == "build"]


def test_help_fits_the_terminal_and_starts_with_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.index("Examples:") < text.index("Options:")
    assert [verb for verb in COMMANDS if f"\n  {verb} " not in text] == []


@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: rlbox {verb} ")
    assert f"  rlbox {verb}" in out.partition("Examples:")[2]
    for option in ("--project DIR", "--json", "-v, --verbose", "-q, --quiet", "-h, --help"):
        assert option in out


@pytest.mark.parametrize(
    ("typed", "offers"),
    [
        ("rlbox ren", ["render"]),
        ("rlbox sh", ["shell", "show"]),
        ("rlbox build l", ["local"]),
        ("rlbox build vast-", ["vast-5090", "vast-5090-flash"]),
        ("rlbox run s", ["sft", "smoke"]),
        ("rlbox build --no", ["--no-cache"]),
        ("rlbox build --sources c", ["cn"]),
        ("rlbox run --place h", ["here"]),
        ("rlbox run smoke --profile l", ["learn"]),
        ("rlbox run nosuch --profile l", []),
        ("rlbox vast des", ["destroy"]),
        ("rlbox nonsense x", []),
    ],
)
def test_completion(typed: str, offers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert Rlbox(main, capsys).offers(typed) == [f"plain,{offer}" for offer in offers]
