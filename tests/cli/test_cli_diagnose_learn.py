"""`rlbox diagnose --teach` and `--unknowns`: what is shown and written, what is refused, what stays on this machine."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from fakes import Folder, Rlbox
from following import Follow
from test_cli_bundle import run
from test_cli_diagnose import FAILED, WENT_ON

from rlbox.causes.cause import Cause
from rlbox.files.act.folders import state_folder, write_atomic
from rlbox.fixes.fix import Fix
from rlbox.record.act.state import load_run_state, write_run_state
from rlbox.record.resources import RESOURCES_FILE, GpuSample, Sample
from rlbox.secrets.masks import Masks
from rlbox.spec.check import check_spec
from rlbox.spec.load import load_toml
from rlbox.spec.project import Project

FRAMES = """Traceback (most recent call last):
  File "/srv/alice/p/train.py", line 3, in main
    fit()
  File "/opt/venv/lib/python3.11/site-packages/verl/reward.py", line 9, in load_reward
    raise
"""
UNKNOWN = (
    f"loading reward shards\nstep 1 loss 1.0\n{FRAMES}ValueError: reward shards at /srv/alice/m do not fit 12 ranks\n"
)
OTHER = "\n".join(
    ("step 7 loss 2.0", FRAMES.replace("alice", "bob"), "ValueError: reward shards at /mnt/z/q do not fit 3 ranks", "")
)
CONSEQUENCE = (
    "step 1 loss 1.0\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
)
FILE = "learnt-valueerror-reward-shards-at-do-not-fit-ranks.toml"


@pytest.fixture(autouse=True)
def disk(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "disk"
    (path / "runs").mkdir(parents=True)
    monkeypatch.setenv("RLBOX_DATA", str(path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return path


def test_what_is_learnt_is_shown(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("train.log", UNKNOWN)
    said = rlbox("diagnose", "train.log", "--teach")
    assert said.code == 0
    template = "ValueError: reward shards at <name> do not fit <number> ranks"
    assert said.out.startswith(
        f"root: line 8\ntemplate: {template}\nscope: verl\nnear miss: line 1: loading reward shards\n"
    )
    assert "This is all that would leave this machine" in said.out
    assert r"pattern = 'ValueError: reward shards at \S{1,200} do not fit [\w.,:+-]{1,40} ranks'" in said.out
    assert "near = '-packages/verl/'\n" in said.out
    assert 'unlike = "loading reward shards"\n' in said.out
    assert [path.name for path in folder.path.iterdir()] == ["train.log"]
    data = rlbox("diagnose", "train.log", "--teach", "--json").data
    assert data["schema"] == 1
    assert {key: data["lesson"][key] for key in ("template", "scope", "line", "near_miss_line", "written")} == {
        "template": template, "scope": "verl", "line": 8, "near_miss_line": 1, "written": None,
    }  # fmt: skip
    assert data["lesson"]["file"] in said.out


def test_what_is_written_finds_the_next_one(folder: Folder, follow: Follow) -> None:
    folder.write("train.log", UNKNOWN)
    folder.write("other.log", OTHER)
    shown = follow("diagnose", "train.log", "--teach")
    written = follow.types(shown, DIR="signatures")
    assert (folder.path / "signatures" / FILE).is_file()
    step = follow.step(("diagnose", "train.log", "--teach", "--write", "signatures"), written)
    found = follow.types(step, code=1)
    assert "\ncause: learnt-valueerror-reward-shards-at-do-not-fit-ranks: " in found.out
    assert follow.rlbox("diagnose", "other.log", "--signatures", "signatures", "--json").data["cause"] == FILE[:-5]
    again = follow.rlbox("diagnose", "train.log", "--signatures", "signatures", "--teach")
    assert (again.code, "the cause is known" in again.err) == (1, True)
    (folder.path / "signatures" / FILE).write_text("mine")
    there = follow("diagnose", "train.log", "--teach", "--write", f"signatures/{FILE}")
    assert there.said.code == 2
    assert (folder.path / "signatures" / FILE).read_text() == "mine"
    follow.instead(there, f"signatures/{FILE}", "signatures/other.toml")
    assert (folder.path / "signatures/other.toml").is_file()
    gone = follow("diagnose", "train.log", "--teach", "--write", "train.log/out")
    assert (gone.said.code, "it cannot be written: Not a directory" in gone.said.err) == (5, True)
    follow.instead(gone, "train.log/out", "out")


def test_it_is_a_fix_as_the_catalogue_has_them(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("train.log", UNKNOWN)
    rlbox("diagnose", "train.log", "--teach", "--write", "templates/fixes")
    path = folder.path / "templates/fixes" / FILE
    fix = check_spec(Fix, {**load_toml(path), "id": path.stem}, str(path))
    assert (fix.signature[0].near, fix.heals) == ("-packages/verl/", (FILE[:-5],))
    assert path.stem in Project(folder=folder.path).fix_files()
    folder.write("other.log", OTHER)
    assert rlbox("diagnose", "other.log", "--json").data["cause"] == path.stem


def test_what_cannot_be_learnt_from(folder: Folder, follow: Follow) -> None:
    folder.write("well.log", WENT_ON)
    folder.write("oom.log", FAILED)
    folder.write("victim.log", CONSEQUENCE)
    folder.write("train.log", UNKNOWN)
    folder.write("mute.log", "step 1 loss 1.0\nValueError: 'a'\n")
    well = follow("diagnose", "well.log", "--teach")
    assert well.said.err.startswith("rlbox: error: well.log: nothing fatal, so there is nothing to learn\n")
    assert "no failure: well.log:2: ConnectionError" in follow.types(well).out
    known = follow("diagnose", "oom.log", "--teach")
    assert known.said.err.startswith("rlbox: error: oom.log: the cause is known: gpu-oom-training\n")
    assert "\nnext:  data.micro_batch_size_per_gpu=1" in follow.types(known, code=1).out
    victim = follow("diagnose", "victim.log", "--teach")
    assert victim.said.err.startswith("rlbox: error: victim.log: only consequences are in it, ")
    follow.again(victim, "train.log")
    mute = follow("diagnose", "mute.log", "--teach")
    assert "says too little to be told from others" in mute.said.err
    folder.write(
        "signatures/own.toml", "title='a'\nheals=['own']\nremedy='b'\n[[signature]]\n"
        "pattern=\"ValueError: 'a'\"\nexample=\"ValueError: 'a'\"\n"
    )  # fmt: skip
    follow.changed(mute, ["diagnose", "mute.log", *mute.options({"DIR": "signatures"})], 1)


def test_a_template_that_harmless_lines_have_too_is_refused(rlbox: Rlbox, folder: Folder) -> None:
    line = "ValueError: the reward of prompt '%s' came out as text\n"
    steps = "step 2 loss 0.9\nstep 3 loss 0.8\nstep 4 loss 0.8\n"
    folder.write("train.log", f"{line % 'a'}{steps}{FRAMES}{line % 'the second'}")
    said = rlbox("diagnose", "train.log", "--teach")
    assert (said.code, "harmless lines of the log say the same" in said.err) == (1, True)


def test_nothing_private_is_written(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets, people, hosts, folders and models, in the root, around it, and in the lines that resemble it."""
    planted = (
        "hf_" + "ab" * 12, "planted-5ecret-value", "gpu-17.corp.example", "10.20.30.40", "jane@corp.example", "jane",
        "falcon", "wandb-abc", "Qwen2-7B", "qwenmax", "trainbox", "xk" + "9f" * 18, "8123", "hunter",
    )  # fmt: skip
    monkeypatch.setenv("SOME_TOKEN", planted[1])
    told = (
        f"reward shards of {planted[1]} on node trainbox at /srv/jane/{planted[8]} by jane for team falcon with token"
        f" {planted[0]} password=hunter2hunter from http://{planted[2]}:8123/{planted[7]} and {planted[3]} {planted[4]}"
        f" key {planted[11]} of qwenmax do not fit"
    )
    for text in (told, f"reward shards do not fit at all: {told}", f"cannot fit: {told}"):
        before = f"(W pid=8123, ip={planted[3]}) INFO {told} yet\n"
        folder.write("train.log", f"{before}{FRAMES}ValueError: {text}\n".replace("alice", "jane"))
        said = rlbox("diagnose", "train.log", "--teach", "--write", "out")
        assert said.code == 0, said.err
        shown = "".join(path.read_text() for path in (folder.path / "out").iterdir()) + said.out
        assert [secret for secret in planted if secret in shown.replace(str(folder.path), "")] == []
    assert "reward shards" in said.out


