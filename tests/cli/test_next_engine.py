"""What is advised where the engine, or what it offers, is the trouble: an engine that is asked over a socket."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from fakes import ON_IMAGE, EngineSocket, Folder, Rlbox, Said
from following import Follow, findings
from reportbox import write_run
from test_cli_build import image_of

from rlbox.doctor.engine import DriverNeeds
from rlbox.engine.registry_auth import find_login
from rlbox.errors import RegistryError
from rlbox.system.files import cache_path, open_atomic
from rlbox.system.gpu import GpuDriver, GpuModel
from rlbox.system.lock import hold_lock

pytestmark = pytest.mark.allow("sockets", "processes")
TAG = "rlbox/mine:tests"
SPEC = """---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- containerEdits:
    mounts:
    - containerPath: /usr/bin/nvidia-smi
      hostPath: {file}
  name: "0"
"""
SHELL = ("shell", "mine", "--dry-run")


@pytest.fixture
def mine(folder: Folder, engine: EngineSocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A project with a target of one GPU, whose image the engine has; this machine has a docker client."""
    folder.target("mine", ON_IMAGE + "[hardware]\ngpus = 1\n")
    folder.lock("mine")
    folder.write("bin/docker", "#!/bin/sh\nexit 0\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder.path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("RLBOX_DATA", str(tmp_path))
    monkeypatch.setattr("rlbox.engine.gpu_access.glob.glob", lambda pattern: real_files(pattern))
    engine.images[TAG] = {"Id": "sha256:0", "Config": {"Labels": {}}}
    tells(engine)
    return folder


def real_files(pattern: str) -> list[str]:
    """The files of a pattern, but for this machine's own GPUs."""
    return [] if pattern.startswith("/dev/") else [str(path) for path in Path("/").glob(pattern.lstrip("/"))]


def tells(engine: EngineSocket, **info: Any) -> None:
    """Let the engine say this of itself."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S.0Z", time.gmtime())
    engine.answers["/info"] = 200, json.dumps({"ServerVersion": "28.2.2", "SystemTime": now, **info}).encode()


def gpus(*names: str) -> dict[str, Any]:
    return {"CDISpecDirs": ["/nowhere"], "DiscoveredDevices": [{"ID": f"nvidia.com/gpu={name}"} for name in names]}


def test_without_gpus(follow: Follow, mine: Folder) -> None:
    step = follow(*SHELL)
    follow.again(step, *step.options({}))


def test_fewer_gpus(follow: Follow, mine: Folder, engine: EngineSocket) -> None:
    tells(engine, **gpus("0", "1"))
    step = follow(*SHELL, "--gpus", "3")
    follow.again(step, *step.options({}))


def test_a_gpu_that_is_there(follow: Follow, mine: Folder, engine: EngineSocket) -> None:
    tells(engine, **gpus("0", "1"))
    step = follow(*SHELL, "--gpus", "device=7")
    follow.instead(step, "7", step.choices()[0])


def test_cdi_is_switched_on(
    follow: Follow, mine: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = mine.write("cdi/nvidia.yaml", SPEC.format(file=mine.path / "images"))
    monkeypatch.setattr("rlbox.engine.gpu_access.CDI_FOLDERS", (str(file.parent),))
    step = follow(*SHELL)
    assert json.loads(step.text[step.text.index("{") : step.text.rindex("}") + 1]) == {"features": {"cdi": True}}
    tells(engine, CDISpecDirs=[str(file.parent)])  # as it does with that in its daemon.json
    follow.again(step)


def test_a_specification_is_made_anew(follow: Follow, mine: Folder, engine: EngineSocket) -> None:
    file = mine.write("cdi/nvidia.yaml", SPEC.format(file="/usr/lib/libcuda.so.535"))
    tells(engine, CDISpecDirs=[str(file.parent)])
    step = follow(*SHELL)
    assert step.text.endswith(f"--output={file}")
    Path(step.text.partition("--output=")[2]).write_text(SPEC.format(file=mine.path / "images"))  # nvidia-ctk's work
    follow.again(step)


def test_fewer_gpus_in_place(follow: Follow, mine: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlbox.doctor.gpu_choice.probe_driver", lambda: GpuDriver(present=True, devices=2))
    mine.job("own")
    step = follow("run", "own", "--place", "here", "--gpus", "3", "--dry-run")
    follow.again(step, *step.options({}))


def test_a_device_is_left_out(follow: Follow, mine: Folder) -> None:
    mine.target("mine", ON_IMAGE + '[run]\ndevices = { "/dev/nosuch" = "rw" }\n')
    step = follow(*SHELL)
    mine.target("mine", ON_IMAGE)
    follow.again(step)


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "engine-old": ({"ServerVersion": "19.03.1"}, {"ServerVersion": "20.10.0"}),
    "clock-skew": ({"SystemTime": "2020-01-01T00:00:00.0Z"}, {}),
    "gpu-runtime-missing": ({}, {"Runtimes": {"nvidia": {}}}),
}


GPU = {"present": True, "devices": 1, "cuda": (99, 0)}
DRIVERS: dict[str, dict[str, Any]] = {
    "gpu-driver-missing": {"present": False},  # another machine has one
    "gpu-driver-broken": {**GPU, "error": "cuDriverGetVersion gives 999"},
    "cuda-driver-old": {**GPU, "cuda": (11, 4)},
}


@pytest.mark.parametrize("finding", DRIVERS)
def test_another_driver(
    follow: Follow, mine: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch, finding: str
) -> None:
    """It is loaded again, a newer one is installed, or the machine is one that has it."""
    tells(engine, Runtimes={"nvidia": {}})
    needs = DriverNeeds(require="cuda>=12.4")
    monkeypatch.setattr("rlbox.doctor.host.read_driver_requirements", lambda *asked: needs)
    monkeypatch.setattr("rlbox.doctor.checks.probe_driver", lambda: GpuDriver(**DRIVERS[finding]))
    follow.found(("doctor", "mine"), follow.rlbox("doctor", "mine"), finding)
    monkeypatch.setattr("rlbox.doctor.checks.probe_driver", lambda: GpuDriver(**GPU))
    assert finding not in findings(follow.rlbox("doctor", "mine"))


def test_the_target_is_that_of_this_gpu(
    follow: Follow, mine: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    tells(engine, **gpus("0"))
    monkeypatch.setattr("rlbox.doctor.gpu_choice.probe_driver", lambda: GpuDriver(**GPU))
    monkeypatch.setattr(
        "rlbox.doctor.gpu_choice.probe_gpu_models", lambda: (GpuModel(name="NVIDIA H200", arch="sm_90"),)
    )
    lay(mine, engine, '[hardware]\ngpus = 1\narch = "sm_80"\n')
    mine.job("own")
    step = follow("run", "own", "--dry-run")
    assert "NVIDIA H200 is sm_90, the target sm_80" in step.said.err
    lay(mine, engine, '[hardware]\ngpus = 1\narch = "sm_90"\n')
    assert "sm_90" not in follow.again(step).err


@pytest.mark.parametrize(("words", "wanted"), [((), "4 x H200"), (("--gpus", "2"), "2 x H200")])
def test_a_missing_driver_says_how_many_gpus_are_wanted(
    rlbox: Rlbox,
    mine: Folder,
    engine: EngineSocket,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    wanted: str,
) -> None:
    monkeypatch.setattr("rlbox.doctor.gpu_choice.probe_driver", GpuDriver)
    lay(mine, engine, '[hardware]\ngpu = "H200"\ngpus = 4\narch = "sm_90"\n')
    mine.job("own")
    said = rlbox("run", "own", *words, "--dry-run")
    assert f"the target wants GPUs: wanted: {wanted}\n" in said.out


def test_images_that_nobody_needs_are_removed(
    follow: Follow, mine: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = tmp_path / "images"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5200m", "tmpfs", str(root)], check=True)
    try:
        subprocess.run(["fallocate", "--length=150M", str(root / "old")], check=True)
        tells(engine, DockerRootDir=str(root))
        follow.found(("doctor", "mine"), follow.rlbox("doctor", "mine"), "engine-disk-full")
        (root / "old").unlink()
        assert "engine-disk-full" not in findings(follow.rlbox("doctor", "mine"))
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


@pytest.mark.parametrize("finding", WRONG)
def test_the_engine_is_mended(
    follow: Follow, mine: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch, finding: str
) -> None:
    driver = GpuDriver(present=True, devices=1, cuda=(99, 0))
    monkeypatch.setattr("rlbox.doctor.checks.probe_driver", lambda: driver)
    wrong, right = WRONG[finding]
    tells(engine, **wrong)
    follow.found(("doctor", "mine"), follow.rlbox("doctor", "mine"), finding)
    tells(engine, **right)
    assert finding not in findings(follow.rlbox("doctor", "mine"))


def test_the_target_asks_for_fewer_gpus(
    follow: Follow, mine: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = GpuDriver(present=True, devices=1, cuda=(99, 0))
    monkeypatch.setattr("rlbox.doctor.checks.probe_driver", lambda: driver)
    lay(mine, engine, "[hardware]\ngpus = 2\n")
    follow.found(("doctor", "mine"), follow.rlbox("doctor", "mine"), "gpu-count")
    lay(mine, engine, "[hardware]\ngpus = 1\n")
    assert "gpu-count" not in findings(follow.rlbox("doctor", "mine"))


def test_ssh_is_installed(follow: Follow, mine: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://somebody@far.example")
    monkeypatch.setenv("PATH", f"{mine.path}/bin")
    step = follow("runs")
    mine.write("bin/ssh", "#!/bin/sh\necho 'no route to host' >&2\nexit 255\n").chmod(0o755)
    assert "no route to host" in follow.again(step, code=4).err


def test_an_engine_elsewhere_is_reached_over_ssh(follow: Follow, mine: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://far.example:2375")
    step = follow("runs")
    name, _, value = step.text.partition("=")
    monkeypatch.setenv(name, value.replace("USER", "me").replace("HOST", "far.example"))
    mine.write("bin/ssh", "#!/bin/sh\necho 'no route to host' >&2\nexit 255\n").chmod(0o755)
    assert "no route to host" in follow.again(step, code=4).err


def test_containers_of_ended_runs_are_removed(follow: Follow, mine: Folder, engine: EngineSocket) -> None:
    labels = {"rlbox.target": "mine", "rlbox.run": "own-1", "rlbox.owner": "1000"}
    engine.containers = [{"Id": "c", "Names": ["/rlbox-own-1"], "Labels": labels, "State": "exited", "Mounts": []}]
    step = follow.found(("doctor",), follow.rlbox("doctor"), "stale-containers")
    assert step.shell() == "docker rm -f rlbox-own-1"
    engine.containers = []
    assert "stale-containers" not in findings(follow.rlbox("doctor"))


def test_an_image_that_is_not_there(follow: Follow, mine: Folder, engine: EngineSocket) -> None:
    image = engine.images.pop(TAG)
    step = follow.found(("doctor", "mine"), follow.rlbox("doctor", "mine", "-v"), "image-missing")
    engine.images[TAG] = image
    assert step.commands({}) == [["build", "mine"]]
    assert "image-missing" not in findings(follow.rlbox("doctor", "mine", "-v"))


def test_a_data_disk_is_named(follow: Follow, mine: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLBOX_DATA")
    mine.target("mine", ON_IMAGE.partition("[disk]")[0])
    step = follow.found(("doctor", "mine"), follow.rlbox("doctor", "mine"), "data-disk-unnamed")
    (mine.path / "disk").mkdir()
    assert "data-disk-unnamed" not in findings(follow.rlbox("doctor", "mine", *step.options({"DIR": "disk"})))


def test_a_data_disk_is_made_or_another_named(follow: Follow, mine: Folder) -> None:
    mine.write("text.txt", "")
    (mine.path / "disk").mkdir()
    typed = ("doctor", "--data", str(mine.path / "new"))
    step = follow.found(typed, follow.rlbox(*typed), "data-disk-missing")
    subprocess.run(step.shell(), shell=True, check=True)
    assert "data-disk-missing" not in findings(follow.again(step))
    typed = ("doctor", "--data", str(mine.path / "text.txt"))
    step = follow.found(typed, follow.rlbox(*typed), "data-disk-missing")
    assert "data-disk-missing" not in findings(follow.again(step, *step.options({"DIR": "disk"})))


REFUSED = {
    "a limit": ("error setting rlimit type 7: operation not permitted", "4000000:4000000", ("run", "own")),
    "no GPU": ('could not select device driver "" with capabilities: [[gpu]]', "", ("run", "own", "--gpus", "1")),
    "no image": ("No such image: rlbox/mine:tests", "", ("run", "own")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_refused_is_mended(
    follow: Follow, mine: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    words, limit, typed = REFUSED[name]
    tells(engine, **gpus("0"))
    monkeypatch.setattr("rlbox.run.docker.require_usable_gpus", lambda *asked: None)
    mine.job("own")
    lay(mine, engine, f'[run.ulimits]\nnofile = "{limit}"\n')
    engine.answers["/containers/c1/start"] = 500, json.dumps({"message": words}).encode()
    step = follow(*typed)
    if name == "no image":
        follow.types(step)
    lay(mine, engine, "")
    del engine.answers["/containers/c1/start"]  # it has nothing against that
    follow.again(step, *(step.options({}) if name == "no GPU" else ()), code=1)
    asked = engine.made[-1]["HostConfig"]
    assert not {"Ulimits", "DeviceRequests"}.intersection(name for name, value in asked.items() if value)


@pytest.mark.parametrize(
    "words", ["all predefined address pools have been fully subnetted", "Failed to Setup IP tables"]
)
def test_no_network_of_its_own(follow: Follow, mine: Folder, engine: EngineSocket, words: str) -> None:
    mine.job("own")
    lay(mine, engine, "")
    engine.answers["/networks/create"] = 500, json.dumps({"message": words}).encode()
    step = follow("run", "own")
    (table, key, value), *_ = re.findall(r"or (\w+)\.(\w+) = (\S+)", step.text)
    lay(mine, engine, f"[{table}]\n{key} = {value}\n")
    follow.again(step, code=1)
    assert engine.made[-1]["HostConfig"]["NetworkMode"] == "host"


def test_an_engine_that_broke_off(follow: Follow, mine: Folder, engine: EngineSocket) -> None:
    lay(mine, engine, "")
    path = f"/images/{TAG}/get"
    engine.answers[path] = 200, Cut(b"half of it")
    step = follow("save", "mine", "x.tar")
    engine.answers[path] = 404, b'{"message": "no such image"}'
    follow.again(step, code=4)


class Cut(bytes):
    """An answer that ends before it is whole."""

    def __len__(self) -> int:
        return super().__len__() + 1000


def test_an_engine_is_brought(
    follow: Follow, mine: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{mine.path}/none.sock")
    step = follow("engine", "status")
    monkeypatch.setattr(
        "rlbox.engine.setup.bring_engine", lambda say: monkeypatch.setenv("DOCKER_HOST", engine.address)
    )
    said = follow.types(step, code=4)  # the version that this one says has no buildx beside it
    assert "engine 28.2.2" in said.out


def test_an_engine_elsewhere_is_corrected(
    follow: Follow, mine: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(mine, engine, "")
    monkeypatch.setenv("DOCKER_HOST", "banana")
    status, shown = follow("engine", "status"), follow("show", TAG)
    assert status.text == shown.text
    monkeypatch.setenv(re.findall(r"correct ([A-Z_]+)", shown.text)[0], engine.address)
    assert "engine 28.2.2" in follow.again(status, code=4).out
    follow.again(shown, code=2)


def test_credentials_are_written_anew(follow: Follow, mine: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What speaks to a registry is asked by itself: a registry that wants a login speaks TLS."""
    config = mine.write("config/config.json", '{"credsStore": "nosuch"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(config.parent))
    mine.write("bin/docker", f"#!/bin/sh\n[ $1 = login ] || exit\necho '{{}}' > {config}\n")
    with pytest.raises(RegistryError) as refused:
        find_login("127.0.0.1:9")
    step = follow.step((), Said(code=6, out="", err=f"rlbox: error: {refused.value}\n"))
    subprocess.run(step.text.split(), check=True)
    assert find_login("127.0.0.1:9") == {}


def test_another_rlbox_is_waited_for(follow: Follow, mine: Folder, engine: EngineSocket) -> None:
    lay(mine, engine, "")
    current = engine.images.pop(TAG)
    with hold_lock(cache_path("locks", "build-mine.tests.lock"), "build of mine"):
        step = follow("build", "mine")
    engine.images[TAG] = current  # the other one has built it
    follow.again(step)


def test_another_archive_is_waited_for(follow: Follow, mine: Folder, tmp_path: Path) -> None:
    write_run(tmp_path / "runs/own-1", samples=2, steps=2)
    with open_atomic(mine.path / "x.tar.gz", 0):
        step = follow("bundle", "own-1", "--out", "x.tar.gz")
    follow.again(step)


def lay(mine: Folder, engine: EngineSocket, more: str) -> None:
    """Write the target, with its lock and the image that the engine has of it."""
    mine.target("mine", ON_IMAGE + more)
    mine.lock("mine")
    engine.images[TAG] = image_of(mine)


def test_an_old_engine_takes_no_base_from_the_store(
    rlbox: Rlbox, mine: Folder, engine: EngineSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a verdict, and no further: what such an engine does is shown where one is named."""
    engine.images.clear()
    mine.write("cli-plugins/docker-buildx", "#!/bin/sh\nexit 1\n").chmod(0o755)
    monkeypatch.setenv("DOCKER_CONFIG", str(mine.path))
    new, old = engine.answers["/version"], b'{"Version": "20.10.24", "ApiVersion": "1.41", "MinAPIVersion": "1.12"}'
    line, refused = ("build", "mine", "--dry-run"), "cannot build on a base image from the store"
    engine.answers["/version"] = 200, old
    said = rlbox(*line, "--hermetic")
    assert refused in said.err + said.out
    assert "or build without --hermetic" in said.err + said.out
    assert refused not in (again := rlbox(*line)).err + again.out
    engine.answers["/version"] = new
    assert refused not in (again := rlbox(*line, "--hermetic")).err + again.out
