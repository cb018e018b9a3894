"""A short-lived container on a remote engine's host in which this rlbox continues: there the data disk is local.

It holds this rlbox and the project, the data disk under its path on that host, the engine's socket, and that host's
record of its runs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import signal
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from types import FrameType

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container
from docker.types import Mount

from rlbox.config.packs import PACK_FOLDERS
from rlbox.config.project import PACKAGE, Project
from rlbox.engine.address import create_engine_unreachable_error, create_missing_docker_cli_error
from rlbox.errors import EngineError, MachineError
from rlbox.i18n import _
from rlbox.ssh.tunnel import ENGINE_SOCKET, EngineTunnelInfo
from rlbox.system.command import start_command
from rlbox.system.run_processes import handle_sigint_and_sigterm
from rlbox.values import Command

HELPER_LABEL = "rlbox.helper"
_BASE = "rlbox-remote"
_START = f"/{_BASE}/start.json"
_STATE = f"/{_BASE}/state"
_PARTS = ("images", "jobs", "sources", "templates", "Dockerfile.base")
_PASSED = ("TERM", "COLORTERM", "LANG", "LC_ALL", "NO_COLOR")
_BOOT = f"""
import json, os, sys
start = json.load(open({_START!r}))
os.unlink({_START!r})
os.environ.update(start["env"])
os.chdir("/{_BASE}/project")
sys.path.insert(0, "/{_BASE}/lib")
from rlbox.cli import main
sys.exit(main(start["words"]))
"""


@dataclass(frozen=True, kw_only=True)
class HelperContainerSpec:
    """`data_dir` is a folder of the host, made where it is missing if `create_data_dir`."""

    target: str
    image: str
    data_dir: str
    create_data_dir: bool
    rlbox_args: tuple[str, ...]
    env: Mapping[str, str]
    terminal: bool


def run_helper_and_fetch_files(tunnel: EngineTunnelInfo, project: Project, helper: HelperContainerSpec) -> int:
    """Run `helper` with the streams of this process and return its exit code; files that it wrote come back."""
    container = _make(tunnel, project, helper)
    try:
        code = _attach(tunnel, container, helper.terminal)
    except EngineError:  # it was never started, and so has not removed what it was given
        with contextlib.suppress(DockerException, OSError):
            container.remove(force=True)
        raise
    try:
        container.reload()
        if container.status in ("exited", "dead"):
            _fetch_new_files(container)
        container.remove(force=True)
    except NotFound:
        return code
    except (DockerException, OSError) as error:
        raise EngineError(
            _("the connection to the engine was lost; a run that had started goes on"),
            next_step=f"rlbox attach --target {helper.target} --data {shlex.quote(helper.data_dir)}",
        ) from error
    return code


def _make(tunnel: EngineTunnelInfo, project: Project, helper: HelperContainerSpec) -> Container:
    """Return the container with all that is laid into it, ready to start; those that ended before are removed."""
    try:
        client = docker.DockerClient(base_url=tunnel.local_address, timeout=60)
        for ended in client.containers.list(all=True, filters={"label": HELPER_LABEL, "status": "exited"}):
            with contextlib.suppress(APIError):
                ended.remove()
        container = client.containers.create(
            helper.image,
            entrypoint=["/opt/rlbox/bin/python", "-c", _BOOT],
            labels={HELPER_LABEL: "1"},
            network_mode="host",
            user=f"{tunnel.remote_uid}:{tunnel.remote_gid}",
            group_add=[str(tunnel.remote_socket_gid)],
            init=True,
            tty=helper.terminal,
            stdin_open=helper.terminal,
            volumes=[
                f"{tunnel.remote_socket}:{ENGINE_SOCKET}",
                f"{tunnel.remote_state_directory}:{_STATE}/rlbox",
                *([f"{helper.data_dir}:{helper.data_dir}"] if helper.create_data_dir else []),
            ],
            mounts=[]
            if helper.create_data_dir
            else [Mount(helper.data_dir, helper.data_dir, type="bind")],  # it must be there
        )
        container.put_archive(
            "/", create_helper_start_archive(project, helper, owner_uid=tunnel.remote_uid, owner_gid=tunnel.remote_gid)
        )
        return container
    except (APIError, ImageNotFound) as error:
        args = str(error.explanation or error)
        if "bind source path does not exist" in args:
            step = _("make it over there, or name another with --data DIR")
            raise MachineError(_("the data disk is missing"), where=helper.data_dir, next_step=step) from error
        raise EngineError(_("the engine refused the container: {words}").format(words=args)) from error
    except (DockerException, OSError) as error:
        raise create_engine_unreachable_error(tunnel.local_address, error) from error


def _attach(tunnel: EngineTunnelInfo, container: Container, terminal: bool) -> int:
    """Start the container through the docker client, which knows terminals; pass Ctrl-C and SIGTERM on to it."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(DockerException, OSError):
            container.kill(signal=signal.Signals(number).name)

    args = ("docker", "start", "--attach", *(("--interactive",) if terminal else ()), str(container.id))
    client = Command(argv=args, env={"DOCKER_HOST": tunnel.local_address})
    with handle_sigint_and_sigterm(pass_on):
        try:  # a client that sees Ctrl-C lets go at once, so without a terminal it has a session of its own
            return start_command(client, stdin=None, new_session=not terminal).wait()
        except FileNotFoundError as error:
            raise create_missing_docker_cli_error() from error


