"""Judge the GPUs of the nodes against the target, and against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rlbox.amounts import GIB, card_text
from rlbox.cluster.facts import NodeFacts, NodeGpu
from rlbox.cluster.judge.needs import NodeNeeds
from rlbox.cluster.labels import NODE_LABEL
from rlbox.cluster.plan import plan_of_labels
from rlbox.cluster.survey import Survey
from rlbox.findings import Finding, listed
from rlbox.i18n import _

_NEAR = 0.97  # a card reports a little less than its name says
_IDLE = 0.05


def judge_gpus(survey: Survey, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield GPUs that are missing, other ones than the target's, ill, or taken by somebody."""
    if not needs.gpus:
        return
    for name, facts in survey.facts.items():
        yield from _driver(name, facts, needs)
        yield from _runtime(name, facts) if not survey.here(name) else ()
        yield from _kind(name, facts, needs)
        yield from _health(name, facts)
        yield from _taken(name, facts)
        yield from _given(name, facts, needs)
    yield from _drivers(survey)


def _driver(name: str, facts: NodeFacts, needs: NodeNeeds) -> Iterator[Finding]:
    count = len(facts.gpu.gpus)
    if count < needs.gpus:
        yield Finding(
            id="gpus-few",
            title=_("it has fewer GPUs than the target says"),
            seen=_("{count} of {gpus}{said}").format(
                count=count, gpus=needs.gpus, said=f": {facts.gpu.said}" if facts.gpu.said else ""
            ),
            where=name,
            remedy=_(
                "see dmesg and nvidia-smi there; a GPU that fell off the bus comes back by a restart of the machine"
            ),
        )


def _runtime(name: str, facts: NodeFacts) -> Iterator[Finding]:
    count, engine = len(facts.gpu.gpus), facts.engine
    if count and engine.state == "ok" and "nvidia" not in engine.runtimes and not engine.cdi:
        yield Finding(
            id="gpu-runtime",
            title=_("its Docker engine gives containers no GPU"),
            level="warning",
            seen=_("runtimes: {runtimes}").format(runtimes=", ".join(engine.runtimes)),
            where=name,
            remedy=_("install nvidia-container-toolkit there, then: nvidia-ctk runtime configure"),
        )


def _kind(name: str, facts: NodeFacts, needs: NodeNeeds) -> Iterator[Finding]:
    other = Counter(gpu.name for gpu in facts.gpu.gpus if needs.gpu and gpu.name != needs.gpu)
    for kind, count in other.items():
        yield Finding(
            id="gpu-other",
            title=_("it has other GPUs than the target says"),
            level="warning",
            seen=_("{count} x {kind}, not {gpu}").format(count=count, kind=kind, gpu=needs.gpu),
            where=name,
            remedy=_("take another node, or correct hardware.gpu"),
        )
    small = [gpu for gpu in facts.gpu.gpus if gpu.memory < needs.gpu_memory_gib * GIB * _NEAR]
    if small:
        yield Finding(
            id="gpu-small",
            title=_("its GPUs have less memory than the target says"),
            seen=_("GPU {numbers}: {memory}, {gpu_memory_gib:g} needed").format(
                numbers=_numbers(small), memory=card_text(small[0].memory), gpu_memory_gib=needs.gpu_memory_gib
            ),
            where=name,
            remedy=_("take another node, or correct hardware.gpu_memory_gib"),
        )


def _health(name: str, facts: NodeFacts) -> Iterator[Finding]:
    ill = [gpu for gpu in facts.gpu.gpus if gpu.errors]
    if ill:
        yield Finding(
            id="gpu-ill",
            title=_("memory of its GPUs has errors that were not corrected"),
            seen=f"GPU {_numbers(ill)}",
            where=name,
            remedy=_("have the card reset or replaced before a long run"),
        )


def _taken(name: str, facts: NodeFacts) -> Iterator[Finding]:
    taken = [gpu for gpu in facts.gpu.gpus if gpu.used > gpu.memory * _IDLE]
    if not taken:
        return
    known = {gpu.uuid for gpu in taken}
    words = [f"{one.user or 'somebody'} ({one.pid}, {one.words})" for one in facts.gpu.holders if one.uuid in known]
    who = f": {listed(words)}" if words else ""
    yield Finding(
        id="gpus-taken",
        title=_("its GPUs are in use"),
        seen=f"GPU {_numbers(taken)}, {card_text(sum(gpu.used for gpu in taken))}{who}",
        where=name,
        remedy=_("ask their owner, wait, or take another node"),
    )


def _given(name: str, facts: NodeFacts, needs: NodeNeeds) -> Iterator[Finding]:
    """Yield that another cluster has GPUs there, at work or not: each cluster's are the first of its node."""
    for one in facts.clusters:
        plan = plan_of_labels(one.labels) if one.going else None
        member = plan.member(one.labels.get(NODE_LABEL, "")) if plan else None
        if plan and member and member.gpus and (plan.name, member.uid) != (needs.cluster, facts.uid):
            yield Finding(
                id="gpus-given",
                title=_("another cluster has its GPUs"),
                seen=_("{plan} of {maker} has {gpus} of {count}").format(
                    plan=plan.name, maker=plan.maker, gpus=member.gpus, count=len(facts.gpu.gpus)
                ),
                where=name,
                remedy=_(
                    "wait, take another node, or end that one if it is yours: rlbox cluster down {target} --name {plan}"
                ).format(target=plan.target, plan=plan.name),
            )


def _drivers(survey: Survey) -> Iterator[Finding]:
    found = {name: facts.gpu.gpus[0].driver for name, facts in survey.facts.items() if facts.gpu.gpus}
    usual = Counter(found.values()).most_common(1)[0][0] if found else ""
    for name, driver in found.items():
        if driver != usual:
            yield Finding(
                id="drivers-differ",
                title=_("its GPU driver is another than that of the other nodes"),
                level="warning",
                seen=_("{driver}, there {usual}").format(driver=driver, usual=usual),
                where=name,
                remedy=_("bring all nodes to one driver: NCCL is tried between equal ones"),
            )


def _numbers(gpus: list[NodeGpu]) -> str:
    return listed([str(gpu.index) for gpu in gpus], most=8)
