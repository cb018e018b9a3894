"""`rlbox eval` on a server that plays answers and a real sandbox: judge, show, compare, choose, prove, suites."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import Folder, Rlbox, Said
from following import Follow
from playbox import Player, adding, export, judge_argv, playing, write_rows

from rlbox.cli.root import run_root
from rlbox.evaluation.sandbox_client import run_sandbox_and_yield_url

pytestmark = pytest.mark.allow("processes", "sockets")


@pytest.fixture(scope="module")
def sandbox_url() -> Iterator[str]:
    with run_sandbox_and_yield_url("", 10, 1024) as url:
        yield url


def lay(folder: Path) -> Path:
    """Lay the suite `adding` of twelve problems, and the exports of two steps."""
    write_rows(folder / "problems" / "adding.jsonl", adding(12))
    (folder / "suites").mkdir()
    (folder / "suites/adding.toml").write_text('title = "sums"\nfile = "adding.jsonl"\nrows = 12\n')
    for step in (100, 200):
        export(folder / f"global_step_{step}" / "huggingface", seed=step)
    return folder


@pytest.fixture
def site(folder: Folder) -> Path:
    """A project with a suite and exports; it is the working folder."""
    return lay(folder.path)


def right(ask: str, number: int) -> str:
    wanted = re.search(r"plus (\d+)\.", ask)
    assert wanted
    return f"```python\ndef add(x):\n    return plus(x, {wanted[1]})\n```\n"


def every_third(ask: str, number: int) -> str:
    wanted = re.search(r"plus (\d+)\.", ask)
    assert wanted
    return right(ask, number) if int(wanted[1]) % 3 == 0 else "```python\ndef add(x):\n    return 0\n```"


def judge(rlbox: Rlbox, player: Player, sandbox: str, *more: str, step: int = 100, out: str = "eval") -> Said:
    asked = ("--suite", "adding", "--problems", "problems", "--url", player.url, "--sandbox-url", sandbox)
    return rlbox("eval", "judge", f"global_step_{step}", "--out", out, *asked, *more)


@pytest.fixture(scope="module")
def results(sandbox_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of two steps, made once: step 100 solves a third, step 200 all."""
    folder = lay(tmp_path_factory.mktemp("judged"))
    for step, answers in ((100, every_third), (200, right)):
        with playing(Player(answers)) as player:
            checkpoint, out = folder / f"global_step_{step}", str(folder / "eval")
            assert run_root(judge_argv(folder, checkpoint, player.url, sandbox_url, "--out", out)) == 0
    return folder / "eval"


@pytest.fixture
def judged(site: Path, results: Path) -> Path:
    """A project with those results in `eval`."""
    shutil.copytree(results, site / "eval")
    return site


def test_a_checkpoint_is_judged_in_a_sandbox_of_its_own(site: Path, rlbox: Rlbox) -> None:
    with playing(Player(every_third)) as player:
        asked = ("--suite", "adding", "--problems", "problems", "--url", player.url)
        said = rlbox("eval", "judge", "global_step_100", *asked, "--json")
    assert said.code == 0, said.err
    (found,) = said.data["results"]
    assert (found["name"], found["step"]) == ("step_100", 100)
    assert found["scores"]["adding"]["accepted_at_1"] == pytest.approx(4 / 12)
    assert "[evaluate] step_100 adding: accepted@1 33.33%" in said.err
    assert (site / "eval/step_100/summary.json").is_file()


def test_a_dry_run_judges_nothing(site: Path, rlbox: Rlbox) -> None:
    asked = ("--suite", "adding", "--problems", "problems", "--url", "http://127.0.0.1:9", "--dry-run")
    said = rlbox("eval", "judge", "global_step_100", *asked)
    assert said.code == 0
    assert said.out.splitlines()[-1].startswith("# verdict: this would write results into eval")
    assert not (site / "eval").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("global_step_100",), "Either --url URL of a server that is up, or --engine FILE to start one."),
        (("global_step_100", "global_step_200", "--url", "http://127.0.0.1:9"), "--url is one server"),
        (("global_step_100", "--url", "http://127.0.0.1:9", "--set", "dtype=half"), "--set is for a vLLM"),
        (("problems", "--url", "http://127.0.0.1:9"), "is not a Hugging Face checkpoint"),
        (("global_step_100", "global_step_100", "--engine", "python"), "two exports have one name"),
    ],
)
def test_what_cannot_be_judged_is_refused(site: Path, rlbox: Rlbox, words: tuple[str, ...], told: str) -> None:
    said = rlbox("eval", "judge", *words, "--suite", "adding", "--problems", "problems")
    assert said.code == 2
    assert told in said.err


