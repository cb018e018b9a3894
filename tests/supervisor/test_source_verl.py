"""A wheel of verl from the package index as a fork, one line changed: the line is in the stage's log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from launched import Site

VERL = "0.9.1"
LINE = "    answer = extract_solution(solution_str=solution_str, method=method)\n"
CHANGED = LINE + '    print("changed in the fork:", answer, flush=True)\n'

# torch, Ray and the others are gigabytes, and the function that is called needs none of them
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
import verl
from verl.utils.reward_score.gsm8k import compute_score
print('score', compute_score('#### 42', '42'), verl.__version__, verl.__file__)
"""
JOB = f"""
title = "calls verl"
target = "mine"
[source]
package = "verl"
version = "{VERL}"
[env]
PYTHONPATH = "{{job}}"
[[stages]]
name = "call"
title = "import and one call"
command = ["{{python}}", "-c", '''{CALL}''']
limits = {{ total_s = 120, silence_s = 120 }}
[stages.gate]
require = [{{ pattern = '^score ' }}]
"""


def test_a_changed_line_of_verl_is_in_the_log(site: Site, tmp_path: Path) -> None:
    fork, uv = tmp_path / "fork", Path(sys.executable).with_name("uv")
    words = ("pip", "install", "-q", "--no-deps", "--link-mode=copy", f"--python={sys.executable}", f"--target={fork}")
    subprocess.run((str(uv), *words, f"verl=={VERL}"), check=True)  # copied: a link would lead into uv's cache
    changed = fork / "verl/utils/reward_score/gsm8k.py"
    text = changed.read_text()
    assert text.count(LINE) == 1
    changed.write_text(text.replace(LINE, CHANGED))
    site.folder.job("calls", JOB)
    said = site("run", "calls", "--place", "here", "--set", f"source={fork}")
    log = next(site.run_dir().glob("stages/*/stage.log")).read_text()
    assert said.code == 0, said.err + log
    assert "changed in the fork: 42\n" in log
    assert f"score 1.0 {VERL} {fork}/verl/__init__.py\n" in log
