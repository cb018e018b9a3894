"""The catalogue knows every message that the code, the help and the shipped tables have, with both halves."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fakes import CHECKOUT


@pytest.mark.allow("processes")
def test_no_message_lacks_its_other_half() -> None:
    check = [sys.executable, "scripts/messages.py", "--check"]
    done = subprocess.run(check, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout  # if not: python scripts/messages.py, then fill in
