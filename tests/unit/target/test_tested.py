"""Where the locks of the shipped targets have run."""

from __future__ import annotations

from dataclasses import replace

from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.target.lock import load_lock
from rlbox.target.target import load_target
from rlbox.target.tested import describe_gpu_test_if_has_gpus

SHIPPED = Project(folder=CHECKOUT)


def test_status_is_that_of_the_lock() -> None:
    target, lock = load_target(SHIPPED, "a800-cn").target, load_lock(SHIPPED.own_or_shipped_lock_file("a800-cn"))
    assert lock
    assert describe_gpu_test_if_has_gpus(target, lock) == "ran on 4 x NVIDIA H200, 2026-11-28"
    assert describe_gpu_test_if_has_gpus(target, replace(lock, groups=())) == "untested on NVIDIA A800-SXM4-80GB"
    assert describe_gpu_test_if_has_gpus(target, None) == "untested on NVIDIA A800-SXM4-80GB"
    assert describe_gpu_test_if_has_gpus(load_target(SHIPPED, "local").target, lock) is None
