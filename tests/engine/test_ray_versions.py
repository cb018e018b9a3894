"""Ray's token on the versions that the shipped targets lock: no job and no KV write of a stranger, ours go through.

A head in a network namespace of its own, with what the fixes bake for the target: token and patches.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from enginebox import CHECKOUT

from rlbox.config.project import Project
from rlbox.fixes.catalogue import load_target_with_fix_apt_packages
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.patches import render_patch_manifest_json, resolve_patches_with_skipped
from rlbox.fixes.render import render_fixes_or_raise_refusal
from rlbox.target.lock import load_lock

PROJECT = Project(folder=Path("/"))
HEAD = """
set -e
ip link set lo up
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=0123456789abcdef0123456789abcdef
export RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT=300  # else a dashboard that is not up in 30 s ends
"$1/bin/ray" start --head --disable-usage-stats --node-ip-address=127.0.0.1 --port=8100 --dashboard-host=127.0.0.1 \
    --dashboard-port=8101 --dashboard-agent-listen-port=8115 --runtime-env-agent-port=8113 --num-cpus=1 \
    --object-store-memory=80000000 --temp-dir="$2" >&2
"$1/bin/python" -c "$3" ours
RAY_AUTH_MODE=disabled RAY_AUTH_TOKEN= "$1/bin/python" -c "$3" strangers
"""
# The dashboard of a loaded machine takes half a minute; ours are asked until they are answered.
ASK = """
import json, os, sys, time, urllib.error, urllib.request
from ray._raylet import GcsClient
headers = {"Content-Type": "application/json"}
if sys.argv[1] == "ours":
    headers["Authorization"] = "Bearer " + os.environ["RAY_AUTH_TOKEN"]

def ask(url):
    until, request = time.monotonic() + 120, urllib.request.Request(url, b'{"entrypoint": "true"}', headers)
    while True:
        try:
            return urllib.request.urlopen(request, timeout=60).status
        except urllib.error.HTTPError as error:
            if error.code != 500 or time.monotonic() > until:
                return error.code
        except OSError as error:
            if time.monotonic() > until:
                return str(error)
        time.sleep(1)

answers = {"dashboard": ask("http://127.0.0.1:8101/api/jobs/"), "agent": ask("http://127.0.0.1:8115/api/job_agent/jobs/")}
try:
    answers["GCS"] = GcsClient(address="127.0.0.1:8100").internal_kv_put(b"k", b"1", True, b"fun", timeout=20)
except Exception as error:
    answers["GCS"] = type(error).__name__
print(json.dumps(answers))
"""


def patched(target: str, folder: Path) -> Path:
    """Return an environment with the Ray that a target locks, patched as its image is."""
    fixed = load_target_with_fix_apt_packages(PROJECT, target)
    versions = map_packages_to_version_or_empty(fixed.target, load_lock(PROJECT.own_or_shipped_lock_file(target)))
    root, ray = folder / "root", f"ray[default]=={versions['ray']}"
    venv, uv = root / "opt/venv", str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "-q", "--python=3.11", str(venv)], check=True)
    subprocess.run([uv, "pip", "install", "-q", f"--python={venv}/bin/python", ray, "setuptools"], check=True)
    fixes = [
        fix
        for fix in render_fixes_or_raise_refusal(fixed.all_fixes, fixed.target, versions).fixes
        if fix.id == "ray-agent-token"
    ]
    if not fixes:
        return venv
    rows = resolve_patches_with_skipped(fixes, fixed.target, versions, {})
    (folder / "manifest.json").write_text(render_patch_manifest_json(target, rows))
    for name in ("apply_patches.py", "unified_diff.py"):
        shutil.copy(CHECKOUT / "templates/scripts" / name, folder)
    words = [sys.executable, str(folder / "apply_patches.py"), "--root", str(root), str(folder / "manifest.json")]
    subprocess.run(words, check=True)
    return venv


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", ["a800-cn", "vast-5090"])
def test_a_stranger_is_refused(target: str, tmp_path: Path) -> None:
    venv = patched(target, tmp_path)
    words = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", HEAD, "head"]
    done = subprocess.run([*words, str(venv), "/tmp/rlbox-r", ASK], capture_output=True, text=True, timeout=800)
    shutil.rmtree("/tmp/rlbox-r", ignore_errors=True)
    assert done.returncode == 0, done.stderr[-3000:]
    ours, strangers = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert ours == {"dashboard": 200, "agent": 200, "GCS": 1}, done.stderr[-3000:]
    assert strangers == {"dashboard": 401, "agent": 401, "GCS": "AuthenticationError"}
