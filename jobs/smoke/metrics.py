"""metrics.jsonl: one JSON object per line, on disk as soon as it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from smoke import program


class Metrics:
    """Appends the records of one stage.

    Records hold `stage` and either `step` and `loss`, `rollout` and `mean_reward`, or `eval` and `mean_reward`.
    """

    def __init__(self, path: Path, stage: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.stage = stage

    def add(self, **record: Any) -> None:
        """Append {"stage": ..., **record}."""
        with self.path.open("a") as stream:
            stream.write(json.dumps({"stage": self.stage, **record}) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return all records. Raises JobError when the file is missing or a line is not an object with a stage."""
    try:
        records = [json.loads(line) for line in path.read_text().splitlines()]
    except FileNotFoundError as error:
        raise program.JobError(f"no metrics at {path}; run a stage first") from error
    except ValueError as error:
        raise program.JobError(f"{path} has a line that is not JSON ({error})") from error
    if not all(isinstance(record, dict) and "stage" in record for record in records):
        raise program.JobError(f"{path} has a line without a stage")
    return records
