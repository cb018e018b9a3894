"""`rlbox engine` where no engine answers; with one: `tests/engine/test_engine_verb.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import Rlbox

pytestmark = pytest.mark.allow("processes", "sockets")


def test_status_says_what_up_would_do(rlbox: Rlbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    said = rlbox("engine", "status")
    assert said.code == 4
    assert said.out.startswith(f"cannot connect to Docker at unix://{tmp_path}/none.sock\nto do: ")
    assert "start" in said.out.splitlines()[1]
    assert said.out.endswith("next: rlbox engine up\n")
    told = json.loads(rlbox("engine", "status", "--json").out)
    assert (told["version"], told["ready"], bool(told["left"])) == ("", False, True)