def test_a_server_of_other_weights_is_refused(site: Path, sandbox_url: str, rlbox: Rlbox) -> None:
    with playing(Player(right, root=str(site / "global_step_200/huggingface"))) as player:
        said = judge(rlbox, player, sandbox_url)
    assert said.code == 1
    assert "global_step_200/huggingface, not global_step_100/huggingface" in said.err


def test_a_server_that_failed_is_asked_for_the_rest(site: Path, sandbox_url: str, follow: Follow) -> None:
    with playing(Player(right)) as player:
        player.refuses = lambda: sum(player.asked.values()) > 6
        words = ("eval", "judge", "global_step_100", "--suite", "adding", "--problems", "problems")
        step = follow(*words, "--url", player.url, "--sandbox-url", sandbox_url, "--at-once", "1")
        first = sum(player.asked.values())
        player.refuses = lambda: False
        follow.again(step)
        assert sum(player.asked.values()) - first == 12 - 6
    assert (site / "eval/step_100/summary.json").is_file()


def test_two_results_are_compared(judged: Path, rlbox: Rlbox) -> None:
    said = rlbox("eval", "compare", "eval/step_200", "eval/step_100/summary.json")
    assert said.code == 0
    assert said.out.startswith("adding: +66.7 points (")
    assert "8 won, 0 lost of 12" in said.out
    assert "  won: Add/1, Add/2, Add/4" in said.out
    found = rlbox("eval", "compare", "eval/step_100", "eval/step_200", "--json").data["compare"]
    assert (found["one"]["step"], found["other"]["step"], found["across"]) == (100, 200, [])
    suite = found["suites"]["adding"]
    assert (suite["undecided"], len(suite["lost"]), suite["won"]) == (False, 8, [])
    assert suite["interval"][0] < suite["difference"] < suite["interval"][1] < 0 < suite["smallest"]


def test_two_locks_are_refused_and_compared_across_what_differs(
    judged: Path, sandbox_url: str, rlbox: Rlbox, follow: Follow
) -> None:
    suite = judged / "suites/adding.toml"
    suite.write_text(suite.read_text() + "[decoding]\nmax_tokens = 1024\n")
    with playing(Player(right)) as player:
        assert judge(rlbox, player, sandbox_url, step=200, out="other").code == 0
    step = follow("eval", "compare", "other/step_200", "eval/step_100")
    assert step.said.code == 1
    assert "decoding.adding.max_tokens: 1024 and 2048" in step.said.err
    said = follow.types(step)
    assert said.out.startswith("across decoding.adding.max_tokens: 1024 and 2048\n")
    found = rlbox("eval", "compare", "other/step_200", "eval/step_100", "--across", "decoding", "--json").data
    assert found["compare"]["across"] == [{"field": "decoding.adding.max_tokens", "one": 1024, "other": 2048}]


def test_results_of_two_locks_are_not_chosen_from(judged: Path, sandbox_url: str, rlbox: Rlbox) -> None:
    suite = judged / "suites/adding.toml"
    suite.write_text(suite.read_text() + "[limits]\nmemory_mb = 512\n")
    with playing(Player(right)) as player:
        assert judge(rlbox, player, sandbox_url, step=200).code == 0
    said = rlbox("eval", "choose", "eval", "--by", "adding")
    assert said.code == 2
    assert "sandbox.limits.adding.memory_mb: 1024 and 512" in said.err


def test_the_best_is_chosen_and_a_regression_has_an_exit_code(judged: Path, sandbox_url: str, rlbox: Rlbox) -> None:
    said = rlbox("eval", "choose", "eval", "--by", "adding")
    assert said.code == 0
    assert said.out.splitlines()[-1] == "best checkpoint: step 200, step_200"
    assert "[WARN] no baseline was given: regression was not looked for" in said.out
    held = ("--by", "adding", "--guard", "adding", "--baseline")
    assert rlbox("eval", "choose", "eval", *held, "eval/step_100").code == 0
    (judged / "eval/step_200").rename(judged / "best")
    lost = rlbox("eval", "choose", "eval", *held, "best", "--json")
    assert lost.code == 1
    best = lost.data["best"]
    assert (best["step"], best["regression"], best["comparison"]["verdict"]) == (100, True, "worse")
    assert best["model"].endswith("global_step_100/huggingface")


