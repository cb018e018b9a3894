"""Stands for the interpreter that has vLLM: serves the export of `--model`, and writes down what it was asked.

Answers follow from the weights: of an export whose first shard ends with N, every problem from N on is solved wrongly.
PLAYED_ENGINE_STARTS is a file that gets a line for each start.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from playbox import Player, playing


def main() -> None:
    """Serve until the end."""
    words = dict(zip(sys.argv, sys.argv[1:], strict=False))
    weights, log = Path(words["--model"]), Path(os.environ["PLAYED_ENGINE_LOG"])
    if starts := os.environ.get("PLAYED_ENGINE_STARTS"):
        with Path(starts).open("a") as file:
            file.write(f"{weights.parent.name}\n")

    def solved() -> int:
        return (weights / "model.safetensors").read_bytes()[-1]

    def answer(ask: str, number: int) -> str:
        with log.open("a") as file:
            file.write(f"{weights.parent.name} {re.search(r'plus ([0-9]+)', ask)[1]}\n")  # type: ignore[index]
        time.sleep(float(os.environ.get("PLAYED_ENGINE_SLOW_S", "0")))
        wanted = int(re.search(r"plus (\d+)\.", ask)[1])  # type: ignore[index]
        return f"```python\ndef add(x):\n    return plus(x, {wanted if wanted < solved() else -1})\n```"

    player = Player(answer, root=str(weights))
    with playing(player, int(words["--port"])):
        time.sleep(3600)


if __name__ == "__main__":
    main()
