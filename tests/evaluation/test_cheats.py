"""Programs that want to be accepted by tests that look away, as a model's answers: none has a score."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from playbox import Player, export, judge_argv, playing, write_rows

from rlbox.cli.root import run_root

SOURCE = Path(__file__).parents[1] / "sandbox/cheats.py"


def cheats() -> list[tuple[str, str, str]]:
    spec = importlib.util.spec_from_file_location("cheats", SOURCE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [row for row in module.CHEATS if row[2].strip()]  # a problem without a test is refused before anybody asks


def test_no_cheat_has_a_score(tmp_path: Path, sandbox_url: str) -> None:
    known = cheats()
    rows: list[dict[str, Any]] = [
        {"task_id": str(number), "text": f"Task #{number}#.", "test_list": [tests]}
        for number, (_, _, tests) in enumerate(known)
    ]
    write_rows(tmp_path / "problems/cheats.jsonl", rows)
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/cheats.toml").write_text('title = "cheats"\nfile = "cheats.jsonl"\n[limits]\nrun_s = 5\n')

    def answer(ask: str, number: int) -> str:
        found = re.search(r"#(\d+)#", ask)
        assert found
        return f"```python\n{known[int(found[1])][1]}\n```"

    with playing(Player(answer)) as player:
        directory = export(tmp_path / "export")
        assert run_root(judge_argv(tmp_path, directory, player.url, sandbox_url, suite="cheats")) == 0
    found = json.loads((tmp_path / "out/export/summary.json").read_text())
    taken = [known[int(name)][0] for name, of in found["by_problem"]["cheats"]["accepted_at_1"].items() if of != [0.0]]
    assert taken == []
    assert found["scores"]["cheats"]["problems"] == len(known) > 20
