"""Read results of lm-eval and inspect-ai as results of an evaluation: each metric of a task is a suite of its own."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.evaluation.lock import EvaluationLock, digest_json
from rlbox.evaluation.result import ACCEPTED, EvaluationResult
from rlbox.evaluation.scores import ValuesByProblem, compute_score_with_interval
from rlbox.foreign import parse_untrusted_json
from rlbox.i18n import _
from rlbox.system.compression import read_zip_members, zstd

_LOG_NAMES = ("results_*.json", "*.eval", "[0-9]*_*_*.json")
"""lm-eval's results; inspect-ai's logs in its two formats."""
_STEP = re.compile(r"(?:steps?|iter|checkpoint)[_-]?(\d+)")
_TASK_FIELDS = (
    "dataset_path", "dataset_name", "test_split", "validation_split", "fewshot_split", "output_type", "num_fewshot",
    "metric_list", "filter_list", "repeats", "description", "doc_to_text", "doc_to_target", "doc_to_choice",
    "target_delimiter", "fewshot_delimiter",
)  # fmt: skip
"""Of an lm-eval task's configuration; the rest has paths of files and the model's own arguments."""
_INSPECT_VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


@dataclass(frozen=True, kw_only=True)
class _HarnessSuite:
    """One metric of a task: its values by problem, where the harness logged them, and its own mean and error."""

    version: Any
    problems: int
    task: Any
    prompts: Any
    decoding: Mapping[str, Any]
    values: ValuesByProblem
    mean: Any
    standard_error: Any


def find_harness_logs(path: Path) -> list[Path]:
    """Return the results of other harnesses at or below a path; an lm-eval run or an inspect-ai log is one."""
    files = [path] if path.is_file() else path.rglob("*")
    return sorted(file for file in files if any(file.match(pattern) for pattern in _LOG_NAMES))


def read_harness_result(log: Path, name: str) -> EvaluationResult:
    """Return the result that a log holds; `ValueError` names the file where it is none, or its run did not succeed."""
    try:
        document, samples = _read_log(log)
        read = _build_inspect_result if "eval" in document else _build_lm_eval_result
        return read(document, samples, name)
    except (OSError, ValueError, zipfile.BadZipFile, zstd.ZstdError, KeyError, TypeError, AttributeError) as error:
        text = _("{path} is not a complete result of lm-eval or inspect-ai: {error}")
        raise ValueError(text.format(path=log, error=error)) from error


def read_harness_results(folder: Path) -> list[EvaluationResult]:
    """Return a result for each log below a folder by step, named after the file or folder in it."""
    entries = folder.iterdir() if folder.is_dir() else ()
    logs = [(log, entry) for entry in entries for log in find_harness_logs(entry)]
    results = [read_harness_result(log, entry.stem if entry.is_file() else entry.name) for log, entry in logs]
    return sorted(results, key=lambda result: (result.step, result.name))


def _read_log(log: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the document of a log, and its samples; lm-eval's are in files of their own."""
    if log.suffix == ".eval":
        texts = dict(read_zip_members(log, ("header.json", "samples/")))
        if "header.json" not in texts:
            raise ValueError(_("the evaluation did not end"))
        document = parse_untrusted_json(texts.pop("header.json"), allow_surrogates=True)
        return document, [parse_untrusted_json(text, allow_surrogates=True) for text in texts.values()]
    document = parse_untrusted_json(log.read_bytes(), allow_surrogates=True)
    samples = list(document.get("samples") or [])
    for task in document.get("configs", ()):
        path = log.with_name(f"samples_{task}_{log.stem.removeprefix('results_')}.jsonl")
        lines = path.read_bytes().splitlines() if path.is_file() else []
        samples += [parse_untrusted_json(line, allow_surrogates=True) | {"task": task} for line in lines]
    return document, samples


def _build_lm_eval_result(document: Mapping[str, Any], samples: Sequence[Any], name: str) -> EvaluationResult:
    suites: dict[str, _HarnessSuite] = {}
    for task, config in document["configs"].items():
        results = document["results"].get(task, {})
        for key, mean in results.items():
            metric, comma, filter_name = key.partition(",")
            is_score = comma and not metric.endswith("_stderr")
            if not is_score or document["higher_is_better"].get(task, {}).get(metric) is False:
                continue
            rows = [row for row in samples if (row["task"], row["filter"]) == (task, filter_name)]
            suites[f"{task}/{key}"] = _HarnessSuite(
                version=document["versions"].get(task),
                problems=document["n-samples"][task]["effective"],
                task=[{field: config.get(field) for field in _TASK_FIELDS}, _list_hashes(rows, "doc_hash")],
                prompts=_list_hashes(rows, "prompt_hash"),
                decoding={**(config.get("generation_kwargs") or {}), "shots": document["n-shot"].get(task)},
                values={str(row["doc_id"]): [row.get(metric)] for row in rows},
                mean=mean,
                standard_error=results.get(f"{metric}_stderr,{filter_name}"),
            )
    engine = {"harness": "lm-eval", "version": document["lm_eval_version"]}
    chat = {field: document.get(field) for field in ("chat_template_sha", "system_instruction_sha")}
    return _build_result(name, document["model_name"], {"engine": engine, "tokenizer": chat}, suites)


