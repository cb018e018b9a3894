"""Find all that is wrong with the nodes of a cluster, or of one to come."""

from __future__ import annotations

from dataclasses import dataclass

from rlbox.app import App
from rlbox.cluster.burn_in import BurnInResult, run_burn_in
from rlbox.cluster.checks import CHECKS, check_nodes
from rlbox.cluster.context import open_context
from rlbox.cluster.options import ClusterOptions
from rlbox.cluster.plan import BASE
from rlbox.cluster.probe import plan_ports, probe_ports_and_connections
from rlbox.cluster.status import ClusterStatus, find_status
from rlbox.findings import Finding


@dataclass(frozen=True, kw_only=True)
class ExaminationResult:
    """What was found on how many nodes by how many checks; `status` of the cluster, None where there is none.

    `proof` are the figures of the work that its nodes were given, None where they were given none.
    """

    findings: tuple[Finding, ...]
    nodes: int
    checks: int
    status: ClusterStatus | None
    proof: BurnInResult | None = None


def examine_cluster(
    app: App, options: ClusterOptions, paths: tuple[str, ...] = (), *, work: bool = False
) -> ExaminationResult:
    """Return what is wrong with the nodes of a cluster, or of one to come; with `work` by work that proves them.

    Raises
    ------
    NodeError
        They were to be given work, and there is no cluster.
    """
    with open_context(app, options) as context:
        probe = context.probe(paths)
        cluster = context.require_own_cluster(probe) if work else context.find_largest_own_cluster(probe)
        status = find_status(context, probe, cluster) if cluster else None
        if probe.facts and cluster is None:
            ports = plan_ports(probe, context.name, context.target.cluster.port, BASE)
            probe = probe_ports_and_connections(context.pool, probe, ports)
        failures = status.failures if status else ()
        explained = {one.where for one in failures}  # it says more than that a node does not answer
        unreached = [one for one in context.pool.unreached if one.where not in explained]
        findings = (*failures, *check_nodes(probe, context.needs(paths), unreached))
        proof = None
        if work and cluster:
            proof, failed = run_burn_in(context, cluster.plan, probe.facts)
            findings = (*findings, *failed)
        return ExaminationResult(
            findings=findings, nodes=len(context.specs), checks=len(CHECKS), status=status, proof=proof
        )
