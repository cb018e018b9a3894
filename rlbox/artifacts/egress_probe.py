"""Ask where addresses lead: the hosts of the files that an index lists, and redirects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from rlbox.artifacts.egress import Address, EgressFacts, host_of, plan_addresses
from rlbox.artifacts.fetch_pages import Unusable, read_page
from rlbox.artifacts.mirrors import Machine, same_file
from rlbox.artifacts.profile import Profile
from rlbox.system.http import HttpClient, NoResponseError, create_client
from rlbox.target.artifact import Artifact
from rlbox.target.target import Target

_AT_ONCE = 8
_SILENT_S = 5.0
_ASKED = ("apt", "http", "python", "torch-wheels")


def probe_egress(target: Target, artifacts: Sequence[Artifact], profile: Profile, machine: Machine) -> EgressFacts:
    """Return where the addresses of a target's files lead; one that does not answer is left out."""
    addresses = [one for one in plan_addresses(target, artifacts, profile, machine) if one.kind in _ASKED]
    with create_client(machine.site, silent_s=_SILENT_S) as http, ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(lambda address: _behind(http, address), addresses)
        found = {one.place.url: hosts for one, hosts in zip(addresses, answers, strict=True) if hosts is not None}
    return EgressFacts(machine=machine, behind=found)


def _behind(http: HttpClient, address: Address) -> tuple[str, ...] | None:
    place, artifact = address.place, address.artifact
    if not place.page:
        return _redirects(http, place.url)
    try:
        listed = read_page(http, place.url)
    except Unusable:
        return None
    mine = [file for file in listed if artifact and same_file(file.file, artifact.file)] or listed[:1]
    hosts = [host_of(file.url) for file in mine]
    return _unique([*hosts, *(host for file in mine[:1] for host in _redirects(http, file.url) or ())])


def _redirects(http: HttpClient, url: str) -> tuple[str, ...] | None:
    """Return the hosts that a request for `url` ends at, on the way or at last; None when nobody answers."""
    try:
        answer = http.whole("HEAD", url)
    except NoResponseError:
        return None
    return _unique(map(host_of, answer.asked))


def _unique(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for host in hosts if host))