def _list_hashes(rows: Sequence[Mapping[str, Any]], field: str) -> list[list[str]]:
    return sorted([str(row["doc_id"]), row[field], row["target_hash"]] for row in rows)


def _build_inspect_result(document: Mapping[str, Any], samples: Sequence[Any], name: str) -> EvaluationResult:
    if document["status"] != "success":
        raise ValueError(_("the evaluation did not succeed: {status}").format(status=document["status"]))
    facts, plan = document["eval"], document["plan"]
    samples = sorted(samples, key=lambda sample: (str(sample["id"]), sample["epoch"]))
    inputs = (sample["input"] for sample in samples)
    asked = [  # without the ids of messages, which each run draws anew
        text if isinstance(text, str) else [[part["role"], part["content"]] for part in text] for text in inputs
    ]
    suites: dict[str, _HarnessSuite] = {}
    for score in document["results"]["scores"]:
        values: dict[str, list[Any]] = {}
        for sample in samples:
            if entry := (sample["scores"] or {}).get(score["name"]):
                value = _INSPECT_VALUES.get(str(entry["value"]), entry["value"])
                values.setdefault(str(sample["id"]), []).append(value)
        means = {metric: entry["value"] for metric, entry in score["metrics"].items()}
        scorers = [[scorer["name"], scorer["options"]] for scorer in facts["scorers"] or []]
        suites[f"{facts['task']}/{score['name']}"] = _HarnessSuite(
            version=facts["task_version"],
            problems=len(values) or facts["dataset"]["samples"],
            task=[facts["task_args"], scorers, [[sample["id"], sample["target"]] for sample in samples]],
            prompts=[plan["steps"], asked],
            decoding={**plan["config"], **facts["model_generate_config"], "epochs": facts["config"].get("epochs")},
            values=values,
            mean=means.get("accuracy", means.get("mean")),
            standard_error=means.get("stderr"),
        )
    engine = {"harness": "inspect-ai", "version": facts["packages"].get("inspect_ai")}
    return _build_result(name, facts["model"], {"engine": engine, "tokenizer": {}}, suites)


def _build_result(
    name: str, model: str, parts: Mapping[str, Any], suites: Mapping[str, _HarnessSuite]
) -> EvaluationResult:
    by_suite: dict[str, dict[str, Any]] = {"suites": {}, "prompts": {}, "decoding": {}, "sandbox": {}}
    values: dict[str, dict[str, ValuesByProblem]] = {}
    scores: dict[str, dict[str, Any]] = {}
    for suite, facts in suites.items():
        if not _is_share(facts.mean):
            continue
        task = {"version": facts.version, "problems": facts.problems, "task": digest_json(facts.task)}
        by_suite["suites"][suite], by_suite["prompts"][suite] = task, digest_json(facts.prompts)
        by_suite["decoding"][suite] = dict(facts.decoding)
        values[suite], scores[suite] = {}, {"problems": facts.problems, ACCEPTED: facts.mean}
        if facts.values and all(_is_share(value) for row in facts.values.values() for value in row):
            values[suite][ACCEPTED] = facts.values
            score = compute_score_with_interval(facts.values)
            scores[suite] |= {ACCEPTED: score.value, f"{ACCEPTED}_interval": [score.low, score.high]}
        elif isinstance(facts.standard_error, (int, float)):  # a metric of the whole corpus, or no samples were logged
            margin = 1.96 * facts.standard_error
            scores[suite][f"{ACCEPTED}_interval"] = [max(0.0, facts.mean - margin), min(1.0, facts.mean + margin)]
    if not values:
        raise ValueError(_("no metric between 0 and 1 in which higher is better"))
    step = _STEP.search(name) or _STEP.search(model)
    lock = EvaluationLock(parts={**parts, **by_suite}, subject={"weights": model})
    return EvaluationResult(name=name, step=int(step[1]) if step else -1, lock=lock, scores=scores, values=values)


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= 1
