"""The three functions that slime calls by name: `generate`, `reward` and `log_rollout`.

Signatures: slime v0.2.2, `slime/rollout/sglang_rollout.py` (`generate_and_rm`), `rm_hub/__init__.py` (`async_rm`) and
`ray/rollout.py` (`_log_rollout_data`).
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from holdem.answer import SYSTEM, judge

_LOG = logging.getLogger(__name__)
STOP = "</action>"


def prompt_tokens(tokenizer: Any, instruction: str) -> list[int]:
    """Return the tokens of the chat that asks for a decision; a model that can think aloud is told not to."""
    chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": instruction}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    return list(tokenizer.encode(text, add_special_tokens=False))


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """Ask the policy for one answer and return the sample with its tokens, log-probabilities and status.

    A sample that was cut off in an earlier rollout (`--partial-rollout`) goes on where it stopped, with what is left of
    its tokens. Only the answer is trained on: slime takes a missing loss mask for ones over the answer.
    """
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils.http_utils import post

    state = GenerateState(args)
    asked = prompt_tokens(state.tokenizer, sample.prompt)
    if not sample.tokens:
        sample.tokens = list(asked)
    room = sampling_params["max_new_tokens"] - (len(sample.tokens) - len(asked))
    if room <= 0:
        sample.status = sample.Status.TRUNCATED
        return sample
    wanted = {**sampling_params, "max_new_tokens": room, "stop": [*(sampling_params.get("stop") or []), STOP]}
    request = {"input_ids": sample.tokens, "sampling_params": wanted, "return_logprob": True}
    reply = await post(f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate", request)
    if hasattr(sample, "append_response_tokens"):  # slime v0.3: tokens, log-probabilities and status in one
        _append_at_once(args, sample, reply)
    else:
        _append(sample, reply)
        sample.update_from_meta_info(args, reply["meta_info"])
    return sample


def _append_at_once(args: Any, sample: Any, reply: dict[str, Any]) -> None:
    """Add what the engine wrote. Source: slime v0.3.1 slime/utils/types.py `append_response_tokens`."""
    written = reply["meta_info"].get("output_token_logprobs") or []
    sample.append_response_tokens(
        args,
        tokens=[entry[1] for entry in written],
        log_probs=[entry[0] for entry in written],
        trainable=True,
        meta_info=reply["meta_info"],
        text=reply["text"],
    )


def _append(sample: Any, reply: dict[str, Any]) -> None:
    """Add what the engine wrote; an aborted request may bring nothing."""
    written = reply["meta_info"].get("output_token_logprobs") or []
    sample.tokens = sample.tokens + [entry[1] for entry in written]
    sample.rollout_log_probs = [*(sample.rollout_log_probs or []), *(entry[0] for entry in written)]
    sample.response_length += len(written)
    sample.response += reply["text"]
    if sample.loss_mask is not None:  # set by --mask-offpolicy-in-partial-rollout
        sample.loss_mask = [*sample.loss_mask, *[1] * len(written)]


async def reward(args: Any, sample: Any, **_: Any) -> dict[str, Any]:
    """Return the reward of an answer: a table whose key `score` is what `--reward-key` names."""
    return judge(sample.response, sample.label)


def log_rollout(
    rollout_id: int, args: Any, samples: list[Any], rollout_extra_metrics: dict[str, Any] | None, rollout_time: float
) -> bool:
    """Log one line `[holdem][rollout N] …` and append a row to the file that HOLDEM_METRICS names.

    Returns
    -------
    bool
        False: slime logs its own metrics, too.
    """
    flat = [one for item in samples for one in (item if isinstance(item, list) else [item])]
    judged = [sample.reward for sample in flat if isinstance(sample.reward, dict) and "score" in sample.reward]
    facts = _facts(judged, flat)
    facts["seconds"] = round(rollout_time, 2)
    _LOG.info("[holdem][rollout %d] %s", rollout_id, " ".join(f"{key}={value}" for key, value in facts.items()))
    if path := os.environ.get("HOLDEM_METRICS"):
        row = {"stage": os.environ.get("HOLDEM_STAGE", ""), "rollout": rollout_id, **facts}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return False


def _facts(judged: list[dict[str, Any]], samples: list[Any]) -> dict[str, Any]:
    scores = [float(table["score"]) for table in judged]
    return {
        "mean_reward": round(fmean(scores), 4) if scores else None,
        "reward_std": round(pstdev(scores), 4) if scores else None,
        "well_formed": round(fmean(bool(table.get("well_formed")) for table in judged), 4) if judged else None,
        "exact": round(fmean(bool(table.get("exact")) for table in judged), 4) if judged else None,
        "truncated": sum(sample.status == sample.Status.TRUNCATED for sample in samples),
        "tokens": sum(sample.response_length for sample in samples),
        "samples": len(samples),
    }
