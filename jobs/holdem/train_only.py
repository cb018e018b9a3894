"""The rollout of the stage megatron-only: rows of the data with the solver's answer, so that no engine is needed.

slime's own `slime.rollout.sft_rollout` wants chats; PokerBench has an instruction and an output.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from holdem.answer import read_action
from holdem.plugin import STOP, prompt_tokens

_LOG = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def _tokenizer(path: str) -> Any:
    from slime.utils.processing_utils import load_tokenizer

    return load_tokenizer(path, trust_remote_code=False)


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> list[list[Any]]:
    """Return `rollout_batch_size` groups of one sample each, with the tokens of prompt and label and a reward of 0.

    Raises
    ------
    ValueError
        A label names no action, or it is asked for an evaluation.
    """
    if evaluation:
        raise ValueError("megatron-only has no evaluation: leave --eval-interval out")
    tokenizer = _tokenizer(args.hf_checkpoint)
    groups: list[list[Any]] = data_source.get_samples(args.rollout_batch_size)
    for group in groups:
        for sample in group:
            _fill(sample, tokenizer)
    tokens = sum(len(sample.tokens) for group in groups for sample in group)
    _LOG.info("[holdem][megatron-only] rollout %d: %d decisions, %d tokens", rollout_id, len(groups), tokens)
    return groups


def _fill(sample: Any, tokenizer: Any) -> None:
    action = read_action(sample.label)
    if action is None:
        raise ValueError(f"the label {sample.label!r} names no action; expected for example 'call' or 'raise 11.5'")
    sample.response = f"<action>{action}{STOP}"
    answer = [*tokenizer.encode(sample.response, add_special_tokens=False), tokenizer.eos_token_id]
    sample.tokens = [*prompt_tokens(tokenizer, sample.prompt), *answer]
    sample.response_length = len(answer)
    sample.loss_mask = [1] * len(answer)
    sample.reward = 0.0
    sample.status = sample.Status.COMPLETED
