"""What must not be shown of a run that is told from outside of it: its secrets, as they are known here and now."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlbox.app import App

if TYPE_CHECKING:
    from rlbox.secrets.masks import Masks


def run_masks(app: App, run_dir: Path) -> Masks:
    """Return masks for what the environment and `.env` say now, and what the run names as its secrets."""
    from rlbox.errors import RlboxError
    from rlbox.record.act.folder import load_plan
    from rlbox.secrets.act.find import ENV_FILE
    from rlbox.secrets.env_file import parse_env_file
    from rlbox.secrets.masks import SECRETS_VARIABLE, Masks

    values: dict[str, str] = {}
    with contextlib.suppress(OSError):  # most projects have none
        values = dict(parse_env_file((app.project.folder / ENV_FILE).read_bytes()).values)
    try:
        named = load_plan(run_dir).secrets
    except RlboxError:
        named = ()
    names = ",".join((*named, *values, os.environ.get(SECRETS_VARIABLE, "")))
    return Masks({**values, **os.environ, SECRETS_VARIABLE: names})
