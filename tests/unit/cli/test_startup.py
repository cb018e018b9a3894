"""What quick command lines must not import, and that the text behind `rlbox --help` and `--version` is current."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from fakes import CHECKOUT, EngineSocket
from registry_server import running

from rlbox import __version__
from rlbox.cli import HELP_TEXT, main
from rlbox.cli.root import VERBS, root
from rlbox.engine.oci import CONFIG, LAYER, MANIFEST, describe, image_manifest, sha256_of
from rlbox.files.act.folders import cache_folder

HEAVY = ("click", "docker", "jinja2", "psutil", "pydantic", "requests", "rich", "urllib3", "uv", "yaml")
ASK = """
import json, sys
from rlbox.cli import main
code = main(json.loads(sys.argv[1]))
sys.stderr.write(json.dumps([code, sorted(sys.modules)]))
"""


def modules_after(*words: str) -> tuple[int, str, set[str]]:
    argv = [sys.executable, "-c", ASK, json.dumps(words)]
    done = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    code, names = json.loads(done.stderr.splitlines()[-1])
    return code, done.stdout, {name.partition(".")[0] for name in names} | set(names)


@pytest.mark.allow("processes")
@pytest.mark.parametrize("words", [["--help"], ["-h"], [], ["--version"]], ids=str)
def test_nothing_heavy_is_imported(words: list[str]) -> None:
    code, out, names = modules_after(*words)
    assert code == 0
    assert out == (f"rlbox {__version__}\n" if "--version" in words else HELP_TEXT.read_text(encoding="utf-8"))
    assert names.isdisjoint(HEAVY)
    assert {name for name in names if name.startswith("rlbox.")} == {"rlbox.cli", "rlbox.version"}


@pytest.mark.allow("processes", "sockets")
def test_a_push_that_finds_everything_there_imports_little(engine: EngineSocket) -> None:
    body = image_manifest(describe(b"{}", CONFIG), [describe(b"layer", f"{LAYER}+gzip")], {})
    folder = cache_folder("images", "local")
    folder.mkdir(parents=True)
    (folder / "sbom.spdx.json").write_text(json.dumps({"about": sha256_of(body)}))
    digest = sha256_of(body)
    engine.images["rlbox/local:latest"] = {"Id": digest, "RepoDigests": [f"rlbox/local@{digest}"], "RootFS": {}}
    with running() as server:
        server.add_manifest("1", body, MANIFEST)
        words = ("push", "local", "--to", f"{server.host}/team/x:1")
        for _ in ("attaches the SBOM", "finds it there"):
            code, out, names = modules_after(*words)
            assert (code, out) == (0, f"{server.host}/team/x@{digest}\n")
    assert sorted(names & {*HEAVY, "http.client", "ssl", "subprocess", "threading", "tomllib"}) == []
    pure = {name for name in names if name.count(".") == 2 and name.startswith(("rlbox.engine.", "rlbox.registry."))}
    assert pure - {"rlbox.engine.act", "rlbox.registry.act"} == {
        "rlbox.engine.oci",
        "rlbox.registry.push",
        "rlbox.engine.reference",
    }


def test_help_is_what_click_prints() -> None:
    """Stale? `python scripts/make_help.py` writes it."""
    said = CliRunner().invoke(root, ["--help"], prog_name="rlbox", env={"COLUMNS": "80"})
    assert HELP_TEXT.read_text(encoding="utf-8") == said.output


def test_version_is_what_click_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == CliRunner().invoke(root, ["--version"], prog_name="rlbox").output


def test_help_fits_the_terminal_and_starts_with_examples() -> None:
    text = HELP_TEXT.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 80
    assert text.index("Examples:") < text.index("Options:")
    assert [verb for verb in VERBS if f"\n  {verb} " not in text] == []


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: rlbox {verb} ")
    assert f"  rlbox {verb}" in out.partition("Examples:")[2]
    for option in ("--project DIR", "--json", "-v, --verbose", "-q, --quiet", "-h, --help"):
        assert option in out


def test_completion_is_answered_though_no_word_was_typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_RLBOX_COMPLETE", "bash_complete"), ("COMP_WORDS", "rlbox ren"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="0"):  # click's own way to end a completion
        main([])
    assert capsys.readouterr().out == "plain,render\n"
