"""Read sources profiles and the table of hidden hosts."""

from __future__ import annotations

from pathlib import Path

from rlbox.artifacts.profile import HiddenHost, HiddenHosts, Profile
from rlbox.config.check import check_spec, suggest
from rlbox.config.load import load_toml, shown_path, without_name
from rlbox.config.project import Project
from rlbox.errors import SpecError
from rlbox.i18n import _

HIDDEN_HOSTS = Path(__file__).with_name("egress.toml")


def load_profile(project: Project, name: str, above: tuple[str, ...] = ()) -> Profile:
    """Return the sources profile `name`; the rules of a profile that it includes are tried after its own.

    Its errors are those of `load_target`; `above` are the profiles that include this one.
    """
    if name in above:
        raise SpecError(
            _("profiles include each other: {value}").format(value=" -> ".join((*above, name))),
            next_step=_("break the circle"),
        )
    path = project.source_file(name)
    data = without_name(load_toml(path, project), shown_path(path, project), "name")
    include = data.pop("include", None)
    profile = check_spec(Profile, {**data, "name": name}, shown_path(path, project), known=("include",))
    if include is None:
        return profile
    known = list(project.source_profiles())
    if include not in known:
        near = suggest(str(include), known)
        raise SpecError(
            _("{path}: include: unknown sources profile {include!r}{near}").format(
                path=shown_path(path, project), include=include, near=near
            ),
            next_step=_("choose one of: {known}").format(known=", ".join(known)),
        )
    under = load_profile(project, include, (*above, name))
    return profile.model_copy(update={"rule": profile.rule + under.rule, "egress": profile.egress + under.egress})


def load_hidden_hosts() -> tuple[HiddenHost, ...]:
    return check_spec(HiddenHosts, load_toml(HIDDEN_HOSTS), str(HIDDEN_HOSTS)).row
