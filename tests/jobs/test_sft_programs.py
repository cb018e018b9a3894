"""The programs of `sft`, in this process: what they refuse, and each figure they reckon with."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sft import checkpoints, choose, corridor, data, eval_config, evaluate, plan, policy, results, train
from sft.judge import Sandbox, Verdict, code_of, judge
from sft.policy import Policy, PolicyError
from sft.problems import Problem, ProblemError, load_set, read_problem
from sft.server import Engine, ServerError, serve, served_model
from sft.web import AskError, Server


def test_the_parameters_of_every_evaluation() -> None:
    found = {key: value for key, value in eval_config.parameters().items() if not key.startswith("ask")}
    assert found == {
        "temperature": 0.0,
        "top_p": 1.0,
        "max_new_tokens": 2048,
        "run_timeout": 30,
        "memory_limit_mb": 1024,
        "max_tests": 20,
        "judged": "apart",
    }
    assert eval_config.SETS == {
        "codecontests_valid": ("codecontests_valid_raw.jsonl", 117),
        "mbpp_reg": ("mbpp_reg_raw.jsonl", 200),
        "codecontests_valid_big": ("codecontests_valid_big_raw.jsonl", 500),
        "codecontests_test": ("codecontests_test_raw.jsonl", 165),
        "humaneval": ("humaneval_raw.jsonl", 164),
    }
    assert {tier: len(names) for tier, names in eval_config.TIERS.items()} == {1: 2, 2: 3, 3: 5}
    assert eval_config.MINUTES == {1: 10, 2: 20, 3: 35}
    assert (plan.MODEL, plan.OPTIMIZER, plan.EXPORT) == (4, 8, 4)
    assert (policy.Answer(text="", finish="", tokens=0).tokens, evaluate.QA_LOGS) == (0, 20)


# --------------------------------------------------------------------------------------------------------- checkpoints


def export(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    weights(folder / "model.safetensors")
    return folder


def weights(path: Path, tail: bytes = b"\0\0\0\0", **more: Any) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}} | more).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + tail)


def test_what_an_export_lacks(tmp_path: Path) -> None:
    folder = export(tmp_path / "global_step_7/huggingface")
    found = checkpoints.one_checkpoint(folder.parent)
    assert (found.step, found.missing, found.export) == (7, "", folder)
    with pytest.raises(ValueError, match="is no global_step_N"):
        checkpoints.one_checkpoint(tmp_path)
    weights(folder / "model.safetensors", __metadata__={"format": "pt"})
    assert checkpoints.what_is_missing(folder) == ""
    for damage, problem in ((b"\0\0\0", "is cut"), (b"\0" * 5, "is cut")):
        weights(folder / "model.safetensors", damage)
        assert problem in checkpoints.what_is_missing(folder)
    for text in (b"\0" * 8, struct.pack("<Q", 101 << 20), b""):
        (folder / "model.safetensors").write_bytes(text)
        assert "is cut" in checkpoints.what_is_missing(folder)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{x")
    assert "is no safetensors file" in checkpoints.what_is_missing(folder)
    (folder / "model.safetensors").unlink()
    assert "is missing" in checkpoints.what_is_missing(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "one", "b": "two"}}))
    weights(folder / "one")
    assert checkpoints.what_is_missing(folder) == f"{folder / 'two'} is missing"
    weights(folder / "two")
    assert checkpoints.what_is_missing(folder) == ""
    (folder / "tokenizer.json").unlink()
    assert checkpoints.what_is_missing(folder) == f"{folder}: no tokenizer"


def test_what_is_no_checkpoint_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "global_step_5x").mkdir()
    assert checkpoints.find_checkpoints(tmp_path) == []


# ------------------------------------------------------------------------------------------------------------- results


def row(step: int, success: float | None, accepted: float = 0.0, humaneval: float | None = None) -> dict[str, Any]:
    scores: dict[str, Any] = {"codecontests_valid": {"exec_success_rate": success, "accepted_at_1": accepted}}
    if humaneval is not None:
        scores["humaneval"] = {"accepted_at_1": humaneval}
    return {"step": step, "tier": 1, "config": eval_config.digest(), "scores": scores}


@pytest.mark.parametrize(
    ("name", "before", "after", "verdict"),
    [
        ("codecontests_valid", 0.1, 0.21, "ok"),
        ("codecontests_valid", 0.1, 0.19, "below"),
        ("mbpp_reg", 0.5, 0.485, "ok"),
        ("mbpp_reg", 0.5, 0.475, "below"),
        ("humaneval", 0.5, 0.485, "ok"),
        ("humaneval", 0.5, 0.475, "below"),
    ],
)
def test_what_is_wanted_over_the_baseline(name: str, before: float, after: float, verdict: str) -> None:
    rows = [{"scores": {name: {"accepted_at_1": value}}} for value in (after, before)]
    found = choose.compare(*rows)
    assert [each for each, line in found if line.startswith(name)] == [verdict]
    assert {line.split(": ")[1] for each, line in found if each == "unknown"} == {
        "this checkpoint was not judged on it"
    }
    assert choose.compare(rows[0], {"scores": {}})[0][0] == "unknown"
    told = dict(line[::-1] for line in choose.compare(rows[0], {"scores": {}}))
    assert f"{name} accepted@1: the baseline was not judged on it" in told


def test_a_tie_goes_to_the_earlier_of_the_better() -> None:
    assert choose.best_of([row(2, 0.5, 0.1), row(1, 0.5, 0.1)], 0.0)["step"] == 1
    assert choose.best_of([row(1, None), row(2, 0.0)], 0.0)["step"] == 2


def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int | str | None:
    words = ["--out", str(tmp_path), "--checkpoints", str(tmp_path), *more]
    monkeypatch.setattr(sys, "argv", ["choose", *words])
    try:
        choose.main()
    except SystemExit as ended:
        return ended.code
    return 0


def test_the_choice_is_written_with_its_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no checkpoint was judged" in str(chosen(tmp_path, monkeypatch))
    results.append_history(tmp_path, row(5, 0.5, 0.3))
    assert chosen(tmp_path, monkeypatch) == 0
    out = capsys.readouterr().out
    assert "step 5 was not judged on humaneval: --from evaluate --set only=5 --set tier=3" in out
    assert "no baseline was given" in out
    assert json.loads((tmp_path / results.BEST).read_text())["regression"] is False
    results.append_history(tmp_path, row(5, 0.5, 0.3, 0.2))
    (tmp_path / "base").write_text(json.dumps(row(0, 0.5, 0.3, 0.9)))
    assert chosen(tmp_path, monkeypatch, "--baseline", str(tmp_path / "base")) == 0
    out = capsys.readouterr().out
    assert ("was not judged on humaneval" in out, "no baseline" in out) == (False, False)
    assert "[FAIL] humaneval" in out
    assert json.loads((tmp_path / results.BEST).read_text())["regression"] is True
    (tmp_path / "base").write_text(json.dumps(row(0, 0.5, 0.5, 0.2)))
    chosen(tmp_path, monkeypatch, "--baseline", str(tmp_path / "base"))
    assert json.loads((tmp_path / results.BEST).read_text())["regression"] is False  # codecontests alone is below
    (tmp_path / "base").write_text(json.dumps(row(0, 0.5) | {"config": "other"}))
    assert "not comparable" in str(chosen(tmp_path, monkeypatch, "--baseline", str(tmp_path / "base")))


def test_history_and_kept_problems(tmp_path: Path) -> None:
    assert results.read_history(tmp_path) == []
    for each in (row(2, 0.1), row(1, 0.2), row(1, 0.3), row(3, 0.4) | {"config": "other"}):
        results.append_history(tmp_path, each)
    found = results.read_history(tmp_path)
    assert [(each["step"], each["scores"]["codecontests_valid"]["exec_success_rate"]) for each in found] == [
        (1, 0.3),
        (2, 0.1),
    ]
    path = tmp_path / "p.json"
    assert results.read_problem(path, "k") is None
    for outcome, key, kept in (("wrong", "k", True), ("wrong", "other", False), ("sandbox", "k", False)):
        results.write_json(path, {"key": key, "outcome": outcome})
        assert bool(results.read_problem(path, "k")) == kept
    assert len(results.problem_file(tmp_path, "n", "a/b" * 99).name) == 155


def test_scores_are_shares_of_all_problems() -> None:
    one = {"outcome": "accepted", "executed": True, "passed": 2, "runs": 2, "finish": "stop", "tokens": 4}
    other = {"outcome": "no-code", "executed": False, "passed": 0, "runs": 0, "finish": "length", "tokens": 0}
    assert results.scores([one, other]) == {
        "problems": 2,
        "accepted_at_1": 0.5,
        "exec_success_rate": 0.5,
        "pass_ratio": 0.5,
        "truncated": 0.5,
        "mean_tokens": 2.0,
        "outcomes": {"accepted": 1, "no-code": 1},
    }
    assert results.scores([])["accepted_at_1"] == 0


# ------------------------------------------------------------------------------------------------------------ training


def test_the_corridor_of_the_seed(tmp_path: Path) -> None:
    for step, name, low, high in (
        (100, "train/loss", 0.8, 1.2),
        (200, "train/loss", 0.5, 0.8),
        (300, "train/loss", 0.3, 0.6),
        (378, "train/loss", 0.2, 0.5),
        (100, "val/loss", 1.0, 1.5),
        (200, "val/loss", 0.8, 1.2),
        (300, "val/loss", 0.8, 1.5),
        (378, "val/loss", 0.8, 2.0),
    ):
        for value, fits in ((low, True), (high, True), (low - 0.01, False), (high + 0.01, False)):
            series = ([(step, value)], []) if name == "train/loss" else ([], [(step, value)])
            assert (corridor.notes(*series, []) == []) == fits, (step, name, value)
    assert corridor.notes([(105, 9.0)], [], []) != []
    assert corridor.notes([(106, 9.0)], [], []) == []
    assert corridor.notes([], [], [(1, 1.0), (2, 1.0), (3, 10.0)]) == []
    assert len(corridor.notes([], [], [(1, 1.0), (2, 1.0), (3, 10.1)])) == 1
    assert corridor.notes([], [], [(1, 0.0), (2, 0.0), (3, 10.1)]) == []
    assert corridor.notes([], [(1, 1.0), (2, 1.0)], []) == []
    file = tmp_path / "m.jsonl"
    assert corridor.read_series(file, "a") == []
    file.write_text('{"step": 1, "data": {"a": 2}}\n{"step": 2, "data": {"b": 2}}\n{"step": 3, "da')
    assert corridor.read_series(file, "a") == [(1, 2.0)]


def test_a_loss_is_flat_over_its_first_twenty_steps() -> None:
    late = [(step, 2.0 if step <= 20 else 0.1) for step in range(1, 60)]
    assert corridor.flat(late)
    assert corridor.flat([(1, 2.0), (2, 2.0)]) == []
    assert corridor.flat([(1, 2.0), (2, 1.0), (3, 2.0)])


def test_steps_that_are_saved_and_room() -> None:
    assert plan.saved_steps(20, 1, 2, 1, 0, 5) == [5, 10]
    assert plan.saved_steps(20, 1, 2, 1, 0, 50) == [10]
    assert plan.saved_steps(20, 1, 2, 1, 7, 5) == [5, 7]
    assert plan.saved_steps(0, 1, 2, 1, 0, 5) == []
    assert plan.saved_steps(20, 4, 2, 1, 0, 100) == [5]
    assert plan.room_needed(1, 4, 9) == plan.room_needed(1, 4, 0)


def args(**more: Any) -> Any:
    known = {"batch": 4, "gpus": 1, "micro_batch": 2, "rows": 8, "epochs": 1, "steps": 0, "save_every": 1}
    return SimpleNamespace(**known | {"billions": 0.0, "keep_optimizer": 0, "save": "optimizer"} | more)


def test_a_plan_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan.problem(args(), tmp_path) == ""
    assert "is no multiple" in plan.problem(args(batch=3), tmp_path)
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda folder: SimpleNamespace(free=32))
    assert plan.problem(args(billions=1e-9), tmp_path) == ""  # two checkpoints of 16 bytes
    assert "2 checkpoints need" in plan.problem(args(billions=2e-9), tmp_path)
    (tmp_path / "old").write_bytes(bytes(32))
    assert plan.problem(args(billions=2e-9), tmp_path) == ""


def test_shards_go_only_where_an_export_stays(tmp_path: Path) -> None:
    assert train.prune(tmp_path, 1) == []  # no tracker yet
    (tmp_path / train.TRACKER).write_text("x")
    assert train.prune(tmp_path, 1) == []
    assert train.check_exports(tmp_path, [1]) == [f"no checkpoint in {tmp_path}"]
    export(tmp_path / "global_step_1/huggingface")
    assert train.check_exports(tmp_path, [1]) == []
    assert train.check_exports(tmp_path, [1, 2]) == [f"global_step_2 was not saved in {tmp_path}"]


# ---------------------------------------------------------------------------------------------------------------- data


def turns(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


def test_conversations_that_are_none() -> None:
    assert data.problem_of(None) == "is empty"
    assert data.problem_of(turns(("system", "s"), ("assistant", "a"))).startswith("has the roles")
    for row in ({"prompt": "q"}, {"response": "a"}, {"prompt": "", "response": "a"}):
        with pytest.raises(data.DataError, match="has no question and answer"):
            data.conversation(row)


def test_data_are_split_once_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, list[Any]] = {}
    monkeypatch.setattr(data, "write_parquet", lambda path, rows: files.__setitem__(path.name, rows))
    monkeypatch.setattr(data, "read_parquet", lambda path: files[path.name])
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps({"prompt": str(n), "response": "a"}) + "\n\n" for n in range(10)))
    data.prepare(raw, tmp_path, 3, 0)
    assert (len(files[data.TRAIN]), len(files[data.VAL])) == (7, 3)
    told = json.loads((tmp_path / data.MAPPING).read_text())
    assert sorted(told["train"] + told["val"]) == list(range(10))
    facts = data.check(tmp_path, {data.TRAIN: 7, data.VAL: 3}, "", 10)
    assert facts == ["sft_train.parquet: 7 conversations, 0 twice", "sft_val.parquet: 3 conversations, 0 twice",
                     "split_mapping.json: fits"]  # fmt: skip
    files[data.TRAIN].append(files[data.TRAIN][0])
    (tmp_path / data.MAPPING).write_text('{"train": 3}')
    assert "8 conversations, 1 twice" in data.check(tmp_path, {data.TRAIN: 0, data.VAL: 0}, "", 10)[0]
    (tmp_path / data.MAPPING).unlink()
    assert "not there" in data.check(tmp_path, {data.TRAIN: 0, data.VAL: 0}, "", 10)[-1]
    files[data.VAL][1] = turns(("user", "q"))
    with pytest.raises(data.DataError, match=r"row 1 has the roles user.*\(1 such rows\)"):
        data.check(tmp_path, {data.TRAIN: 0, data.VAL: 0}, "", 10)


# ------------------------------------------------------------------------------------------------------------ problems


def test_rows_of_the_three_kinds() -> None:
    human = {"task_id": "H/0", "prompt": "def f(x):\n", "entry_point": "f", "test": "def check(c): pass"}
    found = read_problem(human)
    assert (found.id, found.check.splitlines()[-1], found.before, found.runs) == ("H/0", "check(f)", "def f(x):\n", ())
    mbpp = {"task_id": 3, "text": "add", "test_list": ["assert a", "assert b"], "test_setup_code": "import x"}
    found = read_problem(mbpp)
    assert (found.id, found.check, found.before) == ("3", "assert a\nassert b\n", "import x")
    assert read_problem({"task_id": 3, "prompt": "mul", "test_list": [], "test_imports": ["import y"]}).before == (
        "import y\n"
    )
    assert "mul" in read_problem({"task_id": 3, "prompt": "mul", "test_list": []}).ask
    tests = {"input": [str(n) for n in range(30)], "output": [str(n) for n in range(30)]}
    contest = {"name": "c", "problem_id": "id", "description": "d", "public_tests": tests, "private_tests": tests}
    found = read_problem(contest)
    assert (found.id, len(found.runs), found.runs[0]) == ("id", 20, ("0", "0"))
    assert read_problem(contest | {"problem_id": ""}).id == "c"
    for row in ({"name": "c", "description": "d"}, {"entry_point": "f"}, {"test_list": None, "task_id": 1}):
        with pytest.raises(ProblemError, match="is no problem"):
            read_problem(row)


def test_sets_follow_their_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(eval_config.SETS, "s", ("s.jsonl", 2))
    with pytest.raises(ProblemError, match="is missing"):
        load_set("s", tmp_path, tmp_path)
    rows = [{"task_id": n, "prompt": "p", "test_list": []} for n in range(2)]
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [found.id for found in load_set("s", tmp_path, tmp_path)] == ["0", "1"]
    (tmp_path / "s_manifest.jsonl").write_text('{"task_id": 1}\n{"problem_id": 0, "task_id": 9}\n')
    with pytest.raises(ProblemError, match="no row '9' of the manifest"):
        load_set("s", tmp_path, tmp_path)
    (tmp_path / "s_manifest.jsonl").write_text('{"task_id": 1}\n{"problem_id": "0", "task_id": 9}\n')
    assert [found.id for found in load_set("s", tmp_path, tmp_path)] == ["1", "0"]
    (tmp_path / "s.json").write_text("[1]")
    with pytest.raises(ProblemError, match="1 problems, s has 2"):
        load_set("s", tmp_path, tmp_path)
    assert len(load_set("s", tmp_path, tmp_path, any_size=True)) == 1
    (tmp_path / "s.json").write_text("[5]")
    with pytest.raises(ProblemError, match=r"has no row '5' of the manifest \(1 are missing\)"):
        load_set("s", tmp_path, tmp_path)
    (tmp_path / "s.jsonl").write_text("{\n")
    with pytest.raises(ProblemError, match=r"s\.jsonl:1: no JSON"):
        load_set("s", tmp_path, tmp_path)


# ------------------------------------------------------------------------------------------------------------- judging


class Box(Sandbox):
    """A sandbox that answers as told."""

    def __init__(self, *replies: dict[str, Any]) -> None:
        super().__init__("http://127.0.0.1:9/")
        self.replies, self.asked = list(replies), []

    def _ask(self, path: str, what: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((path, what))
        return self.replies.pop(0)


def ran(stdout: str = "", code: int | None = 0, status: str = "Finished", stderr: str = "") -> dict[str, Any]:
    result = {"status": status, "return_code": code, "stdout": stdout, "stderr": stderr}
    return {"status": "Success", "run_result": result}


TWO = Problem(id="p", ask="", runs=(("1", "a"), ("2", "b")))


@pytest.mark.parametrize(
    ("replies", "verdict"),
    [
        ([ran("a"), ran("b")], Verdict(outcome="accepted", runs=2, passed=2, clean=2)),
        ([ran("a"), ran("x")], Verdict(outcome="wrong", runs=2, passed=1, clean=2, detail="printed 'x', not 'b'")),
        ([ran("a"), ran("b", 1, stderr=" no ")], Verdict(outcome="failed", runs=2, passed=1, clean=1, detail="no")),
        ([ran(status="TimeLimitExceeded")],
         Verdict(outcome="timeout", runs=1, passed=0, clean=0, detail="more than 30 s of processor time, or asleep")),
        ([{"status": "SandboxError", "message": "m", "run_result": {"a": 1}}],
         Verdict(outcome="sandbox", runs=1, passed=0, clean=0, detail="m")),
        ([{"status": "Success"}], Verdict(outcome="sandbox", runs=1, passed=0, clean=0)),
    ],
)  # fmt: skip
def test_how_an_answer_did(replies: list[dict[str, Any]], verdict: Verdict) -> None:
    found = judge(TWO, "```python\nx\n```", Box(*replies))
    assert found == verdict
    assert found.executed == (verdict.clean == verdict.runs)
    assert found.accepted == (verdict.outcome == "accepted")


def test_an_answer_without_code_was_not_run() -> None:
    found = judge(TWO, "no idea", Box())
    assert (found.outcome, found.runs, found.executed) == ("no-code", 2, False)
    assert not Verdict(outcome="x", runs=0, passed=0, clean=0).executed
    assert code_of("```py\nx\n```") == code_of("```\nx\n```") == code_of("```python3\nx\n```") == "x"


def word(verdict: str, detail: str = "") -> dict[str, Any]:
    return {"status": "Success" if verdict == "accepted" else "Failed", "verdict": verdict, "detail": detail}


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (word("accepted"), Verdict(outcome="accepted", runs=1, passed=1, clean=1)),
        (word("wrong", "no"), Verdict(outcome="wrong", runs=1, passed=0, clean=1, detail="no")),
        (word("failed", "KeyError"), Verdict(outcome="failed", runs=1, passed=0, clean=0, detail="KeyError")),
        (word("timeout", "t"), Verdict(outcome="timeout", runs=1, passed=0, clean=0, detail="t")),
        (ran() | {"message": "?"}, Verdict(outcome="sandbox", runs=1, passed=0, clean=0, detail="?")),
        ({"status": "SandboxError", "message": "m", "verdict": "accepted"},
         Verdict(outcome="sandbox", runs=1, passed=0, clean=0, detail="m")),
    ],
)  # fmt: skip
def test_functions_are_judged_by_the_checkers_word(reply: dict[str, Any], verdict: Verdict) -> None:
    problem = Problem(id="h", ask="", check="check(f)", before="import math\ndef f(x):\n", names=("f",))
    box = Box(reply)
    assert judge(problem, "```\ndef f(x):\n    return 1\n```", box) == verdict
    assert box.asked == [
        ("/check", {"code": "import math\ndef f(x):\n    return 1", "tests": "check(f)", "before": problem.before,
                    "names": ("f",)}),
    ]  # fmt: skip


def test_a_head_stands_before_the_answer_unless_it_has_its_own() -> None:
    human = Problem(id="h", ask="", check="check(f)", before="import math\ndef g(x):\n    pass\ndef f(x):\n")
    for answer, head in (
        ("```\n    return 1\n```", human.before),
        ("```\ndef f(x):\n    return 1\n```", "import math"),
    ):
        box = Box(word("accepted"))
        assert judge(human, answer, box).accepted
        _, asked = box.asked[0]
        assert (asked["code"].startswith(head), "check" in asked["code"]) == (True, False)
        assert ("def g" in asked["code"]) == (head == human.before)
    plain = Problem(id="m", ask="", check="assert x", before="import y")
    box = Box(word("accepted"))
    judge(plain, "```\nx = 1\n```", box)
    assert box.asked[0][1]["code"] == "import y\nx = 1"


def test_a_sandbox_must_run_a_program() -> None:
    assert Box(ran("2\n")).check() == ""
    assert Box(ran("3\n", stderr=" late ")).check() == "the code sandbox at http://127.0.0.1:9 runs nothing: late"
    assert "runs nothing: m" in Box({"status": "Failed", "message": "m", "run_result": {"stdout": "2\n"}}).check()
    assert "Success" in Box({"status": "Success"}).check()
    assert Sandbox("http://127.0.0.1:9").run("x")["status"] == "SandboxError"


# ------------------------------------------------------------------------------------------------------------- servers


class Answers(Server):
    """A server that answers with one status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__("http://h:1/", wait_s=1)
        self.answer = (status, text)

    def ask(self, path: str, content: Any = None) -> tuple[int, str]:
        self.asked = content
        return self.answer


