"""Docker options of a vast.ai instance: the few that the platform honours, and both forms in which it takes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlbox.errors import SpecError, page
from rlbox.i18n import _
from rlbox.secrets.masks import is_secret

if TYPE_CHECKING:
    from rlbox.target.target import Target

# vast-ai/docs guides/instances/docker-environment.mdx, networking.mdx; create_instance.yaml, x-input-validation.
MOST_PORTS, MOST_VALUE, MOST_ENV = 64, 256, 32768
_TAKEN = {"ssh": (22,), "jupyter": (22, 8080)}
_PORTAL = (1111, 6006, 8080, 8384, 11111, 16006, 18080, 18384)
"""Ports of the portal in the platform's own images. Source: vast-ai/base-image README."""

_HONOURED = {"-e": "-e", "--env": "-e", "-p": "-p", "--publish": "-p", "-h": "-h", "--hostname": "-h", "-n": "-n"}
_SHARE = "it is handed out in proportion to the share of GPUs: choose an offer whose share is large enough"
_NO_RIGHTS = "instances are unprivileged containers: do without, or rent a VM instance"
_INSTEAD = {
    **dict.fromkeys(("--shm-size", "--ipc"), f"{_SHARE}, or set NCCL_SHM_DISABLE=1"),
    **dict.fromkeys(("-m", "--memory", "--cpus", "--cpuset-cpus", "--memory-swap", "--pids-limit"), _SHARE),
    **dict.fromkeys(("--privileged", "--cap-add", "--security-opt", "--device", "--sysctl", "--pid"), _NO_RIGHTS),
    "--ulimit": "soft limits are raised in the instance, by rlbox-init; hard ones are the platform's",
    "--gpus": "GPUs come with the offer",
    "--runtime": "GPUs come with the offer",
    **dict.fromkeys(("-v", "--volume", "--mount", "--tmpfs"), "a volume is rented, and linked at creation"),
    **dict.fromkeys(("--network", "--net"), "-p maps ports; -n NAME joins an overlay network of yours"),
    "--entrypoint": "ssh and Jupyter mode replace it: the on-start script does its work",
    "--env-file": "name each variable with -e, and put secrets into .env on the data disk",
}
_SWITCH = re.compile(r"--(?:privileged|rm|detach|init|read-only|publish-all)|-(?:d|i|t|it|P)")
_PORT = re.compile(r"(\d{1,5}):(\d{1,5})(/(?:tcp|udp))?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class VastOptions:
    """What an instance is started with; `ports` as `-p` takes them, `overlay` an overlay network."""

    env: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ()
    hostname: str = ""
    overlay: str = ""

    def as_flags(self) -> str:
        """Return them as a template takes them: docker's own words."""
        words = [word for name, value in self.env.items() for word in ("-e", f"{name}={value}")]
        words += [word for port in self.ports for word in ("-p", port)]
        words += ["-h", self.hostname] if self.hostname else []
        return shlex.join([*words, *(["-n", self.overlay] if self.overlay else [])])

    def as_env(self) -> dict[str, str]:
        """Return them as the call that creates an instance takes them: an object, ports and networks as keys.

        Source: vast-ai/docs api-reference/creating-instances-with-api.mdx, "Common Pitfalls"; `parse_env` of vastai.
        """
        found = {**self.env, **{f"-p {port}": "1" for port in self.ports}}
        found |= {"-h": self.hostname} if self.hostname else {}
        return found | ({f"-n {self.overlay}": "1"} if self.overlay else {})


def parse_options(target: Target, text: str | None = None, image: str = "") -> VastOptions:
    """Return the docker options of a target's instances, or `text` in their place.

    Raises
    ------
    SpecError
        There is an option that the platform ignores, a port that it has itself, a value that it does not take or that
        looks like a secret; all of them are named, each with what to do instead.
    """
    written = target.vast.options if text is None else text
    where = f"images/{target.name}/target.toml: vast.options" if text is None else "--options"
    found: dict[str, list[str]] = {"-e": [], "-p": [], "-h": [], "-n": []}
    problems = []
    for option, value in _split(written, where):
        if kept := _HONOURED.get(option):
            found[kept].append(value)
        else:
            problems.append(f"{option} is ignored by vast.ai: {_INSTEAD.get(option, 'it takes -e, -p and -h alone')}")
    env = dict(row.split("=", 1) for row in found["-e"] if "=" in row)
    problems += [f"-e {row}: a value is needed, NAME=VALUE" for row in found["-e"] if "=" not in row]
    problems += _env_problems(env)
    problems += _port_problems(found["-p"], target.vast.mode, image or target.vast.image)
    if problems:
        raise SpecError(
            "\n  ".join(problems),
            where=where,
            next_step=_("rlbox onstart --help; {page} says more").format(page=page("vast")),
        )
    last = {name: (found[name] or [""])[-1] for name in ("-h", "-n")}
    return VastOptions(env=env, ports=tuple(found["-p"]), hostname=last["-h"], overlay=last["-n"])


def _split(text: str, where: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a line with their values; docker writes `--name value`, `--name=value` and `-pvalue`."""
    try:
        words = iter(shlex.split(text))
    except ValueError as error:
        raise SpecError(
            _("{text!r}: {error}").format(text=text, error=error), where=where, next_step=_("close the quotes")
        ) from error
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            yield option, value if equals or _SWITCH.fullmatch(option) else next(words, "")
        elif _SWITCH.fullmatch(word):
            yield word, ""
        elif word.startswith("-") and len(word) > 1:
            yield word[:2], word[2:].removeprefix("=") or next(words, "")
        else:
            yield word, ""


def _env_problems(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        if not _NAME.fullmatch(name):
            yield f"-e {name}=...: not the name of a variable"
        if is_secret(name, value):
            yield f"-e {name}=...: looks like a secret: it belongs into .env on the data disk, or the account"
        if len(name) + len(value) > MOST_VALUE:
            yield f"-e {name}=...: {len(name) + len(value)} characters, and {MOST_VALUE} are taken"
    if (count := sum(len(name) + len(value) for name, value in env.items())) > MOST_ENV:
        yield f"all variables have {count} characters, and {MOST_ENV} are taken"


def _port_problems(ports: list[str], mode: str, image: str) -> Iterator[str]:
    taken = {*_TAKEN[mode], *(_PORTAL if image.startswith("vastai/") else ())}
    for port in ports:
        match = _PORT.fullmatch(port)
        if not match:
            yield f"-p {port}: PORT:PORT is taken, or PORT:PORT/udp (from 70000 on: one number on both sides)"
        elif int(match[2]) in taken:
            yield f"-p {port}: {match[2]} is the platform's own in {mode} mode"
    if (count := len(set(ports)) + len(_TAKEN[mode])) > MOST_PORTS:
        yield f"{count} ports with those of {mode} mode, and {MOST_PORTS} can be had"
