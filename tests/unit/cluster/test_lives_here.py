"""Ray on a node without an engine, played by a shell: what belongs to it, how it ends, and what is left alone.

The node `local` is this machine: no ssh is between, and all else is the same.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clusterfacts import NEEDS, NO_ENGINE, PLACE, facts, plan, survey

from rlbox.cluster.connection import NodeConnection
from rlbox.cluster.node_checks import place_problems
from rlbox.cluster.nodes import NodeSpec
from rlbox.cluster.programs import node_here
from rlbox.cluster.programs.node_ray import ended_part
from rlbox.cluster.programs.node_wire import NodeFailed
from rlbox.cluster.ray_runtime import member_processes, place_program, python_of
from rlbox.cluster.ssh_route import Starts
from rlbox.errors import NodeError

pytestmark = pytest.mark.allow("processes", "sockets")

RAY = """
setsid sleep 600 &
sh -c 'trap "" TERM; sleep 600; :' --session-dir=/tmp/ray/session_2026-11-26_10-00-00_1 &
exec sleep 600
"""
"""Starts what leaves its session, what hears no SIGTERM and names a session as Ray's parts do, and stays."""


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeConnection]:
    (tmp_path / "own/libexec").mkdir(parents=True)
    (tmp_path / "own/share").mkdir()
    (tmp_path / "own/share/applied.json").write_text("{}")
    (tmp_path / "own/libexec/entrypoint.sh").write_text('exec "$@"\n')
    monkeypatch.setenv("HF_TOKEN", "of-the-shell")
    made = NodeConnection(NodeSpec(name="local", data=str(tmp_path)), Starts())
    made.open()
    yield made
    made.ask("take-down", containers=[], grace=0, mount="", disk=str(tmp_path), paths=[FOLDER], rules=[])
    made.close()


FOLDER = f"clusters/{os.getuid()}/pair/local"


def start(link: NodeConnection, text: str = RAY, call: str = "c") -> str:
    """Start a played Ray; return the name of its life."""
    made = replace(plan().head, name="local", place=f"{link.options.data}/own", data=link.options.data, uid=os.getuid())
    row = member_processes(replace(plan(), members=(made,)), made, lock="l", call=call)
    row["words"] = [*row["words"][:2], "sh", "-c", text]
    return str(link.ask("start-here", **row)["life"])


def lives(link: NodeConnection) -> list[dict[str, Any]]:
    return list(link.ask("containers", here=True)["containers"])


def record(link: NodeConnection, life: str) -> Path:
    return Path(link.options.data, FOLDER, "here", life, "record.json")


def marked(life: str) -> set[int]:
    """Return the processes that carry the mark of a life."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"RLBOX_LIFE={life}".encode() in words:
                found.add(int(entry.name))
    return found


def until(ready: Any) -> None:
    end = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)


def down(link: NodeConnection, *ids: str) -> None:
    link.ask("take-down", containers=ids, grace=1, mount="", disk=link.options.data, paths=[FOLDER], rules=[])


def test_all_of_it_ends_and_nothing_is_left(link: NodeConnection, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    life = start(link)
    (one,) = lives(link)
    assert (one["id"], one["status"], one["labels"]["rlbox.cluster"]) == (life, "running", "pair")
    until(lambda: len(marked(life)) == 4)
    until(lambda: json.loads(record(link, life).read_text())["session"])
    group = json.loads(record(link, life).read_text())["group"]
    down(link, life)
    assert marked(life) == set()
    assert lives(link) == []
    assert not (group and Path(group).exists())
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before] == []


def test_what_was_begun_to_be_taken_away_goes_whole_without_who_asked(link: NodeConnection) -> None:
    """The connection ends while it waits for what hears no SIGTERM."""
    life = start(link)
    until(lambda: len(marked(life)) == 4)
    other = NodeConnection(link.options, Starts())
    other.open()
    row = {"containers": [life], "grace": 1, "mount": "", "disk": link.options.data, "paths": [FOLDER], "rules": []}
    other.start("take-down", **row)
    until(lambda: len(marked(life)) < 4)
    other.close()
    assert marked(life) == set()
    assert not Path(link.options.data, FOLDER).exists()


@pytest.mark.parametrize("who", ["child", "pid"])
def test_what_is_killed_is_told_and_ended(link: NodeConnection, who: str) -> None:
    """Ray's own start, whose keeper sees it; and the keeper, without which it goes on."""
    life = start(link)
    until(lambda: len(marked(life)) == 4)
    row = json.loads(record(link, life).read_text())
    os.kill(row[who], signal.SIGKILL)
    if who == "child":
        until(lambda: lives(link)[0]["status"] == "exited")
        until(lambda: not marked(life))
        assert lives(link)[0]["exit_code"] == 137
        assert lives(link)[0]["finished"]
    else:
        assert lives(link)[0]["status"] == "running"
        for pid in marked(life):  # and the rest ends by itself
            os.kill(pid, signal.SIGKILL)
    down(link, life)
    assert marked(life) == set()
    assert not (row["group"] and Path(row["group"]).exists())


def test_a_record_that_names_another_process_ends_none(link: NodeConnection) -> None:
    """A program of a job may write it: a number alone is nobody."""
    life = start(link)
    own = json.loads(record(link, life).read_text())
    time.sleep(0.05)  # the kernel counts starts by hundredths of a second
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            record(link, life).write_text(json.dumps({**own, "child": stranger.pid, "pid": stranger.pid, "group": "/"}))
            down(link, life)
            assert stranger.poll() is None
        finally:
            stranger.kill()
    assert marked(life) == set()


