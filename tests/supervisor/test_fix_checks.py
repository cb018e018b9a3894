"""The checks of an installation's fixes before the first stage of a run in place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from supervised import Bench


def place_with_check(folder: Path, run: str) -> Path:
    """Lay an installation whose only fix is checked before a run."""
    own = folder / "place/opt/rlbox"
    (own / "share").mkdir(parents=True)
    check = {"run": run, "when": ["run"]}
    row = {"id": "mine", "title": "It is there", "remedy": "Put it there.", "heals": [], "check": check}
    (own / "share/fixes.json").write_text(json.dumps({"fixes": [row]}))
    return own


def test_the_checks_of_a_place_come_before_the_first_stage(bench: Bench, tmp_path: Path) -> None:
    run = f'[ "$MADE_BY_A_HOOK" = yes ] && [ -e {tmp_path}/thing ] || {{ echo no thing; exit 1; }}'
    own = place_with_check(tmp_path, run)
    (own / "libexec").mkdir()
    (own / "libexec/init.sh").write_text("MADE_BY_A_HOOK=yes\nexport MADE_BY_A_HOOK\n")
    bench.stage("train", ("true",))
    bench.environment = {"RLBOX_PLACE": str(own)}
    assert bench.run() == 5
    assert "fix mine does not hold" in bench.cause().what


@pytest.mark.parametrize(
    ("command", "percent"), [(("true",), "0"), (("true", "--gpu-memory-utilization", "0.5"), "50")]
)
def test_the_checks_know_what_the_engines_of_the_run_ask_for(
    bench: Bench, tmp_path: Path, command: tuple[str, ...], percent: str
) -> None:
    """A run without an inference engine was refused for lack of room for one."""
    own = place_with_check(tmp_path, f'echo "$RLBOX_ENGINE_PERCENT" >{tmp_path}/percent')
    bench.stage("train", command)
    bench.environment = {"RLBOX_PLACE": str(own)}
    assert bench.run() == 0
    assert (tmp_path / "percent").read_text() == f"{percent}\n"
