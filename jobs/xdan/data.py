"""The data set of the run: read, checked, and written as the prompts that OpenRLHF takes.

OpenRLHF 0.8 hands `row[input_key]` to the model as it is (this job gives no `--apply_chat_template`). A row's message
may be a finished prompt, a list of turns, or that list as JSON text: each becomes a finished prompt with its answer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xdan.chat import TEMPLATES, Template, prompt_of
from xdan.program import JobError, run

PROMPTS = "prompts.jsonl"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A prompt and the answer it should get."""

    prompt: str
    answer: str


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON list or of a file of JSON lines. Raises JobError when it is neither."""
    try:
        with path.open(encoding="utf-8") as file:
            if path.suffix == ".jsonl":
                yield from (json.loads(line) for line in file if line.strip())
            else:
                yield from json.load(file)
    except OSError as error:
        raise JobError(f"cannot read the data set {path}: {error.strerror}; name it with --set dataset=FILE") from error
    except (ValueError, TypeError) as error:
        raise JobError(f"{path} is neither a JSON list nor JSON lines: {error}") from error


def read_problems(path: Path, *, input_key: str, answer_key: str, template: Template) -> list[Problem]:
    """Return the problems of a data set, each prompt once.

    Raises
    ------
    JobError
        A row lacks its message or answer, or there is no row; the first bad one is named by its number, from 1.
    """
    found: dict[str, Problem] = {}
    for place, row in enumerate(read_rows(path), start=1):
        try:
            answer = str(row[answer_key]).strip()
            prompt = prompt_of(row[input_key], template)
        except KeyError as error:
            keys = ", ".join(sorted(row)) or "none"
            raise JobError(f"{path}: row {place} has no key {error}; its keys: {keys}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise JobError(f"{path}: row {place}: {error}") from error
        if not answer:
            raise JobError(f"{path}: row {place} has an empty {answer_key!r}; the reward needs it")
        found.setdefault(prompt, Problem(prompt=prompt, answer=answer))
    if not found:
        raise JobError(f"{path} holds no row")
    return list(found.values())


def main() -> None:
    """Write the prompts of the data set."""
    parser = argparse.ArgumentParser(prog="xdan.data", description=__doc__)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--input_key", default="message", help="key of the message in a row")
    parser.add_argument("--answer_key", default="answer", help="key of the answer in a row")
    parser.add_argument("--prompt-template", choices=sorted(TEMPLATES), default="chatml")
    parser.add_argument("--out", type=Path, required=True, help=f"folder that gets {PROMPTS}")
    args = parser.parse_args()
    problems = read_problems(
        args.dataset, input_key=args.input_key, answer_key=args.answer_key, template=TEMPLATES[args.prompt_template]
    )
    args.out.mkdir(parents=True, exist_ok=True)
    part = args.out / f".{PROMPTS}.part"
    with part.open("w", encoding="utf-8") as file:
        for problem in problems:
            file.write(json.dumps({"message": problem.prompt, "label": problem.answer}, ensure_ascii=False) + "\n")
    part.rename(args.out / PROMPTS)
    print(f"[xdan][data] {len(problems)} prompts in {args.out / PROMPTS}", flush=True)


if __name__ == "__main__":
    run("xdan.data", main)
