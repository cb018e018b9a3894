"""What processes write: masked, whole, dated, judged while it comes; whatever happens to the files and the readers."""

from __future__ import annotations

import signal
import subprocess
from itertools import pairwise
from pathlib import Path

from supervised import Bench, line_rule, python, wait_for

from rlbox.logs.pump import MaskingLogPump
from rlbox.secrets.masks import SecretMasker

SECRET = "planted-5ecret"
SECRETS = {"RLBOX_SECRETS": "WANDB", "WANDB": SECRET}


def test_a_secret_never_reaches_the_log_however_it_is_cut(bench: Bench) -> None:
    bench.environment = SECRETS
    code = (
        "import os, time\n"
        "secret = os.environ['WANDB'].encode()\n"
        "for cut in (1, 7, len(secret) - 1):\n"
        "    os.write(1, b'key ' + secret[:cut]); time.sleep(0.2); os.write(1, secret[cut:] + b' end\\n')\n"
        "os.write(2, b'x' * 70000 + secret + b'planted')"
    )
    bench.stage("train", python(code), require=(line_rule(r"^key \*\*\* end$", count=3),))
    assert bench.run() == 0
    assert bench.log("1-train/stage.log") == "key *** end\n" * 3 + "x" * 70000 + "***planted"


def test_logs_that_fill_the_disk(tiny_disk: Path) -> None:
    bench = Bench(tiny_disk / "run")
    flood = "import os, time\ni = 0\nwhile True: os.write(1, b'line %d\\n' % i * 99); i += 1"
    bench.stage("train", python(flood))
    bench.stage("later", ("true",))
    assert bench.run() == 5
    assert bench.cause().what.startswith("data disk full: 0 B free")
    assert bench.states() == ["failed", "not started"]
    text = bench.log("1-train/stage.log")
    assert len(text) > 3 << 20
    assert all(b.startswith("line ") for _, b in pairwise(text.splitlines()[:-1]))


def test_last_words_are_not_cut_short(bench: Bench) -> None:
    """A process that is told to end and has more to say than a pipe holds."""
    code = (
        "import os, signal, sys, time\n"
        "def end(*_):\n    os.write(1, b'y' * 99); os.writev(1, [b'x' * 1000000] * 5); os._exit(3)\n"
        "signal.signal(15, end)\nprint('stop me', flush=True)\ntime.sleep(600)"
    )
    bench.stage("train", python(code), forbid=(line_rule("stop me"),))
    assert bench.run() == 1
    assert bench.last("train").exit_code == 3
    assert len(bench.log("1-train/stage.log")) == 8 + 99 + 5_000_000


def test_failure_lines_are_events_at_once(bench: Bench) -> None:
    bench.environment = SECRETS
    code = "import os, time; print('a'); print('RuntimeError: no', os.environ['WANDB'], flush=True); time.sleep(600)"
    bench.stage("train", python(code), forbid=(line_rule("^Runtime"),))
    assert bench.run() == 1
    told = [(e["event"], e["log"], e["number"], e["line"]) for e in bench.events() if "number" in e]
    assert set(told) == {
        ("forbidden", "stage", 2, "RuntimeError: no ***"),
        ("fatal", "stage", 2, "RuntimeError: no ***"),
    }
    kinds = [event["event"] for event in bench.events()]
    assert kinds.index("forbidden") < len(kinds) - 1 - kinds[::-1].index("stage")


def test_times_beside_the_log(bench: Bench) -> None:
    code = "import time\nfor i in range(5): print('x' * 10, flush=True); time.sleep(0.6)"
    bench.stage("train", python(code))
    assert bench.run() == 0
    rows = [tuple(map(int, line.split())) for line in bench.log("1-train/stage.log.times").splitlines()]
    assert rows[0][0] == 0
    assert 2 <= len(rows) <= 4
    assert all(a[0] < b[0] and a[0] % 11 == 0 and b[1] - a[1] >= 1000 for a, b in pairwise(rows))


def test_a_slow_reader_makes_the_writer_wait(tmp_path: Path) -> None:
    size, ahead = 80 << 20, 32 << 20
    pump = MaskingLogPump(SecretMasker({}))
    with pump.open_pipe("stage", tmp_path / "x.log") as output:
        writer = subprocess.Popen(["head", "-c", str(size), "/dev/zero"], stdout=output)
    log = pump.logs["stage"]
    wait_for(lambda: log.unread_bytes > ahead)
    count = 0
    while count < size:
        assert log.unread_bytes <= ahead + (8 << 20)
        data = log.read_next_block_or_empty()
        count += len(data)
        if not data:
            pump.wait_for_growth(0.1)
    assert writer.wait() == 0
    pump.drain_and_close_all_but_logs()
    assert (log.size, log.unread_bytes) == (size, 0)
    log.close_without_flush()


def test_the_end_of_the_supervisor_ends_who_writes(bench: Bench) -> None:
    bench.stage("train", python("import time\nwhile True: print('step', flush=True); time.sleep(0.05)"))
    supervisor = bench.start()
    wait_for(lambda: (bench.run_dir / "run.json").exists() and bench.last("train").state == "running")
    supervisor.send_signal(signal.SIGKILL)
    supervisor.finish()
    wait_for(lambda: bench.marked() == [])
