"""Exchange the weights of a vLLM that is up, and probe what it computes; proofs that were kept."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlbox.evaluation.lock import content_digest
from rlbox.evaluation.policy import Policy, PolicyError
from rlbox.evaluation.serving.proof import PROBES, Probed, probe_request, probed_of
from rlbox.evaluation.weights import TEMPLATES, TOKENIZER
from rlbox.foreign import parse_json
from rlbox.system.files import cache_path, sha256_file, write_atomic
from rlbox.system.gpu import probe_gpus

DEVELOPER = {"VLLM_SERVER_DEV_MODE": "1"}
"""What vLLM's environment needs so that its weights can be exchanged; it listens on loopback alone."""
_BESIDE = ("preprocessor_config.json", "processor_config.json", "quantize_config.json", "hf_quant_config.json")
_NAMES = ("_name_or_path",)


def form_of(export: Path) -> dict[str, str]:
    """Return what two exports must share so that one engine can serve both: all but the weights; by content."""
    try:
        config = parse_json((export / "config.json").read_bytes())
    except ValueError:  # the engine says what is wrong with it
        config = sha256_file(export / "config.json")
    if isinstance(config, dict):
        config = {name: value for name, value in config.items() if name not in _NAMES}
    beside = {
        name: sha256_file(export / name) for name in (*TOKENIZER, *TEMPLATES, *_BESIDE) if (export / name).is_file()
    }
    return {"config": content_digest(config), "beside": content_digest(beside)}


def exchange_weights(policy: Policy, export: Path) -> None:
    """Put the weights of `export` into the engine and make it forget the prefixes that it knows.

    Source: `reload_weights` of vLLM 0.22, 0.24 and 0.32 restores layers to a checkpoint's form, loads and repacks them.

    Raises
    ------
    PolicyError
        It cannot, or did not; nobody knows which weights it has.
    """
    asked = {"method": "reload_weights", "kwargs": {"weights_path": os.path.abspath(export)}}
    policy.control("/collective_rpc", asked)
    said = policy.control("/reset_prefix_cache", {})
    if isinstance(said, dict) and said.get("success") is False:
        raise PolicyError(f"{policy.url} kept its cache of prefixes")


def probe(policy: Policy) -> Probed:
    """Return what the engine says of all probes; `PolicyError` where it tells no log-probabilities."""
    try:
        return [
            probed_of(policy.control("/v1/completions", probe_request(policy.name, text, whole=whole)))
            for text in PROBES
            for whole in (False, True)
        ]
    except ValueError as error:
        raise PolicyError(f"{policy.url}: {error}") from error


def machine_facts() -> dict[str, Any]:
    """Return what of this machine decides how an engine computes: its processor's kind, its GPUs."""
    return {"processor": platform.machine(), "cores": os.cpu_count(), "gpus": [gpu.name for gpu in probe_gpus()]}


def is_proven(key: str) -> bool:
    """Return whether a proof of this key is kept."""
    return _path(key).is_file()


def keep_proof(key: str, facts: Mapping[str, Any]) -> None:
    """Keep a proof; where no file can be written, the next evaluation makes it again."""
    with contextlib.suppress(OSError):
        write_atomic(_path(key), json.dumps(dict(facts), indent=1) + "\n")


def _path(key: str) -> Path:
    return cache_path("engines", f"{key}.json")