def replied(status: int, content: Any) -> Policy:
    found = Policy("http://h:1", "m")
    found.server = Answers(status, content if isinstance(content, str) else json.dumps(content))
    return found


def test_what_a_model_answers() -> None:
    choice = {"message": {"content": "hi"}, "finish_reason": "length"}
    found = replied(200, {"choices": [choice], "usage": {"completion_tokens": 3}}).answer("q")
    assert found == policy.Answer(text="hi", finish="length", tokens=3)
    empty = replied(200, {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}).answer("q")
    assert empty == policy.Answer(text="", finish="stop", tokens=0)
    long = "This model's maximum context length is 6144"
    assert replied(400, long).answer("q") == policy.Answer(text="", finish="too-long", tokens=0)
    for status, text in ((500, long), (400, "bad"), (200, "{}"), (200, "{")):
        with pytest.raises(PolicyError, match="http://h:1/v1/chat/completions"):
            replied(status, text).answer("q")


def test_only_answers_that_hold_are_read() -> None:
    for status, fits in ((199, False), (200, True), (299, True), (300, False)):
        server = Answers(status, '{"a": 1}')
        if fits:
            assert server.read("/", server.ask("/")) == {"a": 1}
        else:
            with pytest.raises(AskError, match=f"http://h:1/: status {status}: "):
                server.read("/", server.ask("/"))
    with pytest.raises(AskError, match="no JSON"):
        server.read("/", (200, "x"))
    with pytest.raises(AskError, match="NewConnectionError"):
        Server("http://127.0.0.1:9", wait_s=1).ask("/")