def test_its_end_is_told_at_once(link: NodeConnection) -> None:
    life = start(link)
    watch = link.start("watch", here=True)
    assert watch.first() == {}
    os.kill(json.loads(record(link, life).read_text())["child"], signal.SIGKILL)
    assert watch.first() == {"ended": life}
    watch.end()
    assert list(watch) == []


def test_a_torn_record_hides_nothing(link: NodeConnection) -> None:
    life = start(link)
    while not json.loads(record(link, life).read_text())["session"]:  # until then its keeper writes it once more
        time.sleep(0.05)
    record(link, life).write_text("{")
    assert lives(link) == []
    down(link)
    assert marked(life) == set()


def test_a_call_that_is_undone_takes_its_own_alone(link: NodeConnection) -> None:
    other, mine = start(link, call="b"), start(link, call="c")
    row = {"call": "c", "disk": link.options.data, "path": "", "rules": "", "mount": "", "here": True}
    link.ask("guard", **row)
    link.ask("undo", call="c")
    assert [one["id"] for one in lives(link)] == [other]
    assert marked(mine) == set()
    assert start(link, call="c") == ""  # it came too late


def test_one_that_is_replaced_counts_no_more(link: NodeConnection) -> None:
    life = start(link, "echo 'raylet [exit code=-9]'; exit 1")
    until(lambda: lives(link)[0]["status"] == "exited")
    assert [(one["exit_code"], one["said"]) for one in lives(link)] == [(1, "raylet -9")]
    assert "raylet" in link.ask("output-here", container=life, lines=5)["text"]
    owner = [os.getuid(), os.getgid()]
    link.ask("retire", containers=[life], grace=0, mount="", disk=link.options.data, path=FOLDER, owner=owner)
    assert lives(link) == []
    assert record(link, life).exists()
    with pytest.raises(NodeError, match="have no record here any more"):
        link.ask("output-here", container="here-0", lines=1)


def test_programs_have_the_environment_of_the_place(link: NodeConnection) -> None:
    """Nothing of the shell but what is the machine's and the user's; what the cluster says of Ray."""
    made = replace(plan().head, name="local", place=f"{link.options.data}/own", data=link.options.data)
    program = place_program(replace(plan(), members=(made,)), made, ("env",))
    rows = dict(str(part["line"]).split("=", 1) for part in link.start("execute-here", **program))
    assert rows["RAY_AUTH_TOKEN_PATH"] == f"{link.options.data}/clusters/1000/pair/local/auth_token"
    assert rows["RLBOX_RAY_PORT"] == "8100"
    assert "HF_TOKEN" not in rows
    assert rows["PATH"].startswith("/usr/local/sbin:")


def test_an_image_whose_environment_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first process that writes over its environment, as sshd does, is told; the shell may have it too."""
    row = {"own": str(tmp_path), "env": {"RLBOX_RAY_PORT": "8100"}}
    monkeypatch.delenv("RLBOX_LIMITS", raising=False)
    monkeypatch.setenv("HF_TOKEN", "of-the-shell")
    with pytest.raises(NodeFailed, match="let a shell be the first process"):
        node_here.environment(row)
    monkeypatch.setenv("RLBOX_LIMITS", "{}")
    found = node_here.environment(row)
    assert (found["RLBOX_RAY_PORT"], found["PATH"]) == ("8100", os.environ["PATH"])
    assert "HF_TOKEN" not in found


def test_where_a_target_was_brought_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert node_here.find_place("mine") is None
    share = tmp_path / "elsewhere/opt/rlbox/share"
    share.mkdir(parents=True)
    (tmp_path / "rlbox/places").mkdir(parents=True)
    (tmp_path / "rlbox/places/mine.json").write_text(json.dumps({"prefix": str(tmp_path / "elsewhere")}))
    row = {"target": "mine", "state": "laid", "lock": "l", "data": "/data"}
    (share / "applied.json").write_text(json.dumps(row))
    own = f"{tmp_path}/elsewhere/opt/rlbox"
    found = {"own": own, "lock": "l", "data": "/data", "whole": True, "image": False}
    assert node_here.find_place("mine") == found
    assert node_here.find_place("other") is None
    (share / "applied.json").write_text(json.dumps({**row, "state": "laying"}))
    assert node_here.find_place("mine") == {**found, "whole": False}
    made = replace(plan().head, place=own)
    assert python_of(made) == f"{tmp_path}/elsewhere/opt/venv/bin/python"
    assert python_of(plan().head) == "/opt/venv/bin/python"


def test_a_node_without_engine_needs_a_place() -> None:
    without = survey(facts("b", engine=NO_ENGINE))
    assert not without.here("b")
    assert survey(facts("b", engine=NO_ENGINE, place=PLACE)).here("b")
    assert not survey(facts("b", place=PLACE)).here("b")
    asked = survey(wishes=(survey().wishes[0], NodeSpec(name="b", data="/data", here=True)))
    assert asked.here("b")
    (one,) = place_problems("b", None, "/data", NEEDS)
    assert (one.id, one.remedy) == ("place-missing", "rlbox apply mine --data /data, there")


def test_which_part_of_ray_ended() -> None:
    """As Ray 2.60 and 2.43 print it; what it quotes of logs stands before or behind."""
    told = b"Some Ray subprocesses exited unexpectedly:\n  raylet [exit code=-9]\n  log_monitor [exit code=1]"
    assert ended_part(b"x [exit code=3]\n" + told) == "raylet -9"
    coloured = b"Some Ray subprocesses exited unexpectedly:\n  \x1b[1mraylet\x1b[22m [exit code=-9]\n"
    assert ended_part(coloured) == "raylet -9"
    assert ended_part(b"nothing of it") == ""
