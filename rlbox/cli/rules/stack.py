"""`rlbox stack`: does a target's stack fit together, and what would."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import shared
from rlbox.errors import SpecError

if TYPE_CHECKING:
    from rlbox.stack.explain import Verdict
    from rlbox.stack.facts import Problem
    from rlbox.target.lock import Lock
    from rlbox.target.target import Target


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--solve", is_flag=True, help="Leave the lock aside, and print a set of versions that fits the spec.")
@shared
def verb(app: App, name: str, solve: bool) -> int:
    """Judge the stack of TARGET by what is known to fit together: GPU, driver, CUDA, torch, engines, kernels.

    A stack that contradicts itself is explained by the fewest facts that do, with their sources and the nearest change.

    \b
    Examples:
      rlbox stack vast-5090
      rlbox stack vast-5090 --solve
    """
    from rlbox.stack.explain import judge
    from rlbox.stack.proof import is_unproven, proof_lines
    from rlbox.stack.view import stack_json, stack_text

    target, lock = load_stack(app, name, spec_alone=solve)
    problem = _problem(app, target, lock)
    verdict = judge(problem)
    found = {"target": name, **stack_json(problem, verdict), "unproven": is_unproven(target, lock)}
    proof = [] if solve else proof_lines(target, lock)
    app.result(found, "\n".join([stack_text(name, problem, verdict, solve), *proof]))
    return 0 if verdict.fits else SpecError.exit_code


def load_stack(app: App, name: str, *, spec_alone: bool = False) -> tuple[Target, Lock | None]:
    """Return a target, and its lock when it fits the spec."""
    from rlbox.app import own_requirements
    from rlbox.fixes.load import load_fixed_target
    from rlbox.target.lock import load_lock, lock_checksum

    target = load_fixed_target(app.project, name).target
    lock = None if spec_alone else load_lock(app.project.lock_file(name))
    if lock and lock.spec != lock_checksum(target, own_requirements()):
        lock = None
    return target, lock


def _problem(app: App, target: Target, lock: Lock | None) -> Problem:
    from rlbox.spec.check import suggest
    from rlbox.stack.compat import load_compat
    from rlbox.stack.facts import plan_problem

    table = load_compat()
    ids = [fact.id for fact in table.facts()]
    if unknown := sorted(set(target.compat.off) - set(ids)):
        raise SpecError(
            f"compat.off: there is no fact {unknown[0]!r}{suggest(unknown[0], ids)}",
            where=f"images/{target.name}/target.toml",
            next_step="correct the name, or remove the line",
        )
    return plan_problem(table, target, lock)


def refuse_clash(app: App, target: Target) -> None:
    """Raise `SpecError` when what a target's spec says contradicts itself; the lock is not looked at."""
    from rlbox.stack.explain import judge
    from rlbox.stack.view import clash_lines, next_step

    verdict: Verdict = judge(_problem(app, target, None))
    if not verdict.fits:
        raise SpecError(
            "\n  ".join((f"the stack of target {target.name} contradicts itself:", *clash_lines(verdict))),
            where=f"images/{target.name}/target.toml",
            next_step=next_step(target.name, verdict),
        )
