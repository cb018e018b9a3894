"""Which lines begin which phase, and which look alike and do not."""

from __future__ import annotations

import re
import sys

import pytest
from fakes import CHECKOUT, load_cases

from rlbox.config.schema import validate_spec
from rlbox.errors import SpecError
from rlbox.hang.detector import PhaseMatcher, load_shipped_phases
from rlbox.job.job import Phase, Stage

CASES = load_cases("hang", "test_phases")


if sys.version_info >= (3, 11):
    from tomllib import loads as parse_toml
else:
    from tomli import loads as parse_toml

FINDER = PhaseMatcher(load_shipped_phases().phases)

LINES = [
    # seed 003: its line of the data, and its table of symptoms, its tags (P116)
    ("(TaskRunner pid=133947) Generating train split: 0 examples [00:00, ? examples/s]", "data"),
    ("[ROLLOUT] init_model START", "actor-init"),
    ("(ActorWorker pid=71) [ACTOR] init_model START", "actor-init"),
    ("[SYNC] Waiting for rollout", "weight-sync"),
    ("Waiting for rollout weights", "weight-sync"),
    ("[ROLLOUT] generating 64 sequences", "rollout"),
    ("[ACTOR] update begins", "update"),
    # verl
    (
        "(TaskRunner pid=9323) Filtering prompts longer than 2048 tokens (num_proc=1):  13%|█▎ | 22/169 [00:01<00:05]",
        "data",
    ),
    ("(TaskRunner pid=9323) Training Progress:   0%|          | 0/300 [00:00<?, ?it/s]", "update"),
    ("(TaskRunner pid=9) Load from checkpoint folder: /data/checkpoints/global_step_100", "load"),
    ("(WorkerDict pid=9) [rank-0]: Loading from /data/c/actor/model_world_size_1_rank_0.pt", "load"),
    ("(TaskRunner pid=9) local_global_step_folder: checkpoints/x/global_step_20", "checkpoint"),
    ("(TaskRunner pid=9) test_gen_batch meta info: {'eos_token_id': 151645}", "rollout"),
    # vLLM, SGLang, Hugging Face
    ("(EngineCore pid=12) INFO 07-06 22:28 [gpu_model_runner.py:3338] Starting to load model Qwen/Qwen3-8B...", "load"),
    ("Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.20s/it]", "load"),
    ("Loading checkpoint shards:  50%|█████     | 2/4 [00:36<00:36, 18.06s/it]", "load"),
    ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|█  | 3/31", "compile"),
    ("INFO 06-02 11:58:10 [backends.py:933] Dynamo bytecode transform time: 6.21 s", "compile"),
    ("[2025-02-08 00:25:21 TP5] Init torch distributed begin.", "actor-init"),
    ("[2025-02-08 00:25:21 TP5] Capture cuda graph begin. This can take up to several minutes.", "compile"),
    ("Fetching 14 files:   0%|          | 0/14 [00:00<?, ?it/s]", "download"),
    ("INFO:     Application startup complete.", "serving"),
    ("***** Running training *****", "update"),
    ("***** Running Evaluation *****", "evaluation"),
    # Megatron-LM, slime
    ("> building train, validation, and test datasets ...", "data"),
    (" loading distributed checkpoint from /data/qwen3 at iteration 100", "load"),
    ("saving checkpoint at iteration     100 to /data/x in torch_dist format", "checkpoint"),
    ("[slime] Update weights:  10%|█         | 3/29 [00:01<00:10]", "weight-sync"),
    # ends
    ("INFO 06-02 [default_loader.py:268] Loading weights took 1.31 seconds", None),
    ("Final collected 64 samples from rollout to train", None),
    ("INFO 06-02 [gpu_model_runner.py:4587] Graph capturing finished in 3 secs, took 0.12 GiB", None),
]


@pytest.mark.parametrize(("line", "phase"), LINES, ids=[f"{phase}-{n}" for n, (_, phase) in enumerate(LINES)])
def test_lines_that_begin_or_end_a_phase(line: str, phase: str | None) -> None:
    found = FINDER.parse_phase_change(line)
    assert found
    assert (found.phase.name if found.phase else None) == phase


@pytest.mark.parametrize("line", CASES["lines_that_only_look_like_it"])
def test_lines_that_only_look_like_it(line: str) -> None:
    assert FINDER.parse_phase_change(line) is None


def test_a_block_is_searched_as_a_whole() -> None:
    block = "\n".join(["noise"] * 2000 + ["init_model START"] + ["noise"] * 2000 + ["[SYNC] x", "more"]).encode()
    assert [line.phase.name for line in FINDER.parse_phase_changes(block) if line.phase] == [
        "actor-init",
        "weight-sync",
    ]


def test_of_a_flood_of_markers_the_last_counts() -> None:
    block = "\n".join(["[ROLLOUT] x"] * 1_000 + ["[ACTOR] y"]).encode()
    found = FINDER.parse_phase_changes(block)
    assert found[-1].phase
    assert found[-1].phase.name == "update"


@pytest.mark.parametrize(("wrong", "message"), CASES["a_wrong_phase_is_refused"])
def test_a_wrong_phase_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as refused:
        validate_spec(Phase, {"name": "x", "begins": "y", "silence_s": 1, **wrong}, "here")
    assert message.split("|")[-1] in str(refused.value)


def test_the_guide_tells_every_phase_with_its_limit() -> None:
    guide = (CHECKOUT / "docs" / "hangs.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \|.*\| (\d+ (?:min|h)) \|", guide, re.MULTILINE))
    shipped = {phase.name: phase.silence_s for phase in load_shipped_phases().phases}
    told = {name: float(text.split()[0]) * (3600 if text.endswith("h") else 60) for name, text in rows.items()}
    assert told == shipped


def test_the_guides_own_phase_works() -> None:
    guide = (CHECKOUT / "docs" / "hangs.md").read_text()
    block = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)[0]
    (stage,) = parse_toml(block)["stages"]
    made = validate_spec(Stage, stage, "here")
    assert (made.limits.silence_s, made.phases[0].silence_s) == (300.0, 1200.0)
    assert made.phases[0].progress == {"network": 10000, "cpu": 0.5}
