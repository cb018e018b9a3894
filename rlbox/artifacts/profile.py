"""Sources profiles: where files come from instead of the machine's own settings.

Schema of `sources/<name>.toml` and of the shipped `egress.toml`, and their readers.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from rlbox.config.project import Project
from rlbox.config.schema import EnvName, Name, SingleLine, SpecModel, validate_spec
from rlbox.config.toml_files import format_spec_path, load_toml, require_key_absent
from rlbox.errors import SpecError
from rlbox.i18n import _

SourceKind = Literal["apt", "conda", "cuda-apt", "git", "http", "huggingface", "oci", "python", "torch-wheels"]
MirrorProtocol = Literal[
    "archive", "direct", "flat", "git-instead-of", "host", "index", "registry-prefix", "url-prefix"
]
Phase = Literal["lock", "fetch", "build", "run"]

# What a rule of each kind may be, besides `direct`.
PROTOCOLS: dict[str, tuple[str, ...]] = {
    "apt": ("archive",),
    "conda": ("host",),
    "cuda-apt": ("host",),
    "git": ("git-instead-of", "url-prefix"),
    "http": ("host", "url-prefix"),
    "huggingface": ("host",),
    "oci": ("host", "registry-prefix"),
    "python": ("flat", "index"),
    "torch-wheels": ("flat", "index"),
}
# What replaces a part of an address must say which part.
_NEED_MATCH = ("git-instead-of", "host")


def _address(text: str) -> str:
    if not text:
        return text
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(_("{text!r} is not an address: http:// or https://").format(text=text))
    if parts.username or parts.password:
        raise ValueError(_("holds a user or password: put them into ~/.netrc"))
    return text


UrlText = Annotated[str, AfterValidator(_address)]
Host = Annotated[str, StringConstraints(pattern=r"^(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]


class MirrorRule(SpecModel):
    """One place for files of one kind. The rules of a kind are tried in order."""

    kind: SourceKind = Field(description="kind of download")
    protocol: MirrorProtocol = Field(description="how request addresses are formed; direct: the machine's own settings")
    url: UrlText = Field("", description="base address of the mirror; for oci https://REGISTRY[/PATH]")
    name: SingleLine = Field("", description="name in messages; empty: the host of url")
    match: SingleLine = Field(
        "", description="address prefix that the rule applies to; for oci the registry; empty: all"
    )
    checked: datetime.date | None = Field(None, description="date of the last check; absent: unknown")
    expires: datetime.date | None = Field(
        None, description="date after which `rlbox mirrors ls` marks the rule as old; absent: never"
    )

    @model_validator(mode="after")
    def _fits(self) -> MirrorRule:
        problems = list(self._problems())
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> list[str]:
        if self.protocol == "direct":
            return ["protocol 'direct' takes no url"] if self.url else []
        known = PROTOCOLS[self.kind]
        problems = []
        if self.protocol not in known:
            problems.append(f"protocol {self.protocol!r} is not for kind {self.kind!r} ({' or '.join(known)})")
        if not self.url:
            problems.append("url is missing")
        if self.protocol in _NEED_MATCH and not self.match:
            problems.append(f"match is missing: the beginning of the addresses that {self.url or 'it'} stands for")
        return problems

    @property
    def display_name(self) -> str:
        return self.name or (urlsplit(self.url).hostname or self.url if self.url else "direct")

    @property
    def url_without_trailing_slash(self) -> str:
        return self.url.rstrip("/")


class Profile(SpecModel):
    """A table of sources. A kind without a rule comes from where the machine's own clients get it."""

    name: Name
    title: SingleLine = Field(description="one-line description of the profile")
    rule: tuple[MirrorRule, ...] = Field((), description="mirrors; rules of a kind are tried in order")

    def has_rules_for(self, kind: str) -> bool:
        return any(rule.kind == kind for rule in self.rule)

    def rules_or_direct_rule_for(self, kind: str) -> tuple[MirrorRule, ...]:
        return tuple(rule for rule in self.rule if rule.kind == kind) or (create_direct_rule(kind),)

    def first_rule_unless_direct(self, kind: str) -> MirrorRule | None:
        rule = self.rules_or_direct_rule_for(kind)[0]
        return None if rule.protocol == "direct" else rule


def create_direct_rule(kind: str) -> MirrorRule:
    return MirrorRule.model_validate({"kind": kind, "protocol": "direct"})


# `NAME` (set to anything), or `NAME=VALUE|VALUE`, compared without regard to case.
EnvCondition = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(=[^|]+(\|[^|]+)*)?$")]


class HiddenHost(SpecModel):
    """One host that something contacts by itself, and what makes it stop."""

    host: Host
    kind: SourceKind = "http"
    phase: Phase
    packages: tuple[SingleLine, ...] = Field((), description="any of them in the lock; empty: whatever the lock holds")
    sdist: bool = Field(False, description="only when the lock has the package as a source archive")
    registry: SingleLine = Field("", description="only when the base image comes from this registry")
    when: tuple[EnvCondition, ...] = Field((), description="any of these in the target's environment; empty: always")
    unless: tuple[EnvCondition, ...] = Field((), description="any of these in the target's environment closes it")
    replaced_by: EnvName | None = Field(None, description="variable whose address takes the host's place")
    why: SingleLine
    rule: SingleLine = Field(description="what closes it, or where else its bytes can come from")
    source: SingleLine
    checked: datetime.date


class _HiddenHostsFile(SpecModel):
    row: tuple[HiddenHost, ...]


HIDDEN_HOSTS_FILE = Path(__file__).with_name("egress.toml")


def load_profile(project: Project, name: str, including_profiles: tuple[str, ...] = ()) -> Profile:
    """Return the sources profile `name`; the rules of a profile that it includes are tried after its own.

    Its errors are those of `load_target`; `including_profiles` are the profiles that include this one.
    """
    if name in including_profiles:
        raise SpecError(
            _("profiles include each other: {value}").format(value=" -> ".join((*including_profiles, name))),
            next_step=_("break the circle"),
        )
    path = project.require_sources_profile_file(name)
    data = require_key_absent(load_toml(path, project), format_spec_path(path, project), "name")
    include = data.pop("include", None)
    profile = validate_spec(
        Profile, {**data, "name": name}, format_spec_path(path, project), extra_known_keys=("include",)
    )
    if include is None:
        return profile
    included = load_profile(project, str(include), (*including_profiles, name))
    return profile.model_copy(update={"rule": profile.rule + included.rule})


def load_implicitly_contacted_hosts() -> tuple[HiddenHost, ...]:
    return validate_spec(_HiddenHostsFile, load_toml(HIDDEN_HOSTS_FILE), str(HIDDEN_HOSTS_FILE)).row
