"""Stand-ins that behave like the thing and refuse what it would refuse; values that many tests start from."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from rlbox.app import list_rlbox_base_requirements
from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.config.project import Project
from rlbox.config.toml_files import load_toml
from rlbox.engine.container import ContainerDefaults
from rlbox.image.plan import ImagePlan
from rlbox.logs.lines import LineBlock
from rlbox.system.gpu import GpuStatus
from rlbox.target.lock import Deb, Lock, LockedPackageGroup, Package, compute_lock_spec_checksum
from rlbox.target.target import Target, load_target

CHECKOUT = Path(__file__).resolve().parents[1]
CASES = Path(__file__).resolve().parent / "cases"

TARGET = """
title = "smallest target"
[base]
bootstrap = "debian:bookworm"
[[stack]]
name = "tools"
packages = ["six==1.16.0"]
[disk]
host = "~/disk"
create = true
"""

ON_IMAGE = f"""
title = "smallest target on an image"
[base]
image = "registry.example/base@sha256:{"0123456789abcdef" * 4}"
[[stack]]
name = "tools"
packages = ["six==1.16.0"]
[disk]
host = "~/disk"
create = true
need_gib = 0
"""

PACKAGE = Package(name="six", version="1.16.0", file="six-1.16.0-py2.py3-none-any.whl", sha256="a" * 64, size=11053)
UV_WHEEL = b"uv"
UV = Package(
    name="uv",
    version="0.9.1",
    file="uv-0.9.1-py3-none-manylinux_2_28_x86_64.whl",
    sha256=hashlib.sha256(UV_WHEEL).hexdigest(),
    size=len(UV_WHEEL),
)
DEB = Deb(
    name="python3",
    version="3.11.2-1+b1",
    archive="debian",
    path="pool/main/p/python3-defaults/python3_3.11.2-1+b1_amd64.deb",
    sha256="d" * 64,
    size=26296,
)

JOB = """
title = "smallest job"
target = "mine"
[[stages]]
name = "only"
title = "the only stage"
command = ["true"]
"""


def load_cases(area: str, module: str) -> dict[str, Any]:
    """Return the texts and tables of cases that a test module keeps in `tests/cases/tables/AREA.toml`."""
    cases: dict[str, Any] = load_toml(CASES / f"tables/{area}.toml")[module]
    return cases


def repository_files(*folders: str) -> dict[str, bytes]:
    """Return every file that git knows, or would take, below `folders` (all): path in the checkout to bytes."""
    argv = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(argv, cwd=CHECKOUT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip(f"not a git checkout: {listed.stderr.decode()}")
    names = [name for name in listed.stdout.decode().split("\0") if name and (CHECKOUT / name).is_file()]
    return {name: (CHECKOUT / name).read_bytes() for name in names}


class Folder:
    """A project folder; files are written with their paths in it."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path

    @property
    def project(self) -> Project:
        """The folder as rlbox sees it."""
        return Project(folder=self.path)

    def write(self, name: str, text: str) -> Path:
        """Write a file and return its path."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def target(self, name: str, text: str = TARGET) -> Path:
        """Write the spec of a target."""
        return self.write(f"images/{name}/target.toml", text)

    def job(self, name: str, text: str = JOB) -> Path:
        """Write the file of a job."""
        return self.write(f"jobs/{name}.toml", text)

    def lock(self, name: str, **changes: Any) -> Path:
        """Write a lock that fits the target, but for `changes`."""
        return self.write(f"images/{name}/lock.json", replace(self.fitting_lock(name), **changes).to_json_text())

    def fitting_lock(self, name: str) -> Lock:
        """Return a lock that fits the target: one package a group."""
        return fitting_lock(load_target(self.project, name).target, list_rlbox_base_requirements())

    def files(self) -> list[str]:
        """Every file in the folder, sorted."""
        return sorted(path.relative_to(self.path).as_posix() for path in self.path.rglob("*") if path.is_file())


@dataclass(frozen=True, kw_only=True)
class Said:
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON object on stdout."""
        return json.loads(self.out)

    def check_error(self, code: int, *words: str) -> None:
        """Assert an exit code, nothing on stdout, and words on stderr."""
        assert (self.code, self.out) == (code, ""), self.err
        assert [word for word in words if word not in self.err] == [], self.err


