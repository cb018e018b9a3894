"""The sandbox in containers without privileges, as on a rented machine: hostile programs, seen from outside them."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from enginebox import Box
from fakes import CHECKOUT
from projectbox import own

WANTED = "landlock+seccomp+forks"


@pytest.mark.parametrize("user", ["0:0", "1000:1000"], ids=["root", "user"])
def test_nothing_falls_in_a_container_without_privileges(tiny: Box, user: str) -> None:
    """A sample; RLBOX_SANDBOX_SAMPLE=0 runs all, as `make nightly ARGS=sandbox` does."""
    sample = os.environ.get("RLBOX_SANDBOX_SAMPLE", "16")
    words = ["docker", "run", "--rm", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    words += [f"--user={user}", "--label=rlbox.test=sandbox", f"--volume={CHECKOUT}/tests/sandbox:/attack:ro"]
    words += ["--entrypoint=/opt/rlbox/bin/python", own("tiny"), "-B", "/attack/campaign.py", "--sample", sample]
    done = subprocess.run(words, capture_output=True, text=True, timeout=880)
    found = json.loads(done.stdout or "{}")
    assert (found.get("fell"), found.get("strength")) == ([], WANTED), done.stdout[-3000:] + done.stderr[-2000:]
