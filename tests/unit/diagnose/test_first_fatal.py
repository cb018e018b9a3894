"""The first fatal line of a log while it grows, its surroundings, and which line is behind a cause."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fakes import load_cases, make_line_block
from hypothesis import given
from hypothesis import strategies as st

from rlbox.diagnose.cause import Cause
from rlbox.diagnose.first_fatal import (
    CONTEXT_LINES,
    FatalPosition,
    FirstFatalFinder,
    Grade,
    LogFailure,
    find_failure_behind_cause_or_read_last_line,
    find_first_fatal,
    read_last_line_as_failure,
    read_log_failure,
    sort_failures_by_time_services_first,
)
from rlbox.logs.lines import LineSplitter
from rlbox.logs.log_file import LogTimes

CASES = load_cases("diagnose", "test_first_fatal")
TRACEBACK = CASES["TRACEBACK"]


def find(text: str) -> tuple[int, str] | None:
    finder = FirstFatalFinder()
    finder.feed(make_line_block(text.split("\n")))
    return (finder.first_fatal.number, finder.first_fatal.text) if finder.first_fatal else None


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
        ("zsh: killed     python train.py", (1, None)),
        ("[1]    12 segmentation fault (core dumped)  python train.py", (1, None)),
        ("=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES", (1, None)),
        ("systemd[1]: job.service: Main process exited, code=killed, status=9/KILL", (1, None)),
        ("[rank: 1] Child process with PID 12 terminated with code 1. Forcefully terminating all other processes",
         (1, None)),
        ("[2026-01-01 00:00:00] Received sigquit from a child process. It usually means the child failed.", (1, None)),
        ("[2026-01-01 00:00:00 TP0] Watchdog timeout (self.watchdog_timeout=300)", (1, None)),
        ("[rank4]:[F603 04:19:17.3 ProcessGroupNCCL.cpp:7] [Rank 4] Terminating the process after a dump", (1, None)),
        ("(raylet) The node with node id: a has been marked dead because it missed too many heartbeats.", (1, None)),
        ("fatal: not a git repository", (1, None)),
    ],
)  # fmt: skip
def test_found(text: str, line: tuple[int, str | None]) -> None:
    number, quoted = line
    assert find(text) == (number, quoted or text.split("\n")[number - 1].strip())


@pytest.mark.parametrize("text", CASES["healthy"])
def test_healthy(text: str) -> None:
    assert find(text) is None


# Of a run of `grpo` on two H200s (verl 0.9.1, Ray 2.60.0), shortened: Ray goes on without its dashboard.
DASHBOARD = """\
2026-11-22 09:32:54,661\tERROR services.py:1431 -- Failed to start the dashboard
2026-11-22 09:32:54,662\tERROR services.py:1500 --
The last 20 lines of /tmp/ray/session_1/logs/dashboard.log (it contains the error message from the dashboard):
    loop.run_until_complete(dashboard.run())
  File "/opt/extra/ray/dashboard/http_server_head.py", line 71, in setup_static_dir
    raise dashboard_utils.FrontendNotFoundError(
ray.dashboard.utils.FrontendNotFoundError: [Errno 2] Dashboard build directory not found."""
STARTED = "2026-11-22 09:32:55,909\tINFO worker.py:2038 -- Started a local Ray instance."
IMPORT = CASES["IMPORT"]


@pytest.mark.parametrize(
    ("parts", "number"),
    [
        ((DASHBOARD, STARTED, IMPORT), 16),
        ((DASHBOARD, "Ray runtime started.", "[rank1]: ValueError: reward is nan"), 9),
        ((DASHBOARD, STARTED, "step 1"), None),
        ((DASHBOARD, "RuntimeError: Ray did not start"), 7),  # it did not go on
        ((DASHBOARD, *["waiting"] * 2000, IMPORT), 7),
        (("ValueError: before it", DASHBOARD, STARTED), 1),
    ],
)
def test_what_is_quoted_of_a_helper_counts_until_its_owner_goes_on(parts: tuple[str, ...], number: int | None) -> None:
    found = find("\n".join(parts))
    assert (found[0] if found else None) == number


RANKS = CASES["RANKS"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (RANKS, "[rank3]: ValueError: token id 9 is out of range"),
        (RANKS.replace("[rank3]:", "(WorkerDict pid=7)").replace("[rank1]:", "(WorkerDict pid=8, ip=10.0.0.2)"),
         "(WorkerDict pid=7) ValueError: token id 9 is out of range"),
        (RANKS.replace("torch.distributed.DistBackendError: NCCL error: remote process exited", "RuntimeError: seen"),
         "[rank3]: ValueError: token id 9 is out of range"),
        # the rank that failed first was written last
        ("2026-01-02 10:00:09,100 ERROR rank1: RuntimeError: b\n2026-01-02 10:00:08,900 ERROR rank3: ValueError: a",
         "2026-01-02 10:00:08,900 ERROR rank3: ValueError: a"),
        ("E1127 05:20:39.5 [rank0] a: late\nE1127 05:20:38.9 [rank2] a: early", "E1127 05:20:38.9 [rank2] a: early"),
        # the noise of the end does not outrank a rank that only noticed, as long as nothing better is there
        ("[rank0]: RuntimeError: Connection closed by peer\nterminate called after throwing an instance of x",
         "[rank0]: RuntimeError: Connection closed by peer"),
        ('raise RuntimeError("NCCL error")\nRuntimeError: NCCL error: 2', "RuntimeError: NCCL error: 2"),
        # a line that only says `error` tells less than the exception behind it
        ("(A pid=1) error\n\n\n\n\nValueError: x", "ValueError: x"),
    ],
)  # fmt: skip
def test_the_first_failing_rank(text: str, line: str) -> None:
    found = find(text)
    assert found is not None
    assert found[1] == line


def test_declared_harmless_lines_do_not_count() -> None:
    texts = ["BrokenPipeError: [Errno 32]", *TRACEBACK.split("\n")]
    finder = FirstFatalFinder(benign=lambda number, text: number == 1 or "Traceback" in text)
    finder.feed(make_line_block(texts))
    assert finder.first_fatal is None


def test_a_rank_that_died_while_it_wrote_is_not_waited_for() -> None:
    cut = "[rank3]: Traceback (most recent call last):"
    assert find("\n".join([cut, "step", "[rank1]: ValueError: x", *["[rank0]: step"] * 3000])) == (
        3,
        "[rank1]: ValueError: x",
    )
    finder = FirstFatalFinder()
    finder.feed(make_line_block([cut, *["[rank0]: step"] * 12_000, "[rank3]: ValueError: late"]))
    assert finder.first_fatal is not None
    assert finder.first_fatal.number == 12_002


def test_what_a_process_lived_with_is_forgiven() -> None:
    finder = FirstFatalFinder()
    finder.feed(make_line_block(["RuntimeError: warm-up failed", "ready"]))
    finder.reset()
    assert finder.first_fatal is None
    finder.feed(make_line_block(["ValueError: late"], 3, 36))
    assert (finder.first_fatal and finder.first_fatal.number) == 3


NOISE = st.sampled_from(
    [*TRACEBACK.split("\n"), *RANKS.split("\n"), "", " ", "step 1", "error: x", "WARNING: x", "\x1b[31mKilled\x1b[0m",
     "1%\r2%", "\xff", "(A pid=1) ray.exceptions.ActorDiedError: x", "2026-01-02 10:00:08,900 ERROR - x", "retrying"]
)  # fmt: skip


@given(st.lists(NOISE, max_size=40), st.lists(st.integers(0, 400), max_size=6))
def test_any_cut_gives_the_same_line(lines: list[str], cuts: list[int]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    whole, pieces = spot_of(data, []), spot_of(data, sorted(cuts))
    assert (whole is None) == (pieces is None)
    if whole and pieces:
        assert (whole.number, whole.text, whole.grade) == (pieces.number, pieces.text, pieces.grade)
        assert data[pieces.seek_byte_offset :].count(b"\n") == data.count(b"\n") - pieces.seek_line_number + 1


def spot_of(data: bytes, cuts: list[int]) -> FatalPosition | None:
    """Return the spot of a log that was read in pieces, as a follower would feed it."""
    cutter, finder = LineSplitter(), FirstFatalFinder()
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        finder.feed(cutter.feed(data[start:end]))
    return finder.first_fatal


def spot(number: int, text: str, block_number: int, block_offset: int) -> FatalPosition:
    return FatalPosition(number=number, text=text, seek_line_number=block_number, seek_byte_offset=block_offset)


def test_a_hundred_lines_on_each_side(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    rows = [f"line {number}" for number in range(1, 400)]
    rows[249] = "ValueError: bad"
    log.write_text("\n".join(rows))
    found = find_first_fatal(log)
    assert found is not None
    line = read_log_failure(tmp_path, "stage.log", found)
    assert (line.number, line.text) == (250, "ValueError: bad")
    assert (line.before[0], line.before[-1], len(line.before)) == ("line 150", "line 249", CONTEXT_LINES)
    assert (line.after[0], line.after[-1], len(line.after)) == ("line 251", "line 350", CONTEXT_LINES)


def test_a_log_that_is_gone_keeps_the_line(tmp_path: Path) -> None:
    gone = read_log_failure(tmp_path, "gone.log", spot(7, "ValueError", 1, 0))
    assert gone == LogFailure(log="gone.log", number=7, text="ValueError")
    assert read_last_line_as_failure(tmp_path, "gone.log") is None
    assert find_first_fatal(tmp_path / "gone.log") is None


@pytest.mark.parametrize(
    ("text", "number", "quoted"), [("a\nb\n\n \n", 2, "b"), ("a\nb", 2, "b"), ("a", 1, "a"), ("\n\nx\n", 3, "x")]
)
def test_the_last_line_that_is_not_blank(tmp_path: Path, text: str, number: int, quoted: str) -> None:
    log = tmp_path / "stage.log"
    log.write_text(text)
    line = read_last_line_as_failure(tmp_path, "stage.log")
    assert line is not None
    assert (line.number, line.text) == (number, quoted)


def test_when_a_line_was_written(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    (tmp_path / "stage.log.times").write_text("0 1000\n50 2500\ntorn\n90 9000\n95\n" + "9" * 5000 + " 1\n")
    assert [LogTimes(log).find_write_time_unix(offset) for offset in (0, 49, 50, 89, 90, 500)] == [
        1.0,
        1.0,
        2.5,
        2.5,
        9.0,
        9.0,
    ]
    assert LogTimes(tmp_path / "other.log").find_write_time_unix(0) is None


def test_garbage_without_line_feeds_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "stage.log"
    log.write_bytes(bytes(range(11, 256)) * 50_000 + b"\nValueError: bad\n")
    found = find_first_fatal(log)
    assert found is not None
    line = read_log_failure(tmp_path, "stage.log", found)
    assert (line.number, line.text) == (2, "ValueError: bad")
    assert sum(map(len, line.before)) < 1 << 20


STAGE, VLLM = "stages/1-train/stage.log", "stages/1-train/vllm.log"
EXIT = Cause(kind="exit", what="stage train ended with exit code 1", where=STAGE)


def fatal(log: str, at: float | None, grade: Grade = "fatal", said_at: str = "") -> LogFailure:
    return LogFailure(log=log, number=1, text="ValueError", time_unix=at, grade=grade, stated_clock=said_at)


@pytest.mark.parametrize(
    ("found", "first"),
    [
        ((fatal(STAGE, 100.0), fatal(VLLM, 90.0)), VLLM),
        ((fatal(STAGE, 90.0), fatal(VLLM, 100.0)), STAGE),
        ((fatal(STAGE, 100.0), fatal(VLLM, 101.0)), VLLM),  # the same second: what clients make of it comes after
        ((fatal(STAGE, None), fatal(VLLM, None)), VLLM),
        (
            (
                fatal(STAGE, 100.0, said_at="2026-01-02 10:00:00,100"),
                fatal(VLLM, 100.0, said_at="2026-01-02 10:00:00,900"),
            ),
            STAGE,
        ),
    ],
)
def test_order(found: tuple[LogFailure, ...], first: str) -> None:
    assert sort_failures_by_time_services_first(found)[0].log == first
    assert sort_failures_by_time_services_first(tuple(reversed(found)))[0].log == first


@pytest.mark.parametrize(
    ("found", "log"),
    [
        ((fatal(STAGE, 100.0), fatal(VLLM, 90.0)), VLLM),
        ((fatal(STAGE, 100.0), fatal(VLLM, 90.0, "noticed")), STAGE),
        ((fatal(STAGE, 100.0), fatal(VLLM, 90.0, "wrapper")), STAGE),
        ((fatal(STAGE, 10_000.0), fatal(VLLM, 90.0)), STAGE),
    ],
    ids=["the earliest", "one that only noticed", "one that only wraps", "one of long ago"],
)
def test_which_failure_is_behind_the_cause(found: tuple[LogFailure, ...], log: str) -> None:
    chosen = find_failure_behind_cause_or_read_last_line(
        EXIT, sort_failures_by_time_services_first(found), Path("none")
    )
    assert chosen in found
    assert chosen.log == log


def test_a_dead_service_is_not_explained_by_its_client(tmp_path: Path) -> None:
    cause = dataclasses.replace(EXIT, kind="service", where=VLLM)
    (tmp_path / "stages/1-train").mkdir(parents=True)
    (tmp_path / VLLM).write_text("loading\nbye\n")
    chosen = find_failure_behind_cause_or_read_last_line(cause, (fatal(STAGE, 100.0),), tmp_path)
    assert chosen is not None
    assert (chosen.log, chosen.number, chosen.text) == (VLLM, 2, "bye")