class EngineSocket:
    """An engine that knows images and its version, behind a socket of its own; other requests are answered 501.

    A container ends at once, without a word; `made` is what each was made from. `networks` are the names of all,
    `containers` the rows of those that are listed. What `answers` has of a path comes before all that.
    """

    def __init__(self, path: Path) -> None:
        self.images: dict[str, dict[str, Any]] = {}
        self.made: list[dict[str, Any]] = []
        self.networks = ["bridge"]
        self.containers: list[dict[str, Any]] = []
        version = b'{"Version": "28.2.2", "ApiVersion": "1.45"}'
        self.answers: dict[str, tuple[int, bytes]] = {"/version": (200, version)}
        self.address = f"unix://{path}"
        self._server = ThreadingUnixStreamServer(str(path), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.005})
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, path: str, method: str) -> tuple[int, bytes]:
        if path.partition("?")[0] == "/images/json":
            return 200, json.dumps(self._rows(parse_qs(urlsplit(path).query))).encode()
        name = unquote(path.partition("?")[0].removeprefix("/images/"))
        if path.startswith("/images/") and (method == "DELETE" or name.endswith("/tag")):
            return self._name(name, path, method)
        if path.startswith("/images/") and path.endswith("/json"):
            tag = path.removeprefix("/images/").removesuffix("/json")
            if tag in self.images:
                return 200, json.dumps(self.images[tag]).encode()
            return 404, json.dumps({"message": f"No such image: {tag}"}).encode()
        return 501, json.dumps({"message": f"this engine only knows images: {path}"}).encode()

    def _name(self, name: str, path: str, method: str) -> tuple[int, bytes]:
        """Give an image a name, or take one off."""
        if method == "DELETE":
            return (200, b"[]") if self.images.pop(name, None) else (404, b'{"message": "No such image"}')
        asked = parse_qs(urlsplit(path).query)
        found = {image["Id"]: image for image in self.images.values()} | self.images
        self.images[f"{asked['repo'][0].removeprefix('docker.io/')}:{asked['tag'][0]}"] = found[
            name.removesuffix("/tag")
        ]
        return 201, b""

    def _rows(self, asked: dict[str, list[str]]) -> list[dict[str, Any]]:
        """Return the images that have all labels which are asked for, each once, with its names."""
        wanted = json.loads(asked.get("filters", ["{}"])[0]).get("label", [])
        rows: dict[str, dict[str, Any]] = {}
        for name, image in self.images.items():
            labels = (image.get("Config") or {}).get("Labels") or {}
            if set(wanted) <= {*labels, *(f"{label}={text}" for label, text in labels.items())}:
                row = rows.setdefault(image["Id"], {"RepoTags": [], "Labels": labels, **image})
                row["RepoTags"] += [name] if ":" in name and not name.startswith("sha256:") else []
        return list(rows.values())

    def _carry_out(self, path: str, body: bytes, method: str) -> tuple[int, bytes]:
        """Answer what is asked about containers."""
        match path.partition("?")[0].split("/")[1:]:
            case ["containers", "create"]:
                self.made.append(json.loads(body))
                return 201, b'{"Id": "c1"}'
            case ["containers", "json"]:
                return 200, json.dumps(self.containers).encode()
            case ["containers", _, "json"]:
                ended = {"Status": "exited", "StartedAt": "2026-01-01T00:00:00Z", "ExitCode": 0}
                return 200, json.dumps({"Id": "c1", "Config": {"Tty": False}, "State": ended}).encode()
            case ["containers", _, "wait"]:
                return 200, b'{"StatusCode": 0}'
            case ["containers", _, "logs"]:
                return 200, b""
            case ["containers", _, *_]:
                return 204, b""
            case ["networks"]:
                return 200, json.dumps([{"Name": name, "Id": name, "Labels": {}} for name in self.networks]).encode()
            case ["networks", "create"]:
                self.networks.append(json.loads(body)["Name"])
                return 201, b'{"Id": "n1"}'
            case ["networks", name] if name in self.networks:
                return 204, b""
            case _:
                return self._answer(path, method)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        carry_out, answers = self._carry_out, self.answers

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = re.sub(r"^/v1\.\d+/", "/", self.path)
                status, body = (
                    answers.get(path) or answers.get(path.partition("?")[0]) or carry_out(path, asked, self.command)
                )
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if body:  # else nobody waits for one
                    self.wfile.write(body)

            do_POST = do_DELETE = do_GET  # noqa: N815

            def address_string(self) -> str:
                return "engine"

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


