"""What is said when the container beside a far engine cannot be made, or is heard of no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from docker.errors import APIError

from rlbox.config.project import Project
from rlbox.engine import remote_helper
from rlbox.engine.remote_helper import HelperContainerSpec, run_helper_and_fetch_files
from rlbox.errors import EngineError, MachineError

HELPER = HelperContainerSpec(
    target="mine",
    image="rlbox/mine:latest",
    data_dir="/nosuch",
    create_data_dir=False,
    rlbox_args=("runs",),
    env={},
    terminal=False,
)
TUNNEL: Any = SimpleNamespace(
    local_address="unix:///x",
    remote_uid=1,
    remote_gid=1,
    remote_socket="/s",
    remote_socket_gid=1,
    remote_state_directory="/state",
)


def refuse(**words: Any) -> NoReturn:
    raise APIError("400 Client Error", explanation="invalid mount config: bind source path does not exist: /nosuch")


def test_a_disk_that_is_not_over_there(monkeypatch: pytest.MonkeyPatch, folder: Any) -> None:
    client = SimpleNamespace(
        containers=SimpleNamespace(create=lambda *image, **words: refuse(), list=lambda **words: [])
    )
    monkeypatch.setattr(remote_helper.docker, "DockerClient", lambda **words: client)
    with pytest.raises(MachineError) as missing:
        run_helper_and_fetch_files(TUNNEL, Project(folder=folder.path), HELPER)
    assert (missing.value.where, missing.value.next_step) == (
        "/nosuch",
        "make it over there, or name another with --data DIR",
    )


def test_a_connection_that_is_lost(monkeypatch: pytest.MonkeyPatch, folder: Any) -> None:
    def lose() -> NoReturn:
        raise ConnectionResetError("the tunnel ended")

    monkeypatch.setattr(remote_helper, "_make", lambda *words: SimpleNamespace(reload=lose))
    monkeypatch.setattr(remote_helper, "_attach", lambda *words: 0)
    with pytest.raises(EngineError, match="a run that had started goes on") as lost:
        run_helper_and_fetch_files(TUNNEL, Project(folder=folder.path), HELPER)
    assert lost.value.next_step == "rlbox attach --target mine --data /nosuch"
