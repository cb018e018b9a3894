"""The gate: rules that wait, hold or break."""

from __future__ import annotations

import dataclasses

import pytest

from rlbox.gate.gate import GateChecker
from rlbox.job.gate import BenignRule, FileRule, ForbidRule, MetricRule, Ready, RequireRule
from rlbox.job.plan import ServicePlan, StagePlan
from rlbox.logs.lines import strip_ansi_escapes


def forbid_rule(pattern: str, *, log: str = "stage") -> ForbidRule:
    return ForbidRule(pattern=pattern, log=log)


def line_rule(pattern: str, *, log: str = "stage", count: int = 1) -> RequireRule:
    return RequireRule(pattern=pattern, log=log, count=count, why="")


SERVICE = ServicePlan(
    name="vllm",
    title="",
    argv=("vllm",),
    env={},
    ports={"vllm": 8000},
    ready=Ready(url="http://127.0.0.1:8000/", method="GET", body="", contains=""),
    start_s=60,
    log="vllm.log",
)


def stage(*, require: tuple[RequireRule, ...] = (), forbid: tuple[ForbidRule, ...] = ()) -> StagePlan:
    return StagePlan(
        name="train",
        title="",
        directory="stages/1-train",
        argv=("true",),
        env={},
        services=(SERVICE,),
        needs=(),
        ray=None,
        require=require,
        forbid=forbid,
        files=(FileRule(path="/data/out", min_bytes=1, manifest=False, why=""),),
        total_s=60,
        silence_s=60,
    )


def states(gate: GateChecker, kind: str) -> list[tuple[str, str, int]]:
    return [(rule.state, rule.seen, rule.count) for rule in gate.copy_rule_states() if rule.kind == kind]


def test_a_gate_lists_every_rule_before_anything_happened() -> None:
    gate = GateChecker(stage(require=(line_rule("a"), line_rule("b", log="vllm", count=2)), forbid=(forbid_rule("c"),)))
    assert [(rule.kind, rule.rule, rule.state) for rule in gate.copy_rule_states()] == [
        ("port", "vllm 8000", "waiting"),
        ("service", "vllm", "waiting"),
        ("require", "a", "waiting"),
        ("require", "vllm: b (at least 2)", "waiting"),
        ("forbid", "c", "waiting"),
        ("exit", "exit code 0", "waiting"),
        ("listens", "listens on nothing but what the job declares", "waiting"),
        ("file", "/data/out", "waiting"),
        ("silence", "at most 1 min", "waiting"),
        ("total", "at most 1 min", "waiting"),
    ]


def test_rays_prefix_and_repeats() -> None:
    gate = GateChecker(stage(require=(line_rule("^rank ready$", count=13),)))
    gate.feed("stage", b"(W pid=1) rank ready\n\x1b[36m(W pid=2)\x1b[0m rank ready [repeated 12x across cluster]\n")
    assert states(gate, "require")[0][::2] == ("held", 13)


@pytest.mark.parametrize(
    "line",
    [
        "rank ready [repeated 500x across cluster]",
        "(W pid=1) rank ready [repeated 500x across cluster]",
        "(Other pid=1) rank ready [repeated 500x across cluster]",
        "(W pid=1) a model said: rank ready [repeated 500x across cluster].",
        f"(W pid=1) rank ready [repeated {'9' * 5000}x across cluster]",
    ],
)
def test_a_line_that_quotes_a_repetition_is_one_line(line: str) -> None:
    gate = GateChecker(stage(require=(line_rule("rank ready", count=3),)))
    gate.feed("stage", f"(X pid=1) rank ready\n{line}\n".encode())
    assert states(gate, "require")[0][::2] == ("waiting", 2)


def test_a_line_hidden_behind_a_progress_bar_counts_and_an_overwritten_one_does_not() -> None:
    gate = GateChecker(stage(require=(line_rule("Final"), line_rule("50%"))))
    gate.feed("stage", b" 50%\r100%\n 10%\rFinal\n")
    assert [state for state, _, _ in states(gate, "require")] == ["held", "waiting"]


def test_forbidden_lines_break_at_once_and_stay_broken() -> None:
    gate = GateChecker(stage(forbid=(forbid_rule("nan"),)))
    gate.feed("stage", b"ok\nloss nan\nloss nan again\n")
    assert [(b.line.number, b.line.text) for b in gate.events.forbidden] == [(2, "loss nan")]
    gate.decide_waiting_rules_except_caller_decided()
    assert states(gate, "forbid") == [("broken", "loss nan", 2)]


def test_a_broken_rule_does_not_heal() -> None:
    gate = GateChecker(stage())
    rule = gate.outcomes.services["vllm"]
    gate.set_held_unless_broken(rule, "ready")
    gate.set_broken(rule, "signal 9")
    gate.set_held_unless_broken(rule, "ready")
    assert states(gate, "service") == [("broken", "signal 9", 0)]


FORBIDDEN = b"CUDA out of memory"
HIDING = {
    "colours in it": b"CUDA \x1b[31mout of\x1b[0m memory\n",
    "another letter set in it": b"CUDA \x1b(Bout of\x1b7 memory\n",
    "a cursor that goes on": b"CUDA\x1b[1Cout\x1b[Cof\x1b[1Cmemory\n",
    "an overwritten state": FORBIDDEN + b"\rall is well, all is well\n",
    "without an end": b"x" * 4000 + FORBIDDEN,
}


