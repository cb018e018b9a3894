"""Decide which mirrors of a profile are used now: by the last probe, or by a quick look at them."""

from __future__ import annotations

from collections.abc import Sequence

from rlbox.artifacts.mirror_probe import remember_ranking, remembered_ranking
from rlbox.artifacts.mirror_search import Locator
from rlbox.artifacts.mirrors import Machine, refusal
from rlbox.artifacts.profile import Profile, Rule
from rlbox.artifacts.ranking import Probed, choice_of, place_of, probe_object
from rlbox.artifacts.settings import Choice
from rlbox.system.http import HttpClient, NoResponseError, create_client, explain_no_response
from rlbox.system.network_settings import NetworkSettings
from rlbox.target.artifact import Artifact

QUICK_S = 3.0
# Kinds of which one address goes into a resolver's or a build's settings; the others fail over file by file.
_ONE_ADDRESS = ("apt", "python", "torch-wheels")


def choose_mirrors(profile: Profile, site: NetworkSettings, artifacts: Sequence[Artifact] = ()) -> Choice:
    """Return the rules of a profile in the order in which they are to be tried now.

    A ranking by `rlbox mirrors probe` decides for six hours. Without one, the rules of the kinds that can have one
    address only are asked in turn, 3 s each, until one answers; those that do not are in `skipped`, and are left alone
    for two minutes. A profile without rules costs nothing.

    Parameters
    ----------
    artifacts
        Locked files, if there are any: a mirror must list one of them.
    """
    if not profile.rule:
        return Choice(profile=profile.name)
    if (known := remembered_ranking(profile)) is not None:
        return choice_of(profile, known)
    found: list[Probed] = []
    with create_client(site, silent_s=QUICK_S) as http:
        for kind in _ONE_ADDRESS:
            for rule in profile.rules(kind):
                reason = _look(rule, probe_object(rule, artifacts), profile, http)
                if not reason:
                    break
                found.append(Probed(kind=kind, mirror=rule.title, place=place_of(rule), reason=reason))
    remember_ranking(profile, found, quick=True)
    return choice_of(profile, found)


def _look(rule: Rule, artifact: Artifact | None, profile: Profile, http: HttpClient) -> str:
    """Return why a rule is of no use now, or nothing; only the head of a file is read."""
    if rule.protocol == "direct":
        return ""
    if artifact is None:
        return _head(http, f"{rule.base}/", None)
    reasons: list[str] = []
    choice = Choice(profile=profile.name, rules={rule.kind: (rule,)})
    locator = Locator(profile, Machine(), http, choice=choice, on_skip=lambda mirror, reason: reasons.append(reason))
    for link in locator.links(artifact):
        if not (reason := _head(http, link.url, artifact)):
            return ""
        reasons.append(reason)
    return "; ".join(reasons)


def _head(http: HttpClient, url: str, artifact: Artifact | None) -> str:
    """Return why an address is of no use, or nothing; without a file, any answer but a server's failure will do."""
    try:
        with http.ask("GET", url) as answer:
            if artifact is None:
                return f"answered {answer.status}" if answer.status >= 500 else ""
            return refusal(answer.status, answer.headers.get("content-type", ""), answer.length, artifact)
    except NoResponseError as error:
        return explain_no_response(error)
