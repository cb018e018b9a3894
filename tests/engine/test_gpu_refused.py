"""GPUs on a real engine that has none: one clear error, and no container."""

from __future__ import annotations

import glob

import pytest
from enginebox import Box

pytestmark = pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="this machine has a GPU")


def test_a_shell_is_refused_and_runs_without(tiny: Box) -> None:
    result = tiny("shell", "tiny", "--gpus", "1", "--", "true")
    assert (result.code, result.out) == (4, "")
    assert result.err.startswith("rlbox: error: the engine cannot give a GPU to a container\n  where: unix://")
    assert tiny("shell", "tiny", "--gpus", "none", "--", "true").code == 0
