"""The first fatal line, and the look-alikes of a healthy log."""

from __future__ import annotations

import pytest

from rlbox.plan.lines import Line
from rlbox.report.first_fatal import CONTEXT_LINES, find_first_fatal

TRACEBACK = """\
start
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: no data
During handling of the above exception, another exception occurred:
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    raise RuntimeError("late")
RuntimeError: late"""


def find(text: str) -> tuple[int, str] | None:
    found = find_first_fatal(Line(number=n, text=line) for n, line in enumerate(text.split("\n"), start=1))
    return (found.number, found.text) if found else None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (TRACEBACK, (5, "ValueError: no data")),
        ("\n".join(f"ERROR 09-27 05:20:38 [core.py:1] {t}" for t in TRACEBACK.split("\n")[1:]),
         (4, "ERROR 09-27 05:20:38 [core.py:1] ValueError: no data")),
        ("\n".join(f"(TaskRunner pid=7) {t}" for t in TRACEBACK.split("\n")),
         (5, "(TaskRunner pid=7) ValueError: no data")),
        ("RuntimeError: Engine core initialization failed. See root cause above.\nValueError: x", (2, "ValueError: x")),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", (1, None)),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly\nbye", (1, None)),
        ("run.sh: line 3:   123 Killed    python train.py", (1, None)),
        ("Segmentation fault (core dumped)", (1, None)),
        ("train.py: error: unrecognized arguments: --foo", (1, None)),
        ("bash: ray: command not found", (1, None)),
        ("ERROR:    [Errno 98] error while attempting to bind on address", (1, None)),
        ("OSError: [Errno 28] No space left on device", (1, None)),
        ("CRITICAL: power lost", (1, None)),
        ("fatal: not a git repository", (1, None)),
    ],
)  # fmt: skip
def test_found(text: str, line: tuple[int, str | None]) -> None:
    number, quoted = line
    assert find(text) == (number, quoted or text.split("\n")[number - 1].strip())


@pytest.mark.parametrize(
    "text",
    [
        "step 1 loss 0.5\nerror rate: 0.02",
        "WARNING 09-27 [x.py:1] failed to import plugin: ModuleNotFoundError: No module named 'x', ignored",
        "worker.py:2052: FutureWarning: In future versions of Ray, errors are raised",
        "            'truncation': 'error',",
        "who killed fergus in once upon a time",
        "INFO 09-27 [api.py:3] errors: 0",
        'WARNING retry 1: Traceback (most recent call last):\n  File "a.py", line 1, in f\nTimeoutError: slow\nstep 2',
    ],
)
def test_healthy(text: str) -> None:
    assert find(text) is None


def test_context() -> None:
    lines = [Line(number=n, text=f"line {n}") for n in range(1, 400)]
    lines[249] = Line(number=250, text="ValueError: bad")
    found = find_first_fatal(lines)
    assert found is not None
    assert (found.before[0], found.before[-1], len(found.before)) == ("line 150", "line 249", CONTEXT_LINES)
    assert (found.after[0], found.after[-1], len(found.after)) == ("line 251", "line 350", CONTEXT_LINES)
