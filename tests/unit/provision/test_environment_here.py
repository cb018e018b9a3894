"""place/environment: a run in place has rlbox's environment, whatever the shell exports."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from fakes import CHECKOUT, load_cases
from test_apply_wanted import planned, text_of

from rlbox.config.project import Project
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.provision.layout import Layout
from rlbox.provision.provision import inherit_stage_environment
from rlbox.provision.shell_environment import SYSTEM_PATH, keep_allowed_variables_and_system_path

CASES = load_cases("provision", "test_environment_here")
HOSTILE = CASES["HOSTILE"]
KEPT = CASES["KEPT"]


def test_what_is_of_the_shell_stays_there_and_what_is_of_the_machine_comes_along() -> None:
    found = keep_allowed_variables_and_system_path(
        {**HOSTILE, **KEPT, "PATH": "/srv/micromamba/bin:/usr/local/cuda/bin:/usr/bin:."}
    )
    assert found == {**KEPT, "PATH": f"/usr/local/cuda/bin:/usr/bin:{SYSTEM_PATH.replace(':/usr/bin:', ':')}"}


def test_of_the_loaders_path_the_folder_of_the_driver_alone_stays() -> None:
    shell = {"LD_LIBRARY_PATH": "/srv/micromamba/lib:/usr/local/nvidia/lib64:"}
    assert (
        keep_allowed_variables_and_system_path(shell, ["/usr/local/nvidia/lib64"])["LD_LIBRARY_PATH"]
        == "/usr/local/nvidia/lib64"
    )
    assert "LD_LIBRARY_PATH" not in keep_allowed_variables_and_system_path(shell)


def test_a_place_is_started_with_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver/libcuda.so.1").write_bytes(b"")
    for name, text in HOSTILE.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:{tmp_path}/driver")
    env = inherit_stage_environment(Layout(data_dir="/disk"), {"CUDA_VISIBLE_DEVICES": "3"}).env
    assert not set(HOSTILE) & set(env)
    assert (env["LD_LIBRARY_PATH"], env["CUDA_VISIBLE_DEVICES"]) == (f"{tmp_path}/driver", "3")
    assert env["RLBOX_PLACE"] == "/opt/rlbox"


@pytest.mark.parametrize(("limits", "of"), [("{}", "first"), ("", "shell")])
def test_an_image_is_a_place_with_what_it_has_as_env(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limits: str, of: str
) -> None:
    (tmp_path / "lock.json").write_text("{}")
    first = {"OF": "first", "PATH": "/opt/venv/bin:/usr/bin", "HF_TOKEN": "hf_" + "a1" * 17}
    first |= {"RLBOX_LIMITS": limits} if limits else {}
    monkeypatch.setattr("rlbox.provision.provision.LOCK_IN_IMAGE", str(tmp_path / "lock.json"))
    monkeypatch.setattr("rlbox.provision.provision.read_environ_or_empty", lambda pid: first if pid == 1 else {})
    monkeypatch.setattr("rlbox.provision.provision.read_install_record", lambda layout: None)
    monkeypatch.setenv("OF", "shell")
    env = inherit_stage_environment(Layout(data_dir="/disk"), {"CUDA_VISIBLE_DEVICES": "3"}).env
    assert (env["OF"], env["CUDA_VISIBLE_DEVICES"]) == (of, "3")
    assert "HF_TOKEN" not in env
    assert "OF" not in inherit_stage_environment(Layout(prefix="/srv/x", data_dir="/disk")).env


def test_what_engines_are_told_is_asked_of_no_machine() -> None:
    """A machine has processes of other control groups than a shell's everywhere: systemd makes them."""
    desired, _, _ = planned("local", Layout(data_dir="/disk"))
    fixes = json.loads(text_of(desired, "/opt/rlbox/share/fixes.json"))["fixes"]
    assert {row["id"]: row["check"]["when"] for row in fixes if row["check"]}["shared-pid-namespace"] == []
    assert "check shared-pid-namespace" in {row.item for row in desired.skipped}


def test_a_service_that_nobody_started_yet_fails_no_apply() -> None:
    """`apply` lays files: the code sandbox is started by whoever wants it, and its check is a note until then."""
    desired, _, _ = planned("vast-5090", Layout(data_dir="/disk"))
    fixes = json.loads(text_of(desired, "/opt/rlbox/share/fixes.json"))["fixes"]
    check = next(row["check"] for row in fixes if row["id"] == "sandbox-service")
    assert check["partial"]
    left = {row.item: row.reason for row in desired.skipped}
    assert "/opt/rlbox/bin/sandbox-serve" in left["check sandbox-service"]


@pytest.mark.allow("processes")
@pytest.mark.parametrize(("environ", "file", "expected"), CASES["a_mirror_of_a_rented_machine_is_its_own"])
def test_a_mirror_of_a_rented_machine_is_its_own(
    tmp_path: Path, environ: dict[str, str], file: str, expected: str
) -> None:
    """AutoDL's images name one in /etc/pip.conf; in an image of ours it would be left from the build."""
    fix = next(fix for fix in load_fix_catalogue(Project(folder=CHECKOUT)) if fix.id == "pip-index-unreachable")
    assert fix.check
    conf = tmp_path / file
    conf.parent.mkdir(parents=True)
    conf.write_text("[global]\nindex-url = https://mirrors.example/simple\n")
    check = fix.check.run.replace("/etc/", f"{tmp_path}/etc/").replace("/opt/venv", f"{tmp_path}/opt/venv")
    done = subprocess.run(["sh", "-c", check], env={"PATH": "/usr/bin:/bin", **environ}, capture_output=True, text=True)
    assert (done.returncode, expected in done.stdout) == (1 if expected else 0, True), done.stdout
