"""What `rlbox cluster` advises about nodes is done, and then it is otherwise.

The connection, and what ssh says of it, is of a played `ssh` on PATH; through it the program answers for this host.
Faults of cards, disks and engines are planted in what the nodes say of themselves: `b` is brought in order as advised.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clusterfacts import A800, facts, gpu, plan, survey
from clusterfaults import FAULTS, on_nodes
from fakes import TARGET, Folder
from following import Follow, Step
from next_table import proven_by

from rlbox.app import App
from rlbox.cluster.facts import NodeGpus, PortUse
from rlbox.cluster.image import SentImage
from rlbox.cluster.images import Sending, _Sent
from rlbox.cluster.judge.needs import needs_of
from rlbox.cluster.judge.proof import DeviceProof, Proof, judge_proof
from rlbox.cluster.keys import make_certificates
from rlbox.cluster.nodes import NodeWish
from rlbox.cluster.reach.fleet import Fleet
from rlbox.cluster.reach.link import NodeLink
from rlbox.cluster.reach.starts import Starts
from rlbox.cluster.state import RayState
from rlbox.cluster.survey import Survey
from rlbox.cluster.view import status_of
from rlbox.cluster.wish import ClusterWish
from rlbox.engine.reference import parse_reference
from rlbox.errors import RlboxError
from rlbox.system.progress import ProgressItem
from rlbox.target.target import load_target

GPUS = f"""
[hardware]
nodes = 2
gpus = 2
gpu = "{A800}"
gpu_memory_gib = 80.0
memory_gib = 100.0
cores = 16
[run]
network = "host"
"""
DOCTOR = ("cluster", "doctor", "pair", "--nodes", "a,b", "--data", "/data", "--path", "/models/m")
FILE = "tests/cli/test_next_cluster.py"
MENDED = [name for name in FAULTS if proven_by(f"{FILE}::test_a_fault_is_mended[{name}]")]


@dataclass
class Nodes:
    """What the nodes say; a test changes it as somebody would who works on them."""

    say: Survey


@dataclass(frozen=True)
class Said:
    """What came of a call that is no command line."""

    code: int
    out: str = ""
    err: str = ""
    data: Any = None


def told(do: Callable[[], Any]) -> Said:
    """Do it, and say how it went as the command line would."""
    try:
        do()
    except RlboxError as error:
        return Said(error.exit_code, err=f"rlbox: error: {error.what}\n  next:  {error.next_step}\n")
    return Said(0)


@pytest.fixture
def nodes(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Two played nodes; what is asked of them is judged and told as it is."""
    folder.target("pair", TARGET.replace("create = true", "need_gib = 50") + GPUS)
    played = Nodes(on_nodes(survey()))

    @contextmanager
    def story_of(app: App, wish: ClusterWish) -> Iterator[Any]:
        target = load_target(app.project, wish.target).target
        yield SimpleNamespace(
            app=app,
            wish=wish,
            wishes=played.say.wishes,
            target=target,
            name="pair",
            fleet=Fleet({}, ()),
            survey=lambda paths: played.say,
            standing=lambda survey: None,
            require_standing=lambda survey: SimpleNamespace(plan=plan()),
            needs=lambda paths: needs_of(target, "pair", "", paths),
        )

    there = "rlbox.cluster.examine"
    monkeypatch.setattr(f"{there}.story_of", story_of)
    monkeypatch.setattr(f"{there}.probe_ways", lambda fleet, survey: survey)
    monkeypatch.setattr(f"{there}.status_here", lambda *told: status_of(plan(), RayState(), {}, {}))
    monkeypatch.setattr(f"{there}.probe_ports", lambda fleet, survey, ports: survey)
    return played


def mend(step: Step, played: Nodes, folder: Folder) -> None:
    """Do what is said: correct the target where it names a key of it; else `b` becomes as sound as `a`."""
    key = re.search(r"correct hardware\.(gpu_memory_gib|memory_gib|cores)", step.text)
    if key is None:
        played.say = on_nodes(survey())
        return
    has = {"gpu_memory_gib": "40.0", "memory_gib": "60.0", "cores": "8"}[key[1]]
    file = folder.path / "images/pair/target.toml"
    file.write_text(re.sub(rf"(?m)^{key[1]} = .*", f"{key[1]} = {has}", file.read_text("utf-8")), "utf-8")