def create_helper_start_archive(
    project: Project, helper: HelperContainerSpec, *, owner_uid: int, owner_gid: int
) -> bytes:
    def owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid, info.gid, info.uname, info.gname = owner_uid, owner_gid, "", ""
        return info

    def wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if "__pycache__" in info.name else owned(info)

    metadata = distribution("rlbox").read_text("METADATA") or ""
    start = json.dumps({"words": helper.rlbox_args, "env": {**_environment(), **helper.env}})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("project", "lib"):
            info = tarfile.TarInfo(f"{_BASE}/{name}")
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(owned(info))
        for path, name in _folders(project):
            tar.add(path, f"{_BASE}/{name}", filter=wanted)
        for name, text, mode in (("lib/rlbox-0.dist-info/METADATA", metadata, 0o644), ("start.json", start, 0o600)):
            info = tarfile.TarInfo(f"{_BASE}/{name}")
            info.size, info.mode = len(text.encode()), mode
            tar.addfile(owned(info), io.BytesIO(text.encode()))
    return buffer.getvalue()


def _folders(project: Project) -> Iterator[tuple[Path, str]]:
    """Yield what is sent, and under which name: this rlbox with what it ships, packs, and the project over them."""
    yield PACKAGE, "lib/rlbox"
    shipped = project.roots[-1]
    for pack in reversed(project.packs):
        yield from ((pack.folder / part, f"project/{part}") for part in PACK_FOLDERS if (pack.folder / part).exists())
    for part in _PARTS:
        if project.folder != shipped and (project.folder / part).exists():
            yield project.folder / part, f"project/{part}"
        if (shipped / part).exists():
            yield shipped / part, f"lib/{part}"


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {
        **passed,
        "HOME": f"/{_BASE}",
        "XDG_CACHE_HOME": f"/{_BASE}/cache",
        "XDG_STATE_HOME": _STATE,
        "PYTHONPATH": f"/{_BASE}/lib",
        "DOCKER_HOST": f"unix://{ENGINE_SOCKET}",
        "USER": os.environ.get("USER") or "rlbox",
    }


def _fetch_new_files(container: Container) -> None:
    chunks, __ = container.get_archive(f"/{_BASE}/project")
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        for info in tar:
            if info.isfile() and info.name.count("/") == 1 and (source := tar.extractfile(info)):
                Path(info.name.partition("/")[2]).write_bytes(source.read())
