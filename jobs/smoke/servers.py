"""Clients of the two servers: the policy (vLLM's OpenAI server) and the reward server. Nothing is retried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from smoke import program
from smoke.decision import Spot


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answer of the policy. `logprobs` has one value per token of `tokens`."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_tokens: tuple[int, ...]


class Server:
    """A JSON server at `url`; every failure becomes one JobError naming the URL, the path and the cause.

    Parameters
    ----------
    name
        How messages call it, for example `vLLM server`.
    timeout_s
        Longest wait for one answer.
    """

    def __init__(self, name: str, url: str, timeout_s: float) -> None:
        self.name = name
        self.url = url.rstrip("/")
        self.pool = urllib3.PoolManager(maxsize=64, timeout=timeout_s, retries=False)  # asks no proxy

    def post(self, path: str, content: dict[str, Any]) -> Any:
        """Return the parsed answer."""
        try:
            reply = self.pool.request("POST", self.url + path, json=content)
            if 200 <= reply.status < 300:
                return reply.json()
            text = reply.data.decode("utf-8", "replace")
            cause = f"{reply.status} {text[:200]}".replace("\n", " ").strip()
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            cause = f"{type(error).__name__}: {error}"
        raise program.JobError(f"{self.name} {self.url} failed at POST {path}: {cause}; see that server's log")


class Policy:
    """The policy behind vLLM's OpenAI server, which serves it under the name `policy`."""

    def __init__(self, url: str, timeout_s: float = 60) -> None:
        self.server = Server("vLLM server", url, timeout_s)

    def sample(self, prompt: str, *, count: int, seed: int, temperature: float, longest: int = 16) -> list[Sample]:
        """Return `count` answers of at most `longest` tokens to one prompt; temperature 0 is greedy."""
        request = {
            "model": "policy", "messages": [{"role": "user", "content": prompt}], "n": count, "seed": seed,
            "temperature": temperature, "max_tokens": longest, "logprobs": True, "return_token_ids": True,
        }  # fmt: skip
        reply = self.server.post("/v1/chat/completions", request)
        return [
            Sample(
                text=choice["message"]["content"] or "",
                tokens=tuple(choice["token_ids"]),
                logprobs=tuple(token["logprob"] for token in choice["logprobs"]["content"]),
                prompt_tokens=tuple(reply["prompt_token_ids"]),
            )
            for choice in reply["choices"]
        ]

    def load_weights(self, folder: Path) -> None:
        """Replace the weights by those of a checkpoint folder the server can read, and forget cached prefixes.

        The server needs VLLM_SERVER_DEV_MODE=1. Source: `Worker.reload_weights` of vLLM 0.32.0 restores the layers to
        their checkpoint form, loads, and repacks them; a plain `load_weights` fails on the CPU's repacked layers.
        """
        self.server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        if self.server.post("/reset_prefix_cache", {}) != {"success": True}:
            raise program.JobError(f"vLLM server {self.server.url} kept its prefix cache; a request is still running")


class Rewards:
    """The reward server."""

    def __init__(self, url: str, timeout_s: float = 60) -> None:
        self.server = Server("reward server", url, timeout_s)

    def score(self, spots: Sequence[Spot], answers: Sequence[str]) -> list[dict[str, Any]]:
        """Return one score per answer: keys reward, action, legal, best, equity, values."""
        items = [{**spot.to_json(), "answer": answer} for spot, answer in zip(spots, answers, strict=True)]
        scores: list[dict[str, Any]] = self.server.post("/score", {"items": items})["scores"]
        return scores
