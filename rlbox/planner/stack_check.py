"""Refuse a target whose stack contradicts itself, before anything is locked, built, started or rented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlbox.app import App, own_requirements
from rlbox.errors import SpecError
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.planner.stack_facts import Problem
    from rlbox.target.lock import Lock
    from rlbox.target.target import Target


def require_stack(app: App, name: str, *, force: bool = False) -> str:
    """Refuse a target whose spec and lock contradict each other or themselves, and say which versions are not known.

    Returns
    -------
    str
        The contradiction in one line, which `force` overrides: for the record. Empty where there is none.
    """
    with app.checking("stack"):
        return refuse_clash(app, *load_stack(app, name), force=force)
    return ""


def refuse_clash(app: App, target: Target, lock: Lock | None, *, force: bool = False) -> str:
    """Raise `SpecError` when a target contradicts itself; with `force` say so and return the contradiction."""
    from rlbox.planner.stack_explain import judge
    from rlbox.planner.stack_view import clash_lines, next_step, unknown_lines

    problem = plan_stack(target, lock)
    verdict = judge(problem)
    for line in unknown_lines(problem):
        app.say(line)
    if verdict.fits:
        return ""
    lines = clash_lines(verdict)
    if force:
        app.say(f"warning: the stack of target {target.name} contradicts itself: {'; '.join(lines)}")
        return "; ".join(map(str, lines))
    raise SpecError(
        "\n  ".join((f"the stack of target {target.name} contradicts itself:", *lines)),
        where=f"images/{target.name}/target.toml",
        next_step=next_step(target.name, verdict),
    )


def load_stack(app: App, name: str, *, spec_alone: bool = False) -> tuple[Target, Lock | None]:
    """Return a target, and its lock when it fits the spec."""
    from rlbox.fixes.catalogue import load_fixed_target
    from rlbox.target.lock import load_lock, lock_checksum

    target = load_fixed_target(app.project, name).target
    lock = None if spec_alone else load_lock(app.project.lock_file(name))
    if lock and lock.spec != lock_checksum(target, own_requirements()):
        lock = None
    return target, lock


def plan_stack(target: Target, lock: Lock | None) -> Problem:
    """Return the question that a target puts to the solver; `SpecError` when it leaves out a fact that is not there."""
    from rlbox.config.schema import suggest
    from rlbox.planner.compat import load_compat
    from rlbox.planner.stack_facts import plan_problem

    table = load_compat()
    ids = [fact.id for fact in table.all_facts()]
    if unknown := sorted(set(target.compat.off) - set(ids)):
        raise SpecError(
            _("compat.off: there is no fact {unknown!r}{suggest}").format(
                unknown=unknown[0], suggest=suggest(unknown[0], ids)
            ),
            where=f"images/{target.name}/target.toml",
            next_step=_("correct the name, or remove the line"),
        )
    return plan_problem(table, target, lock)
