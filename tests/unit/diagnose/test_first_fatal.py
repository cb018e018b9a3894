"""The first fatal line, and the look-alikes of a healthy log."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlbox.diagnose.first_fatal import NO_SIGNATURES, FatalPosition, FirstFatalFinder
from rlbox.logs.lines import LineSplitter

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
    finder = FirstFatalFinder()
    finder.take(1, 0, text.split("\n"))
    return (finder.position.number, finder.position.text) if finder.position else None


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
IMPORT = """\
Error executing job with overrides: ['algorithm.adv_estimator=grpo']
Traceback (most recent call last):
  File "/opt/extra/verl/trainer/main_ppo.py", line 93, in run_ppo
    ray.get(runner.run.remote(config))
ray.exceptions.RayTaskError(ModuleNotFoundError): ray::TaskRunner.run() (pid=6085, ip=192.0.2.2)
  File "/opt/extra/vllm/vllm_flash_attn/__init__.py", line 33, in <module>
    raise ImportError(
ImportError: vllm.vllm_flash_attn requires the CUDA flash attention extensions (_vllm_fa2_C or _vllm_fa3_C)."""


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


RANKS = """\
step 7
[rank3]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank3]:   File "train.py", line 9, in step
[rank1]:   File "train.py", line 4, in all_reduce
[rank1]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error
[rank3]:     loss = model(batch)
[rank3]: ValueError: token id 9 is out of range"""


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
        # what comes long after belongs to another story
        ("[rank0]: RuntimeError: Connection closed by peer\n" + "step\n" * 1500 + "[rank1]: ValueError: x",
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
    finder.take(1, 0, texts)
    assert finder.position is None


def test_a_rank_that_died_while_it_wrote_is_not_waited_for() -> None:
    cut = "[rank3]: Traceback (most recent call last):"
    assert find("\n".join([cut, "step", "[rank1]: ValueError: x", *["[rank0]: step"] * 3000])) == (
        3,
        "[rank1]: ValueError: x",
    )
    finder = FirstFatalFinder()
    finder.take(1, 0, [cut, *["[rank0]: step"] * 12_000, "[rank3]: ValueError: late"])
    assert finder.position is not None
    assert finder.position.number == 12_002


def test_what_a_process_lived_with_is_forgiven() -> None:
    finder = FirstFatalFinder()
    finder.take(1, 0, ["RuntimeError: warm-up failed", "ready"])
    finder.reset()
    assert finder.position is None
    finder.take(3, 36, ["ValueError: late"])
    assert (finder.position and finder.position.number) == 3


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
        assert data[pieces.block_offset :].count(b"\n") == data.count(b"\n") - pieces.block_number + 1


def spot_of(data: bytes, cuts: list[int]) -> FatalPosition | None:
    """Return the spot of a log that was read in pieces, as a follower would feed it."""
    cutter, finder, offset = LineSplitter(), FirstFatalFinder(), 0
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        piece = data[start:end]
        texts = cutter.feed(piece)
        finder.take(cutter.number - len(texts) + 1, offset, texts)
        offset = data.rfind(b"\n", 0, max(end, start)) + 1
    return finder.position


@given(st.lists(NOISE, max_size=40), st.sets(st.integers(0, 60)))
def test_candidates_that_others_found_give_the_same_line(lines: list[str], others: set[int]) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    block, searched = LineSplitter().feed(text), LineSplitter().feed(text)
    fatal = {
        index for index, line in enumerate(block) if re.search("|".join(NO_SIGNATURES.scan_expressions), f"\n{line}\n")
    }
    searched.hits = sorted(fatal | {index for index in others if index < len(block)})
    found = []
    for texts in (block, searched):
        finder = FirstFatalFinder()
        finder.take(1, 0, texts)
        found.append(finder.position)
    assert found[0] == found[1]
