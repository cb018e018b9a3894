"""`make nightly ARGS=mutants/fixes`: every fault test, and each thing that a fix bakes deleted, which it must notice.

What held is kept in a file of the cache by a digest of all that decides it: a lane that was killed goes on where it
stood. A full result is written to `docs/internal/fault-tests.md`, with a digest of each fix;
a fix that differs from it, or is not in it, runs with the part `faults` of `make nightly`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from fault_mutants import Mutant, mutants  # noqa: E402
from faultbox import FAULTS, FIXES, SCRIPTS, cases, lab_text, load_case, load_fix, notices, seen_and_gone, tag  # noqa: E402
from lanes import (  # noqa: E402
    CHECKOUT,
    ENOUGH,
    Proof,
    Row,
    State,
    digest,
    digest_of_files,
    print_failures,
    provenance,
    run_lane,
    share,
    words,
)

from rlbox.system.files import cache_path  # noqa: E402

RESULTS = FAULTS.parents[1] / "docs/internal/fault-tests.md"
SAID = re.compile(rb"(?m)^failure(?:_zh)? = .*\n")
PATCHING = ("apply_patches.py", "unified_diff.py")
HEAD = """# Faults, and the mutants of fixes

`make nightly ARGS=mutants/fixes` wrote this: {provenance},
engine {engine}; {seconds:.0f} s of work.

{proven} of {cases} fault tests hold; {noticed} mutants (a fix without one thing that it bakes)
are noticed by the test of their fix. `yes` twice: the fault is seen in a container without the fix, and is gone with
it; a fix that refuses a spec or only checks is seen refusing, or failing before the cure and passing after it. A fix
whose digest here is not that of its files runs in `make test`.

| fix | seen without | gone with | mutants noticed | seconds | digest |
|---|---|---|---|---|---|
"""


def own_digest(name: str) -> str:
    """The digest of what a fix and its fault test are made of: the two files, and the scripts they go through.

    What `rlbox diagnose` says of the failure decides nothing of them.
    """
    fix = FIXES / f"{name}.toml"
    used = SCRIPTS + (PATCHING if "[[bake.patch]]" in fix.read_text("utf-8") else ())
    files = [fix, FAULTS / f"{name}.toml", *(CHECKOUT / "templates/scripts" / each for each in used)]
    parts = {path: path.read_bytes() for path in files} | {fix: SAID.sub(b"", fix.read_bytes())}
    return digest(*(part for path in sorted(parts) for part in (str(path.relative_to(CHECKOUT)), parts[path])))[:12]


def recorded(path: Path = RESULTS) -> dict[str, str]:
    """Name to digest of the fixes that held in the last full run, all of whose mutants were judged."""
    text = path.read_text("utf-8") if path.is_file() else ""
    return dict(re.findall(r"^\| (\S+) \|.*\| ([0-9a-f]{12}) \|$", text, re.M))


def changed() -> set[str]:
    """The fixes that differ from those of the last full run, or were not in it."""
    held = recorded()
    return {name for name in cases() if held.get(name) != own_digest(name)}


def proofs_of(name: str, code: str) -> Iterable[Proof]:
    """The fault test of a fix, and its mutants."""
    case, fix = load_case(name), load_fix(name)
    images = [lab_text(image) for image in sorted({case.image, case.image_with} - {""})]
    base = digest(own_digest(name), code, *images)

    def whole() -> tuple[bool, str]:
        seen, gone = seen_and_gone(case, fix)
        said = [*(f"[without] {line}" for line in seen), *(f"[with] {line}" for line in gone)]
        return not said, "\n".join(said)

    def one(mutant: Mutant) -> tuple[bool, str]:
        return (True, "") if notices(case, mutant.fix) else (False, "nothing notices that it is missing")

    yield Proof(key=digest(base, name), name=name, prove=whole)
    for mutant in mutants(fix):
        key = digest(base, mutant.fix.model_dump_json())
        yield Proof(key=key, name=mutant.name, prove=partial(one, mutant))


def code_digest() -> str:
    """What of rlbox the fault tests bake with, as they import it, and the fault tests' own code."""
    loaded = [module for name, module in sys.modules.items() if name.startswith("rlbox.") and name != "rlbox.version"]
    files = {Path(module.__file__) for module in loaded if module.__file__}
    return digest_of_files({*files, HERE / "faultbox.py", HERE / "fault_mutants.py"})


def table(rows: Sequence[Row], engine: str) -> str:
    """The committed table: a line a fix, and below it the mutants that nobody noticed."""
    by_fix: dict[str, list[Row]] = {}
    for row in rows:
        by_fix.setdefault(row.name.partition(": ")[0], []).append(row)
    lines = [_line(name, of[0], of[1:]) for name, of in sorted(by_fix.items())]
    of_mutants = [row for row in rows if ": " in row.name]
    alive = [f"- {row.name}" for row in of_mutants if not row.held]
    head = HEAD.format(
        provenance=provenance(RESULTS),
        engine=engine,
        seconds=sum(row.seconds for row in rows),
        proven=sum(row.held for row in rows) - sum(row.held for row in of_mutants),
        cases=len(by_fix),
        noticed=share(sum(row.held for row in of_mutants), len(of_mutants)),
    )
    return head + "\n".join(lines) + "\n" + ("\nNot noticed:\n\n" + "\n".join(alive) + "\n" if alive else "")


def _line(name: str, case: Row, of_it: Sequence[Row]) -> str:
    seen = "**no**" if re.search(r"^\[without\]", case.said, re.M) else "yes"
    gone = "**no**" if not case.held and (seen == "yes" or re.search(r"^\[with\]", case.said, re.M)) else "yes"
    noticed = f"{sum(row.held for row in of_it)}/{len(of_it)}" if of_it else "–"
    seconds = sum(row.seconds for row in (case, *of_it))
    return f"| {name} | {seen} | {gone} | {noticed} | {seconds:.0f} | {own_digest(name) if case.held else 'failed'} |"


def main() -> int:
    """Run the lane; 1 when a fault test fails, or too many mutants go unnoticed."""
    asked = words(
        "make nightly ARGS=mutants/fixes", "Every fault test and every mutant of a fix, on the real engine."
    ).parse_args()
    if unknown := sorted(set(asked.names) - set(cases())):
        print(f"make nightly ARGS=mutants/fixes: no fault test of {', '.join(unknown)}", file=sys.stderr)
        return 2
    code = code_digest()
    proofs = [proof for name in asked.names or cases() for proof in proofs_of(name, code)]
    for image in ("bare", "cc", "local"):
        tag(image)
    state = State(cache_path("lanes") / "faults.jsonl")
    rows = run_lane(proofs, state, at_once=asked.at_once, again=asked.again, say=lambda line: print(line, flush=True))
    if not asked.names:
        RESULTS.write_text(table(rows, _engine()), "utf-8")
    print_failures(rows)
    alive = [row for row in rows if ": " in row.name and not row.held]
    of = sum(": " in row.name for row in rows)
    failed = sum(not row.held for row in rows) - len(alive)
    print(f"{failed} fault tests fail; {share(of - len(alive), of)} mutants noticed")
    return 1 if failed or len(alive) > (1 - ENOUGH) * of else 0


def _engine() -> str:
    done = subprocess.run(["docker", "version", "--format={{.Server.Version}}"], capture_output=True, text=True)
    return f"Docker {done.stdout.strip()}"


if __name__ == "__main__":
    sys.exit(main())
