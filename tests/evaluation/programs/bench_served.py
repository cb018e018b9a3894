"""vLLM's own benchmark of a server that is up, over files of prompts: `bench_served.py PORT MODEL AT_ONCE FILE…`.

Its interpreter has vLLM. Each FILE has rows with `prompt` and `output_tokens`; so many tokens are generated whatever
the model says. The cache of prefixes is emptied before each. The last line is a JSON list of the seconds of each file.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request
from pathlib import Path

from vllm.benchmarks import serve


def duration(port: str, model: str, at_once: str, file: str) -> float:
    """Return how long vLLM says that it took."""
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}/reset_prefix_cache", b"", method="POST"), timeout=60
    ):
        pass
    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    words = [
        *("--backend", "openai", "--endpoint", "/v1/completions", "--host", "127.0.0.1", "--port", port),
        *("--model", model, "--served-model-name", "judged", "--dataset-name", "custom", "--dataset-path", file),
        *("--custom-output-len", "-1", "--num-prompts", str(len(Path(file).read_text().splitlines()))),
        *("--disable-shuffle", "--ignore-eos", "--temperature", "0", "--max-concurrency", at_once, "--disable-tqdm"),
    ]
    found = serve.main(parser.parse_args(words))
    if found["failed"]:
        raise SystemExit(f"{found['failed']} requests failed")
    return float(found["duration"])


if __name__ == "__main__":
    port, model, at_once, *files = sys.argv[1:]
    print(json.dumps([duration(port, model, at_once, file) for file in files]))
