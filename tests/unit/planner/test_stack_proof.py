"""A target counts as proven when a kept run had its lock; of a machine without GPUs nothing is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlbox.app import project_of
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml, merge_tables
from rlbox.planner.stack_proof import ProvenRun, find_runs_with, is_unproven, load_proven_runs, proof_lines, proof_mark
from rlbox.target.lock import load_lock
from rlbox.target.target import DEFAULTS, Target, load_target

RUN = next(run for run in load_proven_runs() if run.job == "sft")


def test_all_versions_must_be_those_of_the_run() -> None:
    assert RUN in find_runs_with(dict(RUN.stack))
    assert RUN in find_runs_with({**RUN.stack, "torch": RUN.stack["torch"] + "+cu130", "numpy": "1.0"})
    for name in RUN.stack:
        assert RUN not in find_runs_with({**RUN.stack, name: "0.0.1"})
        assert RUN not in find_runs_with({other: version for other, version in RUN.stack.items() if other != name})


def test_a_kept_run_had_what_decides_it() -> None:
    assert {run.job for run in load_proven_runs()} == {"sft", "grpo", "gkd", "xdan", "holdem", "learn"}
    assert all({"torch", "ray"} < set(run.stack) for run in load_proven_runs())


@pytest.mark.parametrize("name", ["a800-cn", "cluster-2node", "vast-5090"])
def test_a_lock_that_never_ran_is_unproven_whatever_its_versions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project = project_of(None)
    target, lock = load_target(project, name).target, load_lock(project.lock_file(name))
    old = tuple(replace(run, lock="", target="") for run in load_proven_runs())
    monkeypatch.setattr("rlbox.planner.stack_proof.load_proven_runs", lambda: old)
    assert is_unproven(target, lock)
    first, *others = proof_lines(target, lock)
    assert first == (
        "unproven: no kept run on GPUs had this lock: https://github.com/rlbox-dev/rlbox/blob/main/docs/proof.md"
    )
    assert all(line.startswith("the same versions by another lock: ") for line in others)
    assert proof_mark(target, lock) == f"untested on {target.hardware.gpu}"


@pytest.mark.parametrize(
    ("slime", "megatron", "is_proven"),
    [
        ("v0.3.1", "1dcf0dafa884ad52ffb243625717a3471643e087", True),
        ("v0.3.1", "1dcf0dafa884", True),
        ("v0.3.0", "1dcf0dafa884ad52ffb243625717a3471643e087", False),
        ("v0.3.1", "1dcf0daaaaaa", False),
        ("main", "core_v0.16.1", False),
    ],
)
def test_git_parts_are_compared_by_tag_or_commit(slime: str, megatron: str, is_proven: bool) -> None:
    run = next(run for run in load_proven_runs() if run.job == "holdem")
    packages = [f"{name}=={version}" for name, version in run.stack.items() if name not in ("slime", "megatron-lm")]
    parts = [
        {"name": "slime", "url": "https://example.org/THUDM/slime", "ref": slime, "into": "/opt/slime"},
        {"name": "megatron", "url": "https://example.org/NVIDIA/Megatron-LM", "ref": megatron, "into": "/opt/megatron"},
    ]
    own = {"name": "t", "title": "t", "hardware": {"gpus": 4}, "base": {"bootstrap": "debian:bookworm"}}
    own |= {"stack": [{"name": "s", "packages": packages}], "git": parts, "disk": {"mount": "/d"}}
    target = validate_spec(Target, merge_tables(load_toml(DEFAULTS), own), "t")
    assert (len(proof_lines(target, None)) > 1) is is_proven


def test_nothing_is_said_without_gpus() -> None:
    project = project_of(None)
    target = load_target(project, "local").target
    assert (is_unproven(target, None), proof_lines(target, None)) == (False, [])


def test_a_lock_that_ran_names_its_runs_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    project = project_of(None)
    target, lock = load_target(project, "vast-5090").target, load_lock(project.lock_file("vast-5090"))
    assert lock
    run = replace(RUN, target="vast-5090", lock=lock.content_digest(), place="docker")
    monkeypatch.setattr("rlbox.planner.stack_proof.load_proven_runs", lambda: (run,))
    assert not is_unproven(target, lock)
    assert [*map(str, proof_lines(target, lock))] == [
        "proven: sft (tiny), 1 x NVIDIA H100 80GB HBM3, in a container, 2026-11-25"
    ]
    assert proof_mark(target, lock) == "ran on 1 x NVIDIA H100 80GB HBM3, 2026-11-25"
    assert not is_unproven(target, replace(lock, target="another", spec="0" * 64))
    assert is_unproven(target, replace(lock, debs=lock.debs[1:]))
    assert is_unproven(target, None)
    assert isinstance(run, ProvenRun)
