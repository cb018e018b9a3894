"""The pre-commit hook and the GitHub Action of `rlbox lint`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fakes import CHECKOUT, Folder
from venvbox import create_venv

GUIDE = (CHECKOUT / "docs/lint.md").read_text(encoding="utf-8")


def test_action_declares_the_inputs_that_it_uses() -> None:
    """Untested on GitHub; the schema of actions accepted the file, checked by hand with check-jsonschema."""
    text = (CHECKOUT / "action.yml").read_text(encoding="utf-8")
    action = yaml.safe_load(text)
    assert set(re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", text)) == set(action["inputs"])
    scripts = [step for step in action["runs"]["steps"] if "run" in step]
    assert [step["name"] for step in scripts if "shell" not in step or "${{" in step["run"]] == []
    [example] = re.findall(r"uses: rlbox-dev/rlbox@.*\n +with: (\{.*\})", GUIDE)
    assert set(yaml.safe_load(example)) <= set(action["inputs"])


@pytest.mark.allow("processes")
def test_script_of_the_action_writes_sarif(folder: Folder, tmp_path: Path) -> None:
    program = f'#!/bin/sh\nexec {sys.executable} -m rlbox "$@"\n'
    Folder(tmp_path / "rlbox/bin").write("rlbox", program).chmod(0o755)
    folder.write("a b/x.sh", "ray shutdown\n")
    script = yaml.safe_load((CHECKOUT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"][-1]["run"]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "RUNNER_TEMP": str(tmp_path), "RLBOX_PROJECT": "."}
    env |= {"FILES": "a b\n\n", "TARGET": "local", "SARIF_FILE": "out.sarif"}
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=folder.path, env=env, check=False)
    assert (done.returncode, '"ruleId": "ray-shutdown"' in (folder.path / "out.sarif").read_text()) == (1, True)


@pytest.mark.slow
@pytest.mark.allow("processes")
def test_hook_of_this_checkout_finds_errors_in_a_repository(tmp_path: Path, index: dict[str, str]) -> None:
    env = {**index, "PRE_COMMIT_HOME": str(tmp_path / "hooks"), "GIT_CONFIG_GLOBAL": "/dev/null"}

    def run(*argv: str | Path, cwd: Path = tmp_path / "work") -> tuple[int, str]:
        done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    commit = run("git", "rev-parse", "HEAD", cwd=CHECKOUT)[1].strip()
    config = GUIDE.partition("```yaml\n# .pre-commit-config.yaml\n")[2].partition("```")[0]
    config = config.replace("https://github.com/rlbox-dev/rlbox", str(CHECKOUT)).replace("v0.1.0", commit)
    work = Folder(tmp_path / "work")
    work.write(".pre-commit-config.yaml", config)
    work.write("launch", "#!/bin/bash\nray shutdown\n").chmod(0o755)
    work.write("train.py", "ray shutdown\n")
    assert run("git", "init", "-q")[0] == run("git", "add", "-A")[0] == 0
    pre_commit = create_venv(tmp_path, env, "pre-commit") / "pre-commit"
    code, output = run(pre_commit, "run")
    assert (code, "launch:2:1: error: " in output, "train.py" in output) == (1, True, False), output
    work.write("launch", "#!/bin/bash\nray stop\n")
    code, output = run(pre_commit, "run", "--all-files")
    assert (code, "Passed" in output) == (0, True), output
