"""`rlbox cluster submit`: run a job on a cluster; `stop`: end one."""

from __future__ import annotations

from pathlib import Path

import click

from rlbox.app import App
from rlbox.cli.clusters.cluster_options import cluster_options
from rlbox.cli.options import shared
from rlbox.cluster.wish import ClusterWish


@click.command()
@cluster_options
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--working-dir", "folder", default="", metavar="DIR", help="Send this folder; the job starts in it.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="What of it is not sent; may be repeated.")
@click.option("--env", "settings", multiple=True, metavar="NAME=VALUE", help="Environment of all its processes.")
@click.option(
    "--env-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE", help="Secrets, as .env."
)
@click.option("--detach", is_flag=True, help="Leave it alone at once: `rlbox cluster logs --job` shows it.")
@shared
def submit(
    app: App,
    wish: ClusterWish,
    words: tuple[str, ...],
    folder: str,
    exclude: tuple[str, ...],
    settings: tuple[str, ...],
    env_file: Path | None,
    detach: bool,
) -> int:
    """Run COMMAND as a job of a cluster's Ray, and follow it; the exit code is that of its driver.

    A node that fails is named at once, with what its and the other nodes' logs say, and the job is stopped. Ctrl-C
    stops it, too. Secrets of --env-file are masked in what is shown; whoever has the cluster's token can read them.

    \b
    Example:
      rlbox cluster submit cluster-2node --nodes gpu005,gpu006 --working-dir . -- python train.py
    """
    from rlbox.cluster.act.submit import submit as submit_job
    from rlbox.cluster.job import JobWish
    from rlbox.secrets.env_file import parse_env_file

    secret = dict(parse_env_file(env_file.read_bytes()).values) if env_file else {}
    env = {**dict(_pair(row) for row in settings), **secret}
    job = JobWish(words=words, folder=folder, exclude=exclude, env=env, secret=tuple(secret), detach=detach)
    end = submit_job(app, wish, job, (lambda text: None) if app.as_json else app.show)
    app.result({"job": end.id, "state": end.state.status, "driver_exit_code": end.state.exit_code}, "")
    if detach:
        app.say(f"next: rlbox cluster logs {wish.target} --job {end.id} -f")
        return 0
    why = f": {end.state.message.splitlines()[0]}" if end.state.message and end.state.code else ""
    app.say(f"job {end.id} {end.state.status}{why}")
    return end.state.code


def _pair(row: str) -> tuple[str, str]:
    name, equals, value = row.partition("=")
    if not (equals and name.isidentifier()):
        raise click.UsageError(f"--env {row}: it must be NAME=VALUE")
    return name, value


@click.command()
@cluster_options
@click.argument("job", required=False, default="")
@shared
def stop(app: App, wish: ClusterWish, job: str) -> int:
    """Stop JOB, or every job that runs, on a cluster; the cluster stays.

    \b
    Example:
      rlbox cluster stop cluster-2node --nodes gpu005,gpu006
    """
    from rlbox.cluster.act.submit import stop_job

    done = stop_job(app, wish, job)
    app.result({"stopped": list(done)}, "\n".join(done))
    if not done:
        app.say("no job runs" if not job else f"job {job} does not run")
    return 0
