"""Each framework's own files as a fork, one line changed: the line is in the stage's log.

verl and OpenRLHF come from the package index; slime is on none: RLBOX_SLIME_REPOSITORY names a clone with tag v0.3.1.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from launched import Site

SLIME = os.environ.get("RLBOX_SLIME_REPOSITORY", "")


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A framework at the version its job is written for: the line that a fork changes, and a call that reaches it."""

    package: str
    version: str
    file: str
    line: str
    added: str
    call: str
    printed: str


VERL = Framework(
    package="verl", version="0.9.1", file="verl/utils/reward_score/gsm8k.py",
    line="    answer = extract_solution(solution_str=solution_str, method=method)\n",
    added='    print("changed in the fork:", answer, flush=True)\n',
    call="from verl.utils.reward_score.gsm8k import compute_score; print('score', compute_score('#### 42', '42'))",
    printed="score 1.0",
)  # fmt: skip
OPENRLHF = Framework(
    package="openrlhf", version="0.10.4", file="openrlhf/utils/seqlen_balancing.py",
    line="def ceildiv(a, b):\n",
    added='    print("changed in the fork:", a, flush=True)\n',
    call="from openrlhf.utils.seqlen_balancing import ceildiv; print('score', ceildiv(42, 8))",
    printed="score 6",
)  # fmt: skip
SLIME_RELEASE = Framework(
    package="slime", version="0.3.1", file="slime/rollout/rm_hub/f1.py",
    line="    normalized_prediction = normalize_answer(prediction)\n",
    added='    print("changed in the fork:", prediction, flush=True)\n',
    call="from slime.rollout.rm_hub.f1 import f1_score; print('score', f1_score('42', '42')[0])",
    printed="score 1.0",
)  # fmt: skip

# torch, Ray and the others are gigabytes, and the functions that are called need none of them
CALL = """
import importlib.abc, importlib.machinery, sys
from unittest.mock import MagicMock

class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return MagicMock(name=spec.name, __name__=spec.name, __version__='99.0', __path__=[], __spec__=spec)
    def exec_module(self, module):
        pass

sys.meta_path.append(Absent())
import PACKAGE
CALL
print('from', PACKAGE.__file__)
"""
JOB = """
title = "calls PACKAGE"
target = "mine"
[source]
package = "PACKAGE"
version = "VERSION"
[env]
PYTHONPATH = "{job}"
[[stages]]
name = "call"
title = "import and one call"
command = ["{python}", "-c", '''CALL''']
limits = { total_s = 120, silence_s = 120 }
[stages.gate]
require = [{ pattern = '^score ' }]
"""


def install_index_release(framework: Framework, fork: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    words = [
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--link-mode=copy",
        f"--target={fork}",
    ]  # a link leads to uv's cache
    words += [
        "--python-version=3.11",
        "--python-platform=x86_64-manylinux_2_28",
    ]  # one has a wheel for that Python alone
    subprocess.run((str(uv), *words, f"{framework.package}=={framework.version}"), check=True)


def check_out_slime(framework: Framework, fork: Path) -> None:
    words = ["--quiet", "--depth=1", f"--branch=v{framework.version}", f"file://{SLIME}", str(fork)]
    subprocess.run(["git", "-c", "safe.directory=*", "clone", *words], check=True)


@pytest.mark.parametrize(
    ("framework", "fetch"),
    [
        pytest.param(VERL, install_index_release, id="verl"),
        pytest.param(OPENRLHF, install_index_release, id="openrlhf"),
        pytest.param(
            SLIME_RELEASE, check_out_slime, id="slime",
            marks=pytest.mark.skipif(not SLIME, reason="no clone of slime in RLBOX_SLIME_REPOSITORY"),
        ),
    ],
)  # fmt: skip
def test_a_changed_line_of_a_fork_is_in_the_log(
    site: Site, tmp_path: Path, framework: Framework, fetch: Callable[[Framework, Path], None]
) -> None:
    fork = tmp_path / "fork"
    fetch(framework, fork)
    changed = fork / framework.file
    text = changed.read_text()
    assert text.count(framework.line) == 1
    changed.write_text(text.replace(framework.line, framework.line + framework.added))
    call = CALL.replace("CALL", framework.call).replace("PACKAGE", framework.package)
    job = JOB.replace("CALL", call).replace("PACKAGE", framework.package).replace("VERSION", framework.version)
    site.folder.job("calls", job)
    said = site("run", "calls", "--place", "here", "--set", f"source={fork}")
    log = next(site.run_dir().glob("stages/*/stage.log")).read_text()
    assert said.code == 0, said.err + log
    assert "changed in the fork: 42\n" in log
    assert f"{framework.printed}\n" in log
    assert f"from {fork}/{framework.package}/__init__.py\n" in log
