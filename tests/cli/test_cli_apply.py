"""`rlbox apply` below a prefix, with the real uv and wheels from a store; nothing outside of the prefix is written."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from applybox import give, hold, tree
from fakes import CHECKOUT, Folder, Rlbox
from following import Follow
from mirrorbox import mirrors
from wheelbox import Index, make_wheel

from rlbox.app import App
from rlbox.artifacts.object_store import ObjectStore
from rlbox.provision.apply import EMPTY_RESULT, ApplyResult
from rlbox.provision.layout import Layout
from rlbox.provision.plan import ApplyPlan
from rlbox.provision.provision import HostTarget
from rlbox.system.files import cache_path

pytestmark = pytest.mark.allow("processes")
FIRST = {"alpha": "1.0", "beta": "2.0"}


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore(cache_path("store"))


@pytest.fixture
def prefix(folder: Folder, store: ObjectStore, tmp_path: Path) -> Path:
    """Where the target is applied; it, its lock and the data disk are there."""
    (tmp_path / "disk").mkdir()
    give(folder.path, store, FIRST)
    return tmp_path / "place"


def words(prefix: Path, *more: str) -> tuple[str, ...]:
    return ("apply", "small", "--offline", "--prefix", str(prefix), "--data", str(prefix.parent / "disk"), *more)


def inside(prefix: Path, script: str, **env: str) -> str:
    """Run a shell script in the environment of the place and return what it prints."""
    argv = ["sh", f"{prefix}/opt/rlbox/libexec/entrypoint.sh", "sh", "-c", script]
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(prefix.parent), **env}
    done = subprocess.run(argv, env=plain, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_stack_is_the_lock_and_the_second_call_writes_nothing(rlbox: Rlbox, prefix: Path) -> None:
    first = rlbox(*words(prefix, "--json"))
    assert first.code == 0, first.err
    assert first.data["state"] == "applied"
    assert inside(
        prefix, "python -c 'import alpha, beta; print(alpha.__version__, beta.__version__, alpha.patched)'"
    ) == ("1.0 2.0 True\n")
    assert (prefix / "opt/words/words.txt").read_text() == "vocabulary\n"
    before = {path: path.lstat().st_mtime_ns for path in prefix.rglob("*")}
    second = rlbox(*words(prefix, "--json"))
    assert (second.code, second.data["state"], second.data["steps"]) == (0, "unchanged", [])
    assert {path: path.lstat().st_mtime_ns for path in prefix.rglob("*")} == before
    assert rlbox(*words(prefix, "--check")).code == 0
    _check_environment(prefix)
    _check_left(first.data)


def _check_environment(prefix: Path) -> None:
    """It is what the image has as ENV, whatever the caller's shell says."""
    said = inside(prefix, "env; ulimit -S -n", PATH=f"/usr/bin:{prefix}/opt/venv/bin:/bin", SMALL_WORDS="the caller's")
    env = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    assert env["SMALL_WORDS"] == "it's $HOME, as it is"
    assert env["PATH"].split(":").count(f"{prefix}/opt/venv/bin") == 1
    assert env["PATH"].startswith(f"{prefix}/opt/rlbox/shims:{prefix}/opt/venv/bin:{prefix}/opt/rlbox/bin")
    assert json.loads(env["RLBOX_LIMITS"])["disk"]["mount"] == str(prefix.parent / "disk")
    assert env["RLBOX_PLACE"] == f"{prefix}/opt/rlbox"


def _check_left(data: Any) -> None:
    """What a prefix cannot have is named."""
    reasons = {row["what"]: row["reason"] for row in data["left"]}
    assert "outside of the prefix" in reasons["/etc/environment"]
    assert "operating system" in reasons["apt packages hello"]


def test_a_dry_run_names_old_and_new_and_writes_nothing(rlbox: Rlbox, prefix: Path) -> None:
    said = rlbox(*words(prefix, "--dry-run", "--json"))
    assert said.code == 0
    kinds = {row["kind"] for row in said.data["steps"]}
    assert kinds == {"environment", "part", "patches", "file", "link"}
    assert all(row["old"] and row["new"] for row in said.data["steps"])
    assert not prefix.exists()
    assert list((prefix.parent / "disk").iterdir()) == []


