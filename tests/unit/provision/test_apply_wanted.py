"""plan/apply_wanted: what the shipped targets lay on a machine is what their images have."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.render import RenderedFixes, render_fixes_or_raise_refusal
from rlbox.image.plan import build_container_defaults, container_limits_and_disk_json, load_image_plan
from rlbox.provision.desired import DesiredState, plan_desired_state, replace_mount_path_in_disk_and_env
from rlbox.provision.layout import Layout
from rlbox.target.lock import load_lock
from rlbox.target.target import Target

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def planned(
    name: str, layout: Layout, absent: frozenset[str] = frozenset()
) -> tuple[DesiredState, Target, RenderedFixes]:
    """What a shipped target asks of a machine, its target as that sees it, and what its fixes bake."""
    project = Project(folder=CHECKOUT)
    loaded, lock = load_target_with_fix_apt_packages(project, name), load_lock(project.own_or_shipped_lock_file(name))
    assert lock
    target = replace_mount_path_in_disk_and_env(loaded.target, layout.data_dir)
    baked = render_fixes_or_raise_refusal(loaded.all_fixes, target, map_packages_to_version_or_empty(target, lock))
    image = load_image_plan(project, name)
    return plan_desired_state(target, lock, baked, image, layout, {}, "/usr/bin/python3", absent), target, baked


def text_of(desired: DesiredState, path: str) -> str:
    return next(row.text for row in desired.files if row.path == desired.layout.add_prefix(path))


@pytest.mark.allow("processes")
@pytest.mark.parametrize("name", ["local", "vast-5090"])
def test_the_environment_is_that_of_the_image(name: str, tmp_path: Path) -> None:
    desired, target, baked = planned(name, Layout(data_dir="/disk"))
    script = tmp_path / "environment.sh"
    script.write_text(text_of(desired, "/opt/rlbox/hooks/00-environment.sh"))
    argv = ["sh", "-c", '. "$1"; . "$1"; env -0', "sh", str(script)]  # twice: a shell may source it again
    done = subprocess.run(argv, env={"PATH": PATH}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    found = dict(row.split("=", 1) for row in done.stdout.split("\0") if row)
    limits = json.loads(found.pop("RLBOX_LIMITS"))
    assert limits == json.loads(json.dumps(container_limits_and_disk_json(build_container_defaults(target, baked))))
    assert limits["disk"]["mount"] == "/disk"
    assert found.pop("RLBOX_PLACE") == "/opt/rlbox"
    base = {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PATH": f"/opt/venv/bin:/opt/rlbox/bin:{PATH}"}
    wished = {**baked.build_env_including_inherited(base), **target.env}
    for name in {
        name for block in baked.env_blocks for name in block.path
    }:  # a folder that two fixes put in front: once
        wished[name] = ":".join(dict.fromkeys(wished[name].split(":")))
    assert {key: text for key, text in found.items() if key not in ("PWD", "_")} == wished


@pytest.mark.parametrize("name", ["local", "vast-5090"])
def test_below_a_prefix_nothing_leads_out(name: str) -> None:
    desired, _, _ = planned(name, Layout(prefix="/srv/me/p", data_dir="/disk"))
    assert all(
        path.startswith("/srv/me/p/")
        for path in (*(row.path for row in desired.files), *(part.install_path for part in desired.parts))
    )
    texts = {row.path: (row.text + row.link_target).replace("/srv/me/p/opt/", "") for row in desired.files}
    for path, text in texts.items():
        if path.endswith(("apply_patches.py", "unified_diff.py", "lock.json")):
            continue
        assert "/opt/venv/" not in text, path
        assert "/opt/rlbox/" not in text, path
    assert "/etc/environment" in {row.item for row in desired.skipped}
    assert "/tmp/ray" in {row.item for row in desired.skipped}
    assert not any("ray-temp-dir" in row.path for row in desired.files)


def test_a_fix_that_is_there_in_part_stops_no_run() -> None:
    whole, _, _ = planned("local", Layout(data_dir="/disk"))
    partly, _, _ = planned("local", Layout(data_dir="/disk"), frozenset(["libnuma1", "procps"]))
    rows = [json.loads(text_of(desired, "/opt/rlbox/share/fixes.json"))["fixes"] for desired in (whole, partly)]
    when = [next(row["check"]["when"] for row in fixes if row["id"] == "libnuma-missing") for fixes in rows]
    assert "run" in when[0]
    assert when[1] == ["doctor"]
    left = {row.item: row.reason for row in partly.skipped}
    assert left["fix libnuma-missing"] == "the apt package libnuma1 is not here"


def test_the_data_disk_is_where_the_machine_has_it() -> None:
    project = Project(folder=CHECKOUT)
    target = load_target_with_fix_apt_packages(project, "local").target
    env = {"HF_HOME": "/data/hf", "OTHER": "/mnt/data/x:/data", "NEAR": "/database"}
    moved = replace_mount_path_in_disk_and_env(target.model_copy(update={"env": env}), "/disk")
    assert moved.disk.mount == "/disk"
    assert moved.env == {"HF_HOME": "/disk/hf", "OTHER": "/mnt/data/x:/disk", "NEAR": "/database"}
