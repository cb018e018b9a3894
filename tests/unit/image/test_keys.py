"""An outdated image says which spec changed, with file, key and values; nothing of a secret or of a machine is told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import TARGET, Folder

from rlbox.config.toml_files import iter_dotted_keys
from rlbox.image.context import compute_build_labels, find_outdated_reason, list_hashed_entries
from rlbox.image.labels import format_keys_label
from rlbox.image.plan import ImagePlan, ImageSources

ENV = '[env]\nOMP_NUM_THREADS = "2"\n'
DIFF = "--- a/six.py\n+++ b/six.py\n@@ -1 +1 @@\n-one\n+two\n"
OWN = '[[patches]]\nfile = "six.diff"\ninto = "/opt/venv"\n'
HF = '[env]\nHF_TOKEN = "hf_{}12345678"\n'
FIX = """
title = "t"
title_zh = "t"
why = "w"
source = ["s"]
remedy = "r"
remedy_zh = "r"
[bake.env]
A = "1"
[check]
run = "true"
"""


def plan(folder: Folder, name: str = "mine") -> ImagePlan:
    return replace(ImageSources.load(folder.project, name).build_plan(), tag="rlbox/mine:tests")


def labels(made: ImagePlan) -> dict[str, str]:
    return compute_build_labels(list_hashed_entries(made), made)


def why(folder: Folder, before: dict[str, str]) -> str:
    return find_outdated_reason(plan(folder), {"Config": {"Labels": before}})


def test_a_value_is_told(folder: Folder) -> None:
    folder.target("mine", TARGET + ENV)
    before = labels(plan(folder))
    assert why(folder, before) == ""
    folder.target("mine", TARGET + ENV.replace("2", "4"))
    assert why(folder, before) == 'images/mine/target.toml: env.OMP_NUM_THREADS was "2", is "4"'


def test_all_that_changed_is_told(folder: Folder) -> None:
    folder.target("mine", TARGET + ENV)
    before = labels(plan(folder))
    folder.target("mine", TARGET.replace("1.16.0", "1.17.0") + '[env]\nB = "1"\n[run]\npids = 9\n')
    assert why(folder, before).split("; ") == [
        'images/mine/target.toml: env.B is new: "1"',
        "images/mine/target.toml: run.pids is new: 9",
        'images/mine/target.toml: stack[tools].packages was ["six==1.16.0"], is ["six==1.17.0"]',
        'images/mine/target.toml: env.OMP_NUM_THREADS is gone, it was "2"',
    ]


def test_the_file_is_the_one_that_sets_it(folder: Folder) -> None:
    folder.target("under", TARGET + ENV)
    folder.target("mine", 'include = "under"\n[run]\npids = 8\n')
    before = labels(plan(folder))
    folder.target("under", TARGET + ENV.replace("2", "4"))
    assert why(folder, before) == 'images/under/target.toml: env.OMP_NUM_THREADS was "2", is "4"'
    folder.target("mine", 'include = "under"\n[run]\npids = 8\n[env]\nOMP_NUM_THREADS = "8"\n')
    assert why(folder, before) == 'images/mine/target.toml: env.OMP_NUM_THREADS was "2", is "8"'


def test_a_lock_that_pins_other_files(folder: Folder) -> None:
    folder.target("mine")
    folder.lock("mine")
    before = labels(plan(folder))
    path = folder.project.lock_file("mine")
    path.write_text(path.read_text().replace("a" * 64, "e" * 64))
    assert why(folder, before) == "images/mine/lock.json pins other files"


def test_a_lock_that_only_follows_its_spec_is_not_named(folder: Folder) -> None:
    folder.target("mine", TARGET + ENV)
    folder.lock("mine")
    before = labels(plan(folder))
    folder.target("mine", TARGET + ENV.replace("2", "4"))
    folder.lock("mine")
    assert why(folder, before) == 'images/mine/target.toml: env.OMP_NUM_THREADS was "2", is "4"'


def test_a_fix_and_a_patch(folder: Folder) -> None:
    folder.target("mine", TARGET + OWN)
    folder.write("images/mine/patches/six.diff", DIFF)
    folder.write("templates/fixes/own.toml", FIX)
    before = labels(plan(folder))
    folder.write("templates/fixes/own.toml", FIX.replace('"1"', '"2"').replace('why = "w"', 'why = "other words"'))
    folder.write("images/mine/patches/six.diff", DIFF.replace("two", "three"))
    assert why(folder, before).split("; ") == [
        "templates/fixes/own.toml bakes something else",
        "images/mine/patches/six.diff has changed",
    ]
    (folder.path / "templates/fixes/own.toml").unlink()
    folder.write("images/mine/patches/six.diff", DIFF)
    assert why(folder, before) == "fix own does not apply any more"


def test_what_rlbox_lays_into_it_is_told_beside(folder: Folder) -> None:
    folder.target("mine", TARGET + ENV)
    made = plan(folder)
    before = labels(made)
    folder.target("mine", TARGET + ENV.replace("2", "4"))
    now = plan(folder)
    now = replace(now, context_files={**now.context_files, "files/opt/rlbox/libexec/init.sh": "2"})
    assert find_outdated_reason(now, {"Config": {"Labels": before}}) == (
        'images/mine/target.toml: env.OMP_NUM_THREADS was "2", is "4"; what rlbox lays into it has changed'
    )


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (HF.format("abcdefgh"), HF.format("ijklmnop"), "env.HF_TOKEN has changed"),
        ('[env]\nPASSWORD = "hunter22"\n', "", "env.PASSWORD is gone"),
        ("", '[env]\nURL = "http://ann:secret@host/x"\n', "env.URL is new"),
        ('host = "~/disk"', 'host = "/srv/ann/disk"', "disk.host has changed"),
        ("", f'[env]\nLONG = "{"x" * 200}"\n', "env.LONG is new"),
    ],
)  # fmt: skip
def test_what_no_label_holds(folder: Folder, old: str, new: str, sentence: str) -> None:
    there = TARGET if old in TARGET else TARGET + old
    folder.target("mine", there)
    before = labels(plan(folder))
    folder.target("mine", there.replace(old, new) if old else there + new)
    assert why(folder, before) == f"images/mine/target.toml: {sentence}"
    told = "".join(before.values()) + "".join(labels(plan(folder)).values())
    for text in ("hf_", "hunter22", "ann", "xxxxx", "~/disk"):
        assert text not in told


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ({"a": {"b": 1}}, {"a.b": 1}),
        ({"s": [{"name": "x", "p": [1]}]}, {"s[x].p": [1]}),
        ({"s": [{"file": "x"}]}, {"s": [{"file": "x"}]}),
        ({"e": {}, "l": []}, {"e": {}, "l": []}),
    ],
)
def test_keys_of_a_spec(value: Any, keys: dict[str, Any]) -> None:
    assert dict(iter_dotted_keys(value)) == keys


def test_the_shipped_targets_have_labels_that_fit_on_a_command_line() -> None:
    from rlbox.config.project import Project

    project = Project(folder=Path("/nowhere"))
    for name in project.targets():
        text = format_keys_label(ImageSources.load(project, name).build_plan().input_values)
        assert 100 < len(text) < 8000, name
        assert json.loads(text)
