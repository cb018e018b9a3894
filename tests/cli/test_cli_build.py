"""`rlbox build`, with an engine that knows images and a docker client that says what it is told to."""

from __future__ import annotations

import errno
import os
import shlex
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import CASES, ON_IMAGE, TARGET, UV_WHEEL, EngineSocket, Folder, Rlbox, Said, hold, load_cases
from following import Follow

from rlbox.artifacts.object_store import ObjectStore, resolve_store_dir
from rlbox.image.bootstrap import cached_rootfs_archive_path
from rlbox.image.context import compute_build_digest, list_hashed_context_entries
from rlbox.image.plan import load_image_plan
from rlbox.system.files import cache_path
from rlbox.target.lock import LockedPackageGroup, Package, make_locked_patch

TABLES = load_cases("cli", "test_cli_build")
TAG = "rlbox/mine:tests"
Client = Callable[..., Path]


@pytest.fixture
def mine(folder: Folder) -> Folder:
    """A project with a locked target on an image."""
    folder.target("mine", ON_IMAGE)
    folder.lock("mine")
    hold(UV_WHEEL)
    return folder


def image_of(folder: Folder) -> dict[str, Any]:
    """Return the engine's word for an image that is what the specs say."""
    plan = load_image_plan(folder.project, "mine")
    digest = compute_build_digest(list_hashed_context_entries(plan), plan.epoch)
    return {"Id": "sha256:0123456789abcdef0123", "Config": {"Labels": {"rlbox.build": digest}}}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Make the only docker client on PATH: it notes its words, prints a file and exits with a code."""

    def make(shown: Path | None = None, code: int = 0, version: str = "28.2.2", buildx: bool = True) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        noted = tmp_path / "words.txt"
        program = folder / "docker"
        program.write_text(
            f'#!/bin/sh\n[ "$1" != version ] || {{ echo {version}; exit 0; }}\n'
            f"printf '%s\\n' \"$@\" >{shlex.quote(str(noted))}\n"
            'for word; do [ "$before" != --metadata-file ] || echo {} >"$word"; before=$word; done\n'
            f"{f'cat {shlex.quote(str(shown))}' if shown else ':'}\nexit {code}\n"
        )
        program.chmod(0o755)
        plugin = tmp_path / "config/cli-plugins/docker-buildx"
        if buildx:
            plugin.parent.mkdir(parents=True, exist_ok=True)
            plugin.write_text(program.read_text())
            plugin.chmod(0o755)
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "config"))
        monkeypatch.setattr("rlbox.image.buildkit._PLUGIN_FOLDERS", ())
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.defpath}")
        return noted

    return make


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        (
            {"python": "3.12"},
            "stale: made for Python 3.12 on x86_64-unknown-linux-gnu, "
            "the spec says Python 3.11 on x86_64-unknown-linux-gnu",
        ),
        ({"target": "other"}, "stale: made for the target 'other'"),
        ({"spec": "0"}, "stale: the spec changed since"),
        ({"patches": (make_locked_patch("one.diff", "1\n"),)}, "stale: one.diff changed since"),
    ],
)
def test_a_stale_lock(rlbox: Rlbox, mine: Folder, changes: dict[str, Any], state: str) -> None:
    mine.lock("mine", **changes)
    said = rlbox("build", "mine")
    assert (said.code, f"the lock of target mine is {state}\n" in said.err) == (2, True)


@pytest.mark.allow("sockets", "processes")
def test_dry_run(
    rlbox: Rlbox, mine: Folder, client: Client, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is the one that a build would run, but for a long label and a file that is gone with it."""
    noted = client()
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    engine.images[TAG] = {"Id": "sha256:0123456789abcdef", "Config": {"Labels": {}}}
    said = rlbox("build", "mine", "--dry-run")
    line, _, verdict = said.out.partition("\n\n")
    line, _, told = line.partition("\n")
    assert told == "# what this line names is made by the build alone; by hand: rlbox render mine --context FOLDER"
    why = "its spec has changed"
    assert (said.code, verdict, said.err) == (0, f"# verdict: this would build {TAG}: {why}\n", "")
    assert not noted.exists()
    assert rlbox("build", "mine").code == 0
    shown, ran = shlex.split(line)[1:], noted.read_text().splitlines()
    ran = ["id=sources,src=SOURCES" if word.startswith("id=sources") else word for word in ran]
    at = ran.index("--metadata-file")
    del ran[at : at + 2]
    assert shown == ran


