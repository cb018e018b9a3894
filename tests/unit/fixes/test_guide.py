"""What the catalogue says of an error, and of every variable of an image (P097)."""

from __future__ import annotations

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.fixes.catalogue import find_fixes_by_log, list_env_variables, load_fixes, load_target_with_fixes
from rlbox.fixes.conditions import list_stack_versions
from rlbox.fixes.render import render_fixes
from rlbox.fixes.view import evaluate_fixes
from rlbox.target.lock import load_lock

PROJECT = Project(folder=CHECKOUT)


@pytest.mark.parametrize(
    ("text", "fix"),
    [  # the errors of seed 002
        (
            "AttributeError: 'AsyncEngineArgs' object has no attribute 'disable_log_requests'",
            "vllm-disable-log-requests",
        ),
        ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "lcuda-link"),
        ("ValueError: Backend TORCH_SDPA must be registered before use", "vllm-backend-torch-sdpa"),
        ("OpenBLAS blas_thread_init: pthread_create failed for thread 3", "pthread-create-failed"),
    ],
)
def test_an_error_leads_to_its_fix(text: str, fix: str) -> None:
    found = find_fixes_by_log(load_fixes(PROJECT), f"Traceback:\n  {text}\n")
    assert found[0].id == fix
    assert found[0].remedy
    assert found[0].remedy_zh


def test_what_nobody_knows() -> None:
    assert find_fixes_by_log(load_fixes(PROJECT), "all is well\n\n") == ()


@pytest.mark.parametrize("target", sorted(PROJECT.targets()))
def test_every_variable_of_an_image_has_its_reason(target: str) -> None:
    loaded = load_target_with_fixes(PROJECT, target)
    versions = list_stack_versions(loaded.target, load_lock(PROJECT.lock_file(target)))
    rows = list_env_variables(evaluate_fixes(loaded.fixes, loaded.target, versions), loaded.target)
    baked = render_fixes(loaded.fixes, loaded.target, versions)
    assert {row.name for row in rows} == {*baked.build_env({}), *loaded.target.env}
    assert [row for row in rows if not row.reason] == []
