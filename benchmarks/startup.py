"""Goals 1 to 3: how long rlbox takes to say something that needs no work."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.pairs import Sample, Unusable, compare
from benchmarks.place import Place, run

HEAVY = ("click", "docker", "jinja2", "pydantic", "requests", "rich", "urllib3", "yaml")


def words(*argv: str, exit_code: int = 0) -> Callable[[Place, int], Sample]:
    """Return the measurement of `rlbox ARGV` against `import click`."""

    def measure(place: Place, rounds: int) -> Sample:
        return compare(place.rlbox(*argv, exit_code=exit_code), place.python("import click"), rounds)

    return measure


def root_help(place: Place, rounds: int) -> Sample:
    """`rlbox --help`, after the exact test on what it imports."""
    code = "import sys; from rlbox.cli import main; main(['--help']); print('MODULES', *sys.modules)"
    loaded = run(place.python(code).argv, cwd=place.project).partition("MODULES")[2].split()
    if heavy := sorted(set(HEAVY) & set(loaded)):
        raise Unusable(f"rlbox --help imports {', '.join(heavy)}")
    return words("--help")(place, rounds)


def tab(text: str, offers: str) -> Callable[[Place, int], Sample]:
    """Return the measurement of what a shell waits for when TAB is pressed after `text`."""

    def measure(place: Place, rounds: int) -> Sample:
        env = {"_RLBOX_COMPLETE": "bash_complete", "COMP_WORDS": text, "COMP_CWORD": str(len(text.split()) - 1)}
        return compare(place.rlbox(env=env, says=offers), place.python("import click"), rounds)

    return measure
