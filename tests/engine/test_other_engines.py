"""The same commands on the engine of the machine and on every engine that RLBOX_TEST_ENGINES names (addresses).

CI names a Docker 20.10 there, the engine of Debian 12, beside the 26 of the other tests. Its disk lies in /var/cache,
which such an engine's own namespaces share with this machine.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from enginebox import Box
from test_run import states, write

OTHERS = os.environ.get("RLBOX_TEST_ENGINES", "").split()
ENGINES = [
    pytest.param("", id="default"),
    *[pytest.param(address, id=address.rpartition("/")[2], marks=pytest.mark.elsewhere) for address in OTHERS],
]


@pytest.fixture(params=ENGINES)
def anywhere(request: pytest.FixtureRequest, tiny: Box) -> Iterator[Box]:
    """The target `tiny`, built on one of the engines."""
    data = Path(tempfile.mkdtemp(dir="/var/cache", prefix="rlbox-test-"))
    engine = {"DOCKER_HOST": request.param} if request.param else {}
    box = dataclasses.replace(tiny, data=data, extra=engine)
    result = box("build", "tiny")
    assert result.code == 0, result.err
    yield box
    shutil.rmtree(data)


def test_an_unchanged_target_is_proven(anywhere: Box) -> None:
    assert anywhere("build", "tiny", "--json").data["state"] == "unchanged"


def test_a_command_runs_with_the_targets_limits(anywhere: Box) -> None:
    result = anywhere("shell", "tiny", "--", "sh", "-c", "df -B1 --output=size /dev/shm | tail -1; exit 5")
    assert (result.out.strip(), result.code) == (str(1 << 28), 5), result.err


def test_a_run_passes_and_a_lying_one_fails(anywhere: Box) -> None:
    write(anywhere)
    result = anywhere("run", "two")
    assert result.code == 0, result.err
    write(anywhere, first="echo nothing")
    assert anywhere("run", "two").code == 1
    assert states(anywhere) == ["failed", "not started"]
