"""What a job needs against what a machine has, with the figures that were measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import CHECKOUT, Folder, load_cases

from rlbox.amounts import GIB
from rlbox.app import App
from rlbox.config.project import Project
from rlbox.errors import MachineError, SpecError
from rlbox.job.job import load_job
from rlbox.job.params import apply_overrides, resolve_params
from rlbox.job.plan import ProcessPaths, plan_run
from rlbox.planner.fit import (
    RunCommand,
    find_set_param_paths_off_data_disk,
    format_shortages,
    require_resume_fit_except_disk,
    suggest_fitting_command,
)
from rlbox.planner.needs import (
    Capacity,
    RunNeeds,
    compute_run_needs,
    describe_unchecked_needs,
    estimate_reported_gpu_bytes,
    find_shortages,
    get_declared_capacity,
    parse_machine_capacity,
)
from rlbox.target.target import load_target

CASES = load_cases("planner", "test_planner")
SHIPPED = Project(folder=CHECKOUT)
CARD = 31.8 * GIB


def needs(job: str, profile: str = "", **settings: object) -> RunNeeds:
    texts = {name: str(value) for name, value in settings.items()}
    found = compute_run_needs(load_job(SHIPPED, job), resolve_params(load_job(SHIPPED, job), profile, texts), CARD)
    assert found
    return found


def card_gib(found: RunNeeds, stage: str = "train") -> float:
    return next(row.needed_bytes_per_gpu for row in found.stages if row.stage == stage) / GIB


@pytest.mark.parametrize(
    ("rows", "tokens", "measured"),
    [(1, 64, 35.5), (2, 4096, 38.5)],
)
def test_sft_without_offload_is_what_was_measured(rows: int, tokens: int, measured: float) -> None:
    """7.6 x 10^9 parameters, fp32, AdamW, FSDP2 over four H200s."""
    found = needs("sft", offload="false", micro_batch=rows, max_length=tokens)
    assert card_gib(found) == pytest.approx(measured, rel=0.01)
    parts = next(row.card for row in found.stages if row.stage == "train")
    assert (parts["weights"] + parts["moments"]) / GIB == pytest.approx(21.3, rel=0.01)


def test_disk_host_and_checkpoints_are_what_was_computed() -> None:
    found = needs("sft")
    train = next(row for row in found.stages if row.stage == "train")
    assert train.disk["checkpoints"] + train.disk["exports"] == pytest.approx(304e9)
    assert needs("holdem").total_disk_bytes == pytest.approx(114.7e9, rel=0.001)
    assert needs("holdem", save_optim="false").total_disk_bytes == pytest.approx(16.4e9, rel=0.01)
    xdan = next(row for row in needs("xdan", billions=32).stages if row.stage == "train")
    assert 2 * xdan.host["adam"] == pytest.approx(384e9)  # P072, over two nodes


@pytest.mark.parametrize(
    ("gpus", "cards_gb", "offload", "fits"),
    [(4, 24, "true", True), (4, 32, "false", False), (2, 96, "false", True)],
)
def test_gradients_and_the_optimizers_copies_count(gpus: int, cards_gb: int, offload: str, fits: bool) -> None:
    room = parse_machine_capacity(
        f"{gpus}x{cards_gb}", Capacity(source_label="", host_bytes_per_node=250 * GIB, disk_bytes=400 * GIB)
    )
    found = needs("sft", gpus=gpus, offload=offload, max_length=2048 if cards_gb == 24 else 4096)
    assert (find_shortages(found, room) == ()) == fits


def test_a_card_is_smaller_than_it_is_sold() -> None:
    assert estimate_reported_gpu_bytes("NVIDIA GeForce RTX 5090", 32) == 31.8 * GIB
    assert estimate_reported_gpu_bytes("NVIDIA GeForce RTX 5090", 24) == 24 * GIB  # what a target says of its own card
    assert estimate_reported_gpu_bytes("a card that nobody measured", 100) == 97 * GIB
    assert estimate_reported_gpu_bytes("", 0) == 0
    assert [parse_machine_capacity(text, Capacity(source_label="")).bytes_per_gpu for text in ("4x32", "4x31.8")] == [
        CARD,
        CARD,
    ]
    room = Capacity(
        source_label="--machine 2x8x80", source="command_line", nodes=2, gpus_per_node=8, bytes_per_gpu=77.6 * GIB
    )
    assert parse_machine_capacity("2x8x80", Capacity(source_label="")) == room


@pytest.mark.parametrize("text", ["", "4", "x32", "0x32", "4x0", "4x32x", "4 x 32", "-1x32"])
def test_what_is_no_machine(text: str) -> None:
    with pytest.raises(SpecError, match="invalid --machine"):
        parse_machine_capacity(text, Capacity(source_label=""))


def test_what_nobody_knows_is_not_judged() -> None:
    nothing = Capacity(source_label="images/x/target.toml", gpus_per_node=4)
    found = needs("sft", offload="false")
    assert find_shortages(found, nothing) == ()
    assert [text.partition(":")[0] for text in describe_unchecked_needs(found, nothing)] == [
        "memory of a GPU",
        "host memory",
        "data disk",
    ]


def test_a_target_without_a_hardware_table(folder: Folder) -> None:
    folder.target("mine")
    room = get_declared_capacity(load_target(Project(folder=folder.path), "mine").target, 0)
    assert room == Capacity(source_label="images/mine/target.toml")
    assert [lack.text for lack in find_shortages(needs("gkd"), room)] == [
        "4 GPUs of a machine, there are 0; the target names none: hardware.gpu, or --gpus"
    ]


def test_the_size_of_another_model_must_be_said() -> None:
    room = Capacity(source_label="", gpus_per_node=8)
    assert [lack.kind for lack in find_shortages(needs("sft", model="me/mine"), room)] == ["size"]
    assert [lack.kind for lack in find_shortages(needs("sft", model="Qwen/Qwen2.5-14B"), room)] == ["size"]
    assert find_shortages(needs("sft", model="/data/Qwen2.5-Coder-7B-Instruct"), room) == ()
    assert find_shortages(needs("sft", model="me/mine", billions=3), room) == ()
    unknown = needs("sft", model="me/mine", billions=0)
    assert find_shortages(unknown, replace(room, bytes_per_gpu=CARD)) == ()
    assert "billions = 0: the size of me/mine is not given" in describe_unchecked_needs(unknown, room)


def test_fewer_gpus_than_the_job_wants() -> None:
    room = Capacity(source_label="", gpus_per_node=2, bytes_per_gpu=CARD)
    job = load_job(SHIPPED, "sft")
    assert format_shortages(find_shortages(needs("sft"), room)) == "train: 4 GPUs of a machine, there are 2"
    assert suggest_fitting_command(job, RunCommand(), room) == RunCommand(settings={"gpus": "2"})
    assert find_shortages(needs("sft"), replace(room, gpus_per_node=-1)) == ()  # all there are, however many


@pytest.mark.parametrize(("settings", "says"), CASES["the_arithmetic_of_openrlhf"])
def test_the_arithmetic_of_openrlhf(settings: dict[str, str], says: str) -> None:
    assert says in format_shortages(
        find_shortages(needs("xdan", **settings), Capacity(source_label="", nodes=2, gpus_per_node=8))
    )


def test_rloo_compares_answers() -> None:
    """P070."""
    with pytest.raises(SpecError, match="samples is 1, and must be at least 2"):
        needs("xdan", samples=1)


def test_a_reference_is_placed_where_kl_counts() -> None:
    """P071."""
    placed = [card_gib(needs("xdan", kl=kl)) for kl in (0.02, 0)]
    assert placed[0] - placed[1] == pytest.approx(2 * 32.8e9 / 16 / GIB)


@pytest.mark.slow
def test_the_nearest_setting_changes_as_little_as_it_can() -> None:
    room = Capacity(source_label="", nodes=2, gpus_per_node=8)
    asked = RunCommand(settings={"rollout_batch": "10"}, option_words=("--gpus", "all"))
    found = suggest_fitting_command(load_job(SHIPPED, "xdan"), asked, room)
    assert found
    assert found.to_argv_after_rlbox() == ("--set", "rollout_batch=16", "--gpus", "all")
    assert suggest_fitting_command(load_job(SHIPPED, "xdan"), RunCommand(), replace(room, gpus_per_node=1)) is None


@pytest.mark.parametrize(
    ("job", "profile", "settings", "nearest"),
    [
        ("sft", "", {"batch": str(10**12 + 1)}, ""),
        ("sft", "", {"gpus": str(10**12)}, ""),
        ("sft", "", {"max_length": "131072"}, "--set max_length=8192"),
        ("holdem", "", {"mem_fraction": "10%"}, "--set mem_fraction=10% --set engine_gpus=4"),
        ("xdan", "", {"gpu_memory": "1%"}, "--set gpu_memory=0.26"),
        ("grpo", "", {"gpu_memory": "100%"}, "--set gpu_memory=0.9"),
        ("gkd", "", {"actor_gpus": "1000000"}, ""),
        ("xdan", "two-nodes", {"nodes": "7", "episodes": "8192"}, ""),
    ],
)
def test_a_hostile_setting_has_a_near_one_that_fits(
    job: str, profile: str, settings: dict[str, str], nearest: str
) -> None:
    found, target = load_job(SHIPPED, job), load_target(SHIPPED, load_job(SHIPPED, job).target).target
    wish = RunCommand(profiles=(profile,) if profile else (), settings=settings)
    near = suggest_fitting_command(found, wish, get_declared_capacity(target, target.hardware.gpus))
    assert near
    assert " ".join(near.to_argv_after_rlbox()) == nearest


def test_a_run_that_is_taken_up_keeps_its_own_settings_and_profile() -> None:
    job, target = load_job(SHIPPED, "sft"), load_target(SHIPPED, "vast-5090").target
    base = resolve_params(job, "low-memory", {"gpus": "2", "keep_optimizer": "2"})
    asked = RunCommand(command_words=("run", "--resume", "sft-1"), settings={"batch": "9"}, resumed_params=base)
    near = suggest_fitting_command(job, asked, replace(get_declared_capacity(target, 4), disk_bytes=0.0))
    assert near
    assert near.to_argv_after_rlbox() == ("run", "--resume", "sft-1", "--set", "batch=9", "--set", "gpus=1")
    found = near.resolve_params(job)
    assert (found.profile, found.params["max_length"], found.params["keep_optimizer"]) == ("low-memory", 2048, 2)
    changed = apply_overrides(job, base, False, asked.settings)
    plan = plan_run(job, changed, PATHS, run_id="sft-1", place="docker", target="vast-5090")
    with pytest.raises(MachineError) as refused:
        require_resume_fit_except_disk(App(project=SHIPPED), job, plan, asked.settings)
    assert refused.value.next_step == f"the nearest that fits: rlbox {' '.join(near.to_argv_after_rlbox())}"


PATHS = ProcessPaths(run="/tmp-disk/runs/x", job="/tmp-disk/runs/x/job", data="/tmp-disk", python="python")


@pytest.mark.parametrize(("path", "off"), CASES["paths_off_the_data_disk"])
def test_paths_off_the_data_disk(path: str, off: bool) -> None:
    """P008: the system disk is small; P007: a second disk is for archives."""
    job = load_job(SHIPPED, "holdem")
    assert find_set_param_paths_off_data_disk(job, resolve_params(job, "", {"smoke_dir": path}), PATHS) == (
        {"smoke_dir": path} if off else {}
    )


def test_what_is_no_path_is_no_matter() -> None:
    job = load_job(SHIPPED, "sft")
    names = {"model": "Qwen/Qwen2.5-Coder-7B", "only": "100,200", "baseline": ""}
    assert find_set_param_paths_off_data_disk(job, resolve_params(job, "", names), PATHS) == {}
    assert find_set_param_paths_off_data_disk(job, resolve_params(job, "", {"model": "/system/model"}), PATHS) == {
        "model": "/system/model"
    }


WRONG = CASES["WRONG"]


def test_a_table_that_is_wrong_says_where(folder: Folder) -> None:
    folder.job("wrong", WRONG.replace('"gpus +"', '"later + gpus + none"'))
    with pytest.raises(SpecError) as raised:
        load_job(Project(folder=folder.path), "wrong")
    text = str(raised.value)
    assert "fits.turn: 'gpu' is not a parameter (did you mean 'gpus'?)" in text
    assert "fits.size: 'model' is not a parameter" in text
    assert "fits.let.gpus: the name is taken" in text
    assert "fits.let.all: 'gpsu' is neither a parameter nor an amount (did you mean 'gpus'?)" in text
    assert "fits.stages.two: the job has no such stage" in text
    assert "fits.stages.two.gpus: 'none' is neither a parameter nor an amount" in text
    folder.job("wrong", WRONG)
    with pytest.raises(SpecError, match="invalid formula"):
        load_job(Project(folder=Path(folder.path)), "wrong")


def test_a_formula_without_a_value_names_its_place(folder: Folder) -> None:
    right = WRONG.split("[fits]")[0] + '[fits.stages.one]\ngpus = "1 / (gpus - 1)"\n'
    folder.job("zero", right)
    job = load_job(Project(folder=folder.path), "zero")
    with pytest.raises(SpecError, match=r"jobs/zero.toml: fits.stages.one.gpus: .*division by zero"):
        compute_run_needs(job, resolve_params(job, "", {}), 0.0)
