"""What the catalogue says of an error."""

from __future__ import annotations

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.fixes.catalogue import find_fixes_by_log, load_fixes

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
