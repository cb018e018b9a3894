"""The users' own five notes: exactly the defects that were verified in them, and nothing on the lines that work.

The notes are no part of the repository; the same defects line by line are in `test_lint_rules.py`.
"""

from __future__ import annotations

import re

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
        "note background-without-log": "83",
        "warning ray-job-packs-folder": "138",
        "warning openrlhf-flags": "140-178",
        "error loopback-on-nodes": "142",
        "warning ray-job-relative-output": "153 177",
        "error dead-process-pattern": "214",
        "error quoted-glob": "236",
    },
    "002": {
        "error stubs-at-run-time": "30 49 212",
        "warning empty-path-element": "30 49 212",
        "note cache-in-tmp": "44 208",
        "warning vllm-triton-flash-attn": "45 209",
        "warning vllm-attention-backend": "47 210",
        "warning vllm-worker-use-ray": "48 211",
        "warning placeholder": "135 140",
        "error ray-prestart-workers": "199",
    },
    "003": {
        "error powershell-in-bash": "27-28 69 72 83 126-127 147 153-154 171-172 175 186",
        "error nccl-timeout": "28 69 83 127",
        "warning nccl-timeout": "113",
        "warning tee-status": "34 138 160",
        "error bracket-pattern": "40",
        "warning placeholder": "60",
        "error ray-shutdown": "122 150",
        "error powershell-continuation": "134-137 157-159",
        "warning kill-by-name": "204",
        "error ray-probe": "207",
        "error option-in-python": "210",
    },
    "004": {
        "warning moving-tag": "110-111 116 144 839-840",
        "warning pip-build-isolation": "131",
        "warning placeholder": "156 184 333 336-340 343-345 570 580 663-664 668-669 720 725 759",
        "warning pip-replaces-matched": "207",
        "warning conda-on-path": "231",
        "error conda-default-channel": "241 249",
        "error docker-on-rented": "260",
        "warning sandbox-health": "270 296",
        "warning curl-without-fail": "296",
        "error nccl-lone-process": "404",
        "error json-lines": "620",
        "error nccl-timeout": "702",
        "error quoted-glob": "829",
    },
}
# Every other line of their command blocks, comments left out: these work, or say nothing about how (a listing, a log).
FINE = {
    "000": ("31-33 41 47-52 93-94 111-112 119-120 151 167-168 210-214 216 222-233 278-287"),
    "001": (
        "24 28-31 34-35 37-41 44-45 55 59 62 64-65 68 77 80-81 84-87 92 100 103-107 110-116 119-122 "
        "125-131 134-135 137 139 220-221 227-228 235 244-245"
    ),
    "002": ("15 25-29 44 65-71 79-80 83-85 141-142 147 153 158 200 203-205 208 217-218"),
    "003": ("5 15 21 33 63 75 81-82 94-96 99-102 123 130 133 178 181 184 195 198 201"),
    "004": (
        "91-97 159 162 165 168 174 180-181 185 188 194 197 200 210 213 225-230 232-233 236-238 242-246 "
        "257-259 261-262 272-274 281 283-284 286-287 289-290 292-293 295 306-324 352 356 370 372 378-381 "
        "383 385-386 416 419 422 462 480-491 500 515 518-521 533 535-537 551-554 557-560 569 571-576 579 "
        "581-583 597-609 626-627 629-630 632-641 648 665 670 692 695 705 723-724 726-727 739 755 820-822 "
        "825-826 832"
    ),
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


@pytest.mark.parametrize("key", FOUND)
def test_the_lines_that_work_are_left_alone(key: str) -> None:
    """All lines of the command blocks are either found above or stated to be fine; a note is no alarm."""
    inside, lines = False, set()
    for number, line in enumerate(seed(key).splitlines(), 1):
        if re.match(r"\s*```", line):
            inside = not inside
        elif inside and line.strip() and not line.strip().startswith("#"):
            lines.add(number)
    alarmed = {number for name, text in FOUND[key].items() if not name.startswith("note") for number in numbers(text)}
    assert lines - alarmed == numbers(FINE[key])


def test_every_finding_says_what_works_instead() -> None:
    for key in FOUND:
        for one in lint_text(f"{key}.txt", seed(key), load_drift()):
            assert one.what, one
            assert one.next_step, one
            assert "{" not in one.what + one.next_step.replace("${", ""), one
