"""A few logits: the export as transformers loads it, and the trainer's tensors in a model of the due configuration."""

from __future__ import annotations

import importlib
from typing import Any

from sources import NotRead, torch  # type: ignore[import-not-found]  # beside it, where it runs

_TOKENS = 24


def compare_logits(asked: dict[str, Any], gets: dict[str, Any], export: dict[str, Any]) -> dict[str, Any]:
    """Return whether the logits of a fixed row of tokens are the same in float32; `NotRead` without any."""
    try:
        made = importlib.import_module("transformers")
        made.logging.set_verbosity_error()
        config = made.AutoConfig.from_pretrained(asked["model"])
        one = made.AutoModelForCausalLM.from_pretrained(asked["export"], dtype=torch.float32)
        other = made.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        state = {name: gets[name](export[name].shape).to(export[name].dtype) for name in export if name in gets}
        told = other.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=False)
        tied = bool(getattr(config, "tie_word_embeddings", False))
        if lacking := [name for name in told.missing_keys if not (tied and name.endswith("lm_head.weight"))]:
            raise NotRead(f"transformers' model wants {lacking[0]}, which the trainer's checkpoint has not")
        other.tie_weights()
        words = torch.arange(_TOKENS).mul(7919).remainder(int(config.vocab_size))[None]
        with torch.no_grad():
            rows = [model.eval()(words).logits[0] for model in (one, other)]
    except (ImportError, OSError, ValueError, KeyError, AttributeError, RuntimeError, NotImplementedError) as error:
        raise NotRead(f"no logits can be had of transformers: {str(error).splitlines()[0]}") from error
    same = bool(rows[0].shape == rows[1].shape and torch.equal(rows[0], rows[1]))
    largest = float((rows[0] - rows[1]).abs().max()) if rows[0].shape == rows[1].shape else -1.0
    return {"same": same, "largest": largest, "tokens": _TOKENS, "transformers": made.__version__}
