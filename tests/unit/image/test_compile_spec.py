"""`[[stack.compile]]`: what a spec may say, and what of it decides a wheel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes import CHECKOUT, Folder, fitting_lock, load_cases

from rlbox.app import list_rlbox_base_requirements
from rlbox.artifacts.python_lock import (
    UpgradeRequest,
    list_kept_versions_by_purpose,
    plan_stack_runtime_and_build_inputs,
)
from rlbox.artifacts.relock import (
    copy_matching_compiled_wheels,
    derive_toolchain_base_if_bootstrapped_and_compiling,
    map_groups_to_file_sizes,
    plan_inputs_to_find_sdist,
    plan_tool_resolver_inputs,
    require_known_packages,
)
from rlbox.errors import SpecError
from rlbox.target.artifact import (
    list_all_artifacts_with_repeats,
    list_artifacts_without_compile_inputs,
    list_compile_inputs,
)
from rlbox.target.compiled import make_arch_build_env
from rlbox.target.lock import (
    CompileInputs,
    Deb,
    Lock,
    Package,
    choose_lock_or_compile_command,
    compute_compile_inputs_sha256,
    compute_lock_spec_checksum,
    explain_lock_fault,
    load_lock,
    parse_lock,
)
from rlbox.target.target import Target, load_target

CASES = load_cases("image", "test_compile_spec")
SPEC = CASES["SPEC"]
FILE = "flash_attn-2.8.3.post2-cp311-cp311-linux_x86_64.whl"
SOURCE = Package(
    name="flash-attn", version="2.8.3.post2", file="flash_attn-2.8.3.post2.tar.gz", sha256="a" * 64, size=9
)
TORCH = Package(
    name="torch", version="2.11.0", file="torch-2.11.0-cp311-cp311-linux_x86_64.whl", sha256="b" * 64, size=9
)
GCC = Deb(name="g++", version="4:12", archive="debian", path="pool/g++.deb", sha256="c" * 64, size=9)


def target(folder: Folder, text: str = SPEC) -> Target:
    folder.target("mine", text)
    return load_target(folder.project, "mine").target


def digest(spec: Target, tools: tuple[Package, ...] = (TORCH,), toolchain: tuple[Deb, ...] = (GCC,)) -> str:
    return compute_compile_inputs_sha256(spec, spec.compile_entries[0][1], SOURCE, tools, toolchain)


def locked(spec: Target) -> tuple[Lock, CompileInputs]:
    row = CompileInputs(name="flash-attn", group="kernels", inputs_sha256=digest(spec), source=SOURCE, tools=(TORCH,))
    return replace(fitting_lock(spec, list_rlbox_base_requirements()), toolchain=(GCC,), compiled=(row,)), row


def wheel(row: CompileInputs, sign: str = "d") -> Package:
    return Package(
        name=row.name,
        version="2.8.3.post2",
        file=FILE,
        sha256=sign * 64,
        size=9,
        source=row.compiled_wheel_package_source,
    )


CUDA = 'cuda = "13.0"'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'version = "2.8.3.post2"',
            "",
            "stack[1].compile[0]: set version, for the source archive of the package index, or url and ref, for a git",
        ),
        (
            CUDA,
            'cuda = "12.8"',
            "stack[1].compile[0]: no wheel has the compiler of CUDA 12.8 (the CUDA 12 wheel has ptxas alone): use a "
            "published wheel by checksum ([[stack.wheels]]), or a base image that has the compiler (a devel image)",
        ),
        (CUDA, 'archs = ["sm_90"]', "stack.compile: Flash_Attn has archs without cuda, which compiles for them"),
        (
            CUDA,
            CUDA + '\narchs = ["sm_80"]',
            "stack.compile: Flash_Attn is compiled for sm_80, the target has sm_90",
        ),
        (
            'gpu = "G"\ngpus = 1\narch = "sm_90"',
            "",
            "stack.compile: Flash_Attn has no archs, and the target no hardware.arch",
        ),
        (
            '"einops"',
            '"einops", "flash-attn==2.8.3"',
            "stack.compile: Flash_Attn is also among the packages of the stack: name it once",
        ),
        ("memory_gib = 6.5", "memory_gib = 0", "stack[1].compile[0].memory_gib: input should be greater than 0"),
        (
            "memory_gib = 6.5",
            "memory = 6",
            "stack[1].compile[0].memory: unknown key (did you mean 'memory_gib'?)",
        ),
    ],
)
def test_what_a_spec_may_not_say(folder: Folder, old: str, new: str, said: str) -> None:
    assert old in SPEC
    with pytest.raises(SpecError) as caught:
        target(folder, SPEC.replace(old, new))
    assert said in str(caught.value)


def test_an_arch_of_one_model_is_that_of_the_target(folder: Folder) -> None:
    spec = target(folder, SPEC.replace('cuda = "13.0"', 'cuda = "13.0"\narchs = ["sm_90a", "sm_120"]'))
    archs = spec.compile_entries[0][1].list_archs_if_cuda("sm_90")
    assert archs == ("sm_120", "sm_90a")
    assert make_arch_build_env(archs) == {
        "CUDAARCHS": "120;90a",
        "FLASHINFER_CUDA_ARCH_LIST": "12.0 9.0a",
        "FLASH_ATTN_CUDA_ARCHS": "120;90a",
        "NVTE_CUDA_ARCHS": "120;90a",
        "TORCH_CUDA_ARCH_LIST": "12.0;9.0a",
    }
    assert make_arch_build_env(()) == {}


@pytest.mark.parametrize(("old", "new", "another"), CASES["what_decides_a_wheel"])
def test_what_decides_a_wheel(folder: Folder, old: str, new: str, another: bool) -> None:
    """What the spec says of the build does; how many compilers run, and the rest of the stack, do not."""
    before = digest(target(folder))
    assert (digest(target(folder, SPEC.replace(old, new))) != before) is another


def test_what_is_locked_decides_it_too(folder: Folder) -> None:
    spec = target(folder)
    found = {
        digest(spec),
        digest(spec, tools=(replace(TORCH, sha256="e" * 64),)),
        digest(spec, toolchain=(replace(GCC, sha256="e" * 64),)),
        compute_compile_inputs_sha256(
            spec, spec.compile_entries[0][1], replace(SOURCE, sha256="e" * 64), (TORCH,), (GCC,)
        ),
    }
    assert len(found) == 4


def test_the_choice_of_units_decides_a_wheel(folder: Folder) -> None:
    some = target(folder, SPEC.replace("memory_gib", 'units = ["*bf16*"]\nmemory_gib'))
    assert digest(target(folder)) != digest(some)


def test_the_lock_is_of_what_decides(folder: Folder) -> None:
    """The target's architecture is what is compiled for, so that it is part of the lock's checksum; memory is not."""
    checksums = [
        compute_lock_spec_checksum(target(folder, text), ())
        for text in (SPEC, SPEC.replace("sm_90", "sm_80"), SPEC.replace("6.5", "7.5"))
    ]
    assert checksums[0] != checksums[1]
    assert checksums[0] == checksums[2]


def test_a_lock_with_compiled_wheels(folder: Folder) -> None:
    spec = target(folder)
    lock, row = locked(spec)
    assert parse_lock(lock.to_json_text(), "x", "y") == lock
    fault = explain_lock_fault(spec, lock, list_rlbox_base_requirements(), {})
    assert fault == "incomplete: flash-attn not compiled yet"
    assert choose_lock_or_compile_command("mine", fault or "") == "rlbox compile mine"
    assert choose_lock_or_compile_command("mine", "missing") == "rlbox lock mine"
    whole = lock.with_compiled_wheel(row, wheel(row))
    assert explain_lock_fault(spec, whole, list_rlbox_base_requirements(), {}) is None
    assert parse_lock(whole.to_json_text(), "x", "y") == whole
    assert whole.with_compiled_wheel(row, wheel(row, "e")).groups[1].packages[0].sha256 == "e" * 64
    assert [package.name for package in whole.groups[1].packages] == ["flash-attn", "six"]


def test_what_is_fetched_and_from_where(folder: Folder) -> None:
    """The wheel is a file of the lock that no source has; what it is made from is fetched by `rlbox compile` alone."""
    lock, row = locked(target(folder))
    kinds = {
        one.name: one.kind for one in list_artifacts_without_compile_inputs(lock.with_compiled_wheel(row, wheel(row)))
    }
    assert kinds["flash-attn"] == "compiled"
    assert "torch" not in kinds
    inputs = list_compile_inputs(lock, row)
    assert [(one.name, one.kind, one.group) for one in inputs] == [
        ("g++", "apt", "compile"),
        ("torch", "python", "compile"),
        ("flash-attn", "python", "compile"),
    ]


def test_a_lock_names_all_that_it_takes_to_compile(folder: Folder) -> None:
    """So that no care for the store removes it, and the lock can be asked to move it."""
    lock, _ = locked(target(folder))
    known = {file.sha256 for file in list_all_artifacts_with_repeats(lock)}
    assert {SOURCE.sha256, TORCH.sha256, GCC.sha256} <= known
    require_known_packages(["torch", "g++", "flash-attn"], None, lock)
    assert map_groups_to_file_sizes(lock)["compile"] == [9, 9, 9]
    plain = replace(lock, toolchain=(), compiled=())
    assert "compile" not in map_groups_to_file_sizes(plain)
    assert list_all_artifacts_with_repeats(plain) == list_artifacts_without_compile_inputs(plain)


def test_a_relock_keeps_a_wheel_of_the_same_recipe(folder: Folder) -> None:
    lock, row = locked(target(folder))
    before = lock.with_compiled_wheel(row, wheel(row))
    assert copy_matching_compiled_wheels(lock, before) == before
    assert copy_matching_compiled_wheels(lock, None) == lock
    other = replace(lock, compiled=(replace(row, inputs_sha256="f" * 64),))
    assert copy_matching_compiled_wheels(other, before) == other
    assert "flash-attn" not in list_kept_versions_by_purpose(before, UpgradeRequest())["stack"]


def test_what_uv_is_asked(folder: Folder) -> None:
    spec = target(folder)
    (stack, *_) = plan_stack_runtime_and_build_inputs(spec, (), {})
    assert stack.files["excluded.txt"] == "flash-attn ; python_version < '0'\n"
    entry = spec.compile_entries[0][1]
    source = plan_inputs_to_find_sdist(entry)
    assert source.files["source.in"] == "flash-attn==2.8.3.post2\n"
    assert 'no-binary-package = ["flash-attn"]' in source.files["uv.toml"]
    known = (replace(TORCH, version="2.10.0"), wheel_of("ninja", "1.11"))
    old = CompileInputs(name="flash-attn", group="k", inputs_sha256="", source=SOURCE, tools=known)
    tools = plan_tool_resolver_inputs(entry, (TORCH,), old, ())
    assert tools.files["tools.in"] == (
        "ninja\nnvidia-cuda-cccl==13.0.*\nnvidia-cuda-crt==13.0.*\nnvidia-cuda-nvcc==13.0.*\n"
        "nvidia-cuda-runtime==13.0.*\nnvidia-nvvm==13.0.*\nsetuptools>=70\ntorch==2.11.0\n"
    )
    assert tools.files["pins.txt"] == "ninja==1.11\ntorch==2.11.0\n"
    assert plan_tool_resolver_inputs(entry, (TORCH,), old, ("ninja",)).files["pins.txt"] == "torch==2.11.0\n"


def wheel_of(name: str, version: str) -> Package:
    return Package(name=name, version=version, file=f"{name}-{version}-py3-none-any.whl", sha256="1" * 64, size=1)


def test_the_system_of_a_build(folder: Folder) -> None:
    base = derive_toolchain_base_if_bootstrapped_and_compiling(target(folder))
    assert base is not None
    assert base.packages == ("g++", "make", "python3-dev")
    image = SPEC.replace('bootstrap = "debian:bookworm"\npackages = ["python3"]', f'image = "r/b@sha256:{"0" * 64}"')
    assert derive_toolchain_base_if_bootstrapped_and_compiling(target(folder, image)) is None


def test_shipped_flash_targets_have_one_recipe() -> None:
    locks = [load_lock(CHECKOUT / f"images/{name}/lock.json") for name in ("cluster-2node-flash", "vast-5090-flash")]
    wheels = [package for lock in locks if lock for group in lock.groups for package in group.packages]
    compiled = [(one.sha256, one.source) for one in wheels if one.source.startswith("compiled/")]
    assert len(compiled) == 2
    assert len(set(compiled)) == 1
