"""Records and lines of hostile making through every reader of text: no traceback, no false pass, all within a second.

`python tests/fuzz/campaign.py --cases N --seed S`; the same seed makes the same cases.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rlbox.config.toml_files import load_toml
from rlbox.diagnose.first_fatal import (
    SIGNATURES_FILE,
    FirstFatalFinder,
    find_failure_signature_of_line,
    find_first_fatal,
    read_run_signatures_or_empty,
)
from rlbox.engine.oci import parse_manifest
from rlbox.errors import RlboxError
from rlbox.foreign import parse_untrusted_json, parse_untrusted_toml
from rlbox.gate.files import find_safetensors_problem
from rlbox.gate.gate import GateChecker
from rlbox.gate.http_probe import find_response_problem
from rlbox.hang.detector import StepTimer
from rlbox.job.gate import ForbidRule, MetricRule, Ready, RequireRule
from rlbox.job.plan import StagePlan
from rlbox.logs.lines import LineSplitter
from rlbox.logs.progress import find_progress_candidates, parse_metrics_record, parse_progress_line
from rlbox.record.state import load_run_state
from rlbox.system.json_files import read_json_object_or_empty, read_valid_json_from_tail_or_nothing
from rlbox.target.lock import parse_lock
from rlbox.terminal import IncrementalTerminalSanitizer, sanitize_for_terminal

MOST_S = 1.0
NONCE = "b1946ac92492d2347c6235b4d2611184"
"""What the gate of a case waits for; no case holds it, so that a gate that passes passed falsely."""

TEXTS = load_toml(Path(__file__).with_name("words.toml"))["records"]
WORDS = (*TEXTS["words"], f"[repeated {'9' * 5000}x across cluster]")
KEYS = TEXTS["keys"]


class Maker:
    """Makes texts from a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def line(self) -> str:
        dice = self.dice
        kind = dice.random()
        if kind < 0.02:
            return dice.choice(WORDS) + dice.choice("1a( .[\"'=%\x08\\") * dice.choice((800, 5000, 70_000))
        if kind < 0.04:
            return dice.choice(("[", '{"a":', "[{", "(")) * dice.choice((64, 65, 3000))
        return "".join(dice.choice(WORDS) for _ in range(dice.randrange(1, 12)))

    def value(self, depth: int = 0) -> object:
        dice = self.dice
        kind = dice.randrange(12 if depth < 4 else 8)
        if kind >= 10:
            return {dice.choice(KEYS): self.value(depth + 1) for _ in range(dice.randrange(4))}
        if kind >= 8:
            return [self.value(depth + 1) for _ in range(dice.randrange(4))]
        numbers = (0, 1, -1, 10**18, 10**99, 10**400, 1.5, -0.0)
        odd = (None, True, float("nan"), float("inf"), "", "x", "sha256:" + "0" * 64, "10" * 300)
        return dice.choice(numbers) if kind < 4 else dice.choice(odd) if kind < 7 else self.line()[:200]

    def record(self) -> bytes:
        """A JSON text: whole, cut, with a byte changed, or with a key twice."""
        dice = self.dice
        table = {dice.choice(KEYS): self.value() for _ in range(dice.randrange(1, 6))}
        text = json.dumps(table, ensure_ascii=dice.random() < 0.5)
        data = bytearray(text.encode("utf-8", "surrogatepass"))
        kind = dice.random()
        if kind < 0.2:
            del data[dice.randrange(len(data)) :]
        elif kind < 0.4:
            data[dice.randrange(len(data))] = dice.randrange(256)
        elif kind < 0.5:
            data[1:1] = b'"step": 1, "step": 2, '
        return bytes(data)

    def bytes(self) -> bytes:
        """Lines of a log, some of them no UTF-8."""
        data = "\n".join(self.line() for _ in range(self.dice.randrange(1, 5))).encode("utf-8", "surrogatepass")
        return data + (b"\xff\xc3" if self.dice.random() < 0.1 else b"")


def stage() -> StagePlan:
    return StagePlan(
        name="s",
        title="s",
        directory="stages/1-s",
        argv=("x",),
        env={},
        services=(),
        needs=(),
        ray=None,
        total_s=60,
        silence_s=60,
        require=(
            RequireRule(pattern=NONCE, log="stage", count=1, why=""),
            RequireRule(pattern="^PASSED$", log="stage", count=400, why=""),
        ),
        forbid=(ForbidRule(pattern=r"\bnever\b"),),
        metrics=(
            MetricRule(name="loss", pattern=r"loss:? ?(?P<value>\S+)"),
            MetricRule(name="row", key="loss", file="m"),
        ),
    )


