"""`rlbox cluster`: several machines as one Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from rlbox.app import App
from rlbox.cli.help import TranslatedGroup
from rlbox.cli.options import NON_NEGATIVE, complete_target, dry_run_option, pass_app_with_shared_options
from rlbox.cluster.checks import format_findings
from rlbox.cluster.jobs import (
    SubmitOptions,
    dry_run_submit,
    iterate_log_lines,
    stop_job,
    submit_follow_job_and_find_node_failures,
)
from rlbox.cluster.lifecycle import UpOptions, bring_up_or_repair, dry_run_up, remove_cluster
from rlbox.cluster.plan import ClusterOptions
from rlbox.cluster.status import examine_cluster, require_own_cluster_status
from rlbox.errors import MachineError, WorkFailed
from rlbox.i18n import _, ngettext


def _cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    target = click.argument("target", metavar="TARGET", shell_complete=complete_target)
    nodes = click.option("--nodes", metavar="A,B,…", default="", help="The nodes, the head first.")
    name = click.option(
        "--name", default="", metavar="NAME", help="One of several clusters of yours on the same nodes."
    )
    data = click.option("--data", default="", metavar="DIR", help="Data disk of all nodes, instead of disk.host.")
    return target(nodes(name(data(function))))


@click.command("up")
@_cluster_options
@click.option(
    "--port",
    "first_port",
    type=click.IntRange(0, 65000),
    default=0,
    metavar="N",
    help="First of 20 ports; 0: that fit.",
)
@click.option("--path", "required_paths", multiple=True, metavar="PATH", help="Path that every node must have.")
@click.option("--image", default="", metavar="REF", help="Image in a registry, which nodes that lack it pull.")
@click.option("--prove", is_flag=True, help="Give the nodes work whose result is known; a bad one is named.")
@click.option(
    "--timeout",
    "limit_s",
    type=NON_NEGATIVE,
    default=300.0,
    show_default=True,
    help="Seconds until all nodes are there.",
)
@dry_run_option
@pass_app_with_shared_options
def start_or_repair_cluster(app: App, **given: Any) -> int:
    """Start a cluster: check each node, install the image, and start Ray with the cluster's own token.

    If a node has problems, all problems are printed and nothing is started. After a failure, Ctrl-C or a lost
    connection, nothing of this call remains. A running cluster is not changed, except that its dead parts are
    started again.

    \b
    Examples:
      rlbox cluster up cluster-2node --nodes gpu005,gpu006
    """
    options = UpOptions(**given)
    if app.dry_run:
        return dry_run_up(app, options)
    result = bring_up_or_repair(app, options)
    app.output(result.as_json(), result.text())
    started = _("started on {nodes}").format(nodes=", ".join(result.started))
    app.print_status(started if result.started else _("unchanged"))
    words = options.target_and_options_text
    app.print_next(f"rlbox cluster status {words}")
    return 0


@click.command("status")
@_cluster_options
@pass_app_with_shared_options
def print_status(app: App, **given: Any) -> int:
    """Show the state of a cluster: nodes, GPUs, idle GPUs, object store, disks.

    Works from any machine that reaches the nodes. Exit code 5 if a node has a problem.

    \b
    Example:
      rlbox cluster status cluster-2node --nodes gpu005,gpu006
    """
    options = ClusterOptions(**given)
    cluster_status = require_own_cluster_status(app, options)
    app.output(cluster_status.as_json(), cluster_status.text())
    if any(not node.is_up_and_joined for node in cluster_status.nodes):
        app.print_next(f"rlbox cluster up {options.target_and_options_text}")
    return 0 if cluster_status.healthy else MachineError.exit_code


@click.command("submit")
@_cluster_options
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--working-dir",
    "folder",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Directory that goes along and that it runs in.",
)
@click.option("--exclude", "excludes", multiple=True, metavar="PATTERN", help="Name or path in it that stays here.")
@click.option("--secret", "secrets", multiple=True, metavar="NAME", help="Secret that the command finds as a variable.")
@click.option("--env-file", default="", metavar="FILE", help="File with the secrets, before the environment and .env.")
@click.option("--detach", "-d", is_flag=True, help="Return as soon as Ray has taken it.")
@dry_run_option
@pass_app_with_shared_options
def submit_job_and_print_output(app: App, **given: Any) -> int:
    """Run COMMAND on the head of a cluster as a Ray job, and print its output until it ends.

    Its exit code is rlbox's. Ctrl-C, or a lost connection, leaves the job alone. Secrets come to the command in its
    environment, and stand in no command line, label or record of Ray's.

    \b
    Examples:
      rlbox cluster submit cluster-2node --nodes gpu005,gpu006 -- python -c 'import ray; ray.init()'
      rlbox cluster submit cluster-2node --nodes gpu005,gpu006 --working-dir . --exclude data -- python train.py
    """
    options = SubmitOptions(**given)
    if app.dry_run:
        return dry_run_submit(app, options)
    job, failures = submit_follow_job_and_find_node_failures(app, options)
    app.output({**job.as_json(), "failures": [one.as_json() for one in failures]}, "")
    if not job.has_ended:
        app.print_next(f"rlbox cluster logs {options.target_and_options_text} --job {job.id}")
        return 0
    code = "" if job.exit_code is None else _(", driver exit code {code}").format(code=job.exit_code)
    app.print_status(_("job {id} ended {status}{code}").format(id=job.id, status=job.status, code=code))
    return job.cli_exit_code


@click.command("logs")
@_cluster_options
@click.option("--job", default="", metavar="JOB", help="Only the output of a job's driver and workers.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@click.option("--lines", "-n", type=click.IntRange(0), metavar="N", help="Number of last lines [all; with -f, 10].")
@pass_app_with_shared_options
def print_cluster_logs(app: App, job: str, follow: bool, lines: int | None, **given: Any) -> None:
    """Print the logs of all nodes, merged by time; how far a node's clock is off is taken out.

    Each line begins with its time (UTC), node and log. A line without a time follows the line before it.

    \b
    Example:
      rlbox cluster logs cluster-2node --nodes gpu005,gpu006 --job job-1a2b3c4d -f
    """
    if follow and app.as_json:
        raise click.UsageError(_("--follow does not go with --json."))
    found: list[dict[str, Any]] = []
    number = 10 if follow and lines is None else lines
    options = ClusterOptions(**given)
    for line in iterate_log_lines(app, options, job=job, lines=number, follow_until_interrupted=follow):
        if app.as_json:
            found.append(line._asdict())
        else:
            app.print_stdout(line.format())
    if app.as_json:
        app.output({"lines": found}, "")


@click.command("stop")
@_cluster_options
@click.argument("job", metavar="JOB")
@pass_app_with_shared_options
def stop_submitted_job(app: App, job: str, **given: Any) -> int:
    """Stop JOB; the cluster stays. Stopping a job that has ended changes nothing and succeeds.

    \b
    Example:
      rlbox cluster stop cluster-2node --nodes gpu005,gpu006 job-1a2b3c4d
    """
    ended, stopped = stop_job(app, ClusterOptions(**given), job)
    if not stopped:
        app.print_status(_("job {id} has already ended: there is nothing to stop").format(id=ended.id))
    app.output({**ended.as_json(), "stopped": stopped}, f"{ended.id} {ended.status}")
    return 0


@click.command("down")
@_cluster_options
@click.option("--force", is_flag=True, help="Stop the cluster even if a job or run is in progress; it ends too.")
@pass_app_with_shared_options
def stop_and_remove_cluster(app: App, force: bool, **given: Any) -> int:
    """End a cluster of yours and leave nothing of it: containers, token, sessions and logs of Ray.

    Under a job or a run it is refused, with exit code 8. Runs' directories and the image stay. What cannot be reached
    is named, and exit code 5 says so.

    \b
    Example:
      rlbox cluster down cluster-2node --nodes gpu005,gpu006
    """
    name, removed = remove_cluster(app, ClusterOptions(**given), even_if_in_use=force)
    lines = [f"{node}: {', '.join(gone)}" for node, gone in removed.items() if gone]
    app.output({"cluster": name, "gone": removed}, "\n".join(lines))
    if not lines:
        app.print_status(_("nothing of cluster {name} was there").format(name=name))
    return 0


@click.command("doctor")
@_cluster_options
@click.option("--path", "paths", multiple=True, metavar="PATH", help="Path that every node must have.")
@click.option("--prove", is_flag=True, help="Run a calculation with a known result on the nodes of a running cluster.")
@pass_app_with_shared_options
def check_nodes(app: App, paths: tuple[str, ...], prove: bool, **given: Any) -> int:
    """Run every check of `up` on every node and print all problems. It also works on a running cluster.

    Nothing is changed. With --prove, every node runs an all-reduce alone and then all of them together, in
    parallel with running jobs. Exit code 1 if there is a problem.

    \b
    Examples:
      rlbox cluster doctor cluster-2node --nodes gpu005,gpu006
      rlbox cluster doctor cluster-2node --nodes gpu005,gpu006 --prove
    """
    found = examine_cluster(app, ClusterOptions(**given), paths, run_all_reduce=prove)
    status = found.status.as_json() if found.status else None
    data = {"findings": [one.as_json() for one in found.findings], "nodes": found.nodes, "status": status}
    data |= {"proof": found.proof.as_json() if found.proof else None}
    figures = found.proof.all_reduce_table() if found.proof else ""
    app.output(data, "\n".join(filter(None, (figures, format_findings(found.findings)))))
    errors = sum(one.level == "error" for one in found.findings)
    counted = ngettext("{count} problem", "{count} problems", errors).format(count=errors)
    verdict = counted if errors else _("nothing is wrong")
    app.print_status(_("cluster doctor: {nodes} nodes: {verdict}").format(nodes=found.nodes, verdict=verdict))
    return WorkFailed.exit_code if errors else 0


@click.group(cls=TranslatedGroup, epilog="Each takes -v, --verbose, -q, --quiet, --json, --project DIR.")
def cluster() -> None:
    """Start a private Ray cluster on several machines, or stop it.

    Nodes are host names of your SSH configuration, the head first: cluster.nodes of the target, or --nodes.

    \b
    Examples:
      rlbox cluster up cluster-2node --nodes gpu005,gpu006
    """


for command in (
    start_or_repair_cluster,
    print_status,
    submit_job_and_print_output,
    print_cluster_logs,
    stop_submitted_job,
    stop_and_remove_cluster,
    check_nodes,
):
    cluster.add_command(command)
