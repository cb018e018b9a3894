"""The overrides of `sft`, `grpo` and `gkd` against the configurations of the verl that they are pinned to."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobplan import overrides, plan_of, settings_of, stage_of

VERL = "0.9.1"
KEYS = Path(__file__).with_name(f"verl-{VERL}-keys.txt.xz")
CASES = [
    ("sft", "smoke", "verl.trainer.sft_trainer", "sft_trainer_engine", ("", "low-memory", "rtx-6000-pro-x2", "tiny")),
    ("sft", "train", "verl.trainer.sft_trainer", "sft_trainer_engine", ("", "low-memory", "rtx-6000-pro-x2", "tiny")),
    ("grpo", "train", "verl.trainer.main_ppo", "ppo_trainer", ("", "standard", "debug", "fast-load", "tiny")),
    ("gkd", "distill", "verl.trainer.main_ppo", "ppo_trainer", ("", "shrink", "init-hang", "tiny")),
]
EACH = [(*case[:4], profile) for case in CASES for profile in case[4]]

COMPOSE = """
import sys
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
with initialize_config_dir(config_dir=sys.argv[1], version_base=None):
    OmegaConf.resolve(compose(config_name=sys.argv[2], overrides=sys.argv[3:]))
"""


def known_keys(config: str) -> set[str]:
    found: dict[str, set[str]] = {}
    for line in lzma.decompress(KEYS.read_bytes()).decode().splitlines():
        if line.startswith("["):
            keys = found.setdefault(line[1 : line.index("]")], set())
        elif not line.startswith("#"):
            keys.add(line)
    return found[config]


@pytest.mark.parametrize(("job", "stage", "module", "config", "profile"), EACH)
def test_each_override_names_a_key_or_adds_one(job: str, stage: str, module: str, config: str, profile: str) -> None:
    known = known_keys(config)
    words = overrides(stage_of(plan_of(job, profile), stage), module)
    assert len(words) > 20
    for word in words:
        key = word.partition("=")[0]
        assert (key.lstrip("+~") in known) == (not key.startswith("+")) or key.startswith("++"), word


def test_no_key_is_set_twice() -> None:
    for job, stage, module, _, profile in EACH:
        words = overrides(stage_of(plan_of(job, profile), stage), module)
        assert len(settings_of(words)) == len(words), (job, stage)


@pytest.fixture(scope="module")
def verl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folder of verl's wheel, unpacked, and an interpreter with Hydra."""
    folder = tmp_path_factory.mktemp("verl")
    uv = Path(sys.executable).with_name("uv")
    subprocess.run((uv, "venv", "--quiet", "--python", sys.executable, folder / "venv"), check=True, timeout=120)
    python = folder / "venv/bin/python"
    packages = ("hydra-core==1.3.2", "omegaconf==2.3.0")
    install = (uv, "pip", "install", "--quiet", "--python", python)
    subprocess.run((*install, *packages), check=True, timeout=300)
    subprocess.run((*install, "--target", folder / "verl", "--no-deps", f"verl=={VERL}"), check=True, timeout=300)
    return folder / "verl/verl/trainer/config", python


@pytest.mark.slow
@pytest.mark.parametrize(("job", "stage", "module", "config", "profile"), EACH)
def test_hydra_composes_them(
    verl: tuple[Path, Path], job: str, stage: str, module: str, config: str, profile: str
) -> None:
    folder, python = verl
    words = overrides(stage_of(plan_of(job, profile), stage), module)
    argv = (python, "-c", COMPOSE, folder, config, *words)
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, env={"PATH": os.defpath}, check=False)
    assert ended.returncode == 0, ended.stderr
