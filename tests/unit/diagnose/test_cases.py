"""Short logs of every cause, of causes that nobody knows, and of programs that are well: `tests/cases/diagnose`.

A case begins with `=== CAUSE | a part of the line that broke first`; CAUSE may be several, with commas. The two long
files are packed: `xz -d FILE`, edit, `xz -9 FILE`.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import CHECKOUT

from rlbox.config.project import Project
from rlbox.diagnose.diagnosis import diagnose_paths
from rlbox.diagnose.signatures import SignatureSet, load_signatures

CASES = CHECKOUT / "tests/cases/diagnose"
LEAST_LINES = 0.96


@pytest.fixture(scope="module")
def catalogue() -> SignatureSet:
    return load_signatures(Project(folder=CHECKOUT).own_pack_and_shipped_fix_files())


def cases(name: str) -> Iterator[tuple[str, str, str]]:
    """Yield causes, a part of the telling line, and the log of each case."""
    path = CASES / f"{name}.txt"
    packed = CASES / f"{name}.txt.xz"
    text = path.read_text("utf-8") if path.exists() else lzma.decompress(packed.read_bytes()).decode()
    for part in re.split(r"^=== ", text, flags=re.MULTILINE)[1:]:
        head, _, log = part.partition("\n")
        cause, _, line = head.partition(" | ")
        yield cause.strip(), line.strip(), log


def answer(log: str, catalogue: SignatureSet, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "a.log"
    path.write_text(log, encoding="utf-8")
    return diagnose_paths([path], catalogue).as_json()


@pytest.mark.parametrize(("name", "least"), [("known", 120), ("unknown", 25)])
def test_causes_and_lines(name: str, least: int, catalogue: SignatureSet, tmp_path: Path) -> None:
    rows = [(cause, line, answer(log, catalogue, tmp_path)) for cause, line, log in cases(name)]
    assert len(rows) >= least
    assert [
        (cause, line, found["cause"]) for cause, line, found in rows if found["cause"] not in cause.split(",")
    ] == []
    missed = [line for _, line, found in rows if line not in found["first_fatal"]["text"]]
    assert len(missed) <= (1 - LEAST_LINES) * len(rows), missed


def test_healthy_logs_do_not_alarm(catalogue: SignatureSet, tmp_path: Path) -> None:
    rows = [(line, answer(log, catalogue, tmp_path)) for _, line, log in cases("healthy")]
    assert len(rows) > 15
    assert [(line, found["first_fatal"]) for line, found in rows if found["fatal"]] == []


def test_pasted_line_without_an_error_word_is_answered(catalogue: SignatureSet, tmp_path: Path) -> None:
    for lines_of_work, is_fatal in ((0, True), (39, True), (40, False)):
        found = answer("Encoder cache miss for 3f2a9.\n" + "loading\n" * lines_of_work, catalogue, tmp_path)
        assert (found["fatal"], found["fix"]) == (is_fatal, "library-own-bug" if is_fatal else "")
    for quiet in ("INFO Encoder cache miss for 3f2a9.", "the model was saved", "print('Encoder cache')"):
        assert not answer(f"{quiet}\n", catalogue, tmp_path)["fatal"]


def test_the_node_that_did_not_come_is_named(catalogue: SignatureSet, tmp_path: Path) -> None:
    log = """gpu-a  | Traceback (most recent call last):
gpu-a  |   File "/opt/venv/bin/torchrun", line 8, in <module>
gpu-a  |     sys.exit(main())
gpu-a  | torch.distributed.DistStoreError: Timed out after 13 seconds waiting for clients. 1/2 clients joined.
gpu-b  | Traceback (most recent call last):
gpu-b  |   File "/opt/venv/bin/torchrun", line 8, in <module>
gpu-b  |     sys.exit(main())
gpu-b  | torch.distributed.DistNetworkError: The client socket has timed out after 12000ms while trying to connect.
"""
    found = answer(log, catalogue, tmp_path)
    assert (found["cause"], found["first_fatal"]["line"], found["node"]) == ("rendezvous-timeout", 4, "gpu-b")


def test_the_steps_of_another_rank_acquit_none(catalogue: SignatureSet, tmp_path: Path) -> None:
    steps = "".join(f"[rank{rank}]: step {step}/9 - loss: 0.{step}\n" for step in range(2) for rank in range(2))
    died = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/app/train.py", line 7, in <module>
[rank1]:     raise ValueError("the batch has 0 samples")
[rank1]: ValueError: the batch has 0 samples
"""
    later = "".join(f"[rank0]: step {step}/9 - loss: 0.{step}\n" for step in range(2, 5))
    found = answer(steps + died + later, catalogue, tmp_path)
    assert (found["fatal"], found["rank"]) == (True, 1)
    assert not answer(steps + died + later.replace("rank0", "rank1"), catalogue, tmp_path)["fatal"]
