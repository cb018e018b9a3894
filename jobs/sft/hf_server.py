"""OpenAI's chat API over transformers, for stacks without vLLM and models that are small: one request at a time."""

from __future__ import annotations

import argparse
import json
import threading
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool

from sft import web


class Model:
    """The model of a folder, on the first GPU where there is one."""

    def __init__(self, path: str) -> None:
        import torch
        import transformers
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch, self.path, self.lock = torch, path, threading.Lock()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path).to(self.device).eval()
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"

    def chat(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the greedy answer to a chat request."""
        text = self.tokenizer.apply_chat_template(asked["messages"], tokenize=False, add_generation_prompt=True)
        given = self.tokenizer(text, return_tensors="pt", add_special_tokens=False, return_token_type_ids=False)
        prompt = int(given["input_ids"].shape[1])
        room = int(getattr(self.model.config, "max_position_embeddings", 1 << 20)) - prompt
        longest = max(1, min(int(asked.get("max_tokens", 256)), room))
        with self.lock, self.torch.inference_mode():
            made = self.model.generate(**given.to(self.device), max_new_tokens=longest, do_sample=False)[0][prompt:]
        count = int(made.shape[0])
        choice = {"index": 0, "finish_reason": "length" if count >= longest else "stop"}
        choice["message"] = {"role": "assistant", "content": self.tokenizer.decode(made, skip_special_tokens=True)}
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        return {"object": "chat.completion", "model": self.path, "choices": [choice], "usage": usage}


def application(model: Model) -> FastAPI:
    """Return what answers for `model`: GET /v1/models, POST /v1/chat/completions."""
    app = web.application()

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": model.path, "object": "model", "root": model.path}]}

    @app.get("/version")
    def version() -> dict[str, str]:
        return {"version": model.version}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> dict[str, Any]:
        return await run_in_threadpool(model.chat, json.loads(await request.body()))

    return app


def main() -> None:
    """Load the model, then listen: a server that answers is ready."""
    parser = argparse.ArgumentParser(prog="sft.hf_server", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    app = application(Model(args.model))
    web.serve(app, web.listen(args.port), log_requests=True)


if __name__ == "__main__":
    main()
