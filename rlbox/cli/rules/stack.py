"""`rlbox stack`: does a target's stack fit together, and what would."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.offered import complete_target
from rlbox.cli.options import shared
from rlbox.errors import SpecError


@click.command()
@click.argument("name", metavar="TARGET", shell_complete=complete_target)
@click.option("--solve", is_flag=True, help="Leave the lock aside, and print a set of versions that fits the spec.")
@shared
def verb(app: App, name: str, solve: bool) -> int:
    """Judge the stack of TARGET by what is known to fit together: GPU, driver, CUDA, torch, engines, kernels.

    A stack that contradicts itself is explained by the fewest facts that do, with their sources and the nearest change.
    A version that nothing is known of is named: no verdict is given on it.

    \b
    Examples:
      rlbox stack vast-5090
      rlbox stack vast-5090 --solve
    """
    from rlbox.planner.stack_check import load_stack, plan_stack
    from rlbox.planner.stack_explain import judge
    from rlbox.planner.stack_proof import is_unproven, proof_lines
    from rlbox.planner.stack_view import stack_json, stack_text

    target, lock = load_stack(app, name, spec_alone=solve)
    problem = plan_stack(target, lock)
    verdict = judge(problem)
    found = {"target": name, **stack_json(problem, verdict), "unproven": is_unproven(target, lock)}
    proof = [] if solve else proof_lines(target, lock)
    app.result(found, "\n".join([stack_text(name, problem, verdict, solve), *proof]))
    return 0 if verdict.fits else SpecError.exit_code