@pytest.mark.parametrize("name", MENDED)
def test_a_fault_is_mended(name: str, nodes: Nodes, folder: Folder, follow: Follow) -> None:
    assert len(MENDED) > 15
    planted, id_, level, _, words = FAULTS[name]
    nodes.say = on_nodes(planted)
    said = follow.rlbox(*DOCTOR, "--json")
    assert "findings" in said.data, said.out
    (one,) = said.data["findings"]
    assert (said.code, one["id"], one["level"]) == (int(level == "error"), id_, level)
    step = follow.step((*DOCTOR, "--json"), said, one["remedy"])
    assert words in step.text
    mend(step, nodes, folder)
    assert follow.again(step).data["findings"] == []


@pytest.mark.parametrize(("planted", "id_"), [("busy", "gpu-busy"), ("no torch", "proof-no-torch")])
def test_what_work_shows_is_mended(
    planted: str, id_: str, nodes: Nodes, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figures of the work are played, and judged as they are."""
    devices = tuple(DeviceProof(node=n, device=f"cuda:{i}", name=A800, tflops=250.0) for n in "ab" for i in (0, 1))
    sound = Proof(devices=devices)
    proofs = [replace(sound, missing=("b",) if planted == "no torch" else ()), sound]
    monkeypatch.setattr(
        "rlbox.cluster.examine.prove",
        lambda story, made, known: (proofs[0], judge_proof(proofs.pop(0), known)),
    )
    cards = NodeGpus(gpus=(gpu(0), gpu(1, busy=97 if planted == "busy" else 0)))
    nodes.say = on_nodes(survey(facts("b", gpu=cards)))
    said = follow.rlbox(*DOCTOR, "--prove", "--json")
    (one,) = said.data["findings"]
    assert one["id"] == id_
    assert said.data["proof"]["devices"][0]["tflops"] == 250.0
    step = follow.step((*DOCTOR, "--prove", "--json"), said, one["remedy"])
    nodes.say = on_nodes(survey())
    assert follow.again(step).data["findings"] == []


def test_ports_that_are_free(nodes: Nodes, folder: Folder, follow: Follow) -> None:
    """Somebody listens in each of the twenty places."""
    busy = tuple(PortUse(port=at, address="0.0.0.0", uid=0, inode="1") for at in range(8100, 8500, 20))
    nodes.say = on_nodes(survey(facts("b", listening=busy)))
    step = follow(*DOCTOR)
    assert step.said.code == 5
    key = re.search(r"(\w+)\.(\w+) of the target", step.text)
    assert key
    with (folder.path / "images/pair/target.toml").open("a") as file:
        file.write(f"[{key[1]}]\n{key[2]} = 9000\n")
    follow.again(step)


# ---- what ssh says

CHANGED = """@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
Host key for 10.0.0.2 has changed and you have requested strict checking.
Host key verification failed."""
SSH = """#!/bin/sh
# Played: it says its words until what they want was done; then the node is this machine.
here=$(dirname "$0")
case $1 in -G) echo "hostname 10.0.0.2"; exit ;; -*) ;; *) touch "$here/mended"; exit ;; esac
if [ -e "$here/mended" ]; then for last; do :; done; exec sh -c "$last"; fi
cat "$here/words" >&2
exit 255
"""
MENDS = """#!/bin/sh
touch "$(dirname "$0")/mended"
"""
SAID = {
    "host-key-changed": (CHANGED, "ssh b"),
    "host-key-unknown": ("No ED25519 host key is known for b\nHost key verification failed.", "ssh b"),
    "login-refused": ("ann@b: Permission denied (publickey,password).", "ssh-copy-id b"),
    "no-python": ("bash: line 1: python3: command not found", "apt-get install python3"),
    "no-forwarding": ("channel 2: open failed: administratively prohibited", "AllowStreamLocalForwarding yes"),
    "unreachable": ("ssh: connect to host 10.0.0.2 port 22: No route to host", "ssh b true"),
}


@pytest.fixture
def bin_(tmp_path: Path, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, first on PATH; `ssh` is none of them yet."""
    folder.target("pair", TARGET)
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("ssh-copy-id", "apt-get", "AllowStreamLocalForwarding"):
        (path / name).write_text(MENDS)
        (path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}:/usr/local/bin:/usr/bin:/bin")
    return path


def play_ssh(path: Path, words: str) -> None:
    (path / "words").write_text(words)
    (path / "ssh").write_text(SSH)
    (path / "ssh").chmod(0o755)


@pytest.mark.allow("processes", "sockets")
@pytest.mark.parametrize("id_", SAID)
def test_what_ssh_wants_is_done(id_: str, bin_: Path, follow: Follow, tmp_path: Path) -> None:
    words, command = SAID[id_]
    play_ssh(bin_, words)
    typed = ("cluster", "doctor", "pair", "--nodes", "b", "--data", str(tmp_path), "--json")
    said = follow.rlbox(*typed)
    (one,) = said.data["findings"]
    assert (said.code, one["id"]) == (1, id_)
    step = follow.step(typed, said, one["remedy"])
    assert command in step.text
    subprocess.run(shlex.split(command), check=True)
    after = follow.rlbox(*typed)
    assert id_ not in {found["id"] for found in json.loads(after.out)["findings"]}
    assert "machine" not in after.err or after.code in (0, 1)