@pytest.mark.parametrize("size", [1 << 20, 65_536, 1000], ids=["whole", "64 KiB", "1000 B"])
@pytest.mark.parametrize("data", HIDING.values(), ids=HIDING)
def test_no_line_hides_a_forbidden_word(data: bytes, size: int) -> None:
    gate = GateChecker(stage(forbid=(forbid_rule("CUDA out of memory"),)))
    log = b"first\n" + data + b"next\n"
    for at in range(0, len(log), size):
        gate.feed("stage", log[at : at + size])
    gate.close_logs_and_decide_undecided_lines()
    assert [(broken.line.number) for broken in gate.events.forbidden] == [2]


ECHOES = (
    "+ echo update done; loss: 0.5",
    "+++ echo 'update done; loss: 0.5'",
    "(W pid=7) + printf 'update done; loss: 0.5'",
    "Running entrypoint for job raysubmit_1: sh -c 'echo update done; loss: 0.5'",
    "2026-01-01 10:00:00,123\tINFO job_manager.py:568 -- Running entrypoint for job j-1: update done; loss: 0.5",
)


@pytest.mark.parametrize("line", ECHOES)
def test_a_command_that_is_started_has_done_nothing(line: str) -> None:
    metric = MetricRule(name="loss", pattern=r"loss: (?P<value>\S+)", where={})
    rules = dataclasses.replace(
        stage(require=(line_rule("update done"),), forbid=(forbid_rule("done"),)), metrics=(metric,)
    )
    gate = GateChecker(rules)
    gate.feed("stage", f"{line}\n".encode())
    assert [states(gate, kind)[0][2] for kind in ("require", "metric", "forbid")] == [0, 0, 1]
    gate.feed("stage", b"update done; loss: 0.5\n")
    assert [states(gate, kind)[0][2] for kind in ("require", "metric")] == [1, 1]


def test_who_asks_for_such_a_line_gets_it() -> None:
    gate = GateChecker(stage(require=(line_rule(r"^\+ torch=="),)))
    gate.feed("stage", b"+ torch==2.11\n")
    assert states(gate, "require")[0][0] == "held"


SAID = "[response] CUDA out of memory. PASSED loss: 9.9"


@pytest.mark.parametrize(
    "line",
    [SAID, f"(W pid=1) {SAID}", f"\x1b[36m(W pid=1)\x1b[0m {SAID}", "[response] " + "x" * 200_000 + SAID[11:]],
    ids=["plain", "Ray's", "coloured", "long"],
)
def test_what_a_model_wrote_breaks_no_rule_and_fulfils_none(line: str) -> None:
    rules = stage(require=(line_rule("PASSED"),), forbid=(forbid_rule("CUDA out of memory"),))
    gate = GateChecker(dataclasses.replace(rules, model_output=(r"^\[(prompt|response)\]",)))
    gate.feed("stage", f"first\n{line}\n".encode())
    gate.close_logs_and_decide_undecided_lines()
    assert gate.events.forbidden == []
    assert [state for state, _, _ in states(gate, "require")] == ["waiting"]
    assert gate.is_harmless_line_so_far("stage", 2, strip_ansi_escapes(line)[:500])
    gate.feed("stage", b"torch.OutOfMemoryError: CUDA out of memory\nPASSED\n")
    assert [broken.line.number for broken in gate.events.forbidden] == [3]
    assert states(gate, "require")[0][0] == "held"


NAN_LINES = (
    "step:3 - actor/pg_loss:nan - critic/rewards/mean:0.5",
    "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05}",
    " iteration 4/ 10 | lm loss: NAN | grad norm: 0.1",
    "policy_loss=nan, kl=0.1",
    "(TaskRunner pid=7) step:5 - critic/rewards/mean:nan",
    '{"train/loss": "nan"}',
)


@pytest.mark.parametrize("text", NAN_LINES)
def test_a_stage_ends_at_the_third_nan(text: str) -> None:
    gate = GateChecker(stage())
    gate.feed("stage", f"{text}\n{text}\n".encode())
    assert not gate.events.violations
    assert states(gate, "metric") == []
    gate.feed("stage", f"{text}\n".encode())
    assert [each.problem for each in gate.events.violations] == ["loss or reward is NaN in 3 lines"]
    assert [state for state, _, _ in states(gate, "metric")] == ["broken"]


@pytest.mark.parametrize(
    "text",
    [
        "reward_std: nan",  # of one sample
        "loss: 0.5, grad_norm: nan",
        "no loss: nanny",
        "lossy = nan",
        "entropy: nan",
        "+ python train.py --loss=nan",
    ],
)
def test_what_is_no_nan_of_loss_or_reward_goes_on(text: str) -> None:
    gate = GateChecker(stage())
    gate.feed("stage", f"{text}\n".encode() * 5)
    assert not gate.events.violations


def test_one_step_of_many_ranks_is_one_nan() -> None:
    gate = GateChecker(stage())
    for step in range(1, 4):
        assert not gate.events.violations
        gate.feed("stage", "".join(f"[rank{rank}]: step {step} loss: nan\n" for rank in range(4)).encode())
    assert len(gate.events.violations) == 1


def test_a_job_may_allow_nan() -> None:
    lines = b"reward: nan\n" * 5
    benign = GateChecker(dataclasses.replace(stage(), benign=(BenignRule(pattern="reward: nan"),)))
    metric = MetricRule(name="reward", pattern=r"reward: (?P<value>\S+)", finite=False)
    declared = GateChecker(dataclasses.replace(stage(), metrics=(metric,)))
    for gate in (benign, declared):
        gate.feed("stage", lines)
        assert not gate.events.violations