@pytest.mark.slow
def test_a_changed_lock_moves_only_what_changed(rlbox: Rlbox, prefix: Path, folder: Folder, store: ObjectStore) -> None:
    rlbox(*words(prefix))
    give(folder.path, store, {"alpha": "1.0", "gamma": "3.0"}, more="otherwise")
    assert rlbox(*words(prefix, "--check")).code == 1
    said = rlbox(*words(prefix, "--json"))
    paths = {row["path"].removeprefix(str(prefix)): row for row in said.data["steps"]}
    assert set(paths) >= {"/opt/venv", "/opt/rlbox/share/lock.json", "/opt/rlbox/hooks/00-environment.sh"}
    assert "/opt/rlbox/libexec/init.sh" not in paths
    assert "beta 2.0 -> absent" in paths["/opt/venv"]["why"]
    assert inside(
        prefix, "python -c 'import gamma, alpha; print(alpha.patched)'; python -c 'import beta' || echo gone"
    ) == ("True\ngone\n")


@pytest.mark.slow
def test_what_was_installed_by_hand_is_taken_out(rlbox: Rlbox, prefix: Path) -> None:
    rlbox(*words(prefix))
    site = next(prefix.glob("opt/venv/lib/*/site-packages"))
    shutil.rmtree(site / "beta-2.0.dist-info")
    (site / "other-9.dist-info").mkdir()
    (site / "other-9.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 9\n")
    (site / "other-9.dist-info/RECORD").write_text("other-9.dist-info/METADATA,,\nother-9.dist-info/RECORD,,\n")
    said = rlbox(*words(prefix, "--json"))
    assert said.data["steps"][0]["why"] == "beta absent -> 2.0, other 9 -> absent"
    assert rlbox(*words(prefix, "--json")).data["state"] == "unchanged"
    assert inside(prefix, "python -c 'import alpha, beta; print(alpha.patched)'") == "True\n"


@pytest.mark.slow
def test_a_file_that_was_edited_is_kept(rlbox: Rlbox, prefix: Path) -> None:
    rlbox(*words(prefix))
    hook = prefix / "opt/rlbox/hooks/05-unknown-uid.sh"
    laid = hook.read_text()
    hook.write_text("# mine\n")
    kept = rlbox(*words(prefix, "--json")).data["kept"]
    assert [Path(path).read_text() for path in kept] == ["# mine\n"]
    assert hook.read_text() == laid


@pytest.mark.slow
def test_remove_lays_back_what_was_there(rlbox: Rlbox, prefix: Path) -> None:
    (prefix / "usr/local/bin").mkdir(parents=True)
    (prefix / "usr/local/bin/python").write_text("#!/bin/sh\necho mine\n")
    (prefix / "opt/venv/bin").mkdir(parents=True)
    (prefix / "opt/venv/bin/mine").write_text("an environment of the user's\n")
    (prefix / "opt/words").mkdir()
    (prefix / "opt/words/words.txt").write_text("words of the user's\n")
    before = tree(prefix)
    said = rlbox(*words(prefix, "--json"))
    assert said.code == 0, said.err
    assert (prefix / "opt/venv.before-rlbox/bin/mine").exists()
    assert rlbox(*words(prefix, "--remove", "--dry-run")).code == 0
    assert tree(prefix) != before
    assert rlbox(*words(prefix, "--remove")).code == 0
    assert tree(prefix) == before
    assert rlbox(*words(prefix, "--remove", "--json")).data["state"] == "unchanged"


@pytest.mark.slow
def test_a_file_changed_since_is_left_and_named(rlbox: Rlbox, prefix: Path) -> None:
    rlbox(*words(prefix))
    changed = prefix / "usr/local/bin/python"
    changed.write_text("#!/bin/sh\necho mine\n")
    said = rlbox(*words(prefix, "--remove", "--json"))
    assert any(note.startswith(str(changed)) for note in said.data["notes"])
    assert changed.read_text() == "#!/bin/sh\necho mine\n"
    assert not (prefix / "opt/venv").exists()


