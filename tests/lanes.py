"""A lane: many small proofs, each recorded as it comes, so that a lane that was killed goes on where it stood."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
ENOUGH = 0.95
"""Share of mutants that must be noticed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one proof gave: whether it held, and what it said; `key` is the digest of all that decides it."""

    key: str
    name: str
    held: bool
    said: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Proof:
    """One proof to be run: `prove` says whether it held, and why not."""

    key: str
    name: str
    prove: Callable[[], tuple[bool, str]]


class State:
    """A file with a row a line; a row that was cut short by a kill counts as none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def rows(self) -> dict[str, Row]:
        """The last row of each key."""
        found = {}
        for line in self.path.read_text("utf-8").splitlines() if self.path.is_file() else ():
            try:
                row = Row(**json.loads(line))
            except (ValueError, TypeError):
                continue
            found[row.key] = row
        return found

    def add(self, row: Row) -> None:
        """Append a row in one write; the line feed in front ends what a kill left of another."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = "\n" + json.dumps(asdict(row), ensure_ascii=False) + "\n"
        with self._lock, self.path.open("ab") as file:
            file.write(line.encode())


def run_lane(
    proofs: Sequence[Proof], state: State, *, at_once: int, again: bool, say: Callable[[str], object]
) -> list[Row]:
    """Run the proofs that have not held yet, `at_once` of them together; rows come back in the order of `proofs`.

    A proof that failed is run again each time; one that held only when it was changed, or with `again`.
    """
    known = {} if again else {key: row for key, row in state.rows().items() if row.held}
    left = [proof for proof in proofs if proof.key not in known]
    say(f"{len(proofs)} proofs, {len(proofs) - len(left)} of them hold already; {at_once} at once; {state.path}")
    with ThreadPoolExecutor(at_once) as pool:
        futures: list[Future[Row]] = [pool.submit(_carry_out, proof, state) for proof in left]
        try:
            for number, future in enumerate(as_completed(futures), 1):
                row = future.result()
                known[row.key] = row
                said = "held" if row.held else "FAILED"
                say(f"[{number}/{len(left)}] {row.name}: {said}, {row.seconds:.1f} s")
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return [known[proof.key] for proof in proofs]


def _carry_out(proof: Proof, state: State) -> Row:
    started = time.monotonic()
    try:
        held, said = proof.prove()
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        held, said = False, f"{type(error).__name__}: {error}"
    row = Row(key=proof.key, name=proof.name, held=held, said=said, seconds=round(time.monotonic() - started, 1))
    state.add(row)
    return row


def digest(*parts: str | bytes) -> str:
    """One digest of texts, each with its length, so that none can take from its neighbour."""
    found = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        found.update(b"%d:" % len(data) + data)
    return found.hexdigest()


def digest_of_files(paths: Iterable[Path]) -> str:
    """One digest of files by their paths in the checkout and their bytes."""
    return digest(*(part for path in sorted(paths) for part in (str(path.relative_to(CHECKOUT)), path.read_bytes())))


def words(prog: str, about: str) -> argparse.ArgumentParser:
    """The options that every lane has."""
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these alone; the table is not written then")
    parser.add_argument("--again", action="store_true", help="run also what held already and has not changed")
    parser.add_argument("--at-once", type=int, default=min(3, os.cpu_count() or 1), metavar="N", help="together")
    return parser


def provenance(table: Path) -> str:
    """Date, tree and machine of a result, for the head of its table."""
    commit = _git("rev-parse", "--short=12", "HEAD^{tree}")
    changed = " and changes" if _git("status", "--porcelain", "--", ".", f":!{table.relative_to(CHECKOUT)}") else ""
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{date}, tree {commit or 'unknown'}{changed}, Python {platform.python_version()}, {os.cpu_count()} CPUs"


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(CHECKOUT), *words], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def share(noticed: int, of: int) -> str:
    """`181 of 182 (99.5 %)`."""
    return f"{noticed} of {of} ({100 * noticed / of:.1f} %)" if of else "0 of 0"


def print_failures(rows: Iterable[Row]) -> None:
    """Say of each proof that failed why, on stderr."""
    for row in rows:
        if not row.held:
            print(f"\n{row.name}:\n{row.said}", file=sys.stderr)
