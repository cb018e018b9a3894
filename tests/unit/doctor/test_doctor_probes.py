"""Doctor's probes on files and folders of the test's own."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from importlib.resources import files
from pathlib import Path

import pytest

from rlbox.doctor.container import ProbeThreads
from rlbox.doctor.disks import find_directories, probe_directories
from rlbox.doctor.environment import probe_environment
from rlbox.doctor.fix_checks import run_fix_checks
from rlbox.doctor.host import repair_findings
from rlbox.doctor.limits import probe_limits
from rlbox.doctor.network import read_ray_ports
from rlbox.doctor.packages import DamagedElfError, probe_packages, read_matching_symbols, require_complete_elf
from rlbox.doctor.paths import probe_paths
from rlbox.doctor.processes import list_processes
from rlbox.doctor.program import PROCESS_MARK, Program
from rlbox.doctor.requirements import Requirements
from rlbox.findings import Finding
from rlbox.system.json_files import read_json_object
from rlbox.system.process_table import probe_process

WHOLE = next(Path(path) for path in (sys.executable, "/bin/ls") if Path(path).resolve().is_file()).resolve()


def record(site: Path, name: str, files: dict[str, bytes]) -> None:
    """Lay down a distribution with its RECORD."""
    rows = []
    for path, data in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
        digest = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}")
    info = site / f"{name}.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("\n".join([*rows, f"{name}.dist-info/RECORD,,"]))


def test_a_whole_elf_file_and_one_cut_short(tmp_path: Path) -> None:
    require_complete_elf(str(WHOLE))
    for size in (0, 10, 100, WHOLE.stat().st_size // 2, WHOLE.stat().st_size - 1):
        short = tmp_path / f"short-{size}.so"
        short.write_bytes(WHOLE.read_bytes()[:size])
        with pytest.raises(DamagedElfError):
            require_complete_elf(str(short))


def test_a_file_for_another_processor(tmp_path: Path) -> None:
    data = bytearray(WHOLE.read_bytes())
    data[18:20] = (8).to_bytes(2, "little")
    (tmp_path / "mips.so").write_bytes(data)
    with pytest.raises(DamagedElfError, match="another processor"):
        require_complete_elf(str(tmp_path / "mips.so"))


def test_symbols_of_a_library() -> None:
    found = read_matching_symbols(str(WHOLE), (b"mal", b"Py_"))
    assert found is not None
    assert found.defined | found.undefined
    assert read_matching_symbols(str(WHOLE), (b"_ZN3c10",)) is None


def test_packages_that_are_whole(tmp_path: Path) -> None:
    record(tmp_path, "six-1.16.0", {"six.py": b"x = 1\n", "six/_c.so": WHOLE.read_bytes()})
    found = probe_packages(str(tmp_path))
    assert (found.installed, found.damages, found.file_count) == ({"six": ("1.16.0",)}, (), 2)


def test_packages_with_each_damage(tmp_path: Path) -> None:
    files = {"six.py": b"x = 1\n", "gone.py": b"", "six/_c.so": WHOLE.read_bytes(), "six/ok.py": b"y"}
    record(tmp_path, "six-1.16.0", files)
    (tmp_path / "six.py").write_bytes(b"x = 2\n")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "six/_c.so").write_bytes(WHOLE.read_bytes()[:999])
    (tmp_path / "flash_attn_2_cuda.so").write_bytes(WHOLE.read_bytes()[:5000])  # of no distribution
    (tmp_path / "script.so").write_text("INPUT(libx.so.1)\n")  # a linker's script
    found = {(row.package, row.path.rpartition("/")[2], row.kind) for row in probe_packages(str(tmp_path)).damages}
    assert found == {
        ("six", "six.py", "changed"), ("six", "gone.py", "missing"), ("six", "_c.so", "short"),
        ("", "flash_attn_2_cuda.so", "broken"),
    }  # fmt: skip


def test_a_site_that_is_not_there(tmp_path: Path) -> None:
    assert probe_packages(str(tmp_path / "none")).missing_reason


def test_places(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rows = [("data", str(tmp_path)), ("data", str(tmp_path / "none")), ("tmp", str(tmp_path / "file"))]
    fine, missing, file, later = probe_directories([*rows, ("HF_HOME", str(tmp_path / "a/b"))])
    assert (fine.problem, missing.problem, file.problem, later.problem) == ("", "missing", "file", "")
    assert fine.total_bytes > fine.free_bytes > 0
    assert fine.is_own


def test_places_of_an_environment() -> None:
    environ = {"TMPDIR": "/t", "HF_HOME": "/h", "TRITON_CACHE_DIR": "relative"}
    assert find_directories(environ, "/data") == [("data", "/data"), ("tmp", "/t"), ("HF_HOME", "/h")]


def test_limits_can_be_read_here() -> None:
    found = probe_limits()
    assert found.cores >= 1
    assert found.memory_free
    assert set(found.rlimits) == {"nofile", "fsize", "as", "data", "stack", "cpu", "nproc"}


def test_paths(tmp_path: Path) -> None:
    for name in ("python3", "python", "ray"):
        path = tmp_path / "venv/bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    (tmp_path / "other/torch").mkdir(parents=True)
    (tmp_path / "other/torch/__init__.py").write_text("")
    (tmp_path / "other/ray").write_text("#!/bin/sh\n")
    (tmp_path / "other/ray").chmod(0o755)
    prefix, other = f"{tmp_path}/venv", f"{tmp_path}/other"
    requirements = Requirements(packages={"torch": "2"})
    found = probe_paths({"PATH": f"{other}:{prefix}/bin", "PYTHONPATH": other}, requirements, prefix)
    assert found.program_paths == {
        "python3": f"{prefix}/bin/python3", "python": f"{prefix}/bin/python", "ray": f"{other}/ray",
    }  # fmt: skip
    assert found.python_error == ""
    assert probe_paths({}, requirements, other).python_error == "is missing"
    assert (found.lib64, found.shadowing_modules) == ("missing", (f"{other}/torch",))
    os.symlink("nowhere", f"{prefix}/lib64")
    assert probe_paths({"PATH": ""}, requirements, prefix).lib64 == "dangling"
    os.unlink(f"{prefix}/lib64")
    os.mkdir(f"{prefix}/lib64")
    assert probe_paths({"PATH": ""}, requirements, prefix).lib64 == "folder"
    os.symlink("../lib", f"{prefix}/lib64/lib")
    assert probe_paths({"CUDA_HOME": other}, requirements, prefix).cuda_missing == ("bin/nvcc", "lib64/libcudart.so")


def test_dotenv_files_are_found_once(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"A=1\r\nB=2\n")
    (found,) = probe_environment({}, (str(tmp_path), str(tmp_path / "."), str(tmp_path / "none"))).env_files
    assert found.values == {"A": "1", "B": "2"}
    assert found.broken_lines


@pytest.mark.allow("processes")
def test_processes_of_this_test_are_its_own() -> None:
    child = subprocess.Popen(["sleep", "9"])
    try:
        found = {row.pid: row for row in list_processes()}
        assert found[child.pid].is_doctor
        assert found[os.getpid()].is_doctor
    finally:
        child.kill()
        child.wait()


@pytest.mark.allow("processes")
def test_a_program_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    script = "setsid sleep 77 & echo $!; echo '{\"step\": 1}'; sleep 77"
    program = Program(["sh", "-c", script], dict(os.environ), str(tmp_path), token=f"test-{os.getpid()}")
    ran = program.communicate(b"", time.monotonic() + 0.5)
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
    program = Program(argv, dict(os.environ), str(tmp_path), token=f"test-{os.getpid()}")
    program.communicate(b"", time.monotonic() + 3)
    last = probe_process(int((tmp_path / "pid").read_text()))
    assert last is None or last.has_ended


def test_probes_that_hang_or_fail_are_named() -> None:
    probes = ProbeThreads(time.monotonic() + 0.2)
    fine = Finding(id="a", title="")

    def fail() -> list[Finding]:
        raise ValueError("no such thing")

    def hang() -> list[Finding]:
        time.sleep(0.6)
        return [fine]

    probes.start({"fine": lambda: [fine], "fails": fail, "hangs": hang})
    probes.wait()
    assert probes.findings == {"fine": (fine,)}
    assert sorted(map(str, probes.unfinished)) == [
        "fails: ValueError: no such thing (fail)",
        "hangs: not done in time",
    ]
    while probes.is_running("hangs"):
        time.sleep(0.02)
    assert probes.findings == {"fine": (fine,)}  # what was told stays so


@pytest.mark.allow("processes")
def test_checks_of_fixes_are_run_and_named(tmp_path: Path) -> None:
    def fix(name: str, run: str) -> dict[str, object]:
        return {"id": name, "title": "t", "remedy": "r", "heals": [], "check": {"run": run, "when": ["run"]}}

    rows = [fix("fine", "true"), fix("bad", "echo 'is not so'; exit 3"), fix("broken", "if"), fix("last", "exit 1")]
    file = tmp_path / "fixes.json"
    file.write_text(json.dumps({"schema": 1, "fixes": rows}))
    found = run_fix_checks("run", read_json_object(file))
    assert (found[0].id, found[0].seen) == ("bad", "is not so")
    assert [row.id for row in found] == ["bad", "broken", "last"]
    assert run_fix_checks("doctor", read_json_object(file)) == ()


@pytest.mark.allow("processes")
def test_a_check_that_fails_once_only_is_no_finding(tmp_path: Path) -> None:
    run = f"[ -e {tmp_path}/once ] || {{ touch {tmp_path}/once; exit 1; }}"
    row = {"id": "a", "title": "t", "remedy": "r", "heals": [], "check": {"run": run, "when": ["run"]}}
    assert run_fix_checks("run", {"fixes": [row]}) == ()


def test_a_missing_or_torn_manifest_has_no_fixes(tmp_path: Path) -> None:
    assert read_json_object(tmp_path / "none") == {}
    (tmp_path / "torn").write_text('{"fixes": [')
    assert read_json_object(tmp_path / "torn") == {}


def test_repairs(tmp_path: Path) -> None:
    def done(*words: str) -> str:
        return next(
            text for _, text in repair_findings([Finding(id="a", title="", repair=words), Finding(id="b", title="")])
        )

    link = f"{tmp_path}/lib64"
    assert done("link", link, "lib") == f"made the link {link} -> lib"
    assert done("link", link, "lib") == f"made the link {link} -> lib"  # it led nowhere
    (tmp_path / "lib").mkdir()
    assert done("link", link, "lib") == f"not repaired: {link} is there already"
    assert done("folder", f"{tmp_path}/a/b") == f"made the folder {tmp_path}/a/b"
    assert done("mode", f"{tmp_path}/a", "1777") == f"gave {tmp_path}/a the mode 1777"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o1777
    assert done("mode", f"{tmp_path}/none", "1777") == f"not repaired: {tmp_path}/none: No such file or directory"
    assert done("else") == "not repaired: this rlbox knows no repair else"


@pytest.mark.allow("processes")
def test_ports_of_a_ray_head(tmp_path: Path) -> None:
    program = tmp_path / "ray-start"
    program.write_text(
        "#!/bin/sh\nprintf '%s\\n' ray start --head --port=6379 --dashboard-port=8265 --min-worker-port=10002\n"
    )
    program.chmod(0o755)
    assert read_ray_ports(str(program)) == {"ray port": 6379, "ray dashboard-port": 8265}
    assert read_ray_ports(str(tmp_path / "none")) == {}


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