@pytest.mark.slow
def test_killed_at_any_moment_and_repeated_it_is_the_same(rlbox: Rlbox, prefix: Path, folder: Folder) -> None:
    """Ended six times without a word: nothing is ever half laid, and the end is that of one quiet call."""
    assert rlbox(*words(prefix)).code == 0
    wanted = tree(prefix)
    assert rlbox(*words(prefix, "--remove")).code == 0
    argv = [sys.executable, "-m", "rlbox", *words(prefix, "-q"), "--project", str(folder.path)]
    began = time.monotonic()
    subprocess.run(argv, check=True)
    took_s = time.monotonic() - began
    assert rlbox(*words(prefix, "--remove")).code == 0
    pause, ended = random.Random(5), 0
    while ended < 6:
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(pause.uniform(0.2, 1.0) * took_s)
        whole = process.poll() is not None
        ended += not whole
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if whole:  # the next one is to find work, and less time
            took_s *= 0.8
            assert rlbox(*words(prefix, "--remove")).code == 0
        for path in prefix.rglob("*.sh"):
            assert path.read_bytes().endswith(b"\n"), f"{path} is half laid"
    assert rlbox(*words(prefix)).code == 0
    assert rlbox(*words(prefix, "--json")).data["state"] == "unchanged"
    found = tree(prefix)
    for record in (found, wanted):  # it says, too, which folders there were when it began
        del record["opt/rlbox/share/applied.json"]
    assert found == wanted
    assert rlbox(*words(prefix, "--remove")).code == 0
    assert tree(prefix) == {}


@pytest.mark.slow
@pytest.mark.allow("processes", "sockets")
def test_a_mirror_of_a_profile_gives_the_wheels_and_no_other_bytes(
    rlbox: Rlbox, prefix: Path, folder: Folder, store: ObjectStore
) -> None:
    lock = give(folder.path, store, FIRST)
    with mirrors(1) as (server,):
        index = Index(server)
        for package in lock.groups[0].packages:
            index.add(package.name, package.file, store.path(package.sha256).read_bytes())
            store.remove(package.sha256)
        rule = f'title = "near"\n[[rule]]\nkind = "python"\nprotocol = "index"\nurl = "{index.url}"\n'
        folder.write("sources/near.toml", rule)
        online = tuple(word for word in words(prefix, "--sources", "near") if word != "--offline")
        said = rlbox(*online)
        assert said.code == 0, said.err
        assert len(index.wheels_asked_for()) == len(FIRST)
        assert inside(prefix, "python -c 'import alpha; print(alpha.patched)'") == "True\n"
        index.add("beta", "beta-2.0-py3-none-any.whl", make_wheel("beta", "2.0")[1])  # another upload of that version
        assert rlbox(*words(prefix, "--remove")).code == 0
        shutil.rmtree(Path(os.environ["XDG_CACHE_HOME"]) / "uv", ignore_errors=True)
        said = rlbox(*online)
        assert said.code == 1
        assert "hash" in said.err.lower()
        assert rlbox(*words(prefix, "--check")).code == 1


JOB = """
title = "what a stage in place sees"
target = "small"
[[stages]]
name = "only"
title = "its own interpreter, and what the image has as ENV"
command = ["{python}", "-c", "import alpha, os; print(alpha.patched, *map(os.getenv, (NAMES)))"]
[stages.gate]
require = [{ pattern = "^True it's \\\\$HOME, as it is /.*/places/small/opt/rlbox None None 0 1$" }]
"""
SEEN = "SMALL_WORDS", "RLBOX_PLACE", "DEBIAN_FRONTEND", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "RLBOX_GPUS"


