"""`rlbox cluster submit`: run a command as a job of a cluster."""

from __future__ import annotations

import dataclasses

import click

from rlbox.app import App
from rlbox.cli.clusters.cluster_options import cluster_options
from rlbox.cli.options import dry_run, shared
from rlbox.cluster.wish import ClusterWish


@click.command()
@cluster_options
@click.argument("command", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--working-dir", "folder", default="", metavar="DIR", help="Directory that goes along and that it runs in."
)
@click.option("--exclude", "excludes", multiple=True, metavar="PATTERN", help="Name or path in it that stays here.")
@click.option("--secret", "secrets", multiple=True, metavar="NAME", help="Secret that the command finds as a variable.")
@click.option("--env-file", default="", metavar="FILE", help="File with the secrets, before the environment and .env.")
@click.option("--detach", "-d", is_flag=True, help="Return as soon as Ray has taken it.")
@dry_run
@shared
def submit(
    app: App,
    wish: ClusterWish,
    command: tuple[str, ...],
    folder: str,
    excludes: tuple[str, ...],
    secrets: tuple[str, ...],
    env_file: str,
    detach: bool,
) -> int:
    """Run COMMAND on the head of a cluster, as a job of Ray's, and print what it writes until it ends.

    Its exit code is rlbox's. Ctrl-C, or a lost connection, leaves the job alone. Secrets come to the command in its
    environment, and stand in no command line, label or record of Ray's.

    \b
    Examples:
      rlbox cluster submit cluster-2node --nodes gpu005,gpu006 -- python -c 'import ray; ray.init()'
      rlbox cluster submit cluster-2node --nodes gpu005,gpu006 --working-dir . --exclude data -- python train.py
    """
    from rlbox.cluster.work.submit import SubmitWish, look_at
    from rlbox.cluster.work.submit import submit as submit_job

    wanted = SubmitWish(
        **dataclasses.asdict(wish),
        command=command,
        folder=folder,
        excludes=excludes,
        secrets=secrets,
        env_file=env_file,
        detach=detach,
    )
    if app.dry_run:
        return look_at(app, wanted)
    done = submit_job(app, wanted)
    job = done.job
    app.result({**job.as_json(), "failures": [one.as_json() for one in done.failures]}, "")
    if not job.ended:
        app.say(f"next: rlbox cluster logs {wish.words} --job {job.id}")
        return 0
    code = "" if job.exit_code is None else f", driver exit code {job.exit_code}"
    app.say(f"job {job.id} ended {job.status}{code}")
    return job.code
