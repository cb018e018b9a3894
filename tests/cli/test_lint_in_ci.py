"""The pre-commit hook and the GitHub Action of `rlbox lint`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fakes import CHECKOUT, Folder, repository_files
from venvbox import index_environment, run_uv

GUIDE = (CHECKOUT / "docs/lint.md").read_text(encoding="utf-8")
PACKAGED = ("rlbox", "images", "jobs", "templates", "pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml")


@pytest.fixture(scope="module")
def index() -> dict[str, str]:
    """The environment of uv and pip, read before a test has a home of its own."""
    return index_environment()


def test_action_declares_the_inputs_that_it_uses() -> None:
    """Untested on GitHub; the schema of actions accepted the file, checked by hand with check-jsonschema."""
    text = (CHECKOUT / "action.yml").read_text(encoding="utf-8")
    action = yaml.safe_load(text)
    assert set(re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", text)) == set(action["inputs"])
    assert [
        step for step in action["runs"]["steps"] if "run" in step and ("shell" not in step or "${{" in step["run"])
    ] == []
    [example] = re.findall(r"uses: rlbox-dev/rlbox@.*\n +with: (\{.*\})", GUIDE)
    assert set(yaml.safe_load(example)) <= set(action["inputs"])


@pytest.mark.allow("processes")
def test_script_of_the_action_writes_sarif(folder: Folder, tmp_path: Path) -> None:
    program = Folder(tmp_path / "rlbox/bin").write("rlbox", f'#!/bin/sh\nexec {sys.executable} -m rlbox "$@"\n')
    program.chmod(0o755)
    folder.write("a b/x.sh", "ray shutdown\n")
    script = yaml.safe_load((CHECKOUT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"][-1]["run"]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "RUNNER_TEMP": str(tmp_path), "RLBOX_PROJECT": "."}
    env |= {"FILES": "a b\n\n", "TARGET": "local", "SARIF_FILE": "out.sarif"}
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=folder.path, env=env, check=False)
    [result] = json.loads((folder.path / "out.sarif").read_text())["runs"][0]["results"]
    assert (done.returncode, result["ruleId"]) == (1, "ray-shutdown")


@pytest.mark.slow
@pytest.mark.allow("processes")
def test_hook_of_this_checkout_finds_errors_in_a_repository(tmp_path: Path, index: dict[str, str]) -> None:
    env = {**index, "PRE_COMMIT_HOME": str(tmp_path / "hooks"), "GIT_CONFIG_GLOBAL": "/dev/null"}

    def run(folder: Path, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)

    def commit(folder: Path) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        for words in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-q", "-m", "x")):
            assert run(folder, "git", *words).returncode == 0
        return run(folder, "git", "rev-parse", "HEAD").stdout.strip()

    hook_repository = Folder(tmp_path / "rlbox")
    for name, data in repository_files(*PACKAGED).items():
        (hook_repository.path / name).parent.mkdir(parents=True, exist_ok=True)
        (hook_repository.path / name).write_bytes(data)
    config = GUIDE.partition("```yaml\n# .pre-commit-config.yaml\n")[2].partition("```")[0]
    config = config.replace("https://github.com/rlbox-dev/rlbox", str(hook_repository.path))
    repository = Folder(tmp_path / "work")
    repository.write(".pre-commit-config.yaml", config.replace("v0.1.0", commit(hook_repository.path)))
    repository.write("launch", "#!/bin/bash\nray shutdown\n").chmod(0o755)
    repository.write("train.py", "ray shutdown\n")
    commit(repository.path)
    run_uv(tmp_path, env, "venv", str(tmp_path / "venv"))
    run_uv(tmp_path, env, "pip", "install", "pre-commit")
    pre_commit = tmp_path / "venv/bin/pre-commit"
    done = run(repository.path, pre_commit, "run", "--all-files")
    assert (done.returncode, "launch:2:1: error: " in done.stdout) == (1, True), done.stdout + done.stderr
    assert "train.py" not in done.stdout
    repository.write("launch", "#!/bin/bash\nray stop\n")
    done = run(repository.path, pre_commit, "run", "--all-files")
    assert (done.returncode, "Passed" in done.stdout) == (0, True), done.stdout + done.stderr
