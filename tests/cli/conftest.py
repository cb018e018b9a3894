"""What is not asked here: the network, and the engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest
from venvbox import index_environment

from rlbox.artifacts.mirrors import MachineSourceSettings
from rlbox.errors import EngineUnavailable


@pytest.fixture(scope="module")
def index() -> dict[str, str]:
    """The environment of uv, read before a test has a home of its own."""
    return index_environment()


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that the tests of a file share."""
    return tmp_path_factory.mktemp("memory")


@pytest.fixture
def remembering(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the plans of images from test to test: that is most of the time of a verb."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(memory))


class Away:
    """An engine that does not answer."""

    @classmethod
    def connect(cls, address: str = "") -> NoReturn:
        """Refuse as for a socket at which nobody listens."""
        raise EngineUnavailable("cannot connect to Docker", where="unix:///var/run/docker.sock")


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no engine answers; docker-py is not even imported."""
    module = ModuleType("docker")
    module.DockerEngine = Away  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rlbox.engine.docker", module)


@pytest.fixture
def as_declared(no_engine: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that has what the target of every run says, and a docker client whose engine does not answer."""
    for program in (tmp_path / "bin/docker", tmp_path / "config/cli-plugins/docker-buildx"):
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("RLBOX_DATA", str(tmp_path / "disk"))
    for name in ("engine.data_disk", "artifacts.fetch"):
        monkeypatch.setattr(f"rlbox.{name}.free_bytes_or_0", lambda path: 1 << 60)
    monkeypatch.setattr(
        "rlbox.run.start.replace_memory_and_disk_by_measured", lambda app, target, room, folder, gpus: room
    )
    monkeypatch.setattr("rlbox.run.docker.require_usable_local_gpus", lambda *asked: None)
    monkeypatch.setattr("rlbox.run.docker.report_and_require_local_devices", lambda *asked: None)
    monkeypatch.setattr("rlbox.engine.data_disk.report_and_require_local_devices", lambda *asked: None)
    monkeypatch.setattr("rlbox.image.inputs.require_mmdebstrap", lambda: None)
    monkeypatch.setattr("rlbox.run.inputs.describe_port_holder_unless_free", lambda number: "")


@pytest.fixture
def unasked(as_declared: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `egress` and `mirrors probe` ask the network, `show` and `components` the engine, is not asked here."""
    monkeypatch.setattr("rlbox.cli.doctor.install_and_start_engine_and_build_tools", lambda say: None)
    monkeypatch.delenv("VAST_API_KEY", raising=False)
    monkeypatch.setattr("rlbox.image.show.find_image", lambda name: None)
    monkeypatch.setattr("rlbox.cli.lock.probe_file_mirrors", lambda *asked: ())
    monkeypatch.setattr(
        "rlbox.cli.lock.probe_machine_source_settings",
        lambda site: MachineSourceSettings(network_settings=site),
    )
    monkeypatch.setattr("rlbox.cli.lock.probe_redirect_and_listed_hosts_by_url", lambda *asked: {})