def test_what_stayed_unknown(rlbox: Rlbox, folder: Folder, disk: Path) -> None:
    folder.write("a.log", UNKNOWN)
    folder.write("b.log", OTHER)
    clocks = (
        "2026-01-01 00:00:00,000 INFO step 1\n2026-01-01 03:00:00,000 ERROR [rank1]: ValueError: a banana fell far\n"
    )
    folder.write("c.log", clocks)
    folder.write("oom.log", FAILED)
    for name in ("a", "b", "c", "oom", "a"):
        rlbox("diagnose", f"{name}.log")
    _failed(disk, "smoke-1", line="AssertionError: the kettle is cold today", hours=5, gpus=8)
    _failed(disk, "smoke-2", line="AssertionError: the kettle is cold today", hours=1, gpus=8)
    _failed(disk, "smoke-3", line="torch.OutOfMemoryError: CUDA out of memory.", hours=99, gpus=8)
    groups = rlbox("diagnose", "--unknowns", "--json").data["unknowns"]
    assert [(one["template"], one["count"], one["hours"], one["gpu_hours"]) for one in groups] == [
        ("AssertionError: the kettle is cold today", 2, 6.0, 48.0),
        ("ValueError: a banana fell far", 1, 3.0, 6.0),
        ("ValueError: reward shards at <name> do not fit <number> ranks", 2, 0.0, 0.0),
    ]
    assert groups[0]["teach"] in [f"rlbox diagnose smoke-{number} --teach" for number in (1, 2)]  # both ended at once
    assert groups[2]["teach"] == f"rlbox diagnose {folder.path}/a.log --teach"
    told = rlbox("diagnose", "--unknowns").out.splitlines()
    assert told[:3] == [
        "GPU hours  hours  times  what broke first",
        "48.0       6.0    2      AssertionError: the kettle is cold today",
        f"  next:  {groups[0]['teach']}",
    ]


