"""How a wheel is compiled: jobs, environment, command; why a build failed; what is in a wheel."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from pathlib import Path

import pytest

from rlbox.errors import SpecError, WorkFailed
from rlbox.image.compile import list_different_files, parse_gpu_archs, require_wheel_gpu_archs, write_reproducible_wheel
from rlbox.image.compile_env import (
    choose_job_count,
    create_wheel_build_error_from_log,
    parse_build_backend_or_setuptools_and_path,
    plan_isolated_build_environment,
)
from rlbox.target.compiled import Compile
from rlbox.target.lock import RECIPE_VERSION
from rlbox.target.target import Target

GIB = 2**30
PROGRAMS = Path(__file__).parents[3] / "rlbox/image/programs"


def entry(**changes: object) -> Compile:
    return Compile.model_validate(
        {"name": "flash-attn", "version": "2.8.3", "cuda": "13.0", "memory_gib": 6, **changes}
    )


def spec() -> Target:
    """A target as far as the environment of a build asks."""
    return Target.model_construct(hardware=type("H", (), {"arch": "sm_80"})())


@pytest.mark.parametrize(
    ("cores", "memory_gib", "most", "max_jobs", "jobs"),
    [
        (32, 200, None, "", 32),
        (32, 64, None, "", 10),
        (2, 200, None, "", 2),
        (2, 3, None, "", 1),
        (32, 200, 4, "", 4),
        (32, 200, None, "8", 8),
        (32, 200, 4, "8", 4),
        (32, 200, None, "many", 32),
    ],
)
def test_jobs_by_memory_and_cores(
    cores: int, memory_gib: int, most: int | None, max_jobs: str, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(cores))
    monkeypatch.setattr("rlbox.image.compile_env.get_available_memory_bytes", lambda: memory_gib * GIB)
    one = entry(env={"MAX_JOBS": max_jobs} if max_jobs else {})
    assert choose_job_count(one, most) == jobs


def test_the_environment_of_a_build() -> None:
    env = plan_isolated_build_environment(
        spec(), entry(env={"MAX_JOBS": "9", "TORCH_CUDA_ARCH_LIST": "8.0+PTX", "PATH": "/evil"}), 3
    )
    assert env["MAX_JOBS"] == env["CMAKE_BUILD_PARALLEL_LEVEL"] == "3"
    assert env["TORCH_CUDA_ARCH_LIST"] == "8.0+PTX"  # what the spec says goes before what follows from archs
    assert env["FLASH_ATTN_CUDA_ARCHS"] == "80"
    assert env["CUDA_HOME"] == "/mnt/rlbox/site/nvidia/cu13"
    assert env["PATH"].startswith("/mnt/rlbox/bin:/mnt/rlbox/site/bin:/mnt/rlbox/site/nvidia/cu13/bin:")
    assert "CUDA_HOME" not in plan_isolated_build_environment(spec(), entry(cuda=""), 1)


def test_headers_and_libraries_of_cuda_wheels_are_found() -> None:
    env = plan_isolated_build_environment(spec(), entry(), 1, ["cudnn", "nccl"])
    assert env["CPATH"] == "/mnt/rlbox/site/nvidia/cudnn/include:/mnt/rlbox/site/nvidia/nccl/include"
    assert env["LIBRARY_PATH"] == "/mnt/rlbox/site/nvidia/cudnn/lib:/mnt/rlbox/site/nvidia/nccl/lib"
    assert plan_isolated_build_environment(spec(), entry(env={"CPATH": "/mine"}), 1, ["cudnn"])["CPATH"] == "/mine"
    assert "CPATH" not in plan_isolated_build_environment(spec(), entry(), 1)


def test_the_backend_of_a_source() -> None:
    assert parse_build_backend_or_setuptools_and_path({}) == ("setuptools.build_meta:__legacy__", ())
    assert parse_build_backend_or_setuptools_and_path({"build-system": {"requires": []}}) == (
        "setuptools.build_meta:__legacy__",
        (),
    )
    assert parse_build_backend_or_setuptools_and_path(
        {"build-system": {"build-backend": "a.b:c", "backend-path": ["x"]}}
    ) == (
        "a.b:c",
        ("x",),
    )
    for wrong in ({"build-system": 1}, {"build-system": {"build-backend": 1}}, {"build-system": {"backend-path": [1]}}):
        with pytest.raises(SpecError):
            parse_build_backend_or_setuptools_and_path(wrong)


def test_programs_that_change_change_recipes() -> None:
    """They decide bytes: raise RECIPE when a change makes other wheels, and write down the new sum either way."""
    sums = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(PROGRAMS.glob("*.[ps][yh]")))).hexdigest()
    assert (RECIPE_VERSION, sums[:12]) == (4, "5b03fefe707f")


@pytest.mark.parametrize(
    ("log", "what"),
    [
        (
            "nvcc error : 'cicc' died\nKilled\n",
            "the kernel ended a compiler of flash-attn: there was not enough memory",
        ),
        ("c++: fatal error: Killed signal terminated program cc1plus", "the kernel ended a compiler"),
        ("OSError: CUDA_HOME environment variable is not set.", "the build of flash-attn wants a CUDA compiler"),
        ("urlopen error [Errno -3] Temporary failure in name resolution", "the build of flash-attn wants the network"),
        (
            "fatal: unable to access 'x': Could not resolve host: github.com",
            "the build of flash-attn wants the network",
        ),
        ("ModuleNotFoundError: No module named 'psutil'", "the build of flash-attn imports psutil"),
        ("Precompiled wheel not found. Network is unreachable\n" * 2 + "ptxas fatal\nKilled", "the kernel ended"),
        (
            "Could not resolve host: x\ncommon.h:12:10: fatal error: cudnn.h: No such file or directory\n   12 |",
            "a compiler of flash-attn did not find the header cudnn.h",
        ),
        (
            "one.cu:1:10: fatal error: 'nccl.h' file not found",
            "a compiler of flash-attn did not find the header nccl.h",
        ),
        ("Skilled: a test that was", ""),
        ("error: expected ';'", ""),
    ],
)
def test_why_a_build_failed(log: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "build.log").write_text(f"{log}\n")
    error = create_wheel_build_error_from_log(entry(), 7, tmp_path / "build.log")
    assert error.what.startswith(what or "flash-attn cannot be compiled (exit code 7)")
    assert error.next_step


def fat(*entries: tuple[int, int]) -> bytes:
    body = b"".join(struct.pack("<HHIQ12xI", kind, 257, 64, 16, arch).ljust(80, b"\1") for kind, arch in entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_the_gpus_of_a_library() -> None:
    library = b"\x7fELF" + bytes(99) + fat((2, 80), (1, 90)) + bytes(7) + fat((2, 120))
    assert parse_gpu_archs(library) == {"sm_80", "sm_120"}
    assert parse_gpu_archs(b"\x7fELF") == frozenset()


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_a_torn_library_tells_what_it_has(cut: int) -> None:
    assert parse_gpu_archs(fat((2, 80), (2, 90))[:cut]) <= {"sm_80", "sm_90"}


def test_a_header_without_length_ends() -> None:
    assert parse_gpu_archs(struct.pack("<IHHQ", 0xBA55ED50, 1, 0, 99) + bytes(99)) == frozenset()


def test_a_wheel_without_gpu_code(tmp_path: Path) -> None:
    """Of an entry without `cuda` none is expected; of one with it the refusal says how to write that."""
    wheel = tmp_path / "te-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("te.so", b"\x7fELF")
    require_wheel_gpu_archs(wheel, "te", entry(cuda="").list_archs_if_cuda("sm_80"))
    with pytest.raises(WorkFailed, match="te was compiled for no GPU, and not for sm_80") as refused:
        require_wheel_gpu_archs(wheel, "te", entry().list_archs_if_cuda("sm_80"))
    assert "if it is C++ alone, leave out its cuda and archs" in refused.value.next_step


def make_wheel(path: Path, names: list[str], year: int, mode: int = 0o100644, level: int = 9) -> Path:
    with zipfile.ZipFile(path, "w", compresslevel=level) as wheel:
        for name in names:
            info = zipfile.ZipInfo(name, (year, 2, 3, 4, 5, 6))
            info.external_attr = mode << 16
            wheel.writestr(info, f"text of {name}")
    return path


def test_a_wheel_follows_from_its_contents(tmp_path: Path) -> None:
    names = ["a-1.dist-info/RECORD", "b.py", "a-1.dist-info/WHEEL", "a.so", "d/"]
    one = make_wheel(tmp_path / "one.whl", names, 1999, 0o100664)
    other = make_wheel(tmp_path / "other.whl", names[::-1], 2024, level=1)
    for path in (one, other):
        write_reproducible_wheel(path, path.with_suffix(".plain"))
    assert one.with_suffix(".plain").read_bytes() == other.with_suffix(".plain").read_bytes()
    with zipfile.ZipFile(one.with_suffix(".plain")) as wheel:
        assert wheel.namelist() == ["a-1.dist-info/WHEEL", "a.so", "b.py", "a-1.dist-info/RECORD"]
        assert wheel.read("b.py") == b"text of b.py"


def test_what_differs_between_wheels(tmp_path: Path) -> None:
    paths = [tmp_path / "one.whl", tmp_path / "other.whl"]
    for path, contents in zip(paths, ({"a": "12345", "b": "x", "c": "1"}, {"a": "12x45y", "b": "x"}), strict=True):
        with zipfile.ZipFile(path, "w") as wheel:
            for name, text in contents.items():
                wheel.writestr(name, text)
    assert list_different_files(*paths) == ["a", "c"]
    assert list_different_files(paths[0], paths[0]) == []
