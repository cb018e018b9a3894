"""Which patches a target gets, where they start, and what the build step and a reader are told of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT
from patchbox import Box, patch, scripts

from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml, merge_tables_and_named_lists
from rlbox.errors import SpecError
from rlbox.fixes.fix import Fix, FixPatch
from rlbox.fixes.patches import (
    ResolvedPatch,
    format_grouped_patch_summaries,
    has_patches_to_apply,
    render_patch_manifest_json,
    resolve_patches_with_skipped,
)
from rlbox.foreign import parse_untrusted_toml
from rlbox.target.target import DEFAULTS, Target

DIFF = "--- a/verl/a.py\n+++ b/verl/a.py\n@@ -1 +1 @@\n-bad\n+good  # rlbox: f\n"
ROW = {"name": "p", "made_for": "verl 0.6.1", "reason": "it is bad", "marker": "# rlbox: f", "diff": DIFF}
WORDS = {"title": "t", "title_zh": "t", "why": "w", "source": ("s",), "remedy": "r", "remedy_zh": "r"}
SITE = "/opt/venv/lib/python3.11/site-packages"


def target(more: str = "") -> Target:
    text = f'title = "t"\n{more}\n[base]\nbootstrap = "debian:bookworm"\npackages = ["python3"]\n'
    text += '[[stack]]\nname = "tools"\npackages = ["six"]\n'
    return validate_spec(
        Target, {**merge_tables_and_named_lists(load_toml(DEFAULTS), parse_untrusted_toml(text)), "name": "t"}, "t"
    )


def fix(*rows: dict[str, Any]) -> Fix:
    return validate_spec(Fix, {"id": "f", **WORDS, "bake": {"patch": [{**ROW, **row} for row in rows]}}, "f")


def rows_of(one: Fix, of: Target | None = None, versions: dict[str, str] | None = None) -> tuple[ResolvedPatch, ...]:
    return resolve_patches_with_skipped([one], of or target(), versions or {}, {})


GIT = 'git = [{name = "code", url = "https://example.org/o/verl.git", ref = "main", into = "/srv/verl"}]'


def test_a_patch_of_a_package_starts_in_site_packages() -> None:
    (row,) = rows_of(fix({"package": ["verl>=0.6,<0.7"]}), versions={"verl": "0.6.1"})
    assert (row.name, row.fix_id_or_empty, row.package, row.into, row.skip_reason) == ("f/p", "f", "verl", SITE, "")


@pytest.mark.parametrize("name", ["verl", "code", "Verl"])
def test_a_patch_of_a_git_part_starts_in_its_folder_and_asks_no_version(name: str) -> None:
    (row,) = rows_of(fix({"package": [f"{name}>=0.6,<0.7"]}), target(GIT), {"code": "", "verl": ""})
    assert (row.into, row.skip_reason) == ("/srv/verl", "")


def test_a_tree_beside_the_package_of_its_name_is_left_as_it_is() -> None:
    (row,) = rows_of(fix({"package": ["verl>=0.6,<0.7"]}), target(GIT), {"code": "", "verl": "0.6.1"})
    assert (row.into, row.skip_reason) == (SITE, "")
    (row,) = rows_of(fix({"package": ["verl>=0.7"]}), target(GIT), {"code": "", "verl": "0.6.1"})
    assert row.skip_reason == "verl 0.6.1 is not >=0.7"


def test_the_first_package_that_the_stack_has_counts() -> None:
    (row,) = rows_of(fix({"package": ["verl", "six"]}), versions={"six": "1.16.0"})
    assert (row.package, row.skip_reason) == ("six", "")


@pytest.mark.parametrize(
    ("versions", "why"),
    [
        ({}, "verl is not in the stack"),
        ({"verl": "0.7.0"}, "verl 0.7.0 is not <0.7,>=0.6"),
        ({"verl": ""}, "the version of verl is not known before `rlbox lock`"),
    ],
)
def test_a_patch_that_is_left_out_says_why(versions: dict[str, str], why: str) -> None:
    found = rows_of(fix({"package": ["verl>=0.6,<0.7"]}), versions=versions)
    assert found[0].skip_reason == why
    assert not has_patches_to_apply(found)
    assert format_grouped_patch_summaries(found) == (f"f/p: left out: {why}",)


def test_a_target_has_patches_of_its_own() -> None:
    own = 'patches = [{file = "six.patch", into = "/srv", package = ["six"], made_for = "1.16.0", reason = "r"}]'
    found = resolve_patches_with_skipped([fix({})], target(own), {"six": "1.16.0"}, {"six.patch": DIFF})
    assert [(row.name, row.fix_id_or_empty, row.into, row.diff) for row in found][1] == ("six.patch", "", "/srv", DIFF)
    assert format_grouped_patch_summaries(found) == ("f/p: it is bad", "six.patch: r")
    plain = resolve_patches_with_skipped(
        [], target('patches = [{file = "six.patch", into = "/srv"}]'), {}, {"six.patch": DIFF}
    )
    assert format_grouped_patch_summaries(plain) == ("six.patch: changes /srv",)


def test_the_manifest_is_what_the_script_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sums = {"verl/a.py": "0" * 64}
    found = rows_of(fix({"into": "/opt", "files": sums}, {"package": ["gone"]}), versions={})
    manifest = json.loads(render_patch_manifest_json("t", found))
    assert (manifest["schema"], manifest["target"], len(manifest["patches"])) == (1, "t", 2)
    assert set(patch("")) <= set(manifest["patches"][0])
    box = Box(tmp_path, capsys)
    box.put("bad\n", "opt/verl/a.py")
    assert box.apply(*manifest["patches"]) == (
        0,
        ["f/p: opt/verl/a.py: applied, 1 hunk", f"f/p: {SITE}: skipped, gone is not in the stack"],
        [],
    )
    assert box.record()[0]["made_from"] == sums


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"diff": "hello"}, "diff: not a unified diff"),
        ({"marker": "# other"}, "diff: b/verl/a.py does not get the marker"),
        ({"files": {"b.py": "0" * 64}}, "files: the diff does not change b.py"),
        ({"upstream_has": "("}, "'(' is not a regular expression"),
        ({"made_for": ""}, "made_for"),
        ({"files": {"verl/a.py": "12"}}, "files"),
    ],
)
def test_a_patch_that_is_wrong_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        validate_spec(FixPatch, {**ROW, **change}, "f")
    assert problem in refused.value.what


@pytest.mark.parametrize("path", sorted((CHECKOUT / "templates/fixes").glob("*.toml")), ids=lambda path: path.stem)
def test_every_patch_of_the_catalogue_can_be_read_by_the_script(path: Path) -> None:
    for row in load_toml(path).get("bake", {}).get("patch", []):
        changes = scripts()[1].parse(row["diff"])
        assert changes
        assert f"rlbox: {path.stem}" in row["marker"]
        for change in changes:
            assert change.hunks
            assert change.old == "/dev/null" or all(
                mark != "-" or text.strip() for h in change.hunks for mark, text in h.body
            )
