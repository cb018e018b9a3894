"""A fix in words: no condition and nothing that is baked goes unsaid."""

from __future__ import annotations

from typing import Any

import pytest

from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml, merge_tables
from rlbox.fixes.fix import Applies, Bake, BakedRun, Fix, RayWords
from rlbox.fixes.render import build_template_values, render_bake
from rlbox.fixes.view import classify_fix, describe_conditions, list_bake_entries
from rlbox.target.target import DEFAULTS, Target

FIX: dict[str, Any] = {
    "id": "a-fix",
    "title": "all is well",
    "title_zh": "一切正常",
    "why": "Because.",
    "source": ["seed 000:1"],
    "remedy": "Do it.",
    "remedy_zh": "去做。",
}
DIFF = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-old\n+new  # rlbox a-fix\n"
PATCH = {"name": "new-name", "made_for": "v1", "reason": "the old name is gone", "marker": "rlbox a-fix", "diff": DIFF}
CONDITIONS = [
    ({}, ()),
    ({"gpu": True}, ("the target has a GPU",)),
    ({"gpu": False}, ("the target has no GPU",)),
    ({"arch": ["sm_80", "sm_120"]}, ("its GPU is sm_80 or sm_120",)),
    ({"grade": "consumer"}, ("its GPU is of consumer grade",)),
    ({"gpus": ">=2", "nodes": "==1"}, ("GPUs a node: >=2", "nodes: ==1")),
    ({"rented": True}, ("the machine is rented",)),
    ({"rented": False}, ("the machine is one's own",)),
    ({"platform": ["vast", "autodl"]}, ("the machine is rented from vast or autodl",)),
    ({"region": ["cn"]}, ("the machine stands in cn",)),
    ({"stack": ["vllm>=0.12", "ray"]}, ("the stack has vllm>=0.12", "the stack has ray")),
    ({"any_stack": ["vllm", "sglang"]}, ("the stack has vllm or sglang",)),
    ({"no_stack": ["flash-attn"]}, ("the stack has no flash-attn",)),
    ({"base": "image"}, ("the base is an image",)),
    ({"base": "bootstrap"}, ("the base is bootstrapped from apt",)),
    ({"network": ["host"]}, ("containers are on the network host",)),
    ({"pids_per_core_below": 16}, ("fewer than 16 processes for each core are allowed",)),
]
BAKED: list[tuple[dict[str, Any], tuple[str, str, str, str]]] = [
    ({"packages": ["libnuma1"]}, ("package", "libnuma1", "", "")),
    ({"env": {"NAME": "1"}}, ("env", "NAME", "1", "")),
    ({"path": {"PATH": ["/a", "/b"]}}, ("path", "PATH", "/a:/b", "")),
    ({"file": [{"path": "/etc/x", "mode": "0755", "text": "x\n"}]}, ("file", "/etc/x", "0755", "x\n")),
    ({"link": [{"path": "/a", "to": "b"}]}, ("link", "/a", "b", "")),
    ({"hook": "true"}, ("hook", "/opt/rlbox/hooks/50-a-fix.sh", "", "true")),
    ({"run": {"shm_gib": 16.0}}, ("run", "shared memory", "at least 17.2 GB (16 GiB)", "")),
    ({"run": {"pids": 4096}}, ("run", "processes", "at least 4096", "")),
    ({"run": {"ulimits": {"memlock": "-1"}}}, ("run", "ulimit memlock", "-1", "")),
    ({"run": {"cap_add": ["SYS_NICE"]}}, ("run", "capability", "SYS_NICE", "")),
    ({"ray": {"common": ["--x"]}}, ("ray", "both", "--x", "")),
    ({"ray": {"head": ["--x"]}}, ("ray", "head", "--x", "")),
    ({"ray": {"worker": ["--x"]}}, ("ray", "worker", "--x", "")),
    ({"ray": {"before": "true"}}, ("ray", "before it starts", "", "true")),
    ({"aliases": [["A_KEY", "B_KEY", "C_KEY"]]}, ("secret", "A_KEY", "B_KEY C_KEY", "")),
    ({"refuse": [{"if": "true", "says": "no", "next": "do"}]}, ("refuse", "true", "no; do", "")),
]


def fix(**changes: Any) -> Fix:
    return validate_spec(Fix, {**FIX, **changes}, "a-fix.toml")


def target() -> Target:
    data = {"name": "t", "title": "t", "base": {"bootstrap": "debian:bookworm"}, "hardware": {"gpu": "A800"}}
    return validate_spec(
        Target, merge_tables(load_toml(DEFAULTS), {**data, "stack": [{"name": "a", "packages": ["six"]}]}), "t"
    )


@pytest.mark.parametrize(("applies", "words"), CONDITIONS)
def test_conditions(applies: dict[str, Any], words: tuple[str, ...]) -> None:
    assert describe_conditions(fix(applies=applies).applies) == words


def test_no_condition_is_forgotten() -> None:
    assert {key for applies, _ in CONDITIONS for key in applies} == set(Applies.model_fields)


@pytest.mark.parametrize(("bake", "row"), BAKED)
def test_what_is_baked(bake: dict[str, Any], row: tuple[str, str, str, str]) -> None:
    made = fix(bake=bake)
    (found,) = list_bake_entries(made, made.bake)
    assert (found.kind, found.name, found.value, found.text) == row


def test_a_patch_is_shown_with_where_it_comes_from() -> None:
    made = fix(bake={"patch": [PATCH]})
    (row,) = list_bake_entries(made, made.bake)
    assert (row.kind, row.name, row.value) == ("patch", "new-name", "the old name is gone")
    assert "made for: v1\n" in row.text
    assert row.text.endswith(DIFF)


@pytest.mark.parametrize(("model", "key"), [(Bake, None), (BakedRun, "run"), (RayWords, "ray")])
def test_nothing_that_can_be_baked_is_forgotten(model: type[Bake], key: str | None) -> None:
    tables = [bake for bake, _ in BAKED] + [{"patch": [PATCH]}]
    below = [table.get(key, {}) for table in tables] if key else tables
    known = {name for table in below for name in table}
    assert known == set(model.model_fields)


def test_templates_are_filled_for_a_target() -> None:
    made = fix(bake={"env": {"GPU": "{{ hardware.gpu }}"}, "ray": {"head": ["{{ 'x' if has('ray') else '' }}"]}})
    bake = render_bake(made, build_template_values(target(), {}))
    assert [(row.kind, row.value) for row in list_bake_entries(made, bake)] == [("env", "A800")]


def test_kinds() -> None:
    check = {"run": "true"}
    assert classify_fix(fix(bake={"env": {"A": "1"}}, check=check)) == "baked"
    assert (classify_fix(fix(check=check)), classify_fix(fix()), classify_fix(fix(benign=True))) == (
        "check",
        "remedy",
        "benign",
    )
