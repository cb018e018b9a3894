"""`rlbox shell`: the docker client's words, its exit code, and what is said when there is no image."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import ON_IMAGE, EngineSocket, Folder, Rlbox, Said

NAME = f"rlbox-shell-mine-{os.getpid()}"
BEFORE = [
    "docker", "network", "create", "--driver=bridge", f"--label=rlbox.network={NAME}",
    f"--label=rlbox.owner={os.getuid()}", "--label=rlbox.target=mine", NAME,
]  # fmt: skip
AFTER = ["docker", "network", "rm", NAME]


@pytest.fixture(autouse=True)
def keep_interrupts() -> Iterator[None]:
    """The verb leaves Ctrl-C to the client, as its process ends with it; this one does not."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


IMAGE = "rlbox/mine:tests"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the only docker client on PATH out of a line of shell."""

    def make(script: str) -> None:
        program = tmp_path / "bin/docker"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.defpath}")

    return make


def words(folder: Folder, data: str, *command: str) -> list[str]:
    root, user = ["CHOWN", "DAC_OVERRIDE", "FOWNER"], [f"--user={os.getuid()}:{os.getgid()}"]
    rights = [f"--cap-add={name}" for name in root] if os.getuid() == 0 else user
    return [
        "docker", "run", "--rm", "--init", "--pull=never", f"--name={NAME}", f"--network={NAME}",
        "--cap-drop=ALL", "--security-opt=no-new-privileges", f"--shm-size={1 << 30}", *rights,
        f"--label=rlbox.owner={os.getuid()}", "--label=rlbox.target=mine",
        f"--volume={data}:/data", "--interactive", "rlbox/mine:tests", *command,
    ]  # fmt: skip


@pytest.mark.allow("sockets")
def test_dry_run(rlbox: Rlbox, folder: Folder, client: Callable[[str], None], engine: EngineSocket) -> None:
    folder.target("mine", ON_IMAGE)
    client("exit 1")
    engine.images[IMAGE] = {}
    home = Path("~/disk").expanduser()
    lines = [f"{shlex.join(BEFORE)} >/dev/null", shlex.join(words(folder, str(home), "bash"))]
    lines += [f"{shlex.join(AFTER)} >/dev/null", "", f"# first: the data disk {home} is made"]
    lines += [f"# verdict: this would start a container of {IMAGE}", ""]
    assert rlbox("shell", "mine", "--dry-run") == Said(code=0, out="\n".join(lines), err="")
    here = folder.path / "here"
    here.mkdir()
    said = rlbox("shell", "mine", "--dry-run", "--json", "--data", "here", "--", "sh", "-c", "exit 3")
    verdict = {"would": f"start a container of {IMAGE}", "exit_code": 0, "refused": [], "not_checked": []}
    assert said.data == {
        "schema": 1,
        "verdict": {**verdict, "first": []},
        "target": "mine",
        "command": words(folder, str(here), "sh", "-c", "exit 3"),
        "before": BEFORE,
        "after": AFTER,
    }
    assert not home.exists()


@pytest.mark.allow("sockets")
def test_dry_run_has_capabilities_and_network_of_target(
    rlbox: Rlbox, folder: Folder, client: Callable[[str], None], engine: EngineSocket
) -> None:
    folder.target("mine", f'{ON_IMAGE}\n[run]\nnetwork = "host"\ncap_add = ["SYS_PTRACE"]\n')
    client("exit 1")
    engine.images[IMAGE] = {}
    said = rlbox("shell", "mine", "--dry-run")
    assert said.code == 0, said.err
    assert {"--cap-add=SYS_PTRACE", "--network=host"} <= set(said.out.split())


@pytest.mark.allow("processes", "sockets")
def test_an_engine_without_bridges_opens_the_shell(
    rlbox: Rlbox, folder: Folder, client: Callable[[str], None], engine: EngineSocket
) -> None:
    folder.target("mine", ON_IMAGE)
    engine.networks.clear()
    engine.images[IMAGE] = {}
    client('for word; do case $word in --network=*) echo "$word" ;; esac; done')
    said = rlbox("shell", "mine", "--data", str(folder.path), "--", "true")
    assert said.code == 0
    assert said.err == (
        "open: this engine has no bridge, so the shell is on the network host, where others reach what it listens on; "
        "start the engine without `--bridge none` to close it\n"
    )
    assert engine.networks == []


@pytest.mark.allow("processes", "sockets")
def test_a_client_that_is_killed(
    rlbox: Rlbox, folder: Folder, client: Callable[[str], None], engine: EngineSocket
) -> None:
    folder.target("mine", ON_IMAGE)
    client("kill -TERM $$")
    engine.images[IMAGE] = {}
    assert rlbox("shell", "mine", "--", "true").code == 128 + signal.SIGTERM
