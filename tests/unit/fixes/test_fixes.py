"""The fix catalogue: when a fix applies, what it bakes, what it refuses; and that every shipped one is whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fakes import CHECKOUT, PACKAGE, TARGET, Folder, fitting_lock, load_cases

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml, parse_toml
from rlbox.engine.container import format_resource_args_without_gpus
from rlbox.errors import SpecError
from rlbox.fixes.catalogue import load_fix_catalogue, load_target_with_fix_apt_packages
from rlbox.fixes.conditions import check_package_requirement, evaluate_fix, map_packages_to_version_or_empty
from rlbox.fixes.fix import Fix
from rlbox.fixes.render import render_fix_check_manifest_json, render_fixes_or_raise_refusal, select_applicable_fixes
from rlbox.image.plan import build_container_defaults, build_image_labels
from rlbox.target.lock import LockedPackageGroup
from rlbox.target.target import Target, load_target

CASES = load_cases("fixes", "test_fixes")
SHIPPED = Project(folder=CHECKOUT)
STACK = '[[stack]]\nname = "engine"\npackages = ["vLLM[x]==0.12.0", "ray"]\n[[git]]\nname = "verl"\n'
STACK += 'url = "https://git.example/Me/My_Verl.git"\nref = "main"\ninto = "/opt/verl"\n'
A800 = '[hardware]\ngpu = "NVIDIA A800"\ngpus = 4\narch = "sm_80"\ngrade = "datacenter"\nregion = "cn"\n'
VAST = '[hardware]\nplatform = "vast"\ncores = 64\npid_limit = 1000\n'
TEXT = {
    "title": "all is well",
    "title_zh": "一切正常",
    "why": "it was not",
    "source": ["a test"],
    "remedy": "do it",
    "remedy_zh": "去做",
}


def fix(name: str = "mine", **keys: Any) -> Fix:
    return validate_spec(Fix, {**TEXT, "id": name, **keys}, f"{name}.toml")


def target(folder: Folder, text: str = "") -> Target:
    folder.target("mine", TARGET + text)
    return load_target(folder.project, "mine").target


@pytest.mark.parametrize(
    ("applies", "text", "holds", "reason"),
    [
        ({}, "", True, "every target"),
        ({"gpu": True}, A800, True, "GPU NVIDIA A800"),
        ({"gpu": True}, "", False, "no GPU"),
        ({"gpu": False}, "", True, "no GPU"),
        ({"arch": ["sm_80", "sm_90"]}, A800, True, "GPU architecture sm_80"),
        ({"arch": ["sm_120"]}, A800, False, "GPU architecture sm_80, not sm_120"),
        ({"arch": ["sm_120"]}, "", False, "GPU architecture not given, not sm_120"),
        ({"grade": "consumer"}, A800, False, "GPU grade datacenter, not consumer"),
        ({"gpus": ">=2"}, A800, True, "4 GPUs a node"),
        ({"gpus": "<4"}, A800, False, "4 GPUs a node, not <4"),
        ({"nodes": ">1"}, "", False, "1 node, not >1"),
        ({"rented": True}, VAST, True, "rented from vast"),
        ({"rented": True}, "", False, "your own machine"),
        ({"rented": False}, VAST, False, "rented from vast"),
        ({"platform": ["autodl"]}, VAST, False, "platform vast, not autodl"),
        ({"region": ["cn"]}, A800, True, "region cn"),
        ({"base": "image"}, "", False, "base is of kind bootstrap, not image"),
        ({"stack": ["vllm>=0.12,<0.13"]}, STACK, True, "vllm 0.12.0 is <0.13,>=0.12"),
        ({"stack": ["vllm<0.12"]}, STACK, False, "vllm 0.12.0 is not <0.12"),
        ({"stack": ["ray>=2"]}, STACK, False, "the version of ray is not known before `rlbox lock`"),
        ({"stack": ["ray", "sglang"]}, STACK, False, "sglang is not in the stack"),
        ({"stack": ["my-verl"]}, STACK, True, "my-verl is in the stack"),
        ({"any_stack": ["sglang", "vllm"]}, STACK, True, "vllm 0.12.0 is in the stack"),
        ({"any_stack": ["sglang", "slime"]}, STACK, False, "sglang is not in the stack; slime is not in the stack"),
        ({"no_stack": ["vllm"]}, STACK, False, "vllm 0.12.0 is in the stack"),
        ({}, '[fixes.off]\nmine = "by hand"\n', False, "switched off by the target: by hand"),
    ],
)
def test_when_a_fix_applies(folder: Folder, applies: dict[str, Any], text: str, holds: bool, reason: str) -> None:
    spec = target(folder, text)
    verdict = evaluate_fix(fix(applies=applies), spec, map_packages_to_version_or_empty(spec, None))
    assert (verdict.applies, reason in map(str, verdict.reasons)) == (holds, True), verdict


def test_every_fact_against_a_fix_is_told(folder: Folder) -> None:
    spec = target(folder)
    verdict = evaluate_fix(fix(applies={"gpu": True, "nodes": ">=2", "stack": ["vllm"]}), spec, {})
    assert tuple(map(str, verdict.reasons)) == ("no GPU", "1 node, not >=2", "vllm is not in the stack")


def test_versions_come_from_the_spec_and_then_from_the_lock(folder: Folder) -> None:
    spec = target(folder, STACK)
    rows = tuple(replace(PACKAGE, name=name, version="9.0") for name in ("vllm", "ray", "Flash_Attn"))
    lock = replace(fitting_lock(spec, ()), groups=(LockedPackageGroup(name="engine", packages=rows),))
    assert map_packages_to_version_or_empty(spec, lock) == {
        "verl": "", "my-verl": "", "six": "1.16.0", "vllm": "0.12.0", "ray": "9.0", "flash-attn": "9.0",
    }  # fmt: skip
    assert check_package_requirement("ray>=9", map_packages_to_version_or_empty(spec, lock))[0]
    holds, why = check_package_requirement("a==1", {"a": "no version"})
    assert (holds, why) == (False, "a has the version 'no version', which cannot be compared")


def test_what_is_baked(folder: Folder) -> None:
    spec = target(folder, STACK)
    first = fix("first", order=10, bake={"path": {"LIBRARY_PATH": ["/a", "/b"]}, "env": {"X": "{{ disk }}"}})
    second = fix("second", order=20, bake={"path": {"LIBRARY_PATH": ["/c"]}, "hook": "export Y={{ python }}\n"})
    other = fix("other", applies={"gpu": True}, bake={"env": {"Z": "1"}})
    baked = render_fixes_or_raise_refusal((second, other, first), spec, {"ray": ""})
    assert [row.id for row in baked.fixes] == ["first", "second"]
    assert baked.build_env_including_inherited({"LIBRARY_PATH": "/base", "H": "1"}) == {
        "LIBRARY_PATH": "/a:/b:/c:/base",
        "H": "1",
        "X": "/data",
    }
    assert baked.build_env_including_inherited({})["LIBRARY_PATH"] == "/a:/b:/c"
    assert [(file.path, file.mode) for file in baked.files] == [
        ("/opt/rlbox/hooks/20-second.sh", "0644"), ("/opt/rlbox/bin/ray-start", "0755"),
    ]  # fmt: skip
    assert baked.files[0].text == "# all is well\nexport Y=3.11\n"
    assert build_image_labels(spec, None, baked)["rlbox.fixes"] == "first second"


CU13, CU12 = "cu13/lib/libcudart.so.13", "cuda_runtime/lib/libcudart.so.12"
CHANNEL = '[[stack]]\nname = "torch"\npackages = ["torch==2.11.0"]\nsource = "torch-wheels"\nchannel = "cu130"\n'


@pytest.mark.parametrize(
    ("text", "versions", "leads_to"),
    [
        ("", {"torch": "2.11.0+cu130"}, CU13),
        ("", {"torch": "2.11.0", "nvidia-cuda-runtime": "13.0.96"}, CU13),
        (CHANNEL, {"torch": "2.11.0"}, CU13),
        (CHANNEL, {"torch": "2.11.0+cu129"}, CU12),
        ("", {"torch": "2.9.1+cu129", "nvidia-cuda-runtime": "13.0.96"}, CU12),
        ("", {"torch": "2.9.1", "nvidia-cuda-runtime-cu12": "12.8.90"}, CU12),
        ("", {"torch": "2.4.1", "nvidia-cuda-runtime-cu11": "11.8.89"}, "cuda_runtime/lib/libcudart.so.11.0"),
        ("", {}, CU12),
    ],
)
def test_lcudart_is_the_runtime_that_torch_is_built_with(
    folder: Folder, text: str, versions: dict[str, str], leads_to: str
) -> None:
    baked = render_fixes_or_raise_refusal(
        [fix for fix in load_fix_catalogue(SHIPPED) if fix.id == "lcudart-link"], target(folder, A800 + text), versions
    )
    link = baked.link_target_by_path["/opt/rlbox/lib/link/libcudart.so"]
    assert link.endswith(f"/site-packages/nvidia/{leads_to}")
    assert baked.build_env_including_inherited({})["LIBRARY_PATH"] == "/opt/rlbox/lib/link:/usr/local/cuda/lib64"


def test_the_manifest_has_the_checks(folder: Folder) -> None:
    spec = target(folder)
    checked = fix("checked", heals=["a-cause"], check={"run": "test -d {{ site }}", "when": ["run"]})
    data = json.loads(render_fix_check_manifest_json((checked, fix("plain")), spec, {}, {"disk": {}}))
    assert data["fixes"][0]["check"] == {"run": "test -d /opt/venv/lib/python3.11/site-packages", "when": ["run"]}
    assert (data["fixes"][1]["check"], data["facts"], data["target"]) == (None, {"disk": {}}, "mine")


def test_limits_are_floors(folder: Folder) -> None:
    asks = fix(bake={"run": {"shm_gib": 8.0, "ulimits": {"memlock": "-1", "stack": "1:2"}}})
    text = '[run]\nshm_gib = 2.0\npids = 7\nulimits = {stack = ""}\ncap_add = ["B"]\n'
    spec = target(folder, text)
    limits = build_container_defaults(spec, render_fixes_or_raise_refusal((asks,), spec, {}))
    assert format_resource_args_without_gpus(limits) == [
        f"--shm-size={8 << 30}", "--pids-limit=7", "--ulimit=memlock=-1", "--cap-add=B",
    ]  # fmt: skip
    spec = target(folder, "[run]\nshm_gib = 9.0\n")
    larger = build_container_defaults(spec, render_fixes_or_raise_refusal((asks,), spec, {}))
    assert larger.shm_gib == 9.0


def test_ray_start(folder: Folder) -> None:
    words = fix(bake={"ray": {"common": ["--c"], "head": ["--port={{ 8100 }}"], "worker": ["--w"], "before": "true"}})
    [file] = render_fixes_or_raise_refusal((words,), target(folder), {}).files
    assert 'head) set -- --head --port=8100 --c "$@" ;;' in file.text
    assert 'worker) set -- --w --c "$@" ;;' in file.text
    assert "(\ntrue\n) || exit" in file.text


@pytest.mark.parametrize(
    ("bakes", "message"),
    [
        ([{"env": {"A": "1"}}, {"env": {"A": "2"}}], "fixes b and a disagree on env A"),
        ([{"env": {"A": "{{ nothing }}"}}], "templates/fixes/a.toml: broken template: 'nothing' is undefined"),
        ([{"refuse": [{"if": "x(", "says": "s", "next": "n"}]}], "templates/fixes/a.toml: broken template: "),
    ],
)
def test_what_cannot_be_baked(folder: Folder, bakes: list[dict[str, Any]], message: str) -> None:
    fixes = [fix(name, bake=bake) for name, bake in zip("ab", bakes, strict=False)]
    with pytest.raises(SpecError) as caught:
        render_fixes_or_raise_refusal(fixes, target(folder), {})
    assert caught.value.what.startswith(message)


def test_every_refusal_is_told_at_once(folder: Folder) -> None:
    spec = target(folder, '[env]\nA = "1"\n')
    row = {"if": "target.env.get('A') == '1'", "says": "A is {{ target.env.A }}", "next": "unset it"}
    never = fix("never", bake={"refuse": [{**row, "if": "has('vllm')"}]})
    render_fixes_or_raise_refusal((never,), spec, {})
    with pytest.raises(SpecError) as one:
        render_fixes_or_raise_refusal((fix("one", bake={"refuse": [row]}), never), spec, {})
    assert one.value.what == "A is 1 (fix one): unset it"
    assert one.value.next_step == 'correct the spec, or switch the fix off: fixes.off.one = "why"'
    with pytest.raises(SpecError) as two:
        render_fixes_or_raise_refusal(
            (fix("one", bake={"refuse": [row]}), fix("two", bake={"refuse": [row]})), spec, {}
        )
    assert two.value.what.splitlines() == ["A is 1 (fix one): unset it", "  A is 1 (fix two): unset it"]
    assert two.value.where == "images/mine/target.toml"


def test_a_fix_that_is_none_cannot_be_switched_off(folder: Folder) -> None:
    with pytest.raises(SpecError, match=r"fixes.off: there is no fix 'nobody'"):
        select_applicable_fixes((fix(),), target(folder, '[fixes.off]\nnobody = "x"\n'), {})


def test_packages_become_part_of_the_base(folder: Folder) -> None:
    text = "\n".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in TEXT.items())
    folder.write("templates/fixes/needs-git.toml", text + '\n[applies]\nstack = ["six"]\n[bake]\npackages = ["git"]\n')
    folder.target("mine")
    assert "git" in load_target_with_fix_apt_packages(folder.project, "mine").target.base.packages
    folder.target("mine", TARGET.replace("six==1.16.0", "rich"))
    assert "git" not in load_target_with_fix_apt_packages(folder.project, "mine").target.base.packages


@pytest.mark.parametrize(("text", "message"), CASES["a_wrong_fix_file_is_named"])
def test_a_wrong_fix_file_is_named(folder: Folder, text: str, message: str) -> None:
    folder.write("templates/fixes/mine.toml", text)
    with pytest.raises(SpecError) as caught:
        load_fix_catalogue(folder.project)
    assert message in caught.value.what
    assert "templates/fixes/mine.toml" in caught.value.what


def test_the_patterns_of_every_shipped_fix_fit_their_examples() -> None:
    """Commands do not check them again."""
    for name, path in SHIPPED.own_pack_and_shipped_fix_files().items():
        validate_spec(Fix, {**parse_toml(path.read_text("utf-8"), path.name), "id": name}, path.name)


def test_every_shipped_fix_is_proven_or_says_why_not() -> None:
    proven = {fix for path in (CHECKOUT / "tests/faults").glob("*.toml") for fix in load_toml(path)}
    fixes = load_fix_catalogue(SHIPPED)
    assert {row.id for row in fixes} >= proven, "a fault test without a fix"
    assert [row.id for row in fixes if row.id not in proven and not row.untested and not row.benign] == []
    assert [row.id for row in fixes if row.id in proven and row.untested] == [], "tested, and yet `untested`"
    assert [
        row.id for row in fixes if row.has_bake_entries and not row.check and not row.bake.refuse and not row.untested
    ] == []