def test_the_command_of_the_inference_server() -> None:
    known = {"port": 1, "tensor_parallel": 2, "gpu_memory": 0.5, "max_model_len": 6144, "start_s": 1.0}
    argv = Engine(kind="vllm", **known).argv(Path("/e"))
    assert " ".join(argv[1:]) == (
        "-m vllm.entrypoints.openai.api_server --model /e --host 127.0.0.1 --port 1 --tensor-parallel-size 2 "
        "--gpu-memory-utilization 0.5 --max-model-len 6144 --dtype bfloat16 --trust-remote-code"
    )
    assert Engine(kind="hf", **known).argv(Path("/e"))[1:3] == ("-m", "sft.hf_server")
    small = Engine(kind="hf", **known | {"max_model_len": 2047})
    with pytest.raises(ServerError, match="has no room for 2048 new tokens"), serve(small, Path("/e"), Path("/log")):
        pass


def test_a_server_that_ends_or_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"kind": "hf", "port": 9, "tensor_parallel": 1, "gpu_memory": 0.5, "max_model_len": 2048}
    for code, start_s, problem in (
        ("raise SystemExit(3)", 9.0, "ended with status 3"),
        ("import time; time.sleep(9)", 0.1, "not ready after 0 s"),
    ):
        monkeypatch.setattr(Engine, "argv", lambda self, export, code=code: (sys.executable, "-c", code))
        engine = Engine(**known, start_s=start_s)  # type: ignore[arg-type]
        with pytest.raises(ServerError, match=problem), serve(engine, tmp_path, tmp_path / "log"):
            pass
    with pytest.raises(ServerError, match="/v1/models"):
        served_model("http://127.0.0.1:9")
