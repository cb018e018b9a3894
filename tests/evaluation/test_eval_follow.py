"""Checkpoints are judged as they appear: none that is half-written, none twice, and after a kill all the rest."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playbox import Player, export, playing
from reportbox import write_run

from rlbox.evaluation.export import export_at
from rlbox.evaluation.following.appearing import find_appearing
from rlbox.evaluation.following.follow import Followed, Following
from rlbox.evaluation.judge import Judging
from rlbox.evaluation.policy import Policy
from rlbox.evaluation.sandbox import Sandbox
from rlbox.evaluation.suites import load_sets
from rlbox.record.disk_hold import Holder, take_disk
from rlbox.system.http import create_loopback_client

SETTLE_S = 0.4
RUN = "sft-1"


class Training:
    """Writes checkpoints of verl below a folder, piece by piece, as its trainer does: the tracker last."""

    def __init__(self, folder: Path, pause_s: float = 0.02) -> None:
        self.folder, self._pause_s = folder, pause_s
        folder.mkdir(exist_ok=True)

    def pieces(self, step: int, solved: int) -> Iterator[None]:
        """Write a checkpoint; what is yielded between are its half-written states."""
        whole = export(self.folder.parent / f"whole-{step}", seed=solved)
        goal = self.folder / f"global_step_{step}"
        (goal / "huggingface").mkdir(parents=True)
        yield
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(whole / name, goal / "huggingface")
            yield
        data = (whole / "model.safetensors").read_bytes()
        with (goal / "huggingface/model.safetensors").open("wb") as file:
            for at in range(0, len(data), 16):
                file.write(data[at : at + 16])
                file.flush()
                if at + 16 < len(data):
                    yield
        yield
        (self.folder / "latest_checkpointed_iteration.txt").write_text(str(step))
        shutil.rmtree(whole)

    def write(self, step: int, solved: int) -> None:
        """Write a checkpoint, with pauses."""
        for _ in self.pieces(step, solved):
            time.sleep(self._pause_s)


def answers(weights: Path) -> Callable[[str, int], str]:
    """As the program played_engine.py."""
    solved = (weights / "model.safetensors").read_bytes()[-1]

    def answer(ask: str, number: int) -> str:
        wanted = int(re.search(r"plus (\d+)\.", ask)[1])  # type: ignore[index]
        return f"```python\ndef add(x):\n    return plus(x, {wanted if wanted < solved else -1})\n```"

    return answer


def judging(site: Path, sandbox: str, asked: Counter[str], out: str, meanwhile: Callable[[Path], None]) -> Judging:
    """Judge with a server in this process; `meanwhile` is called when one begins to serve an export."""

    @contextlib.contextmanager
    def serve(path: Path, folder: Path) -> Iterator[Policy]:
        assert export_at(path).path == path
        with playing(Player(answers(path))) as player:
            yield Policy(player.url, create_loopback_client(30))
            asked.update(f"{path.parent.name} {ask}" for ask in player.asked.elements())
            meanwhile(path)

    http = create_loopback_client(60)
    return Judging(sandbox=Sandbox(sandbox, http), serve=serve, engine={}, out=site / out, at_once=4)


def judged(site: Path, sandbox: str, out: str = "out") -> dict[str, float]:
    return {path.parent.name: json.loads(path.read_text())["scores"]["adding"]["accepted_at_1"]
            for path in sorted((site / out).glob("*/summary.json"))}  # fmt: skip


@pytest.fixture
def sets(site: Path) -> list[object]:
    return list(load_sets(["adding"], site / "problems", own=site / "suites"))


def test_no_state_of_a_checkpoint_but_the_last_counts(tmp_path: Path) -> None:
    training = Training(tmp_path / "ckpts")
    (training.folder / "latest_checkpointed_iteration.txt").write_text("0")
    for _ in training.pieces(100, 4):
        (found,) = find_appearing(training.folder)
        assert found.lacks
    (found,) = find_appearing(training.folder)
    assert found.lacks == ""
    assert found.export
    assert found.export.step == 100


def test_shards_count_when_all_are_there_and_their_index(tmp_path: Path) -> None:
    folder = export(tmp_path / "ckpts/checkpoint-7")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    told = ["it holds no weights"]
    for name in names:
        assert [one.lacks for one in find_appearing(tmp_path / "ckpts")] == told
        (folder / name).write_bytes(data)
        left = ", ".join(str(number) for number in (1, 2, 3) if not (folder / names[number - 1]).exists())
        told = [f"model: shards missing: {left} (of 3)"]
    assert [one.lacks for one in find_appearing(tmp_path / "ckpts")] == [
        "model.safetensors.index.json is missing, which is written last"
    ]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys("abc", names[0])}))
    assert [one.lacks for one in find_appearing(tmp_path / "ckpts")] == [""]
    (folder / "tokenizer.json").unlink()
    assert [one.lacks for one in find_appearing(tmp_path / "ckpts")] == ["it has no tokenizer"]


def test_exports_of_all_trainers_are_seen_and_folders_of_others_are_not(tmp_path: Path) -> None:
    places = ("global_step_2/actor/huggingface", "global_step10_hf", "checkpoint-30", "iter_0000040/hf")
    for place in places:
        export(tmp_path / place)
    for place in ("global_step10/mp_rank_00", "iter_0000050", "logs", "tmp-checkpoint-60"):
        (tmp_path / place).mkdir(parents=True)
    found = find_appearing(tmp_path)
    assert [one.export and one.export.name for one in found] == ["step_2", "step_10", "step_30", "step_40"]
    assert {one.lacks for one in found} == {""}


def test_they_are_judged_as_they_come_and_as_afterwards(site: Path, sandbox_url: str, sets: list[object]) -> None:
    training, asked, over = Training(site / "ckpts"), Counter[str](), threading.Event()

    def train() -> None:
        for step, solved in ((100, 4), (200, 9), (300, 6)):
            training.write(step, solved)
        over.set()

    writer = threading.Thread(target=train)
    writer.start()
    follow = Following(
        training.folder,
        judging(site, sandbox_url, asked, "out", lambda path: None),
        sets,
        over.is_set,
        SETTLE_S,  # type: ignore[arg-type]
    )
    found = follow.follow()
    writer.join()
    assert (list(found.results), found.failed) == (["step_100", "step_200", "step_300"], {})
    assert judged(site, sandbox_url) == {"step_100": 4 / 12, "step_200": 9 / 12, "step_300": 6 / 12}
    assert set(asked.values()) == {1}
    afterwards = judging(site, sandbox_url, Counter(), "later", lambda path: None)
    for step in (100, 200, 300):
        afterwards.judge(export_at(training.folder / f"global_step_{step}"), sets)  # type: ignore[arg-type]
    for name in ("summary.json", "metrics.json", "eval_info.json", "lock.json", "qa_logs/adding.jsonl"):
        for step in (100, 200, 300):
            one, other = (site / out / f"step_{step}" / name for out in ("out", "later"))
            assert one.read_bytes() == other.read_bytes()
    assert len((site / "out/eval_history.jsonl").read_text().splitlines()) == 3


def test_one_that_changes_while_it_is_judged_is_judged_again(site: Path, sandbox_url: str, sets: list[object]) -> None:
    training, asked = Training(site / "ckpts", pause_s=0), Counter[str]()
    training.write(100, 4)
    late = [9]

    def rewrite(path: Path) -> None:
        if late:
            data = (path / "model.safetensors").read_bytes()
            (path / "model.safetensors").write_bytes(data[:-4] + bytes([late.pop()] * 4))

    follow = Following(training.folder, judging(site, sandbox_url, asked, "out", rewrite), sets, lambda: True, SETTLE_S)  # type: ignore[arg-type]
    assert follow.follow().failed == {}
    assert judged(site, sandbox_url) == {"step_100": 9 / 12}
    assert len((site / "out/eval_history.jsonl").read_text().splitlines()) == 1


def test_what_is_torn_when_all_is_over_is_named(site: Path, sandbox_url: str, sets: list[object]) -> None:
    training = Training(site / "ckpts", pause_s=0)
    training.write(100, 4)
    torn = training.pieces(200, 9)
    for _ in range(6):
        next(torn)
    (training.folder / "global_step_300").mkdir()
    shutil.copytree(training.folder / "global_step_100/huggingface", training.folder / "step_100")
    follow = Following(
        training.folder,
        judging(site, sandbox_url, Counter(), "out", lambda path: None),
        sets,
        lambda: True,
        SETTLE_S,  # type: ignore[arg-type]
    )
    found: Followed = follow.follow()
    assert list(found.results) == ["step_100"]
    assert found.failed.pop("step_200").startswith("model.safetensors: it ")
    assert found.failed == {
        "global_step_300": "it has no export: no config.json",
        "step_100": "it has the name step_100, as global_step_100 has",
    }


KILLS = min(int(os.environ.get("RLBOX_EVAL_KILLS", "3")), 30)


@pytest.fixture
def run(site: Path) -> Iterator[Callable[[], None]]:
    """A run that goes on, on the data disk `data`; what is returned ends it."""
    state = site / f"data/runs/{RUN}/run.json"
    write_run(state.parent, samples=1, steps=1)
    text = state.read_text()
    row = json.loads(text) | {"state": "running", "ended_at": None, "exit_code": None}
    state.write_text(json.dumps(row))
    hold = take_disk(site / "data", Holder(run=RUN, what="a run"))

    def end() -> None:
        state.write_text(text)
        hold.leave()

    yield end
    with contextlib.suppress(OSError):
        hold.leave()


def free_port() -> int:
    with playing(Player(lambda ask, number: "")) as player:
        return int(player.url.rpartition(":")[2])


def test_kills_anywhere_lose_nothing_and_the_rest_is_judged(
    site: Path, sandbox_url: str, run: Callable[[], None], tmp_path: Path
) -> None:
    """The command line itself, while a training writes; an answer that was kept is never asked for again."""
    rng, training, log = random.Random(7), Training(site / "ckpts", pause_s=0.1), tmp_path / "asked"
    engine = tmp_path / "engine"
    engine.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent}/programs/played_engine.py "$@"\n')
    engine.chmod(0o755)
    log.touch()
    words = ["eval", "judge", str(training.folder), "--follow", RUN, "--data", str(site / "data"), "--suite", "adding"]
    words += ["--problems", str(site / "problems"), "--engine", str(engine), "--port", str(free_port())]
    words += ["--sandbox-url", sandbox_url, "--at-once", "2", "--settle", f"{SETTLE_S}", "--out", str(site / "out")]
    line = [sys.executable, "-m", "rlbox", *words, "--project", str(site)]
    env = {**os.environ, "PLAYED_ENGINE_LOG": str(log), "PLAYED_ENGINE_SLOW_S": "0.1"}
    steps = {100: 4, 200: 9, 300: 6, 400: 12}
    writer = threading.Thread(target=lambda: [training.write(*one) for one in steps.items()])
    writer.start()
    settled: Counter[str] = Counter()
    for _ in range(KILLS):
        process = subprocess.Popen(line, env=env, cwd=site, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(1.0, 6.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = {key(path) for path in (site / "out").rglob("per_problem/*/*.json")}
        assert set(settled) <= kept
        asked = Counter(log.read_text().splitlines())
        assert all(asked[one] == count for one, count in settled.items())
        settled = Counter({one: asked[one] for one in kept})
    writer.join()
    last = subprocess.Popen([*line, "--json"], env=env, cwd=site, stdout=subprocess.PIPE)
    time.sleep(2)
    assert last.poll() is None  # the run goes on: so does it
    run()
    said = json.loads(last.communicate(timeout=300)[0])
    assert (last.returncode, said["failed"]) == (0, {})
    assert [row["name"] for row in said["results"]] == [f"step_{step}" for step in steps]
    assert judged(site, sandbox_url) == {f"step_{step}": solved / 12 for step, solved in steps.items()}
    asked = Counter(log.read_text().splitlines())
    assert all(asked[one] == count for one, count in settled.items())
    names = [json.loads(row)["name"] for row in (site / "out/eval_history.jsonl").read_text().splitlines()]
    assert sorted(names) == sorted(f"step_{step}" for step in steps)


def key(path: Path) -> str:
    """Return a kept row as the engine writes down what it was asked."""
    step = path.parents[2].name.removeprefix("step_")
    return f"global_step_{step} {json.loads(path.read_text())['problem'].removeprefix('Add/')}"
