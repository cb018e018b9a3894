"""`rlbox doctor` in containers of the `local` image, each with one planted fault: it names that one and no other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from enginebox import Box, docker
from projectbox import own

from rlbox.foreign import parse_untrusted_toml

SITE = "/opt/venv/lib/python3.11/site-packages"
LIMITS = ("--init", "--shm-size=2g", "--memory=14g", "--pids-limit=4096")
BUDGET_S = 90  # on a busy machine Ray alone takes longer than the ten seconds that people get
# A shared object with one undefined symbol of c10 that no torch has, as a wheel for another torch wants it.
FOREIGN = Path(__file__).resolve().parents[1] / "cases/doctor/foreign_abi.py"
TEXT = Path(__file__).with_name("doctor_faults.toml").read_text("utf-8")
FAULTS = parse_untrusted_toml(TEXT.replace("{site}", SITE).replace("{foreign}", str(FOREIGN)))


@pytest.fixture
def examine(local: Box) -> Callable[..., Any]:
    """Run doctor in a container with a fault and return what it says."""

    def run(fault: Mapping[str, Any], *words: str) -> Any:
        disk = ("--volume", f"{local.data}:/data") if fault.get("disk", True) else ()
        script = f"{fault.get('setup', 'true')}\nexec rlbox doctor --json --budget {BUDGET_S} {' '.join(words)}"
        options = fault.get("options", ())
        argv = ["docker", "run", "--rm", *LIMITS, *disk, *options, own("local"), "bash", "-c", script]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    return run


def named(report: Any) -> list[str]:
    return [f"{row['id']}: {row['seen']}" for row in report["findings"] if row["level"] != "note"]


def assert_names(report: Any, finding: str) -> None:
    assert [row.partition(":")[0] for row in named(report)] == [finding], named(report)
    assert all(row["remedy"] for row in report["findings"])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if fault.get("fast") else pytest.mark.slow) for name, fault in FAULTS.items()]
)
def test_a_planted_fault_is_named(examine: Callable[..., Any], name: str) -> None:
    assert_names(examine(FAULTS[name]), FAULTS[name]["finding"])


def test_a_healthy_container_is_silent(local: Box) -> None:
    result = local("shell", "local", "--", "rlbox", "doctor")
    assert (result.code, result.out) == (0, ""), result.err


def test_nothing_of_an_examination_is_left(local: Box) -> None:
    buried = (
        "for _ in $(seq 50); do ps -eo stat --no-headers | grep -q Z || break; sleep 0.1; done"  # by the first process
    )
    script = f"rlbox doctor --budget 90; {buried}; ps -eo args --no-headers; ls -d /tmp/rlbox-stack* 2>/dev/null"
    result = local("shell", "local", "--", "bash", "-c", script)
    assert "bash -c rlbox doctor" in result.out
    assert not [line for line in result.out.splitlines() if "rlbox doctor" not in line and "ps -eo" not in line]


@pytest.mark.slow
def test_a_host_and_its_image_make_one_report(local: Box) -> None:
    result = local("doctor", "local", "--json", "--budget", str(BUDGET_S))
    assert result.code == 0, result.out
    assert result.data["checks"] > 40
    assert docker("ps", "--all", "--quiet", "--filter=name=rlbox-doctor") == ""