def test_what_a_signature_knows_by_now_is_unknown_no_more(rlbox: Rlbox, folder: Folder) -> None:
    folder.write("train.log", "step 1\nValueError: the kettle of this house is cold\n")
    rlbox("diagnose", "train.log")
    assert len(rlbox("diagnose", "--unknowns", "--json").data["unknowns"]) == 1
    rlbox("diagnose", "train.log", "--teach", "--write", "pack")
    known = rlbox("diagnose", "--unknowns", "--signatures", "pack", "--json").data["unknowns"]
    assert known == []
    rlbox("diagnose", "train.log", "--signatures", "pack")
    assert rlbox("diagnose", "--unknowns").out == "nothing stayed unknown on this machine\n"


def test_what_is_noted_is_this_users_alone(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "planted-5ecret-value")
    folder.write("train.log", "step 1\nValueError: planted-5ecret-value is not a number\n")
    rlbox("diagnose", "train.log")
    path = state_folder("diagnose", "unknowns.jsonl")
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert "planted" not in path.read_text()
    (folder.path / "train.log").unlink()
    assert rlbox("diagnose", "--unknowns").out.splitlines()[-1] == "  its logs are gone"
    write_atomic(path, 'torn\n{"text": 1}\n{"text": "a", "logs": 3, "hours": "x", "gpus": 1, "at": 1}\n')
    assert rlbox("diagnose", "--unknowns").out == "nothing stayed unknown on this machine\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train.log", "--write", "x"), "--write says where --teach writes"),
        (("train.log", "--unknowns"), "--unknowns is about all logs of this machine"),
        (("train.log", "--teach", "--follow"), "--teach learns from a log that has ended"),
    ],
)
def test_words_that_do_not_fit(rlbox: Rlbox, folder: Folder, words: tuple[str, ...], says: str) -> None:
    folder.write("train.log", UNKNOWN)
    said = rlbox("diagnose", *words)
    assert (said.code, says in said.err) == (2, True)


def _failed(disk: Path, name: str, *, line: str, hours: float, gpus: int) -> None:
    """Make a run that failed after some hours with a line that no signature knew then."""
    path = run(disk, name)
    state = load_run_state(path)
    assert state
    cause = Cause(kind="exit", what="stage train failed", where="stages/1-train/stage.log:2", line=line)
    stage = dataclasses.replace(state.stages[0], cause=cause, seconds=hours * 3600)
    write_run_state(path, dataclasses.replace(state, stages=(stage,)), Masks({}))
    sample = Sample(
        t=state.started_at,
        gpus=tuple(GpuSample(index=index, utilization=1.0, power_w=1.0, memory_bytes=1) for index in range(gpus)),
    )
    write_atomic(path / RESOURCES_FILE, f"{json.dumps(sample.as_row())}\n")