class Rlbox:
    """The command line in this process."""

    def __init__(self, main: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
        self._main = main
        self._capsys = capsys

    def __call__(self, *words: str) -> Said:
        self._capsys.readouterr()
        code = self._main(words)
        out, err = self._capsys.readouterr()
        return Said(code=code, out=out, err=err)

    def offers(self, typed: str) -> list[str]:
        """Return what bash is offered at TAB behind what is typed, each with its kind: `plain,local`."""
        asked = {"_RLBOX_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
        self._capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in asked.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit, match="0"):  # click's own way to end a completion
                self._main(())
        return [line for line in self._capsys.readouterr().out.splitlines() if line]


def tree(*folders: Path) -> dict[str, tuple[Any, ...]]:
    """Return all that is below some folders: kind, mode, time stamp, size and bytes of each."""
    found = {}
    for folder in folders:
        for path in (folder, *sorted(folder.rglob("*"))):
            facts = path.lstat()
            body = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path)] = facts.st_mode, facts.st_mtime_ns, facts.st_size, body
    return found


def fitting_lock(target: Target, runtime: tuple[str, ...]) -> Lock:
    """Return a current lock of `target`: one apt package where the base is bootstrapped, one package a group."""
    return Lock(
        target=target.name,
        spec=compute_lock_spec_checksum(target, runtime),
        python=target.python.version,
        platform=target.python.platform,
        base=target.base.bootstrap or target.base.image,
        debs=(DEB,) if target.base.bootstrap else (),
        runtime=LockedPackageGroup(name="runtime", packages=(UV,)),
        groups=tuple(LockedPackageGroup(name=group.name, packages=(PACKAGE,)) for group in target.stack),
    )


def hold(body: bytes) -> str:
    """Put bytes into the store and return their sha256."""
    digest = hashlib.sha256(body).hexdigest()
    with ObjectStore(resolve_store_dir(None)).wait_for_partial(digest) as draft:
        draft.write(body)
        draft.commit()
    return digest


LIMITS = ContainerDefaults(
    network="host",
    shm_gib=1.0,
    memory_gib=0.0,
    cpus=0.0,
    pids=0,
    user="caller",
    disk_mount="/data",
    disk_host_dir="/disk",
    creates_disk_dir=False,
    needed_disk_gib=1.0,
)


def image_plan(**changes: Any) -> ImagePlan:
    """Return a small image plan with `changes`."""
    values: dict[str, Any] = {
        "target": "mine",
        "tag": "rlbox/mine:tests",
        "rendered_files": {"images/mine/Dockerfile": "FROM scratch\n"},
        "context_files": {"Dockerfile": "FROM scratch\n", "scripts/install.sh": "#!/bin/sh\n"},
        "lock": None,
        "lock_fault": None,
        "lock_checksum": "1" * 64,
        "spec_checksum": "3" * 64,
        "rootfs_checksum": "2" * 64,
        "layers": ("tools",),
        "torch_groups": (),
        "python": "3.11",
        "sources_profile": "direct",
        "network": "host",
        "epoch": 0,
        "bake_ca": False,
        "container": LIMITS,
        "env": {},
    }
    return ImagePlan(**{**values, **changes})


def h200(power_w: float, *shares: tuple[int, int, int]) -> GpuStatus:
    """Return one H200 that draws so much, with what each process uses of it: id, computing and memory in percent."""
    return GpuStatus(
        index=0,
        name="NVIDIA H200",
        utilization=100,
        power_w=power_w,
        power_limit_w=700,
        memory_bytes=1,
        total_bytes=2,
        processes=(),
        shares=shares,
    )


def make_line_block(lines: Sequence[str], first_number: int = 1, first_byte: int = 0) -> LineBlock:
    return LineBlock("\n".join(lines).encode(), len(lines), first_number, first_byte)