def test_a_run_in_place_brings_the_place_to_the_lock_and_runs_inside(
    prefix: Path, folder: Folder, store: ObjectStore
) -> None:
    folder.job("look", JOB.replace("NAMES", ", ".join(f"'{name}'" for name in SEEN)))
    disk = prefix.parent / "disk"
    argv = [sys.executable, "-m", "rlbox", "run", "look", "--place", "here", "--data", str(disk), "--gpus", "1"]
    shadow = {"PYTHONPATH": f"/nowhere:{CHECKOUT}", "VIRTUAL_ENV": "/nowhere", "SMALL_WORDS": "the caller's"}
    shadow |= {"DEBIAN_FRONTEND": "noninteractive", "LD_PRELOAD": ""}
    env = {**os.environ, **shadow}
    argv += ["--project", str(folder.path)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert cache_path("places/small/opt/rlbox/share/applied.json").is_file()


def test_doctor_examines_the_place_as_its_runs_find_it(rlbox: Rlbox, prefix: Path, folder: Folder) -> None:
    """Not as the shell is; with the GPUs that are named; and no other target than the one that is there."""
    assert rlbox(*words(prefix)).code == 0
    env = {
        **os.environ,
        "RLBOX_PLACE": f"{prefix}/opt/rlbox",
        "SMALL_WORDS": "the caller's",
        "RAY_ADDRESS": "10.0.0.1:1",
    }
    argv = [sys.executable, "-m", "rlbox", "doctor", "--json", "--project", str(folder.path), "--budget", "6"]

    def asked(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*argv, *more], env=env, capture_output=True, text=True, timeout=120)

    said = asked("small", "--gpus", "1")
    assert "GPUs: 0 by CUDA_VISIBLE_DEVICES" in said.stderr
    found = {row["id"]: row["level"] for row in json.loads(said.stdout)["findings"]}
    assert "error" in {level for name, level in found.items() if "gpu" in name or "driver" in name}, found
    assert not {"ray-address", "shared-pid-namespace"} & set(found)
    assert found["interactive-prompts"] == "note"  # what lies outside of the prefix is left out
    other = asked("local")
    assert other.returncode == 5
    assert "target small was applied here" in other.stderr


def test_what_the_store_lacks_is_imported(follow: Follow, rlbox: Rlbox, prefix: Path, store: ObjectStore) -> None:
    out = prefix.parent / "export"
    out.mkdir()
    assert rlbox("fetch", "small", "--place", "here", "--export", str(out)).code == 0
    shutil.rmtree(store.root)
    step = follow(*words(prefix, "--dry-run"))
    (command,) = step.commands({})
    follow.changed(step, [*command, *step.options({"DIR": str(out)}, 1)], 0)
    follow.again(step)


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--check",)])
def test_a_target_on_a_frameworks_image_is_refused(
    rlbox: Rlbox, prefix: Path, folder: Folder, store: ObjectStore, more: tuple[str, ...]
) -> None:
    hold(folder.path, give(folder.path, store, FIRST, patched=False))
    said = rlbox("apply", "held", *words(prefix, *more)[2:])
    assert said.code == 5
    assert "target held takes torch, Flash_Attn from its base image" in said.err
    assert not prefix.exists()


def test_a_torn_record_is_moved_away(follow: Follow, rlbox: Rlbox, prefix: Path) -> None:
    assert rlbox(*words(prefix)).code == 0
    record = Path(Layout(prefix=str(prefix), data_dir="").record_path)
    whole = record.read_text()
    record.write_text(whole[: len(whole) // 2])
    step = follow(*words(prefix, "--check"))
    record.rename(record.with_suffix(".torn"))
    follow.changed(step, list(words(prefix)), 0)


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch, folder: Folder, store: ObjectStore, tmp_path: Path) -> list[str]:
    """The machine's own paths, where a target would be applied; nothing is: what would be is a row of this list."""
    give(folder.path, store, FIRST)
    (tmp_path / "disk").mkdir()
    monkeypatch.setenv("RLBOX_DATA", str(tmp_path / "disk"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    done: list[str] = []

    def apply_plan(app: App, prepared: HostTarget, plan: ApplyPlan) -> ApplyResult:
        done.append(f"{len(plan.steps)} changes")
        return EMPTY_RESULT

    monkeypatch.setattr("rlbox.provision.provision.fetch_apply_and_save_prefix_already_locked", apply_plan)
    monkeypatch.setattr("rlbox.provision.provision.run_doctor_fix_checks_in_layout", lambda layout: (0, ()))
    return done


PATHS = "the machine's own paths are changed: every shell on it gets the target's python, ray and PATH"


@pytest.mark.usefixtures("no_engine")
def test_the_machines_own_paths_are_not_changed_unasked(
    rlbox: Rlbox, at_root: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = rlbox("apply", "small", "--offline")
    assert (said.code, at_root) == (2, [])
    assert PATHS in said.err
    assert re.search(r"there is no terminal to ask on: pass --yes to make \d+ changes at / for target small", said.err)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert (rlbox("apply", "small", "--offline").code, at_root) == (130, [])
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    said = rlbox("apply", "small", "--offline")
    once = list(at_root)
    assert (said.code, len(once) > 0) == (0, True)
    assert "at / for target small? [y/N]: " in said.err
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert (rlbox("apply", "small", "--offline", "--yes").code, at_root) == (0, once * 2)


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True
