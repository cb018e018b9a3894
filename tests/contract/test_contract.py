"""The outside is as recorded. Who changes it runs `python tests/contract/record.py` in the same commit."""

from __future__ import annotations

import difflib
import json
import lzma
import subprocess
import sys
from typing import Any

import pytest
from fakes import CHECKOUT

FOLDER = CHECKOUT / "tests/contract"
RECORDED = json.loads(lzma.decompress((FOLDER / "outside.json.xz").read_bytes()))


@pytest.fixture(scope="module")
def outside() -> Any:
    """What the checkout shows now."""
    argv = [sys.executable, str(FOLDER / "record.py"), "--print"]
    return json.loads(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout)


def lines(value: Any) -> list[str]:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).splitlines()


@pytest.mark.parametrize("section", RECORDED)
def test_outside_is_as_recorded(section: str, outside: Any) -> None:
    diff = difflib.unified_diff(lines(RECORDED[section]), lines(outside[section]), "recorded", "now", lineterm="", n=4)
    assert "\n".join(diff) == "", "python tests/contract/record.py, and review the diff"


@pytest.mark.slow
def test_sandbox_verdicts_are_as_recorded() -> None:
    argv = [sys.executable, str(CHECKOUT / "tests/sandbox/campaign.py"), "--verdicts"]
    found = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False).stdout)
    seen = json.loads(lzma.decompress((FOLDER / "verdicts.json.xz").read_bytes()))
    assert found["fell"] == []
    assert found["verdicts"].keys() == seen.keys()
    assert {name: said for name, said in found["verdicts"].items() if said not in seen[name]} == {}
