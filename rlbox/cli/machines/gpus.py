"""`rlbox gpus`: who holds which GPU, and does a split between training and generation fit."""

from __future__ import annotations

import click

from rlbox.app import App
from rlbox.cli.options import shared

_COUNT = click.IntRange(0, 1_000_000)


@click.command()
@click.option("--actor", metavar="N", type=_COUNT, default=0, help="GPUs of training, over all nodes.")
@click.option("--rollout", metavar="N", type=_COUNT, default=0, help="GPUs of generation, over all nodes.")
@click.option("--total", metavar="N", type=_COUNT, default=0, help="GPUs that must be there, over all nodes.")
@click.option("--nodes", metavar="N", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Machines.")
@click.option("--colocated", is_flag=True, help="Training and generation take turns on the same GPUs.")
@click.option("--ray", metavar="URL", default="http://127.0.0.1:8265", show_default=True, help="Ray's dashboard.")
@shared
def verb(app: App, actor: int, rollout: int, total: int, nodes: int, colocated: bool, ray: str) -> int:
    """List the GPUs of this machine with who holds them, Ray's view, and whether a split of them fits.

    Exit code 1 when GPUs are missing or held, Ray counts fewer, or a role does not fit on the nodes.

    \b
    Examples:
      rlbox gpus
      rlbox gpus --actor 2 --rollout 2 --total 8
    """
    import os

    from rlbox.errors import WorkFailed
    from rlbox.evaluation.gpu_holders import probe_gpu_facts
    from rlbox.evaluation.gpu_split import SplitWish, plan_split
    from rlbox.evaluation.training_view import gpus_text

    wish = SplitWish(actor=actor, rollout=rollout, total=total, nodes=nodes, colocated=colocated)
    facts = probe_gpu_facts(os.environ, ray)
    split = plan_split(facts, wish)
    placed = [{"role": role, "node": node, "gpus": count} for role, node, count in split.placed]
    told = {"placed": placed, "problems": list(split.problems), "notes": list(split.notes)}
    app.result({**facts.as_json(), **told}, gpus_text(facts, split))
    return WorkFailed.exit_code if split.problems else 0
