"""The users' own five notes: exactly the defects that were verified in them, and nothing on the lines that work.

The notes are no part of the repository; the same defects line by line are in `test_lint_rules.py`.
"""

from __future__ import annotations

import pytest
from fakes import CHECKOUT

from rlbox.lint.drift import load_drift
from rlbox.lint.rules import lint_text

SEEDS = CHECKOUT.parent / "shared" / "seeds"
pytestmark = pytest.mark.skipif(not SEEDS.is_dir(), reason="the notes lie beside the checkout, and are not there")

# Severity and rule to the lines that have the defect.
FOUND: dict[str, dict[str, str]] = {
    "000": {
        "note hf-mirror-and-xet": "33 151 213",
        "note link-into-lib64": "111 216",
        "warning empty-path-element": "113 215",
        "warning ray-stop": "133 218",
        "warning kill-by-name": "134-135 219-220",
    },
    "001": {
        "warning secret-in-clear": "27 58",
        "error ray-storage": "42 67",
        "warning ray-dashboard-open": "43",
        "error ray-spill-config": "46",
        "error ray-system-config-key": "46",
        "warning ray-redis-password": "47 69",
        "warning ray-worker-temp-dir": "66",
        "error openrlhf-math-verifier": "83",
        "warning ray-job-packs-folder": "138",
        "warning openrlhf-flags": "140-178",
        "error loopback-on-nodes": "142",
        "warning ray-job-relative-output": "153 177",
        "error dead-process-pattern": "214",
        "error quoted-glob": "236",
    },
    "002": {
        "error stubs-at-run-time": "49 212",
        "warning empty-path-element": "49 212",
        "note cache-in-tmp": "44 208",
        "warning vllm-triton-flash-attn": "45 209",
        "warning vllm-attention-backend": "47 210",
        "warning vllm-worker-use-ray": "48 211",
        "warning placeholder": "135 140",
        "error ray-prestart-workers": "199",
    },
    "003": {
        "error powershell-in-bash": "27-28 69 72 83 126-127 147 153-154 171-172 175 186",
        "warning tee-status": "34",
        "error bracket-pattern": "40",
        "warning placeholder": "60",
        "error ray-shutdown": "122 150",
        "error powershell-continuation": "134-137 157-159",
        "warning kill-by-name": "204",
        "error ray-probe": "207",
        "error option-in-python": "210",
    },
    "004": {
        "warning placeholder": "156 184 333 336-340 343-345 570 580 663-664 668-669 720 723 759",
        "warning pip-replaces-matched": "207",
        "warning conda-on-path": "231",
        "error conda-default-channel": "241 249",
        "error docker-on-rented": "260",
        "error docker-run-on-rented": "257",
        "warning vast-jupyter-port": "521",
        "warning sandbox-health": "270 296",
        "warning curl-without-fail": "296",
        "error nccl-lone-process": "404",
        "error json-lines": "620",
        "error nccl-timeout": "702",
        "error quoted-glob": "829",
    },
}


def numbers(text: str) -> set[int]:
    """Return the numbers of a text such as `1 4-6`."""
    ends = [part.partition("-") for part in text.split()]
    return {number for first, _, last in ends for number in range(int(first), int(last or first) + 1)}


def seed(key: str) -> str:
    (path,) = SEEDS.glob(f"{key}_*.txt")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("key", FOUND)
def test_exactly_the_defects_are_found(key: str) -> None:
    found: dict[str, set[int]] = {}
    for one in lint_text(f"{key}.txt", seed(key), load_drift()):
        found.setdefault(f"{one.severity} {one.rule}", set()).add(one.line)
    assert found == {name: numbers(lines) for name, lines in FOUND[key].items()}


def test_every_finding_says_what_works_instead() -> None:
    for key in FOUND:
        for one in lint_text(f"{key}.txt", seed(key), load_drift()):
            assert one.what, one
            assert one.next_step, one
            assert "{" not in one.what + one.next_step.replace("${", ""), one
