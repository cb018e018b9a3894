"""OpenAI's chat API over transformers, for stacks without vLLM and models that are small: one request at a time."""

from __future__ import annotations

import argparse
import json
import threading
from http.server import ThreadingHTTPServer
from typing import Any

from sft.json_handler import JsonHandler


class Model:
    """The model of a folder, on the first GPU where there is one."""

    def __init__(self, path: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch, self.path, self.lock = torch, path, threading.Lock()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModelForCausalLM.from_pretrained(path).to(self.device).eval()

    def chat(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the greedy answer to a chat request."""
        text = self.tokenizer.apply_chat_template(asked["messages"], tokenize=False, add_generation_prompt=True)
        given = self.tokenizer(text, return_tensors="pt", add_special_tokens=False).to(self.device)
        prompt = int(given["input_ids"].shape[1])
        room = int(getattr(self.model.config, "max_position_embeddings", 1 << 20)) - prompt
        longest = max(1, min(int(asked.get("max_tokens", 256)), room))
        with self.lock, self.torch.inference_mode():
            made = self.model.generate(**given, max_new_tokens=longest, do_sample=False)[0][prompt:]
        count = int(made.shape[0])
        choice = {"index": 0, "finish_reason": "length" if count >= longest else "stop"}
        choice["message"] = {"role": "assistant", "content": self.tokenizer.decode(made, skip_special_tokens=True)}
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        return {"object": "chat.completion", "model": self.path, "choices": [choice], "usage": usage}


def handler(model: Model) -> type[JsonHandler]:
    """Return the request handler of `model`."""

    class Handler(JsonHandler):
        def do_GET(self) -> None:  # noqa: N802 - the name http.server calls
            self.send(200, {"object": "list", "data": [{"id": model.path, "object": "model"}]})

        def do_POST(self) -> None:  # noqa: N802 - the name http.server calls
            asked = json.loads(self.body())
            self.send(200, model.chat(asked))

    return Handler


def main() -> None:
    """Load the model, then listen: a server that answers is ready."""
    parser = argparse.ArgumentParser(prog="sft.hf_server", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", args.port), handler(Model(args.model)))
    print("Application startup complete", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
