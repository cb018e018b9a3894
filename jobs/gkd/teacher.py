"""The recipe's teacher, in one process: top-k log-probabilities of a vLLM model over ZeroMQ, on loopback.

The recipe's start_server.sh starts a proxy on all addresses and a worker, waits with telnet and kills by name. One
worker needs no proxy: it answers the same REQ/REP messages itself.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any


def accept_token_ids() -> None:
    """Let `LLM.generate` take `prompt_token_ids`, as the recipe calls it; vLLM takes them as prompts since 0.11."""
    from vllm import LLM

    plain = LLM.generate

    def generate(self: Any, prompts: Any = None, *words: Any, prompt_token_ids: Any = None, **named: Any) -> Any:
        if prompt_token_ids is not None:
            prompts = [{"prompt_token_ids": list(ids)} for ids in prompt_token_ids]
        return plain(self, prompts, *words, **named)

    LLM.generate = generate


def answer(engine: Any, request: Any) -> dict[str, Any]:
    """Return the answer to one request of the recipe's TeacherClient; what goes wrong is said in it."""
    if not isinstance(request, dict) or "prompt_token_ids" not in request:
        return {"status": "error", "reason": "invalid request format."}
    ids: Sequence[Any] = request["prompt_token_ids"]
    try:
        responses, logprobs, indices = engine.get_topk_logprobs(
            ids.tolist() if hasattr(ids, "tolist") else ids,
            request.get("temperature", 0.8),
            max_new_tokens=request.get("max_tokens", 1),
            only_response=request.get("only_response", False),
        )
    except Exception as error:  # the client waits for an answer, whatever happened
        return {"status": "error", "reason": f"Generate failed: {error}"}
    told = {"teacher_topk_logprobs": logprobs, "teacher_topk_indices": indices, "responses": responses}
    return {"status": "ok", **told}


def main() -> None:
    """Load the teacher, then answer."""
    parser = argparse.ArgumentParser(prog="gkd.teacher", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gpus", required=True, help="CUDA_VISIBLE_DEVICES")
    parser.add_argument("--logprobs", type=int, required=True, help="tokens of each position that are compared")
    parser.add_argument("--recipe", required=True, help="folder of the recipe")
    args = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpus
    sys.path.insert(0, os.path.join(args.recipe, "teacher"))
    accept_token_ids()
    import zmq
    from utils import deserialize, serialize
    from vllm_engine import VLLMEngine

    engine = VLLMEngine(args.model, args.logprobs, len(args.gpus.split(",")))
    channel = zmq.Context().socket(zmq.REP)
    channel.bind(f"tcp://127.0.0.1:{args.port}")
    print(f"teacher listens on 127.0.0.1:{args.port}", flush=True)
    while True:
        channel.send(serialize(answer(engine, deserialize(channel.recv()))))


if __name__ == "__main__":
    main()
