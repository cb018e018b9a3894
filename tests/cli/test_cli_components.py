"""`rlbox components` with a real interpreter and packages that are made here: good, broken, ending their process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fakes import Folder, Rlbox
from following import Typed

pytestmark = pytest.mark.allow("processes")


def package(site: Path, name: str, text: str, version: str = "") -> None:
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(text)
    if version:
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that the interpreter sees beside its own; there is no compiler and no GPU."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("rlbox.system.gpu.glob.glob", lambda pattern: [])
    return folder


def parts(said: Typed) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in said.data["parts"]}


def test_parts_that_work_fail_and_end_their_process(rlbox: Rlbox, site: Path) -> None:
    package(site, "vllm", "class LLM: pass", "0.11.0")
    package(site, "datasets", "print('no newline', end='')", "4.0.0")
    package(site, "deepspeed", "import os; os.kill(os.getpid(), 11)", "0.18.0")
    package(site, "wandb", "raise ImportError('libcuda.so.1: cannot open shared object file')", "0.22.0")
    said = rlbox("components", "--python", sys.executable, "--json")
    found = parts(said)
    assert said.code == 1
    assert said.data["failed"] == sorted(said.data["failed"], key=list(found).index)
    assert set(said.data["failed"]) == {"datasets", "DeepSpeed"}
    assert found["vLLM"]["detail"] == "0.11.0, imports vllm.LLM"
    assert found["datasets"]["detail"].startswith("4.0.0 AttributeError: module 'datasets' has no attribute")
    assert found["DeepSpeed"]["detail"] == "0.18.0 ended by signal 11"
    assert found["wandb"]["state"] == "no-gpu"
    assert found["verl"]["state"] == "absent"


def test_all_is_well(rlbox: Rlbox, site: Path) -> None:
    said = rlbox("components", "--python", sys.executable)
    assert said.code == 0
    assert said.out.startswith("ok      Python             3.")
    assert " not tested: there is no GPU here, " in said.err


@pytest.mark.usefixtures("site")
def test_the_stack_of_an_applied_place(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    own = folder.path / "p/opt/rlbox"
    python = folder.path / "p/opt/venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    packages = [{"name": "verl", "version": "0.7.0"}]
    folder.write("p/opt/rlbox/share/lock.json", json.dumps({"target": "t", "groups": [{"packages": packages}]}))
    monkeypatch.setenv("RLBOX_PLACE", str(own))
    said = rlbox("components", "--json")
    assert said.data["python"] == str(python)
    assert said.code == 1
    assert parts(said)["verl"]["detail"] == "the lock has verl, and verl is not there"


def test_the_image_of_another_target(rlbox: Rlbox, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("p/opt/rlbox/share/lock.json", json.dumps({"target": "local"}))
    monkeypatch.setenv("RLBOX_PLACE", str(folder.path / "p/opt/rlbox"))
    said = rlbox("components", "vast-5090")
    assert said.code == 5
    assert said.err.startswith("rlbox: error: the installed stack belongs to target 'local'\n")


def test_a_target_on_a_host_is_tested_in_a_container(rlbox: Rlbox, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        "rlbox.run.exec.run_shell_or_command_in_new_container", lambda app, *words: asked.append(words) or 7
    )
    assert rlbox("components", "local", "--gpus", "2", "--json").code == 7
    command = ("/opt/rlbox/bin/rlbox", "components", "--timeout=300", "--json")
    assert asked == [("local", command, None, "2")]


def test_a_target_that_was_not_applied(rlbox: Rlbox) -> None:
    said = rlbox("components", "local", "--place", "here")
    assert said.code == 5
    assert said.err == (
        "rlbox: error: target local was not applied to this machine\n  where: rlbox components\n"
        "  next:  rlbox apply local\n"
    )