def test_what_decides_must_have_been_judged(judged: Path, rlbox: Rlbox) -> None:
    said = rlbox("eval", "choose", "eval")
    assert said.code == 2
    assert "no suite that decides was judged of all checkpoints: codecontests_valid" in said.err


def test_a_result_is_shown(judged: Path, rlbox: Rlbox) -> None:
    said = rlbox("eval", "show", "eval/step_100", "-v")
    assert said.code == 0
    assert said.out.startswith("step_100, step 100\n")
    assert "33.33% (" in said.out
    assert "  adding, not solved: Add/1, Add/2, Add/4, Add/5, Add/7, Add/8, Add/10, Add/11" in said.out
    found = rlbox("eval", "show", "eval/step_100/summary.json", "--json").data
    assert found["scores"]["adding"]["outcomes"] == {"accepted": 4, "wrong": 8}
    assert set(found["result"]["parts"]) >= {"suites", "prompts", "tokenizer", "decoding", "engine", "sandbox"}


def test_a_file_that_is_no_result_is_refused(judged: Path, rlbox: Rlbox) -> None:
    (judged / "summary.json").write_text("{}")
    said = rlbox("eval", "show", "summary.json")
    assert (said.code, "this is not an evaluation result" in said.err) == (2, True)
    path = judged / "eval/step_100/summary.json"
    path.write_text(path.read_text().replace('"version": "0.0.1"', '"version": "9"'))
    said = rlbox("eval", "compare", "eval/step_200", "eval/step_100")
    assert (said.code, "the evaluation fingerprint was changed: its digest does not match" in said.err) == (2, True)


def test_suites_are_listed(site: Path, rlbox: Rlbox) -> None:
    said = rlbox("eval", "suites")
    assert said.code == 0
    assert re.search(r"^adding +12 +adding\.jsonl +sums$", said.out, re.MULTILINE)
    found = {row["name"]: row for row in rlbox("eval", "suites", "--json").data["suites"]}
    assert found["codecontests_valid"]["rows"] == 117
    assert found["humaneval"]["decoding"]["temperature"] == 0.0


def test_a_suite_is_proven(site: Path, sandbox_url: str, rlbox: Rlbox) -> None:
    words = ("eval", "prove", "adding", "--problems", "problems", "--sandbox-url", sandbox_url)
    assert rlbox(*words).out == "adding: 12 of 12 own solutions are accepted\n"
    rows = adding(12)
    rows[3]["canonical_solution"] = "    return x\n"
    write_rows(site / "problems/adding.jsonl", rows)
    said = rlbox(*words)
    assert said.code == 1
    assert "adding: 11 of 12 own solutions are accepted\n  Add/3: wrong: " in said.out
    write_rows(site / "problems/adding.jsonl", [{**row, "canonical_solution": ""} for row in rows])
    said = rlbox(*words, "--json")
    assert (said.code, said.data["suites"][0]["solutions"]) == (1, 0)


@pytest.mark.parametrize("broken", [("--sandbox-url", "http://127.0.0.1:9"), ("--python", "/nowhere/python")])
def test_a_sandbox_that_fails_proves_nothing(site: Path, rlbox: Rlbox, broken: tuple[str, str]) -> None:
    said = rlbox("eval", "prove", "adding", "--problems", "problems", *broken)
    assert (said.code, "the code sandbox does not work" in said.err) == (1, True)


def test_the_sandbox_ends_with_its_block() -> None:
    from rlbox.evaluation.sandbox_client import SandboxClient
    from rlbox.system.http import NoFullResponseError, create_loopback_client

    before = threading.active_count()
    with run_sandbox_and_yield_url("", 10, 1024) as url:
        assert SandboxClient(url, create_loopback_client(30)).probe_strength_and_versions()["strength"]
    with pytest.raises(NoFullResponseError):
        SandboxClient(url, create_loopback_client(30)).probe_strength_and_versions()
    assert threading.active_count() == before
