"""`rlbox bundle`: the archive of a run, whatever state it is in."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import json
import os
import tarfile
from pathlib import Path
from typing import NoReturn

import pytest
from fakes import Folder, Rlbox

from rlbox.diagnose.cause import Cause
from rlbox.job.plan import ProcessPaths, RunPlan, StagePlan
from rlbox.record.state import create_run_state, write_run_state
from rlbox.secrets.masks import SecretMasker
from rlbox.system.files import write_atomic

SECRET = "planted-5ecret-value"


@pytest.fixture
def disk(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.target("local")
    path = tmp_path / "disk"
    (path / "runs").mkdir(parents=True)
    monkeypatch.setenv("RLBOX_DATA", str(path))
    monkeypatch.setenv("RLBOX_PROJECT", str(folder.path))
    monkeypatch.chdir(tmp_path)
    return path


def plan(run_dir: Path, name: str) -> RunPlan:
    stage = StagePlan(
        name="train", title="", directory="stages/1-train", argv=("true",), env={}, services=(), needs=(), ray=None,
        require=(), forbid=(), files=(), total_s=1, silence_s=1,
    )  # fmt: skip
    paths = ProcessPaths(run=str(run_dir), job="", data="", python="python3")
    return RunPlan(
        run_id=name, job="smoke", target="local", place="here", profile="", params={}, paths=paths, env={},
        stages=(stage,),
    )  # fmt: skip


def run(disk: Path, name: str = "smoke-1", *, failed: bool = True, log: str = "step 1\nValueError: bad\nbye\n") -> Path:
    """Make the folder of a run that ended."""
    path = disk / "runs" / name
    made = plan(path, name)
    write_atomic(path / "plan.json", json.dumps(made.as_json()))
    write_atomic(path / "stages/1-train/stage.log", log)
    state = create_run_state(made, 1)
    cause = Cause(kind="exit", what="stage train ended with exit code 1", where="stages/1-train/stage.log:2")
    begun = dataclasses.replace(
        state.stages[0],
        state="failed" if failed else "passed",
        started_at=state.started_at,
        cause=cause if failed else None,
    )
    state = dataclasses.replace(
        state, state="failed" if failed else "passed", ended_at=state.started_at, exit_code=1, stages=(begun,)
    )
    write_run_state(path, state, SecretMasker({}))
    return path


def read(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as file:
        members = [(member.name, file.extractfile(member)) for member in file.getmembers()]
        return {name: found.read().decode("utf-8", "replace") for name, found in members if found}


def test_a_failed_run(rlbox: Rlbox, disk: Path, tmp_path: Path) -> None:
    run(disk)
    said = rlbox("bundle")
    assert (said.code, said.out) == (0, f"{tmp_path}/smoke-1.tar.gz\n")
    assert "read smoke-1/SUMMARY.md in it first" in said.err
    files = read(tmp_path / "smoke-1.tar.gz")
    assert {"smoke-1/run.json", "smoke-1/plan.json", "smoke-1/stages/1-train/stage.log"} <= set(files)
    summary = files["smoke-1/SUMMARY.md"]
    assert "- **Cause**: stage train ended with exit code 1\n" in summary
    assert ">      2 ValueError: bad" in files["smoke-1/errors.txt"]
    rows = json.loads(files["smoke-1/manifest.json"])["files"]
    assert {f"smoke-1/{row['name']}" for row in rows} == set(files) - {"smoke-1/manifest.json"}


@pytest.mark.parametrize("broken", ["run.json", "plan.json", "events.jsonl"])
def test_torn_and_lost_runs(rlbox: Rlbox, disk: Path, tmp_path: Path, broken: str) -> None:
    (run(disk) / broken).write_text("{torn")
    assert rlbox("bundle").code == 0
    files = read(tmp_path / "smoke-1.tar.gz")
    assert ">      2 ValueError: bad" in files["smoke-1/errors.txt"]
    assert files[f"smoke-1/{broken}"].startswith("{torn") or broken == "run.json"


def test_a_passed_run_has_no_errors(rlbox: Rlbox, disk: Path, tmp_path: Path) -> None:
    run(disk, failed=False)
    assert rlbox("bundle").code == 0
    assert read(tmp_path / "smoke-1.tar.gz")["smoke-1/errors.txt"] == "no log holds a line that looks fatal\n"


def test_what_became_a_secret_since_is_masked(rlbox: Rlbox, folder: Folder, disk: Path, tmp_path: Path) -> None:
    run(disk, log=f"login with {SECRET}\nValueError: {SECRET}\nhttps://me:{SECRET}-2@host/x\n")
    (folder.path / ".env").write_text(f"WANDB_API_KEY={SECRET}\n")
    assert rlbox("bundle").code == 0
    with gzip.open(tmp_path / "smoke-1.tar.gz") as file:
        assert SECRET.encode() not in file.read()


def test_long_logs_keep_their_end_and_the_fatal_line(
    rlbox: Rlbox, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlbox.supervise.bundle.LOG_TAIL_BYTES", 500_000)
    count = 7000
    run(disk, log="ValueError: early\n" + ("x" * 99 + "\n") * count)
    assert rlbox("bundle").code == 0
    files = read(tmp_path / "smoke-1.tar.gz")
    log = files["smoke-1/stages/1-train/stage.log"]
    assert 499_800 < len(log) <= 500_000
    rows = json.loads(files["smoke-1/manifest.json"])["files"]
    assert [row["left_out"] for row in rows if row["left_out"]] == [200_118]
    assert ">      1 ValueError: early" in files["smoke-1/errors.txt"]
    rlbox("bundle", "--full", "--out", "full.tar.gz")
    assert len(read(tmp_path / "full.tar.gz")["smoke-1/stages/1-train/stage.log"]) == 100 * count + 18


def test_links_out_of_the_run_are_not_followed(rlbox: Rlbox, disk: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("private")
    (run(disk) / "link.txt").symlink_to(tmp_path / "outside.txt")
    os.mkfifo(disk / "runs/smoke-1/pipe.log")
    assert rlbox("bundle").code == 0
    assert "private" not in "".join(read(tmp_path / "smoke-1.tar.gz").values())


def test_a_full_disk_leaves_nothing(rlbox: Rlbox, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(masks: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    run(disk)
    (tmp_path / "smoke-1.tar.gz").write_text("the one before")
    monkeypatch.setattr(SecretMasker, "create_mask_stream_keeping_url_credentials", full)
    said = rlbox("bundle")
    assert (said.code, said.out) == (5, "")
    assert "No space left on device" in said.err
    assert (tmp_path / "smoke-1.tar.gz").read_text() == "the one before"
    assert not list(tmp_path.glob("*.part"))


def test_names_of_files_are_masked_and_stay_apart(
    rlbox: Rlbox, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    folder = run(disk)
    for name in (f"of-{SECRET}/metrics.jsonl", f"of-{SECRET.encode().hex()}/metrics.jsonl", f"{SECRET}.bin"):
        write_atomic(folder / name, "{}\n")
    dry = rlbox("bundle", "--dry-run")
    told = rlbox("bundle", "--json")
    with tarfile.open(tmp_path / "smoke-1.tar.gz") as archive:
        names = archive.getnames()
        manifest = archive.extractfile("smoke-1/manifest.json")
        assert manifest is not None
        listed = json.loads(manifest.read())
    assert {"smoke-1/of-***/metrics.jsonl", "smoke-1/of-***/metrics.jsonl~2"} <= set(names)
    assert len(names) == len(set(names))
    assert "***.bin" in [row["name"] for row in listed["left_out"]]
    for text in (dry.out, dry.err, told.out, told.err, *names, json.dumps(listed)):
        assert "planted" not in text
        assert SECRET.encode().hex() not in text


def test_bundle_leaves_out_models_secrets_and_large_files(rlbox: Rlbox, disk: Path) -> None:
    folder = run(disk)
    for name in ("model.safetensors", "job/.env", ".reserve", "stages/1-train/evidence/nccl/rank0"):
        write_atomic(folder / name, "x")
    write_atomic(folder / "rollouts.jsonl", "x" * 8_000_001)
    left = {row["name"]: row["why"] for row in rlbox("bundle", "--dry-run", "--json").data["left_out"]}
    assert set(left) == {"model.safetensors", "job/.env", ".reserve", "rollouts.jsonl"}
    assert left["rollouts.jsonl"] == "larger than 8 MB"
