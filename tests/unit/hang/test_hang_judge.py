"""What is a hang, and what is only slow: minutes pass here in no time."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.hanging import LOGS, replay
from rlbox.hang.detector import HangDetector, HangOrTimeout, load_shipped_phases, merge_phases
from rlbox.job.job import Phase
from rlbox.system.counters import ActivityRates

MIB = 1 << 20
SHIPPED = load_shipped_phases().phases
NOTHING = ActivityRates(seconds=1.0)
SPINNING = ActivityRates(seconds=1.0, cpu=1.0)
LOADING = ActivityRates(seconds=1.0, read=8 * MIB, memory=8 * MIB, cpu=0.1)


class Stage:
    """A stage whose clock the test turns."""

    def __init__(
        self, *, silence_s: float = 600.0, stated: bool = False, steps: float = 20.0, own: tuple[Phase, ...] = ()
    ) -> None:
        self.now_s = 0.0
        self.judge = HangDetector(
            merge_phases(own, SHIPPED, silence_s, override_shipped_silence=stated), silence_s, steps, 0.0
        )

    def says(self, *lines: str) -> None:
        self.judge.feed_lines("\n".join(lines).encode(), self.now_s)

    def lives(
        self, seconds: float, rates: ActivityRates = NOTHING, *, each: Callable[[int], str] | None = None
    ) -> HangOrTimeout | None:
        """Let time pass, second by second; return the hang, if one is found before it is over."""
        for second in range(int(seconds)):
            self.now_s += 1.0
            if each and (line := each(second)):
                self.says(line)
            self.judge.feed_rates(rates, self.now_s, log_advanced=self.judge.last_progress_s >= self.now_s - 1)
            if stall := self.judge.find_hang(self.now_s):
                return stall
        return None

    def steps(self, count: int, rates: ActivityRates = SPINNING) -> None:
        assert self.lives(count, rates, each=lambda n: f"step {n} loss {2 / (n + 1):.3f}") is None


def test_steady_reading_is_life_in_a_stage_without_phases() -> None:
    stage = Stage(silence_s=60.0)
    assert stage.lives(1800, LOADING) is None
    assert stage.lives(62) is not None


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param(SPINNING, id="all of a core"),
        pytest.param(ActivityRates(seconds=1.0, gpu=100, gpu_power=0.3, cpu=1.0), id="a GPU that waits"),
        pytest.param(ActivityRates(seconds=1.0, read=4000, write=2000), id="a little reading"),
        pytest.param(NOTHING, id="nothing"),
    ],
)
def test_weight_sync_hangs_after_ten_minutes(rates: ActivityRates) -> None:
    stage = Stage()
    stage.says("[SYNC] Waiting for rollout")
    stall = stage.lives(700, rates)
    assert stall
    assert (stall.rule, stall.phase.name, stall.limit_s) == ("silence", "weight-sync", 600.0)
    assert "actor_rollout_ref.nccl_timeout" in stall.phase.remedy


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param(ActivityRates(seconds=1.0, gpu=99, gpu_power=0.7), id="power"),
        pytest.param(ActivityRates(seconds=1.0, gpu=99, gpu_power=0.3, gpu_memory=40), id="memory of the GPU"),
    ],
)
def test_a_gpu_that_computes_is_life(rates: ActivityRates) -> None:
    stage = Stage()
    stage.says("[ROLLOUT] generating")
    assert stage.lives(3600, rates) is None


def test_a_burst_now_and_then_is_no_life() -> None:
    stage = Stage(silence_s=120.0)
    stage.says("something")
    for _ in range(20):
        if stage.lives(1, ActivityRates(seconds=1.0, read=200_000)) or stage.lives(14):
            break
    assert stage.judge.find_hang(stage.now_s)


def test_a_stated_limit_is_that_of_the_shipped_phases_and_not_of_the_jobs_own() -> None:
    own = Phase(name="warehouse", begins=("asking the warehouse",), silence_s=900.0)
    stage = Stage(silence_s=30.0, stated=True, own=(own,))
    stage.says("asking the warehouse")
    assert stage.lives(890) is None
    stage.says("init_model START")
    stall = stage.lives(60)
    assert stall
    assert (stall.phase.name, stall.limit_s) == ("actor-init", 30.0)


def test_the_jobs_own_phase_replaces_the_shipped_one() -> None:
    own = Phase(name="data", begins=("reading rows",), silence_s=5.0)
    stage = Stage(own=(own,))
    stage.says("Generating train split: 0 examples [00:00, ? examples/s]")
    assert stage.judge.phase.name == ""
    stage.says("reading rows")
    assert stage.judge.phase == own


def test_steps_that_stop_are_a_hang_within_half_a_minute() -> None:
    stage = Stage()
    stage.steps(30)
    stall = stage.lives(30)
    assert stall
    assert (stall.rule, stall.phase.name, stall.step_s) == ("steps", "training", 1.0)


@pytest.mark.parametrize(
    "line",
    [
        "heartbeat 17 ok",
        "[rank1] still waiting for rank 0",
        "2026-01-11 10:00:{:02d} watchdog: alive",
        "still at step 29",
    ],
)
def test_heartbeats_are_no_steps(line: str) -> None:
    stage = Stage()
    stage.steps(30)
    begun_s = stage.now_s
    assert stage.lives(60, each=lambda n: line.format(n)) is not None
    assert stage.now_s - begun_s <= 30


def test_ranks_that_tell_the_same_step_do_not_step() -> None:
    stage = Stage()
    stage.steps(30)
    assert stage.lives(60, each=lambda n: f"(Worker pid={n % 2 + 7}) step {29 - n % 2} waits") is not None


def test_a_long_step_that_computes_is_no_hang() -> None:
    stage = Stage()
    stage.steps(30)
    assert stage.lives(300, SPINNING) is None
    stage.says("step 30 loss 0.1")
    assert stage.lives(20) is None


def test_an_evaluation_in_between_is_no_hang() -> None:
    stage = Stage()
    stage.steps(30)
    assert stage.lives(900, SPINNING, each=lambda n: f"sample {n} scored {n % 7}") is None


def test_a_checkpoint_that_is_written_is_no_hang() -> None:
    stage = Stage()
    stage.steps(30)
    stage.says("saving checkpoint to /data/c")
    assert stage.lives(1700, ActivityRates(seconds=1.0, write=5 * MIB)) is None


def test_steps_of_uneven_length_are_waited_for() -> None:
    stage = Stage()
    for n in range(20):
        assert stage.lives(40 if n % 5 == 4 else 1) is None
        stage.says(f"step {n} loss 1.0")
    assert stage.lives(110) is None


def test_the_step_rule_can_be_switched_off() -> None:
    stage = Stage(steps=0.0)
    stage.steps(30)
    stall = stage.lives(700)
    assert stall
    assert (stall.rule, stall.limit_s) == ("silence", 600.0)


def test_a_progress_bar_that_goes_on_is_life_and_one_that_stands_is_not() -> None:
    stage = Stage(silence_s=60.0, stated=True)
    for second in range(300):
        stage.now_s += 1
        stage.judge.feed_partial_line_and_get_phase_start(
            f"Map:  {second // 3}%|###  | {second}/300 [00:{second % 60:02d}<00:10, 1.00 examples/s]", stage.now_s
        )
        assert stage.judge.find_hang(stage.now_s) is None
    assert stage.judge.phase.name == "data"
    for second in range(63):
        stage.now_s += 1
        stage.judge.feed_partial_line_and_get_phase_start(
            f"Map:  99%|#####| 299/300 [05:{second % 60:02d}<00:10, 1.00 examples/s]", stage.now_s
        )
    assert stage.judge.find_hang(stage.now_s)


def test_a_spinner_is_no_life() -> None:
    stage = Stage(silence_s=60.0)
    for second in range(70):
        stage.now_s += 1
        stage.judge.feed_partial_line_and_get_phase_start(f"{'⠋⠙⠹⠸'[second % 4]} waiting for the server", stage.now_s)
    assert stage.judge.find_hang(stage.now_s)


def test_new_lines_are_life_after_the_last_step() -> None:
    stage = Stage()
    stage.steps(30)
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    assert stage.lives(6 * 24, each=lambda n: f"finishing {words[n // 24]}" if n % 24 == 23 else "") is None


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log.xz")), ids=lambda path: path.stem)
def test_healthy_logs_at_their_own_pace_are_healthy(path: Path) -> None:
    assert replay(lzma.decompress(path.read_bytes())) is None


def test_a_log_that_ends_too_early_is_not() -> None:
    path = LOGS / "verl-grpo-resumed.log.xz"
    stall = replay(lzma.decompress(path.read_bytes()) + b"\n2027-01-01 00:00:00 much later\n")
    assert stall
    assert stall.rule == "silence"


def test_the_network_of_others_is_no_life() -> None:
    stage = Stage()
    stage.says("Fetching 14 files:   0%|          | 0/14 [00:00<?, ?it/s]")
    assert stage.lives(1800, ActivityRates(seconds=1.0, network=5 * MIB, cpu=0.05)) is None
    assert stage.lives(910, ActivityRates(seconds=1.0, network=5 * MIB)) is not None
