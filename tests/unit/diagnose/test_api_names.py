"""What releases have a missing name: messages of public reports, and what the next step must say of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.diagnose.api_names import describe_missing_name
from rlbox.diagnose.diagnosis import diagnose_paths
from rlbox.diagnose.report import format_report
from rlbox.diagnose.signatures import load_signatures

REPORTS = """
cannot import name 'logprobs_from_logits' from 'trl.core' | trl had | 'trl<0.14'
cannot import name 'GRPOConfig' from 'trl' (/opt/trl/__init__.py) | trl has | 'trl>=0.14.0'
cannot import name 'ConstantLengthDataset' from 'trl.trainer.utils' | trl had | 'trl<0.20'
cannot import name 'AutoModelForCausalLMWithValueHead' from 'trl' | trl had | 'trl<0.29'
No module named 'trl.commands' | trl had | 'trl<0.13'
SFTTrainer.__init__() got an unexpected keyword argument 'dataset_text_field' | trl had | 'trl<0.13'
SFTTrainer.__init__() got an unexpected keyword argument 'tokenizer' | use `processing_class` instead | 'trl<0.16'
SFTConfig.__init__() got an unexpected keyword argument 'max_seq_length' | use `max_length` instead | 'trl<0.20'
GRPOConfig.__init__() got an unexpected keyword argument 'top_p' | leave the argument out | 'trl>=0.16.0'
UnslothGRPOConfig.__init__() got an unexpected keyword argument 'max_prompt_length' | GRPOConfig | 'trl>=0.14.0,<0.28'
GRPOConfig.__init__() got an unexpected keyword argument 'evaluation_strategy' | `eval_strategy` | 'transformers<4.51'
'GRPOConfig' object has no attribute 'epsilon' | trl has | 'trl>=0.16.0'
'GRPOTrainer' object has no attribute 'vllm_client' | trl has | 'trl>=0.16.0,<0.24'
DPOTrainer.__init__() got an unexpected keyword argument 'beta' | trl had | 'trl<0.13'
Trainer.__init__() got an unexpected keyword argument 'tokenizer' | transformers had | 'transformers<5.0'
Trainer.__init__() got an unexpected keyword argument 'processing_class' | transformers has | 'transformers>=4.46.1'
TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy' | had | 'transformers<4.51'
Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches' | accelerate had | 'accelerate<1.0'
LoraConfig.__init__() got an unexpected keyword argument 'eva_config' | peft has | 'peft>=0.14.0'
cannot import name 'EncoderDecoderCache' from 'transformers' (/opt/__init__.py) | has | 'transformers>=4.43.0'
cannot import name 'AutoModelForVision2Seq' from 'transformers' | `AutoModelForImageTextToText` | 'transformers<5.0'
cannot import name 'HybridCache' from 'transformers' | up to 4.57 | 'transformers>=4.44.0,<5.0'
cannot import name 'LogitsWarper' from 'transformers.generation.logits_process' | had | 'transformers<4.49'
cannot import name 'Qwen2_5_VLForConditionalGeneration' from 'transformers' | has | 'transformers>=4.49.0'
module transformers has no attribute Qwen3ForCausalLM | has | 'transformers>=4.51.0'
module 'transformers' has no attribute 'AdamW' | had | 'transformers<4.50'
No module named 'transformers.models.glm4v_moe' | has | 'transformers>=4.56.0'
'DynamicCache' object has no attribute 'get_max_length' | `get_max_cache_shape` | 'transformers<4.49'
'Qwen2Tokenizer' object has no attribute 'all_special_tokens_extended' | had | 'transformers<5.0'
No module named 'vllm.worker' | vllm had | 'vllm<0.12'
cannot import name 'FlexibleArgumentParser' from 'vllm.utils' | vllm had | 'vllm<0.12'
cannot import name 'GuidedDecodingParams' from 'vllm.sampling_params' | `StructuredOutputsParams` | 'vllm>=0.7.0,<0.12'
cannot import name 'ExecuteModelRequest' from 'vllm.sequence' | vllm had | 'vllm<0.12'
cannot import name 'process_weights_after_loading' from 'vllm.model_executor.model_loader.utils' | has | 'vllm>=0.9.0'
EngineArgs.__init__() got an unexpected keyword argument 'task' | vllm has | 'vllm>=0.7.0,<0.13'
AsyncEngineArgs.__init__() got an unexpected keyword argument 'num_scheduler_steps' | vllm had | 'vllm<0.11'
LLM.generate() got an unexpected keyword argument 'prompt_token_ids' | vllm had | 'vllm<0.11'
No module named 'verl.single_controller.ray.megatron' | verl had | 'verl<0.6'
"""
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
    assert [word for word in words if word not in describe_missing_name([message])] == []


@pytest.mark.parametrize("message", NEVER)
def test_name_that_no_release_had_is_left_to_the_signature(message: str) -> None:
    assert describe_missing_name([message]) == ""


def test_installed_version_is_named_and_believed() -> None:
    message = "GRPOConfig.__init__() got an unexpected keyword argument 'top_p'"
    for line in ("trl==0.15.2", "TRL version: 0.15.2", "trl    0.15.2", "Installed trl-0.15.2 peft-0.14.0"):
        assert describe_missing_name([message], line).startswith("the log shows trl 0.15.2; trl has")
    assert describe_missing_name([message], "trl==0.19.0") == ""  # which has it
    assert describe_missing_name([message], "trl==main").startswith("trl has")


def report(tmp_path: Path, *lines: str) -> str:
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n")
    project = Project(folder=CHECKOUT)
    return format_report(diagnose_paths([log], load_signatures(project.fix_files())))


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