@pytest.mark.allow("processes", "sockets")
def test_ssh_is_installed(bin_: Path, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = f"{bin_}:/usr/local/bin:/usr/bin:/bin"
    monkeypatch.setenv("PATH", str(bin_))
    step = follow("cluster", "doctor", "pair", "--nodes", "b", "--data", str(tmp_path))
    assert step.said.code == 5
    play_ssh(bin_, "")
    (bin_ / "mended").touch()
    monkeypatch.setenv("PATH", full)
    after = follow.rlbox(*step.typed)
    assert after.code in (0, 1), after.err  # what this machine lacks for a cluster is another matter


@pytest.mark.allow("processes")
def test_openssl_is_installed(follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as bare:
        bare.setenv("PATH", str(tmp_path))
        step = follow.step((), told(lambda: make_certificates(["10.0.0.1"])))
        assert step.said.code == 5
    assert told(lambda: make_certificates(["10.0.0.1"])).code == 0


@pytest.mark.allow("processes", "sockets")
def test_the_same_again(follow: Follow, tmp_path: Path) -> None:
    """What failed on a node, and a connection that broke: with the cause gone, the same goes through."""
    link = NodeLink(NodeWish(name="local", data=str(tmp_path)), Starts())
    link.open()

    def write() -> None:
        link.ask("write", disk=str(tmp_path / "disk"), path="clusters/x", text="1", mode=0o600)

    try:
        step = follow.step((), told(write))
        (tmp_path / "disk").mkdir()
        assert told(write).code == 0, step.said.err
    finally:
        link.close()
    broken = follow.step((), told(write))
    assert "the connection broke" in broken.said.err
    link = NodeLink(NodeWish(name="local", data=str(tmp_path)), Starts())
    link.open()
    try:
        assert told(write).code == 0
    finally:
        link.close()


@pytest.mark.allow("processes", "sockets")
def test_a_working_directory_is_put_right(follow: Follow, tmp_path: Path, folder: Folder) -> None:
    """What is wrong with it is found before any node is asked; here no node answers, and that is said then."""
    folder.target("pair", TARGET)
    submit = ("cluster", "submit", "pair", "--nodes", "local", "--data", str(tmp_path))
    bare = follow(*submit)
    assert bare.said.code == 2
    follow.changed(bare, [*submit, *bare.commands({})[0][3:]], 5)
    missing = follow(*submit, "--working-dir", "nosuch", "--", "true")
    work = tmp_path / "work"
    work.mkdir()
    follow.changed(missing, [*submit, *missing.options({"DIR": str(work)}), "--", "true"], 5)
    for name, size in (("data.bin", 600 << 20), ("train.py", 1)):
        with (work / name).open("wb") as file:
            file.truncate(size)
    large = follow(*submit, "--working-dir", str(work), "--", "true")
    assert large.said.code == 2
    follow.changed(large, [*submit, "--working-dir", str(work), *large.options({}), "--", "true"], 5)


class OtherEngine:
    """A node whose engine has another image after a pull than it was sent, and the right one after the next."""

    name = "b"

    def __init__(self) -> None:
        self.pulls = 0

    def engine(self) -> Any:
        def pull(*_: Any) -> tuple[()]:
            self.pulls += 1
            return ()

        return SimpleNamespace(pull=pull, tag=lambda *_: None, remove_tag=lambda *_: None)

    def ask(self, do: str, **_: Any) -> dict[str, Any]:
        return {"image": {"id": "sha256:" + ("f" if self.pulls == 1 else "0") * 64}}


def test_another_image_than_was_sent(follow: Follow) -> None:
    right = "sha256:" + "0" * 64
    image = SentImage(digest=right, identity=right, manifests={}, parts=())
    rows: list[ProgressItem] = []
    sending = Sending(
        image=image,
        source=None,
        keep=parse_reference("rlbox/pair:tests"),
        folder=str,
        tell=rows.append,  # type: ignore[arg-type]
    )
    sent = _Sent(OtherEngine(), sending)  # type: ignore[arg-type]
    step = follow.step((), told(sent.pull))
    assert "another image than was sent" in step.said.err
    assert told(sent.pull).code == 0
    assert [row.told for row in rows] == ["there"]