@pytest.mark.usefixtures("no_engine")
@pytest.mark.allow("processes")
@pytest.mark.parametrize(("more", "network", "last"), TABLES["dry_run_of_every_wish"], ids=str)
def test_dry_run_of_every_wish(
    rlbox: Rlbox, mine: Folder, client: Client, more: list[str], network: str, last: list[str]
) -> None:
    client()
    said = rlbox("build", "mine", "--dry-run", *more)
    words = shlex.split(said.out.partition("\n")[0])
    lacks = "\n# refused: the store lacks 1 files of the lock: six\n" in said.out
    assert (said.code, said.err, lacks) == ((1, "", True) if "--hermetic" in more else (0, "", False))
    assert f"--network={network}" in words
    assert [word for word in words if word == "--no-cache"] == last


@pytest.mark.allow("sockets")
def test_an_engine_that_is_not_for_this_user(rlbox: Rlbox, mine: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    rlbox("build", "mine").check_error(4, "this user has no permission to use Docker")


@pytest.mark.allow("sockets")
def test_nothing_changed(rlbox: Rlbox, mine: Folder, engine: EngineSocket) -> None:
    engine.images[TAG] = image_of(mine)
    shown = Said(code=0, out=f"{TAG}  sha256:0123456789ab  unchanged\n", err="next: rlbox shell mine\n")
    assert rlbox("build", "mine") == shown
    assert rlbox("build", "mine", "-q") == Said(code=0, out=shown.out, err="")
    assert rlbox("build", "mine", "--json").data == {
        "schema": 1,
        "target": "mine",
        "image": TAG,
        "id": "sha256:0123456789abcdef0123",
        "state": "unchanged",
        "log": None,
    }


@pytest.mark.allow("sockets", "processes")
def test_a_build(rlbox: Rlbox, mine: Folder, engine: EngineSocket, client: Client) -> None:
    engine.images[TAG] = {"Id": "sha256:0123456789abcdef", "Config": {"Labels": {"rlbox.build": "another"}}}
    noted = client(CASES / "image/build_log/built-docker-20.10.txt")
    said = rlbox("build", "mine")
    assert (said.code, said.out) == (0, f"{TAG}  sha256:0123456789ab  built\n")
    lines = said.err.splitlines()
    assert lines[:4] == [
        f"rebuilding {TAG}: its spec has changed",
        "✓ [rootfs 1/1] ADD rootfs.tar /  0.9 s",
        "✓ [deps 1/4] RUN cat /run/secrets/tok && echo sde=1735689600  0.3 s",
        "✓ [deps 2/4] RUN date >>/var/cache/x/f; cat /var/cache/x/f  0.1 s",
    ]
    log = Path(lines[-2].partition("; log: ")[2])
    assert log.read_text() == (CASES / "image/build_log/built-docker-20.10.txt").read_text()
    assert lines[-1] == "next: rlbox shell mine"
    words = noted.read_text().splitlines()
    digest = image_of(mine)["Config"]["Labels"]["rlbox.build"]
    assert words[0] == "build"
    assert f"--label=rlbox.build={digest}" in words
    assert words[-1] == str(cache_path("contexts", "mine.tests"))
    assert (cache_path("contexts", "mine.tests") / "other/opt/rlbox/lib/rlbox/cli/root.py").is_file()


def stored(name: str) -> Package:
    """Put a wheel into the store and return what a lock says of it."""
    body = name.encode()
    return Package(name=name, version="1", file=f"{name}-1-py3-none-any.whl", sha256=hold(body), size=len(body))


@pytest.mark.allow("sockets", "processes")
def test_a_hermetic_build(rlbox: Rlbox, folder: Folder, engine: EngineSocket, client: Client) -> None:
    """Every locked file comes from the store; no step has a network or a mirror's settings."""
    folder.target("mine")
    uv, six, tool = (stored(name) for name in ("uv", "six", "wheel"))
    sdist = replace(stored("old"), file="old-1.tar.gz")
    folder.lock(
        "mine",
        runtime=LockedPackageGroup(name="runtime", packages=(uv,)),
        build=LockedPackageGroup(name="build", packages=(tool,)),
        groups=(LockedPackageGroup(name="tools", packages=(six, sdist)),),
    )
    plan = load_image_plan(folder.project, "mine")
    cached_rootfs_archive_path(plan.rootfs_checksum).parent.mkdir(parents=True)
    cached_rootfs_archive_path(plan.rootfs_checksum).write_bytes(b"tar")
    noted = client()
    engine.images[TAG] = {"Id": "sha256:0123456789abcdef", "Config": {"Labels": {}}}
    dry = rlbox("build", "mine", "--hermetic", "--dry-run", "--json").data["verdict"]
    assert (dry["exit_code"], dry["not_checked"], dry["first"]) == (0, [], [])
    said = rlbox("build", "mine", "--hermetic")
    assert (said.code, said.out) == (0, f"{TAG}  sha256:0123456789ab  built\n")
    words = noted.read_text().splitlines()
    assert "--network=none" in words
    context = Path(words[-1])
    wheels = {path.relative_to(context).as_posix() for path in context.glob("wheels/*/**/*") if path.is_file()}
    assert wheels == {
        "wheels/runtime/requirements.txt",
        "wheels/tools/tools/requirements.txt",
        "wheels/uv/complete",
        "wheels/uv/uv-1-py3-none-any.whl",
        "wheels/runtime/complete",
        "wheels/runtime/uv-1-py3-none-any.whl",
        "wheels/tools/tools/complete",
        "wheels/tools/tools/six-1-py3-none-any.whl",
        "wheels/tools/tools/old-1.tar.gz",
        "wheels/tools/tools/wheel-1-py3-none-any.whl",
    }
    assert (context / "rootfs.tar").read_bytes() == b"tar"
    store = ObjectStore(resolve_store_dir(None))
    assert (context / "wheels/tools/tools/six-1-py3-none-any.whl").samefile(store.path(six.sha256))
    assert f"--label=rlbox.build={compute_build_digest(list_hashed_context_entries(plan), plan.epoch)}" in words


@pytest.mark.allow("sockets", "processes")
def test_a_hermetic_build_downloads_nothing(rlbox: Rlbox, folder: Folder, engine: EngineSocket, client: Client) -> None:
    """What the store lacks is named, of a bootstrapped base and of one that is an image; nobody is asked for it."""
    client()
    uv, six = (
        LockedPackageGroup(name="runtime", packages=(stored("uv"),)),
        LockedPackageGroup(name="tools", packages=(stored("six"),)),
    )
    for name, spec in {"mine": TARGET, "based": ON_IMAGE}.items():
        folder.target(name, spec)
        folder.lock(name, runtime=uv, groups=(six,))
        said = rlbox("build", name, "--hermetic")
        assert (said.code, said.out) == (1, "")
        assert "rlbox: error: the store lacks 1 files of the lock: " in said.err, name
        assert said.err.splitlines()[-1] == f"  next:  rlbox fetch {name}; without a network, with --import DIR"
        assert rlbox("render", name, "--context", "c", "--hermetic").err.splitlines()[-3:] == said.err.splitlines()[-3:]


@pytest.mark.allow("sockets", "processes")
def test_an_old_engine(rlbox: Rlbox, mine: Folder, engine: EngineSocket, client: Client) -> None:
    told = "Docker 20.10.24 cannot promise the same bytes for the same lock; 23 and newer can"
    engine.answers["/version"] = 200, b'{"Version": "20.10.24+dfsg1", "ApiVersion": "1.41"}'
    client()
    engine.images[TAG] = {"Id": "sha256:0123456789abcdef", "Config": {"Labels": {}}}
    rlbox("build", "mine", "--verify").check_error(4, told)
    said = rlbox("build", "mine")
    assert (said.code, said.err.splitlines()[0]) == (0, told)
    dockerfile = (cache_path("contexts", "mine.tests") / "Dockerfile").read_text()
    assert "COPY --from=rlbox.runtime /out/ /\n" in dockerfile
    assert "--link" not in dockerfile


@pytest.mark.allow("sockets", "processes")
@pytest.mark.parametrize(("case", "last"), TABLES["a_step_that_fails"])
def test_a_step_that_fails(
    rlbox: Rlbox, mine: Folder, engine: EngineSocket, client: Client, case: str, last: str
) -> None:
    client(CASES / f"image/build_log/{case}.txt", code=1)
    said = rlbox("build", "mine")
    assert (said.code, said.out) == (1, "")
    begin, _, error = said.err.partition("rlbox: error: ")
    assert "= [stage-0 2/4] RUN echo one\n✗ [stage-0 3/4] RUN echo bad; echo worse >&2; exit 7\n" in begin
    lines = error.splitlines()
    assert lines[0] == "build step failed: [stage-0 3/4] RUN echo bad; echo worse >&2; exit 7"
    assert lines[-3] == f"  | {last}"
    assert lines[-1].startswith("  next:  full log: ")
    assert sorted(line.split()[-1] for line in lines if line.startswith("  | 0.")) == ["bad", "worse"]


CANCELED = "ERROR: failed to solve: Canceled: context canceled"
LOST = "ERROR: failed to solve: failed to prepare x: parent snapshot sha256:1 does not exist: not found"


@pytest.mark.allow("sockets", "processes")
@pytest.mark.parametrize(
    ("said", "why"),
    [
        (CANCELED, "another build of the same steps was stopped, and the engine stopped them for both"),
        (LOST, "the engine lost a layer while it unpacked the image"),
    ],
)
def test_what_is_no_fault_of_the_build_is_repeated(
    rlbox: Rlbox, mine: Folder, engine: EngineSocket, client: Client, tmp_path: Path, said: str, why: str
) -> None:
    (tmp_path / "shown").write_text(f"{said}\n")
    client(tmp_path / "shown", code=1)
    failed = rlbox("build", "mine")
    assert failed.code == 1
    lines = failed.err.splitlines()
    assert lines[:2] == [f"{why}; building again (attempt {number} of 3)" for number in (2, 3)]
    assert lines[2:4] == ["rlbox: error: the build failed (exit code 1)", said]


@pytest.mark.allow("sockets", "processes")
def test_what_a_step_says_is_no_reason_to_repeat_it(
    rlbox: Rlbox, mine: Folder, engine: EngineSocket, client: Client, tmp_path: Path
) -> None:
    end = "ERROR: failed to solve: process did not complete successfully: exit code: 1"
    (tmp_path / "shown").write_text(f"#5 [a 1/1] RUN x\n#5 0.1 failed to solve: context canceled\n#5 ERROR: 1\n{end}\n")
    client(tmp_path / "shown", code=1)
    failed = rlbox("build", "mine")
    assert (failed.code, "building again" in failed.err) == (1, False)


@pytest.mark.allow("sockets", "processes")
def test_a_client_without_buildkit(
    rlbox: Rlbox, mine: Folder, engine: EngineSocket, client: Client, tmp_path: Path
) -> None:
    client(version="28.2.2", buildx=False)
    said = rlbox("build", "mine")
    assert said.code == 4
    assert said.err.startswith(
        "rlbox: error: no docker client here can drive BuildKit: the buildx plugin is missing\n"
        f"  where: {tmp_path}/bin/docker"
    )
    assert said.err.endswith("  next:  install the buildx plugin (packages: docker-buildx, docker-buildx-plugin)\n")


@pytest.mark.allow("sockets", "processes")
def test_no_client(rlbox: Rlbox, mine: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(mine.path))
    rlbox("build", "mine").check_error(4, "no docker client on PATH")


@pytest.mark.allow("sockets", "processes")
def test_a_build_that_made_nothing(rlbox: Rlbox, mine: Folder, engine: EngineSocket, client: Client) -> None:
    client()
    said = rlbox("build", "mine")
    assert said.code == 1
    told = f"rlbox: error: the build ended well, but the engine has no image {TAG}\n  where: rlbox build\n"
    assert f"{told}  next:  full log: " in said.err


@pytest.mark.allow("sockets")
def test_two_builds_at_once(rlbox: Rlbox, mine: Folder, engine: EngineSocket) -> None:
    from rlbox.system.file_lock import hold_lock

    with hold_lock(cache_path("locks", "build-mine.tests.lock"), "build of mine"):
        said = rlbox("build", "mine")
    assert said.code == 8
    waited, refused, *_ = said.err.splitlines()
    assert waited.startswith("waiting: another rlbox is busy with the build of mine: pid ")
    assert refused.startswith(f"rlbox: error: another rlbox is busy with the build of mine: pid {os.getpid()} since ")


def test_no_tool_to_make_the_base(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.target("mine")
    folder.lock("mine", debs=())
    hold(UV_WHEEL)
    monkeypatch.setenv("PATH", str(folder.path))
    said = rlbox("render", "mine", "--context", "c")
    said.check_error(5, "mmdebstrap is not installed", "apt-get install mmdebstrap")


@pytest.mark.allow("sockets", "processes")
def test_what_was_locked_is_built_and_looked_into(
    follow: Follow,
    mine: Folder,
    engine: EngineSocket,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RLBOX_DATA", str(tmp_path))
    engine.images[TAG] = image_of(mine)
    follow.types(follow("lock", "mine"))
    step = follow("build", "mine")
    client()
    follow.changed(step, [*step.commands({})[0], "--", "true"], 0)
