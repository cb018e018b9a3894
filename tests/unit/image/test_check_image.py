"""What the checks of an image can see: a build that changes nothing of it does not wait for them again."""

from __future__ import annotations

from typing import Any

from fakes import CHECKOUT, TARGET, Folder, fitting_lock

from rlbox.config.schema import validate_spec
from rlbox.fixes.fix import Fix
from rlbox.image.check import hash_check_inputs
from rlbox.image.plan import plan_image
from rlbox.target.target import load_target

TEXT = {"title": "t", "title_zh": "t", "why": "w", "source": ["s"], "remedy": "r", "remedy_zh": "r"}
DIFF = "--- a/six.py\n+++ b/six.py\n@@ -1 +1 @@\n-one\n+two\n"
OWN = '[[patches]]\nfile = "six.diff"\ninto = "/opt/venv"\n'


def key(folder: Folder, text: str = TARGET, patch: str = "", **bake: Any) -> str:
    folder.target("mine", text)
    target = load_target(folder.project, "mine").target
    fix = validate_spec(Fix, {**TEXT, "id": "mine", "bake": bake, "check": {"run": "true"}}, "mine.toml")
    lock = fitting_lock(target, ())
    patches = {"six.diff": patch} if patch else {}
    return hash_check_inputs(plan_image(target, lock, (), [CHECKOUT / "templates"], patches, (fix,)))


def test_what_no_check_sees_changes_nothing(folder: Folder) -> None:
    before = key(folder)
    assert key(folder, TARGET.replace("smallest target", "other words")) == before
    assert key(folder, TARGET + OWN, DIFF) == before


def test_what_checks_see_is_checked_again(folder: Folder) -> None:
    keys = [
        key(folder),
        key(folder, env={"A": "1"}),
        key(folder, hook="true"),
        key(folder, path={"LIBRARY_PATH": ["/x"]}),
        key(folder, TARGET + '[env]\nB = "1"\n'),
        key(folder, TARGET + "[run]\npids = 9\n"),
    ]
    assert len(set(keys)) == len(keys)
