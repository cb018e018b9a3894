"""What follows from a root, and which of several failures is the root: by words, clocks, hosts and names of logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.diagnose.diagnosis import Diagnosis, diagnose_paths
from rlbox.diagnose.signatures import load_signatures

CATALOGUE = load_signatures(Project(folder=CHECKOUT).own_pack_and_shipped_fix_files())
FELL = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/data/job/train.py", line 3, in <module>
[rank1]:     check(batch)
[rank1]: ValueError: the batch holds nothing to learn from
"""
LATE_A = """\
gpu-a  | [default0]:[rank0]: Traceback (most recent call last):
gpu-a  | [default0]:[rank0]:   File "/data/job/train.py", line 3, in <module>
gpu-a  | [default0]:[rank0]:     dist.init_process_group("gloo")
gpu-a  | [default0]:[rank0]: torch.distributed.DistStoreError: Timed out after 31 seconds waiting for clients. 4/8
"""
LATE_B = """\
gpu-b  | [E1125 16:01:02.000000001 socket.cpp:1028] [c10d] The client socket has timed out after 30000ms while trying \
to connect to (gpu-a, 29500).
"""
ENDS = "W1125 15:59:28.513000 8 torch/distributed/elastic/api.py:9] Sending process 13 closing signal SIGTERM"


def answer(tmp_path: Path, **logs: str) -> Diagnosis:
    for name, text in logs.items():
        (tmp_path / f"{name}.log").write_text(text)
    return diagnose_paths([tmp_path / f"{name}.log" for name in logs], CATALOGUE)


def said(found: Diagnosis) -> str:
    return found.root.text if found.root else ""


@pytest.mark.parametrize(
    "line",
    [
        ENDS,
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 13 closing signal SIGTERM",
        "[2026-01-02 03:04:05,678] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 13",
        "[rank0]:[W1125 15:59:28.513000001 TCPStore.cpp:106] recvValue failed on SocketImpl: Connection reset by peer",
    ],
)
def test_what_is_told_softly_of_an_end_is_a_step_of_the_chain(tmp_path: Path, line: str) -> None:
    found = answer(tmp_path, train=f"{FELL}{line}\n{line.replace('13', '14')}\n")
    assert [(link.candidate.line_number, link.cause_index) for link in found.chain] == [(4, -1), (5, 0)]
    assert found.benign == ()


def test_it_is_no_failure_by_itself(tmp_path: Path) -> None:
    found = answer(tmp_path, train=f"step 1 done\n{ENDS}\n")
    assert not found.has_fatal_failure
    assert [case.line_number for case in found.benign] == [2]


def test_it_is_none_long_before_the_root(tmp_path: Path) -> None:
    """An earlier attempt was ended; what fell later has nothing to do with it."""
    between = "loading\n" * 300
    found = answer(tmp_path, train=f"[launch.py:319:sigkill_handler] [INFO] Killing subprocess 13\n{between}{FELL}")
    assert [link.candidate.line_number for link in found.chain] == [305]


def test_the_order_in_which_logs_are_named_changes_nothing(tmp_path: Path) -> None:
    """No clock tells which came first; ten comes behind two."""
    logs = {f"rank{rank}": FELL.replace("rank1", f"rank{rank}").replace("batch", f"{word} batch")
            for rank, word in ((10, "last"), (2, "second"), (1, "first"))}  # fmt: skip
    for names in (("rank10", "rank2", "rank1"), ("rank1", "rank10", "rank2"), ("rank2", "rank1", "rank10")):
        found = answer(tmp_path, **{name: logs[name] for name in names})
        assert "first batch" in said(found)
    found = answer(tmp_path, **{name: logs[name] for name in ("rank10", "rank2")})
    assert "second batch" in said(found)


@pytest.mark.parametrize("lines", [(LATE_A, LATE_B), (LATE_B, LATE_A)])
def test_the_order_in_which_hosts_are_heard_changes_nothing(tmp_path: Path, lines: tuple[str, str]) -> None:
    found = answer(tmp_path, job="".join(lines))
    assert "DistStoreError" in said(found)
    assert found.cause_id_unknown_or_none == "rendezvous-timeout"
