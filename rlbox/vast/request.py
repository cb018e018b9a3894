"""An instance of vast.ai to be created or destroyed: its options and request, within the platform's limits."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rlbox.errors import SpecError, get_docs_url
from rlbox.i18n import _
from rlbox.secrets.masks import looks_like_secret
from rlbox.vast.offers import Gigabytes, UsdPerHour, format_gb

if TYPE_CHECKING:
    from rlbox.image.forms import OnstartScript
    from rlbox.target.target import Target
    from rlbox.vast.offers import Offer, OfferFilter


# vast-ai/docs guides/instances/docker-environment.mdx, networking.mdx; create_instance.yaml, x-input-validation.
MAX_PORTS, MAX_ENV_VALUE = 64, 256
_TAKEN = {"ssh": (22,), "jupyter": (22, 8080)}
_PORTAL = (1111, 6006, 8080, 8384, 11111, 16006, 18080, 18384)
"""Ports of the portal in the platform's own images. Source: vast-ai/base-image README."""
_HONOURED = {"-e": "-e", "--env": "-e", "-p": "-p", "--publish": "-p", "-h": "-h", "--hostname": "-h", "-n": "-n"}
_SWITCH = re.compile(r"--(?:privileged|rm|detach|init|read-only|publish-all)|-(?:d|i|t|it|P)")
_PORT = re.compile(r"(\d{1,5}):(\d{1,5})(/(?:tcp|udp))?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ContainerOptions(NamedTuple):
    """What an instance is started with: the platform's object of variables and options, and the number of ports."""

    env_and_docker_flags: dict[str, str]
    port_count: int


def parse_docker_options(target: Target, image_for_port_check: str = "") -> ContainerOptions:
    """Return the docker options of a target's instances, in the form of the call that creates an instance.

    There ports and networks are keys of the object of variables, too. Source: vast-ai/docs
    api-reference/creating-instances-with-api.mdx, "Common Pitfalls"; `parse_env` of vastai.

    Raises
    ------
    SpecError
        There is an option that the platform ignores, a port that it has itself, a value that it does not take or that
        looks like a secret; all of them are named.
    """
    where = f"images/{target.name}/target.toml: vast.options"
    values: dict[str, list[str]] = {"-e": [], "-p": [], "-h": [], "-n": []}
    problems = []
    for option, value in _split(target.vast.options, where):
        if option in _HONOURED:
            values[_HONOURED[option]].append(value)
        else:
            problems.append(f"{option} is ignored by vast.ai: it takes -e, -p, -h and -n alone")
    problems += [f"-e {row}: a value is needed, NAME=VALUE" for row in values["-e"] if "=" not in row]
    env = dict(row.split("=", 1) for row in values["-e"] if "=" in row)
    problems += _env_problems(env)
    problems += _port_problems(values["-p"], target.vast.mode, image_for_port_check or target.vast.image)
    if problems:
        raise SpecError(
            "\n  ".join(problems),
            where=where,
            next_step=_("change them: {page} says more").format(page=get_docs_url("vast")),
        )
    env |= {f"-p {port}": "1" for port in values["-p"]}
    env |= {f"-n {name}": "1" for name in values["-n"]}
    if values["-h"]:
        env["-h"] = values["-h"][-1]
    return ContainerOptions(env, len(values["-p"]))


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
        if looks_like_secret(name, value):
            yield f"-e {name}=...: looks like a secret: it belongs into .env on the data disk, or the account"
        if len(name) + len(value) > MAX_ENV_VALUE:
            yield f"-e {name}=...: {len(name) + len(value)} characters, and {MAX_ENV_VALUE} are taken"


def _port_problems(ports: Sequence[str], mode: str, image: str) -> Iterator[str]:
    taken = {*_TAKEN[mode], *(_PORTAL if image.startswith("vastai/") else ())}
    for port in ports:
        match = _PORT.fullmatch(port)
        if not match:
            yield f"-p {port}: PORT:PORT is taken, or PORT:PORT/udp (from 70000 on: one number on both sides)"
        elif int(match[2]) in taken:
            yield f"-p {port}: {match[2]} is the platform's own in {mode} mode"
    if (count := len(set(ports)) + len(_TAKEN[mode])) > MAX_PORTS:
        yield f"{count} ports with those of {mode} mode, and {MAX_PORTS} can be had"


LABEL_PREFIX = "rlbox-"
"""What the label of every instance begins with that rlbox created; it destroys no other."""
# Small images that have no more than the platform needs; the lock brings Python packages, compilers and CUDA.
# Ubuntu 24.04 where there is one: the glibc of 22.04 is older than that of the targets' locks (manylinux_2_36).
# Source: hub.docker.com/r/nvidia/cuda, tags; the image's NVIDIA_REQUIRE_CUDA refuses older drivers.
_PLAIN_IMAGES = (
    ("13.0", "nvidia/cuda:13.0.2-base-ubuntu24.04"),
    ("12.8", "nvidia/cuda:12.8.1-base-ubuntu24.04"),
    ("12.6", "nvidia/cuda:12.6.3-base-ubuntu24.04"),
    ("12.4", "nvidia/cuda:12.4.1-base-ubuntu22.04"),
)


def choose_plain_image(cuda_driver: str) -> str:
    """Return the CUDA image for an instance that gets the target's lock over ssh.

    It is the newest that a driver for `cuda_driver` starts; without a version, the oldest.
    """
    driver = tuple(map(int, cuda_driver.split("."))) if cuda_driver else (0,)
    fitting = [image for cuda, image in _PLAIN_IMAGES if tuple(map(int, cuda.split("."))) <= driver]
    return fitting[0] if fitting else _PLAIN_IMAGES[-1][1]


@dataclass(frozen=True, kw_only=True)
class CreateRequest:
    """What `create` sends. `env` is the platform's object (variables, ports), `disk` in GB.

    `bid` is what an hour of an instance is worth that the platform may stop for who pays more; 0: it may not.
    """

    target: str
    image: str
    disk: Gigabytes
    label: str
    env: Mapping[str, str]
    onstart: str
    mode: Literal["ssh", "jupyter"]
    bid: UsdPerHour = 0.0


def make_create_request(
    target: Target, needs: OfferFilter, options: ContainerOptions, onstart: OnstartScript, *, image: str, job: str = ""
) -> CreateRequest:
    """Return the request for an instance of a target; `job` is what it is for.

    Raises
    ------
    SpecError
        No image or no price ceiling is named.
    """
    problems = []
    if not image:
        problems.append("no image is named that the platform could pull: --image, or vast.image")
    if not needs.max_hourly_usd:
        problems.append("no price ceiling: --price, or vast.max_price")
    if problems:
        raise SpecError(
            "\n  ".join(problems),
            where=f"images/{target.name}/target.toml: vast",
            next_step=_("rlbox push {target} --to REGISTRY/NAME:TAG, then --image that; {page}").format(
                target=target.name, page=get_docs_url("vast")
            ),
        )
    return CreateRequest(
        target=target.name,
        image=image,
        disk=needs.disk_gb,
        label=f"{LABEL_PREFIX}{target.name}" + (f" {job}" if job else ""),
        env=options.env_and_docker_flags,
        onstart=onstart.field_text,
        mode=target.vast.mode,
        bid=needs.bid_hourly_usd,
    )


@dataclass(frozen=True, kw_only=True)
class Quote:
    """What is rented, from whom and at what price; no offer in a dry run that could not ask for one.

    `setup_summary` is what is done there before the job, empty for an image of the target's own.
    """

    request: CreateRequest
    needs: OfferFilter
    offer: Offer | None
    setup_summary: str = ""

    def lines(self) -> list[str]:
        return [
            f"image    {self.request.image}",
            *([f"setup    {self.setup_summary}"] if self.setup_summary else []),
            f"disk     {format_gb(self.request.disk)}",
            f"label    {self.request.label}",
            f"mode     {self.request.mode}",
            *(f"env      {name}={value}" for name, value in self.request.env.items()),
            f"onstart  {len(self.request.onstart)} characters",
            f"query    {self.needs.query()}",
            *(f"cost     {line}" for line in self.cost_lines()),
        ]

    def cost_lines(self) -> list[str]:
        if (offer := self.offer) is None:
            return [f"at most ${self.needs.max_hourly_usd:g} an hour (assumed: the ceiling)"]
        return [
            f"offer {offer.id}: {offer.gpus} x {offer.gpu_name}, {offer.place or 'somewhere'}",
            f"${offer.price:.3f} an hour while it runs",
            f"${offer.storage:.3f} an hour for the disk when it is stopped, until it is destroyed",
            f"${offer.traffic * 1000:.2f} at most for a TB of traffic, in either direction",
        ]

    def as_json(self) -> dict[str, Any]:
        offer = self.offer.as_json() if self.offer else None
        cost: dict[str, Any] = {"hour": self.needs.max_hourly_usd, "assumed": True}
        if offer:
            cost = {"hour": offer["price"], "stopped_hour": offer["storage"], "traffic_gb": offer["traffic"]}
        return {
            "target": self.request.target,
            "created": False,
            "request": {**asdict(self.request), "env": dict(self.request.env)},
            "setup": self.setup_summary,
            "query": self.needs.query(),
            "offer": offer,
            "cost": cost,
        }


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance as the platform tells of it; `status` is empty before it has one, `price` dollars an hour.

    `intended_status` is the state that somebody asked for, `host` and `port` where its sshd is reached.
    """

    id: int
    label: str
    status: str
    message: str
    price: float
    intended_status: str
    host: str
    port: int

    @property
    def target(self) -> str:
        return self.label.removeprefix(LABEL_PREFIX).partition(" ")[0]

    @property
    def ssh_command(self) -> str:
        """How a person reaches it; empty while it has no address."""
        return f"ssh -p {self.port} root@{self.host}" if self.host and self.port else ""

    @property
    def is_rlbox_made(self) -> bool:
        return self.label.startswith(LABEL_PREFIX)


def parse_instance(row: Mapping[str, Any]) -> Instance:
    return Instance(
        id=int(row["id"]),
        label=str(row.get("label") or ""),
        status=str(row.get("actual_status") or ""),
        message=str(row.get("status_msg") or "").strip(),
        price=float(row.get("dph_total") or 0.0),
        intended_status=str(row.get("intended_status") or ""),
        host=str(row.get("ssh_host") or ""),
        port=int(row.get("ssh_port") or 0),
    )


DEAD_STATES = frozenset({"exited", "unknown", "offline"})
"""States from which an instance never comes to run. Source: vast-ai/docs, instance states."""


def require_rlbox_instances(instances: Mapping[int, Instance], ids: tuple[int, ...]) -> tuple[Instance, ...]:
    """Return the instances of these ids.

    Raises
    ------
    SpecError
        One of them is not there, or rlbox did not create it.
    """
    problems = [f"there is no instance {number} of this account" for number in ids if number not in instances]
    found = [instances[number] for number in ids if number in instances]
    problems += [
        f"instance {one.id} (label {one.label!r}) was not created by rlbox" for one in found if not one.is_rlbox_made
    ]
    if problems:
        own = ", ".join(str(one.id) for one in instances.values() if one.is_rlbox_made) or _("none")
        raise SpecError(
            "\n  ".join(problems),
            where="the account's instances",
            next_step=_("instances of rlbox: {own}; for others there is the platform's own client, vastai").format(
                own=own
            ),
        )
    return tuple(found)
