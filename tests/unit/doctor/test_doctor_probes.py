"""Doctor's probes on files and folders of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from rlbox.doctor.checks import CheckThreads
from rlbox.doctor.container import ContainerChecks
from rlbox.doctor.fix_checks import run_fix_checks_retrying_failed
from rlbox.doctor.processes import list_processes_in_same_container
from rlbox.doctor.program import PROCESS_MARK, RunningProgram
from rlbox.doctor.programs.probe_torch import list_top_level_and_torch_shared_libraries
from rlbox.doctor.requirements import Requirements
from rlbox.doctor.stack import StackProbe, check_package_files_and_versions
from rlbox.findings import Finding
from rlbox.system.gpu import CudaDriver
from rlbox.system.json_files import read_json_object_or_empty
from rlbox.system.process_table import probe_process

ANY = ContainerChecks(
    environ={}, requirements=Requirements(), venv="/v", manifest={}, driver=CudaDriver(),
    monotonic_deadline=0.0,
)  # fmt: skip
PROBE = StackProbe({}, "/v/bin/python", "/tmp/folder")
TWO_GPUS = CudaDriver(is_present=True, device_file_count=2)


@pytest.mark.parametrize(
    ("changes", "stack", "names"),
    [
        ({}, None, set()),
        ({"requirements": Requirements(gpu="A800")}, None, {"gpu driver"}),
        ({"driver": TWO_GPUS}, PROBE, {"link", "gpu driver", "gpu peers", "gpus"}),
        (
            {"requirements": Requirements(packages={"torch": "2", "ray": "2"}), "driver": TWO_GPUS},
            PROBE,
            {"torch", "ray task", "link", "gpu driver", "gpu peers", "gpus", "all-reduce"},
        ),
    ],
)
def test_checks_that_make_no_sense_are_not_run(
    changes: dict[str, Any], stack: StackProbe | None, names: set[str]
) -> None:
    checks = replace(ANY, **changes)
    assert checks.list_slow_checks((), stack).keys() == names | {"sandbox", "packages", "network", "fixes"}
    earlier = Finding(id="lib64-missing", title="", breaks=("jit-*", "ray-*"))
    left = checks.list_slow_checks([earlier], stack)
    assert names - left.keys() == names & {"ray task", "link"}


def record(site: Path, name: str, files: dict[str, bytes]) -> None:
    """Lay down a distribution with its RECORD."""
    rows = []
    for path, data in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
        rows.append(f"{path},sha256=0,{len(data)}")
    info = site / f"{name}.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("\n".join([*rows, f"{name}.dist-info/RECORD,,"]))


def test_packages_with_each_damage_are_named(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3/site-packages"
    assert [row.id for row in check_package_files_and_versions(str(tmp_path), Requirements())] == ["stack-missing"]
    names = ("good", "changed", "gone", "short")
    for name in names:
        record(site, f"{name}-1.16.0", {f"{name}.py": b"x = 1\n", f"{name}/_c.so": b"0123456789"})
    requirements = Requirements(packages=dict.fromkeys(names, "1.16.0"))
    assert list(check_package_files_and_versions(str(tmp_path), requirements)) == []
    (site / "changed/_c.so").write_bytes(b"0123456789 and more")
    (site / "gone.py").unlink()
    (site / "short.py").unlink()
    (site / "short/_c.so").write_bytes(b"01234")
    found = list(
        check_package_files_and_versions(
            str(tmp_path), replace(requirements, packages={**requirements.packages, "torch": "2"})
        )
    )
    assert [(row.id, row.title.split()[2]) for row in found[:-1]] == [
        ("file-changed", "changed"), ("file-missing", "gone"), ("file-truncated", "short"),
    ]  # fmt: skip
    assert found[2].seen == f"{site}/short/_c.so has 5 bytes of 10"
    assert (found[3].id, found[3].seen) == ("package-missing", "torch is gone (locked: 2)")
    other = check_package_files_and_versions(str(tmp_path), Requirements(packages={"good": "2"}))
    assert [row.seen for row in other if row.id == "package-overwritten"] == ["good 1.16.0 (locked: 2)"]


def test_extensions_that_use_torch_are_found(tmp_path: Path) -> None:
    files = {"flash/_c.so": b"_ZN3c105Error", "flash/plain.so": b"no symbol", "flash/a.py": b""}
    record(tmp_path, "flash-1", files)
    (tmp_path / "flash-1.dist-info/METADATA").write_text("Name: flash\nVersion: 1\nRequires-Dist: torch>=2\n")
    record(tmp_path, "other-1", {"other/_c.so": b"_ZN3c105Error"})
    text = "Name: other\nVersion: 1\nRequires-Dist: torchvision\nRequires-Dist: torch; extra == 'all'\n"
    (tmp_path / "other-1.dist-info/METADATA").write_text(text)
    (tmp_path / "alone.so").write_bytes(b"")
    assert list_top_level_and_torch_shared_libraries(tmp_path) == [f"{tmp_path}/alone.so", f"{tmp_path}/flash/_c.so"]


@pytest.mark.allow("processes")
def test_processes_of_this_test_are_its_own() -> None:
    child = subprocess.Popen(["sleep", "9"])
    try:
        found = {row.pid: row for row in list_processes_in_same_container()}
        assert found[child.pid].is_doctor
        assert found[os.getpid()].is_doctor
    finally:
        child.kill()
        child.wait()


@pytest.mark.allow("processes")
def test_a_program_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    script = "setsid sleep 77 & echo $!; echo '{\"step\": 1}'; sleep 77"
    program = RunningProgram(["sh", "-c", script], dict(os.environ), str(tmp_path))
    ran = program.read_output_and_kill_all(time.monotonic() + 0.5)
    assert ran.exit_code is None
    assert '{"step": 1}' in ran.stdout
    pid = int(ran.stdout.split()[0])
    end = time.monotonic() + 5
    while Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.allow("processes")
def test_a_program_that_was_ended_is_gone_at_once(tmp_path: Path) -> None:
    code = "import os, time; held = bytearray(range(1, 5)) * (100 << 20); os.setsid(); print(os.getpid(), flush=True)"
    large = f"'{sys.executable}' -c '{code}; time.sleep(77)' >pid 2>&1"
    argv = ["sh", "-c", f"unset {PROCESS_MARK}; {large} & sleep 77"]
    program = RunningProgram(argv, dict(os.environ), str(tmp_path))
    program.read_output_and_kill_all(time.monotonic() + 3)
    last = probe_process(int((tmp_path / "pid").read_text()))
    assert last is None or last.is_zombie


def test_checks_that_hang_or_fail_are_named() -> None:
    fine = Finding(id="a", title="")

    def fail() -> Iterator[Finding]:
        yield fine
        raise ValueError("no such thing")

    def hang() -> list[Finding]:
        time.sleep(0.6)
        return [fine]

    threads = CheckThreads({"fine": lambda: [fine], "fails": fail, "hangs": hang}, time.monotonic() + 0.2)
    found = threads.wait_and_get_findings_so_far()
    assert found == {"fine": (fine,), "fails": (fine,), "hangs": ()}
    assert sorted(threads.describe_unfinished_or_failed()) == [
        "fails: ValueError: no such thing (fail)", "hangs: not done in time",
    ]  # fmt: skip
    while threads.is_running("hangs"):
        time.sleep(0.02)
    assert found["hangs"] == ()  # what was told stays so


@pytest.mark.allow("processes")
def test_checks_of_fixes_are_run_and_named(tmp_path: Path) -> None:
    def fix(name: str, run: str) -> dict[str, object]:
        return {"id": name, "title": "t", "remedy": "r", "heals": [], "check": {"run": run, "when": ["run"]}}

    rows = [fix("fine", "true"), fix("bad", "echo 'is not so'; exit 3"), fix("broken", "if"), fix("last", "exit 1")]
    file = tmp_path / "fixes.json"
    file.write_text(json.dumps({"schema": 1, "fixes": rows}))
    found = run_fix_checks_retrying_failed("run", read_json_object_or_empty(file))
    assert (found[0].id, found[0].seen) == ("bad", "is not so")
    assert [row.id for row in found] == ["bad", "broken", "last"]
    assert run_fix_checks_retrying_failed("doctor", read_json_object_or_empty(file)) == ()


@pytest.mark.allow("processes")
def test_a_check_that_fails_once_only_is_no_finding(tmp_path: Path) -> None:
    run = f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; exit 1; }}"
    row = {"id": "a", "title": "t", "remedy": "r", "heals": [], "check": {"run": run, "when": ["run"]}}
    assert run_fix_checks_retrying_failed("run", {"fixes": [row]}) == ()


TORCH = """
class Numbers(list):
    def float(self):
        return self

class cuda:
    is_available = staticmethod(lambda: True)

full_like = lambda like, number: Numbers([number] * len(like))
allclose = lambda one, other, atol: all(abs(a - b) <= atol for a, b in zip(one, other))
"""


@pytest.mark.allow("processes")
@pytest.mark.parametrize(("launched", "error"), [(True, ""), (False, "its kernel did not run")])
def test_a_kernel_that_wrote_nothing_did_not_run(tmp_path: Path, launched: bool, error: str) -> None:
    """A launch that fails says nothing by itself; torch is a stand-in of three functions."""
    (tmp_path / "torch.py").write_text(TORCH)
    lines = f"got, want = torch.Numbers([0.0, 0.0]), 1.0\nif {launched}: got[:] = [1.0, 1.0]"
    program = files("rlbox.doctor.programs").joinpath("probe_import.py")
    argv = [sys.executable, str(program), lines, "json"]
    done = subprocess.run(argv, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["step"], last["ok"]) == ("kernel", launched)
    assert error in last.get("error", "")
