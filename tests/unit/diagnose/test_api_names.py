"""What releases have a missing name: messages of public reports, and what the next step must say of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import CHECKOUT, load_cases

from rlbox.config.project import Project
from rlbox.diagnose.api_names import format_missing_name_remedy_or_empty
from rlbox.diagnose.diagnosis import diagnose_paths
from rlbox.diagnose.report import format_report
from rlbox.diagnose.signatures import load_signatures

CASES = load_cases("diagnose", "test_api_names")
REPORTS = CASES["REPORTS"]
NEVER = (
    "GRPOTrainer.__init__() got an unexpected keyword argument 'tokenizer'",
    "GRPOTrainer.create_model_card() got an unexpected keyword argument 'pretrained_from'",
    "LoraConfig.__init__() got an unexpected keyword argument 'use_original_init'",
    "cannot import name 'TrainingArguments' from 'trl'",
    "No module named 'flash_attn'",
    "'NoneType' object has no attribute 'shape'",
)
"""Names that no release had."""


@pytest.mark.parametrize("row", REPORTS.strip().splitlines())
def test_missing_name_is_told_with_its_releases(row: str) -> None:
    message, *words = row.split(" | ")
    assert [word for word in words if word not in format_missing_name_remedy_or_empty([message])] == []


@pytest.mark.parametrize("message", NEVER)
def test_name_that_no_release_had_is_left_to_the_signature(message: str) -> None:
    assert format_missing_name_remedy_or_empty([message]) == ""


def test_installed_version_is_named_and_believed() -> None:
    message = "GRPOConfig.__init__() got an unexpected keyword argument 'top_p'"
    for line in ("trl==0.15.2", "TRL version: 0.15.2", "trl    0.15.2", "Installed trl-0.15.2 peft-0.14.0"):
        assert format_missing_name_remedy_or_empty([message], line).startswith("the log shows trl 0.15.2; trl has")
    assert format_missing_name_remedy_or_empty([message], "trl==0.19.0") == ""  # which has it
    assert format_missing_name_remedy_or_empty([message], "trl==main").startswith("trl has")


def report(tmp_path: Path, *lines: str) -> str:
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n")
    project = Project(folder=CHECKOUT)
    return format_report(diagnose_paths([log], load_signatures(project.own_pack_and_shipped_fix_files())))


def test_library_that_needs_the_name_is_named(tmp_path: Path) -> None:
    text = report(
        tmp_path,
        "accelerate 0.29.3",
        "Traceback (most recent call last):",
        '  File "/work/train.py", line 3, in <module>',
        "    import peft",
        '  File "/opt/venv/lib/python3.11/site-packages/peft/peft_model.py", line 37, in <module>',
        "    from accelerate.utils.memory import clear_device_cache",
        "ImportError: cannot import name 'clear_device_cache' from 'accelerate.utils.memory' (/opt/memory.py)",
    )
    start = "next:  the log shows accelerate 0.29.3; accelerate has `accelerate.utils.memory.clear_device_cache`"
    assert start in text
    assert "'accelerate>=0.32.0', or a release of peft that fits" in text


def test_specific_signature_keeps_its_remedy(tmp_path: Path) -> None:
    line = "TypeError: AsyncEngineArgs.__init__() got an unexpected keyword argument 'disable_log_requests'"
    assert "vllm has" not in report(tmp_path, line)
    assert "vllm had" not in report(tmp_path, line)
