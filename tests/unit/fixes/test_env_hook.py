"""The hook that exports a data disk's `.env`, carried out by a shell: a run's secrets are not its business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.render import render_fixes_or_raise_refusal
from rlbox.target.target import load_target

SHIPPED = Project(folder=CHECKOUT)
NAMES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "WANDB_KEY", "OPEN")
SHOW = f"import json, os; print(json.dumps({{n: os.environ[n] for n in {NAMES} if n in os.environ}}))"


def exported(tmp_path: Path, **environment: str) -> dict[str, str]:
    (tmp_path / "env").write_text("HF_TOKEN=of-the-file\nWANDB_KEY='of the file'\nOPEN=for all\n")
    fixes = [fix for fix in load_fix_catalogue(SHIPPED) if fix.id == "env-not-exported"]
    files = {
        file.path: file.text
        for file in render_fixes_or_raise_refusal(tuple(fixes), load_target(SHIPPED, "local").target, {}).files
    }
    hook = tmp_path / "hook.sh"
    hook.write_text(files["/opt/rlbox/hooks/05-env-not-exported.sh"])
    argv = ["sh", "-eu", "-c", '. "$0"; exec "$@"', str(hook), sys.executable, "-c", SHOW]
    env = {"RLBOX_ENV_FILE": str(tmp_path / "env"), "PATH": "/usr/bin:/bin", **environment}
    found: dict[str, str] = json.loads(subprocess.run(argv, env=env, capture_output=True, check=True).stdout)
    return found


@pytest.mark.allow("processes")
@pytest.mark.parametrize(
    ("environment", "found"),
    [
        (
            {},
            {
                "HF_TOKEN": "of-the-file", "HUGGING_FACE_HUB_TOKEN": "of-the-file",
                "WANDB_API_KEY": "of the file", "WANDB_KEY": "of the file", "OPEN": "for all",
            },
        ),
        (
            {"RLBOX_SECRETS": "HF_TOKEN,HUGGING_FACE_HUB_TOKEN"},
            {"WANDB_API_KEY": "of the file", "WANDB_KEY": "of the file", "OPEN": "for all"},
        ),
        ({"RLBOX_SECRETS": ",".join(NAMES[:4])}, {"OPEN": "for all"}),
        ({"RLBOX_SECRETS": "", "RLBOX_RUN": "a-run"}, {}),  # `ray-start` as a service reads the hooks again
        (
            {"RLBOX_SECRETS": "HF_TOKEN", "RLBOX_RUN": "a-run", "HF_TOKEN": "given"},
            {"HF_TOKEN": "given", "HUGGING_FACE_HUB_TOKEN": "given"},
        ),
    ],
    ids=["no-run", "some", "all", "part-without", "part-with"],
)  # fmt: skip
def test_what_a_run_hands_out_is_left_to_it(tmp_path: Path, environment: dict[str, str], found: dict[str, str]) -> None:
    assert exported(tmp_path, **environment) == found
