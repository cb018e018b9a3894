"""An engine without bridges, in a network of its own: what is open there is said, with what closes it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from enginebox import Box
from netbox import netbox
from projectbox import own

OPEN = (
    "open: this engine has no bridge, so the {} is on the network host, where others reach what it listens on; "
    "start the engine without `--bridge none` to close it"
)
JOB = """
title = "one line"
target = "tiny"
[ports]
web = 21779
[[services]]
name = "web"
title = "answers"
command = ["python3", "-m", "http.server", "--bind=127.0.0.1", "{port.web}"]
ports = ["web"]
publish = ["web"]
[services.ready]
port = "web"
[[stages]]
name = "one"
title = "says a word"
services = ["web"]
command = ["echo", "done"]
"""


@pytest.fixture
def bridgeless(tiny: Box) -> Iterator[Box]:
    """The target `tiny` on an engine that was started with `--bridge none`."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        pytest.skip("network namespaces need root, iproute2 and util-linux")
    with netbox(()) as network:
        save = subprocess.Popen(["docker", "save", own("tiny")], stdout=subprocess.PIPE)
        subprocess.run(["docker", "--host", network.engine, "load"], stdin=save.stdout, check=True, capture_output=True)
        assert save.wait() == 0
        yield dataclasses.replace(tiny, extra={"DOCKER_HOST": network.engine})


@pytest.mark.slow
def test_what_is_open_is_said(bridgeless: Box) -> None:
    bridgeless.job("one", JOB)
    result = bridgeless("run", "one")
    assert result.code == 0, result.err
    assert OPEN.format("run") in result.err
    assert "published" not in result.err
    assert bridgeless.state()["notes"] == [OPEN.format("run")]
    result = bridgeless("shell", "tiny", "--", "echo", "done")
    assert (result.code, result.out, result.err) == (0, "done\n", OPEN.format("shell") + "\n")