class Readers:
    """Every reader, each a function of a `Maker`; a reader says a false pass by returning a text."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "spec").mkdir(exist_ok=True)
        self._file = folder / "file"
        self._cutter, self._fatal, self._steps = LineSplitter(), FirstFatalFinder(), StepTimer()
        self.all: dict[str, Callable[[Maker], str | None]] = {
            name[5:]: getattr(self, name) for name in dir(self) if name.startswith("read_")
        }

    def _laid(self, data: bytes) -> Path:
        self._file.write_bytes(data)
        return self._file

    def read_gate(self, make: Maker) -> str | None:
        gate = GateChecker(stage())
        for _ in range(2):
            gate.feed("stage", make.bytes() + b"\n")
            gate.feed("m", make.record() + b"\n")
        gate.close_logs_and_decide_undecided_lines()
        gate.decide_waiting_rules_except_caller_decided()
        lines = [rule for rule in gate.copy_rule_states() if rule.kind == "require"]
        return f"the gate passed: {lines}" if any(rule.state == "held" for rule in lines) else None

    def read_metric_row(self, make: Maker) -> None:
        parse_metrics_record(_or_none(make.record()))

    def read_progress(self, make: Maker) -> None:
        parse_progress_line(make.line())
        for _, line in find_progress_candidates(make.bytes()):
            parse_progress_line(line.decode("utf-8", "replace"))

    def check_lines(self, make: Maker) -> None:
        texts = self._cutter.feed(make.bytes())
        self._fatal.feed(texts)
        self._steps.feed(texts.joined, time.monotonic())

    def read_log(self, make: Maker) -> None:
        find_first_fatal(self._laid(make.bytes()))

    def run_catalogue(self, make: Maker) -> None:
        (self._folder / SIGNATURES_FILE).write_bytes(make.record())
        read_run_signatures_or_empty.cache_clear()
        find_failure_signature_of_line(make.line(), self._folder)

    def read_json_object(self, make: Maker) -> None:
        read_json_object_or_empty(self._laid(make.record()))
        list(read_valid_json_from_tail_or_nothing(self._laid(make.record())))

    def read_run_state(self, make: Maker) -> str | None:
        (self._folder / "run.json").write_bytes(make.record())
        try:
            state = load_run_state(self._folder)
        except RlboxError:
            return None
        return f"a run was read: {state}" if state.state == "passed" else None

    def read_lock(self, make: Maker) -> None:
        try:
            parse_lock(make.record(), "lock.json", "")
        except RlboxError:
            return

    def read_manifest(self, make: Maker) -> None:
        try:
            parse_manifest(make.record())
        except ValueError:
            return

    def read_toml(self, make: Maker) -> None:
        try:
            parse_untrusted_toml(make.line())
        except ValueError:
            return

    def read_answer(self, make: Maker) -> str | None:
        request = Ready(url="http://127.0.0.1:1/", json_path="choices[0].text", equals=NONCE)
        text = make.record().decode("utf-8", "replace")
        return None if find_response_problem(request, 200, text) else f"an answer passed: {text[:200]}"

    def read_tensors(self, make: Maker) -> str | None:
        head = make.record()
        path = self._laid(len(head).to_bytes(8, "little") + head)
        return None if find_safetensors_problem(path) else f"a checkpoint passed: {head[:200]!r}"

    def read_terminal(self, make: Maker) -> str | None:
        stream, data = IncrementalTerminalSanitizer(), make.bytes()
        shown = (stream.feed(data[:7]) + stream.feed(data[7:]) + stream.close()).decode() + sanitize_for_terminal(
            make.line()
        )
        found = any(sign in shown for sign in "\x1b\x9b\x07\r\x00")
        return f"a control sequence is shown: {shown[:200]!r}" if found else None


def _or_none(data: bytes) -> object:
    try:
        return parse_untrusted_json(data)
    except ValueError:
        return None


def campaign(cases: int, seed: int) -> tuple[list[str], Counter[str], float]:
    """Carry out so many cases; return what fell, the count of each reader, the most CPU of a call."""
    fell: list[str] = []
    told: Counter[str] = Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        readers = Readers(Path(folder)).all
        names = sorted(readers)
        for number in range(cases):
            name = names[number % len(names)]
            make = Maker(seed * 1_000_003 + number)
            begun = time.process_time()
            try:
                wrong = readers[name](make) or ""
            except Exception as error:  # whatever it is, it is a finding
                wrong = f"{type(error).__name__}: {error}"[:300]
            spent = time.process_time() - begun
            slowest = max(slowest, spent)
            told[name] += 1
            if spent > MOST_S:
                wrong = wrong or f"took {spent:.1f} s of CPU"
            if wrong:
                fell.append(f"{name}, case {number} of seed {seed}: {wrong}")
                if len(fell) > 50:
                    break
    return fell, told, slowest


def main() -> int:
    """Carry out a campaign from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    fell, told, slowest = campaign(asked.cases, asked.seed)
    print(*fell, f"{told.total()} cases: {len(fell)} fell; slowest call {slowest:.2f} s of CPU", sep="\n")
    return 1 if fell else 0


if __name__ == "__main__":
    raise SystemExit(main())
