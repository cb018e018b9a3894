"""The solver: verdicts on stacks, the smallest contradiction, the nearest change, its search against brute force."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from fakes import CHECKOUT, load_cases

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml, merge_tables_and_named_lists
from rlbox.planner.stack_check import (
    StackVerdict,
    format_advice_to_resolve_conflict,
    format_conflict_lines,
    format_stack_verdict,
    format_unknown_version_lines,
    solve_or_find_conflict,
    stack_to_json,
)
from rlbox.planner.stack_facts import build_stack_problem, load_compat_table
from rlbox.planner.stack_solver import CompatFact, Condition, solve
from rlbox.target.lock import Lock, LockedPackageGroup, Package, load_lock
from rlbox.target.target import DEFAULTS, Target, load_target

CASES = load_cases("planner", "test_solve_stack")
TABLE = load_compat_table()
GPU_5090 = {"arch": "sm_120", "grade": "consumer", "cuda_driver": "12.8"}
GPU_A800 = {"arch": "sm_80", "grade": "datacenter"}
WHEEL = "https://example.org/flash_attn-2.8.3%2Bcu12torch{}cxx11abi{}-cp311-cp311-linux_x86_64.whl"


def target(*packages: str, hardware: dict[str, Any] | None = None, channel: str = "", **over: Any) -> Target:
    group: dict[str, Any] = {"name": "s", "packages": list(packages)}
    group |= {"source": "torch-wheels", "channel": channel} if channel else {}
    group |= {"wheels": over.pop("wheels")} if "wheels" in over else {}
    own = {
        "name": "t",
        "title": "t",
        "hardware": hardware or {},
        "base": {"bootstrap": "debian:bookworm"},
        "stack": [group],
        "disk": {"mount": "/d"},
    }
    return validate_spec(
        Target, merge_tables_and_named_lists(merge_tables_and_named_lists(load_toml(DEFAULTS), own), over), "t"
    )


def verdict(*packages: str, **over: Any) -> StackVerdict:
    return solve_or_find_conflict(build_stack_problem(TABLE, target(*packages, **over), None))


def ways(found: StackVerdict) -> list[dict[str, str]]:
    return list(map(dict, found.proposed_changes))


@pytest.mark.parametrize(
    ("packages", "hardware", "facts", "nearest"),
    [
        (("torch==2.8.0", "vllm==0.12.0"), {}, {"vllm-0-11-1-torch"}, {"torch": "2.9.0"}),
        (("torch==2.11.0",), GPU_5090, {"torch-2-11-0", "cuda-13-driver"}, {"default": "12.9"}),
        (("torch==2.7.1",), GPU_5090, {"torch-2-7-1", "sm-120-kernels"}, {"default": "12.8"}),
        (("verl==0.7.0", "vllm==0.17.0"), GPU_5090, {"verl-0-7-0-with-vllm-vllm"}, {"vllm": "0.12.0"}),
        (("megatron-core==0.14.0", "numpy==2.2.6"), GPU_A800, {"megatron-core-0-13-0-numpy"}, {"numpy": "1.26.4"}),
        (("sglang==0.5.7", "sgl-kernel==0.3.21"), GPU_A800, {"sglang-0-5-7-sgl-kernel"}, {"sgl-kernel": "0.3.20"}),
        (("torch==2.9.0", "flash-attn==2.8.3"), GPU_A800, {"flash-attn-2-8-3-wheel"}, {"nvcc": "12.8"}),
        (("vllm==0.8.5.post1", "transformers==4.57.1"), {}, {"vllm-aimv2"}, {"transformers": "4.53.3"}),
        (("deepspeed==0.18.5", "transformers==5.1.0"), {}, {"deepspeed-transformers-5-1"}, {"transformers": "5.2.0"}),
        (("flash-attn-3==3.0.0",), GPU_A800, {"flash-attn-3-hopper"}, {"flash-attn-3": ""}),
        (("datasets==2.14.4", "pyarrow==26.0.1"), {}, {"datasets-pyarrow"}, {"datasets": "2.15.0"}),
        (("transformers==5.8.1", "kernels==0.15.2"), {}, {"kernels-0-15-transformers"}, {"kernels": "0.14.1"}),
        (
            ("transformers==4.57.6", "kernels==0.14.1"),
            {},
            {"kernels-0-14-hub", "transformers-4-54-0-huggingface-hub"},
            {"kernels": "0.12.3"},
        ),
        (("transformers==5.11.0", "peft==0.17.1"), {}, {"peft-transformers-5"}, {"peft": "0.18.1"}),
        (("ray[llm]==2.55.1", "vllm==0.22.1"), {}, {"ray-llm-2-55-vllm"}, {"vllm": "0.21.0"}),
        (("ray[llm]==2.54.0", "vllm==0.17.0"), {}, {"ray-llm-2-54-vllm"}, {"vllm": "0.16.0"}),
        (
            ("torch==2.6.0", "flash-attn==2.8.2"),
            GPU_A800,
            {"flash-attn-2-8-abi", "torch-2-6-abi-old", "torch-2-6-0"},
            {"default": "12.6"},
        ),
        (("torch==2.10.0", "flash-attn==2.8.0.post2"), GPU_A800, {"flash-attn-2-8-1-wheel"}, {"nvcc": "12.8"}),
        (("torch==2.5.1", "flash-attn==2.8.3"), GPU_A800, {"flash-attn-2-8-torch"}, {"torch": "2.6.0"}),
        (("torch==2.6.0", "sgl-kernel==0.1.7"), {}, {"sgl-kernel-0-1-7-torch"}, {"sgl-kernel": "0.1.4"}),
        (
            ("flashinfer-cubin==0.6.12", "flashinfer-python==0.6.13"),
            {},
            {"flashinfer-cubin-same"},
            {"flashinfer-cubin": "0.6.13"},
        ),
        (("trl==1.0.0", "vllm==0.20.1"), {}, {"trl-1-0-vllm"}, {"trl": "1.7.1"}),
        (("trl==0.23.1", "transformers==4.55.4"), {}, {"trl-0-23-transformers"}, {"trl": "0.22.2"}),
    ],
)
def test_a_contradiction_is_named_with_the_nearest_change(
    packages: tuple[str, ...], hardware: dict[str, str], facts: set[str], nearest: dict[str, str]
) -> None:
    found = verdict(*packages, hardware=hardware)
    assert {rule.id for rule in found.conflicting_facts} == facts
    assert nearest in ways(found)[:3]


@pytest.mark.parametrize(("packages", "hardware", "fact"), CASES["a_set_that_does_not_work"])
def test_a_set_that_does_not_work_is_refused(packages: list[str], hardware: dict[str, str], fact: str) -> None:
    channel = hardware.get("channel", "")
    machine = {name: value for name, value in hardware.items() if name in ("arch", "grade", "cuda_driver")}
    python = {"python": {"version": hardware["python"]}} if "python" in hardware else {}
    found = verdict(*packages, hardware=machine, channel=channel, **python)
    assert fact in {rule.id for rule in found.conflicting_facts}


@pytest.mark.parametrize("packages", CASES["a_set_that_works_contradicts_nothing"])
def test_a_set_that_works_contradicts_nothing(packages: tuple[str, ...]) -> None:
    assert verdict(*packages, hardware={"arch": "sm_90", "grade": "datacenter"}).is_consistent


def test_the_wheel_of_vllm_0_8_wants_the_torch_of_cuda_12_4() -> None:
    hardware = {"arch": "sm_90", "grade": "datacenter"}
    found = verdict("torch==2.6.0", "vllm==0.8.5.post1", hardware=hardware, channel="cu126")
    assert {fact.id for fact in found.conflicting_facts} == {"vllm-0-8-abi", "torch-2-6-abi-new"}
    assert ways(found) == [{"cuda": "12.4"}]
    assert verdict("torch==2.6.0", "vllm==0.8.5.post1", hardware=hardware, channel="cu124").is_consistent


def test_no_change_keeps_a_version_that_no_fact_speaks_of() -> None:
    hardware = {"arch": "sm_90", "grade": "datacenter"}
    found = verdict("torch==2.6.0", "vllm==0.8.4", "flash-attn==2.8.0.post2", hardware=hardware)
    assert ways(found)
    assert all("vllm" in way for way in ways(found))


def test_two_pins_move_together_when_one_does_not_help() -> None:
    found = verdict("torch==2.6.0", "vllm==0.8.5.post1", hardware=GPU_5090)
    assert ways(found)[0] == {"torch": "2.8.0", "vllm": "0.10.2"}


def test_a_machine_that_contradicts_itself_is_said_before_its_packages() -> None:
    """No version of a package mends it, so nothing else is worth saying first."""
    old = {**GPU_5090, "cuda_driver": "12.4"}
    found = verdict("torch==2.6.0", "vllm==0.12.0", hardware=old)
    assert {rule.id for rule in found.conflicting_facts} == {"sm-120-driver"}
    assert {one.name for one in found.conflicting_constraints} == {"arch", "driver"}
    assert ways(found)[0] == {"driver": "570"}
    assert format_advice_to_resolve_conflict("t", found).startswith("take a machine with driver 570 or newer")


def test_the_contradiction_is_as_small_as_it_can_be() -> None:
    """Without any one line of it, the rest fits."""
    problem = build_stack_problem(TABLE, target("torch==2.11.0", "verl==0.7.0", "vllm", hardware=GPU_5090), None)
    found = solve_or_find_conflict(problem)
    assert found.conflicting_constraints
    assert found.conflicting_facts
    assert solve(problem.candidates(found.conflicting_constraints), found.conflicting_facts) is None
    for left in found.conflicting_constraints:
        rest = [wish for wish in found.conflicting_constraints if wish != left]
        assert solve(problem.candidates(rest), found.conflicting_facts) is not None, left
    for gone in found.conflicting_facts:
        rules = [rule for rule in found.conflicting_facts if rule != gone]
        assert solve(problem.candidates(found.conflicting_constraints), rules) is not None, gone


def test_solving_finds_a_set_for_what_is_left_open() -> None:
    found = verdict("torch", "vllm", "verl==0.7.0", hardware=GPU_5090)
    assert (found.versions["torch"], found.versions["vllm"], found.versions["numpy"]) == ("2.9.0", "0.12.0", "1.26.4")
    assert found.versions["cuda"] == "12.8"


def test_a_fact_can_be_left_out_with_a_reason() -> None:
    spec = ("verl==0.8.0", "vllm==0.13.0", "numpy==1.26.4")
    assert {rule.id for rule in verdict(*spec).conflicting_facts} == {"verl-0-7-0-with-vllm-vllm"}
    assert verdict(*spec, compat={"off": {"verl-0-7-0-with-vllm-vllm": "tried"}}).is_consistent


@pytest.mark.parametrize(("torch", "built_for", "abi", "fits"), CASES["a_wheel_must_match_torch_and_its_abi"])
def test_a_wheel_must_match_torch_and_its_abi(torch: str, built_for: str, abi: str, fits: bool) -> None:
    wheel = {"url": WHEEL.format(built_for, abi), "sha256": "0" * 64}
    assert verdict(f"torch=={torch}", hardware=GPU_A800, wheels=[wheel]).is_consistent is fits


def test_a_torch_for_the_cpu_is_no_torch_for_a_gpu() -> None:
    assert verdict("torch==2.13.0", channel="cpu").is_consistent
    assert not verdict("torch==2.13.0", channel="cpu", hardware=GPU_A800).is_consistent


@pytest.mark.parametrize("name", sorted(Project(folder=CHECKOUT).own_pack_and_shipped_target_files()))
def test_the_shipped_targets_fit_with_their_locks(name: str) -> None:
    project = Project(folder=CHECKOUT)
    spec, lock = load_target(project, name).target, load_lock(project.own_or_shipped_lock_file(name))
    assert solve_or_find_conflict(build_stack_problem(TABLE, spec, lock)).is_consistent


def test_programs_that_compile_want_a_compiler_in_the_base() -> None:
    packages = ("torch==2.9.0", "openrlhf==0.8.11")
    found = verdict(*packages, hardware=GPU_A800, python={"exclude": ["flash-attn"]})
    assert "openrlhf-compiles" in {rule.id for rule in found.conflicting_facts}
    assert "a base image that has the compiler of CUDA 12.8" in format_advice_to_resolve_conflict("t", found)
    off = {"openrlhf-compiles": "tried elsewhere"}
    assert verdict(*packages, hardware=GPU_A800, python={"exclude": ["flash-attn"]}, compat={"off": off}).is_consistent


def test_a_version_that_no_fact_speaks_of_is_not_known() -> None:
    problem = build_stack_problem(TABLE, target("torch==2.11.0", "vllm==0.99.0", "numpy==2.3.1"), None)
    assert [(one.name, one.version) for one in problem.unknown] == [("vllm", "0.99.0")]
    assert format_unknown_version_lines(problem)[0].startswith("not known: vllm 0.99.0 (known: 0.")
    text = format_stack_verdict("t", problem, solve_or_find_conflict(problem), False)
    assert "fits" not in text
    assert stack_to_json(problem, solve_or_find_conflict(problem))["fits"] is None


def test_a_range_of_releases_says_nothing_of_a_build_between_them() -> None:
    packages = ("torch==2.11.0", "vllm==0.22.1rc1.dev58", "flashinfer-cubin==0.6.12.dev20260602")
    problem = build_stack_problem(TABLE, target(*packages), None)
    assert [one.name for one in problem.unknown] == ["vllm", "flashinfer-cubin"]
    assert solve_or_find_conflict(problem).is_consistent


def test_vllm_of_another_source_may_have_the_cuda_of_torch() -> None:
    pins = ("torch==2.9.1", "vllm==0.16.0")
    assert not verdict(*pins, channel="cu130").is_consistent
    url = "https://example.org/vllm-0.16.0%2Bcu130-cp38-abi3-manylinux_2_35_x86_64.whl"
    assert verdict(*pins[:1], channel="cu130", wheels=[{"url": url, "sha256": "0" * 64}]).is_consistent
    lines = format_conflict_lines(verdict(*pins, channel="cu130"))
    assert not any("rebuilt" in line for line in lines)


def test_versions_that_contradict_each_other_come_before_a_missing_compiler() -> None:
    found = verdict("openrlhf==0.9.4", "vllm==0.16.0", hardware=GPU_A800)
    assert {one.name for one in found.conflicting_constraints} == {"openrlhf", "vllm"}


def test_advice_without_a_named_gpu_has_a_channel_and_no_forward_compatibility() -> None:
    found = verdict("torch==2.11.0", hardware={"cuda_driver": "12.8"})
    assert ways(found)[0] == {"default": "12.9"}
    assert not any("cuda-compat" in way for way in ways(found))


def test_advice_on_a_contradiction_without_facts_names_none() -> None:
    wheel = {"url": WHEEL.format("2.7", "TRUE"), "sha256": "0" * 64}
    advice = format_advice_to_resolve_conflict("t", verdict("torch==2.10.0", wheels=[wheel]))
    assert "()" not in advice


OF_13 = (
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-runtime==13.0.96",
)
FLASH = "flash-attn==2.8.3"
FLASHINFER = "flashinfer-python==0.6.18"
NEW_5090 = {**GPU_5090, "cuda_driver": "13.0"}


@pytest.mark.parametrize(
    ("packages", "more", "clash"),
    [
        (("torch==2.11.0", FLASH, "nvidia-cuda-nvcc==13.0.88", *OF_13), {}, ""),
        (("torch==2.9.1", FLASH, "nvidia-cuda-nvcc==13.0.88", *OF_13), {}, "nvcc-13"),
        (("torch==2.11.0", FLASH, "nvidia-cuda-nvcc-cu12==12.8.93"), {}, "flash-attn-2-8-3-wheel"),
        (("torch==2.9.1", FLASH), {"base": {"packages": ["cuda-nvcc-12-8"]}}, ""),
        (("torch==2.9.1", FLASH), {"base": {"packages": ["cuda-toolkit-12-6"]}, "hardware": GPU_5090}, "nvcc-sm-120"),
        (("sglang==0.5.7", "flashinfer-jit-cache==0.5.3"), {}, ""),
        (("sglang==0.5.7",), {"hardware": {"arch": "sm_90", "grade": "datacenter"}}, ""),
        (("sglang==0.5.9", "flashinfer-jit-cache==0.5.3"), {}, "flashinfer-jit-cache-same"),
        (("torch==2.13.0", FLASHINFER), {"base": {"packages": ["cuda-nvcc-12-9"]}, "hardware": NEW_5090}, ""),
        (("torch==2.13.0", FLASHINFER), {"base": {"packages": ["cuda-nvcc-12-8"]}}, ""),
        (
            ("torch==2.13.0", FLASHINFER),
            {"base": {"packages": ["cuda-nvcc-12-8"]}, "hardware": NEW_5090},
            "flashinfer-sm-120-nvcc",
        ),
        (("torch==2.13.0", FLASHINFER), {"base": {"packages": ["nvidia-cuda-toolkit"]}}, "flashinfer-compress-nvcc"),
        (("torch==2.13.0", "deepspeed==0.19.6", FLASHINFER), {"base": {"packages": ["cuda-nvcc-12-9"]}}, "nvcc-12"),
    ],
)
def test_a_compiler_is_of_torchs_cuda_and_knows_the_gpu(
    packages: tuple[str, ...], more: dict[str, Any], clash: str
) -> None:
    found = verdict(*packages, **{"hardware": GPU_A800, **more})
    assert clash in {rule.id for rule in found.conflicting_facts} if clash else found.is_consistent


def test_the_wheels_of_a_compiler_are_five() -> None:
    spec = target("torch==2.11.0", "nvidia-cuda-nvcc==13.0.88", hardware=GPU_A800)
    torch = Package(name="torch", version="2.11.0", file="t.whl", sha256="0" * 64, size=1)
    nvcc = Package(name="nvidia-cuda-nvcc", version="13.0.88", file="n.whl", sha256="1" * 64, size=1)
    rows = (LockedPackageGroup(name="s", packages=(torch, nvcc)),)
    lock = Lock(
        target="t", spec="", python="3.11", platform="", base="debian:bookworm", groups=rows,
        runtime=LockedPackageGroup(name="runtime", packages=()),
    )  # fmt: skip
    found = solve_or_find_conflict(build_stack_problem(TABLE, spec, lock))
    assert {rule.id for rule in found.conflicting_facts} == {"nvcc-wheels-13-0"}


@pytest.mark.parametrize(
    ("arch", "grade", "driver", "base", "fits"), CASES["cuda_13_wants_driver_580_or_forward_compatibility"]
)
def test_cuda_13_wants_driver_580_or_forward_compatibility(
    arch: str, grade: str, driver: str, base: tuple[str, ...], fits: bool
) -> None:
    hardware = {"arch": arch, "grade": grade, "cuda_driver": driver}
    found = verdict("torch==2.11.0", hardware=hardware, base={"packages": list(base)})
    assert found.is_consistent is fits
    assert fits or "580" in " ".join([*format_conflict_lines(found), format_advice_to_resolve_conflict("t", found)])


DEEPSPEED = {"name": "deepspeed", "version": "0.19.6", "cuda": "13.0"}
SWITCHES = {"DS_BUILD_FUSED_ADAM": "1", "DS_BUILD_CPU_ADAM": "1"}
ENGINE = {"name": "transformer-engine-torch", "version": "2.12.0", "cuda": "13.0"}


def compiles(*packages: str, entries: tuple[dict[str, Any], ...], **over: Any) -> StackVerdict:
    spec = target(*packages, hardware=GPU_A800).model_dump()
    compiling = {**spec, "stack": [{**spec["stack"][0], "compile": entries}]}
    return solve_or_find_conflict(
        build_stack_problem(TABLE, validate_spec(Target, merge_tables_and_named_lists(compiling, over), "t"), None)
    )


OPENRLHF = ("torch==2.11.0", "openrlhf==0.11.2")
TE = ("torch==2.11.0", "transformer-engine==2.12.0")
KERNELS = {"name": "flash-attn", "version": "2.8.3", "cuda": "13.0"}
JIT_CACHE = {"name": "flashinfer-jit-cache", "version": "0.6.11.post1", "cuda": "13.0"}


@pytest.mark.parametrize(
    ("packages", "entries", "fits"),
    [
        (OPENRLHF, (KERNELS, {**DEEPSPEED, "env": SWITCHES}), True),
        (OPENRLHF, (KERNELS, DEEPSPEED), False),  # its operators are left to the first use
        (OPENRLHF, ({**DEEPSPEED, "env": SWITCHES},), False),
        (TE, (ENGINE,), True),
        (TE, (KERNELS,), False),
        (("torch==2.11.0",), (KERNELS,), True),
        (("torch==2.9.1",), (KERNELS,), False),
        (("torch==2.11.0", "sglang==0.5.12"), (JIT_CACHE,), True),
        (("torch==2.11.0", "sglang==0.5.12"), (KERNELS,), False),
    ],
)
def test_what_is_compiled_beforehand_wants_no_compiler(
    packages: tuple[str, ...], entries: tuple[dict[str, Any], ...], fits: bool
) -> None:
    assert compiles(*packages, entries=entries).is_consistent is fits


def test_what_would_help_is_to_compile_it() -> None:
    assert {"transformer-engine-torch-compiled": "1"} in ways(verdict("torch==2.11.0", "transformer-engine==2.12.0"))
    told = format_advice_to_resolve_conflict("t", verdict("torch==2.11.0", "transformer-engine==2.12.0"))
    assert (
        "compile transformer-engine-torch beforehand ([[stack.compile]], https://github.com/rlbox-dev/rlbox/blob/main/docs/compile.md)"
        in told
    )
    told = format_advice_to_resolve_conflict(
        "t", verdict("torch==2.10.0", "transformer-engine==2.12.0", hardware=GPU_A800)
    )
    assert "a devel image" in told


def test_the_search_agrees_with_trying_everything() -> None:
    chance = random.Random(6)
    for _ in range(300):
        names = ["a", "b", "c", "d"]
        domains = {name: tuple(chance.sample(["", "1", "2", "3"], chance.randint(1, 4))) for name in names}
        rules = [_random_rule(chance, names, number) for number in range(chance.randint(1, 7))]
        every = [dict(zip(names, row, strict=True)) for row in product(*domains.values())]
        fitting = [values for values in every if all(_kept(rule, values) for rule in rules)]
        found = solve(domains, rules)
        assert (found is None) == (not fitting)
        assert found is None or found in fitting


def _kept(rule: CompatFact, values: dict[str, str]) -> bool:
    def holds(row: tuple[Condition, ...]) -> bool:
        return all(condition.holds(values[condition.name]) for condition in row)

    return not holds(rule.when) or any(map(holds, rule.alternatives))


def _random_rule(chance: random.Random, names: list[str], number: int) -> CompatFact:
    def condition() -> Condition:
        absent = chance.random() < 0.3
        span = "" if absent else chance.choice(["", "==1", "==2", ">=2", "<3"])
        return Condition(chance.choice(names), span, absent)

    when = tuple(condition() for _ in range(chance.randint(1, 2)))
    rows = tuple(tuple(condition() for _ in range(chance.randint(1, 2))) for _ in range(chance.randint(1, 3)))
    return CompatFact(id=str(number), when=when, alternatives=rows, source="-")
