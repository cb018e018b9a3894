"""The request that creates an instance of vast.ai, within the platform's limits, and what it costs."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlbox.errors import SpecError, get_docs_url
from rlbox.i18n import _
from rlbox.secrets.masks import looks_like_secret
from rlbox.target.target import Target
from rlbox.vast.offers import Offer, OfferFilter, format_gb

# vast-ai/docs guides/instances/docker-environment.mdx, networking.mdx; create_instance.yaml, x-input-validation.
MAX_ENV_VALUE = 256
_MODE_PORTS = {"ssh": (22,), "jupyter": (22, 8080)}
_PORTAL_PORTS = (1111, 6006, 8080, 8384, 11111, 16006, 18080, 18384)
"""Ports of the portal in the platform's own images. Source: vast-ai/base-image README."""
_PORT = re.compile(r"(\d{1,5}):(\d{1,5})(/(?:tcp|udp))?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_docker_options(target: Target, image: str = "") -> dict[str, str]:
    """Return the docker options of a target's instances, in the form of the call that creates an instance.

    There ports and networks are keys of the object of variables, too. Source: vast-ai/docs
    api-reference/creating-instances-with-api.mdx, "Common Pitfalls"; `parse_env` of vastai.

    Raises
    ------
    SpecError
        There is an option that the platform ignores, a port that it has itself, a value that it does not take or that
        looks like a secret; all of them are named.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-e", "--env", action="append", default=[])
    parser.add_argument("-p", "--publish", action="append", default=[])
    parser.add_argument("-n", dest="networks", action="append", default=[])
    parser.add_argument("-h", "--hostname", default="")
    try:
        given, ignored = parser.parse_known_args(shlex.split(target.vast.options))
        problems = [f"{' '.join(ignored)}: ignored by vast.ai, it takes -e, -p, -h and -n alone"] if ignored else []
        problems += [f"-e {row}: a value is needed, NAME=VALUE" for row in given.env if "=" not in row]
        env = dict(row.split("=", 1) for row in given.env if "=" in row)
        problems += _find_env_problems(env)
        problems += _find_port_problems(given.publish, target.vast.mode, image or target.vast.image)
    except (ValueError, argparse.ArgumentError) as error:
        problems = [f"{target.vast.options!r}: {error}"]
    if problems:
        raise SpecError(
            "\n  ".join(problems),
            where=f"images/{target.name}/target.toml: vast.options",
            next_step=_("change them: {page} says more").format(page=get_docs_url("vast")),
        )
    env |= {f"-p {port}": "1" for port in given.publish} | {f"-n {name}": "1" for name in given.networks}
    return env | ({"-h": given.hostname} if given.hostname else {})


def _find_env_problems(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        if not _NAME.fullmatch(name):
            yield f"-e {name}=...: not the name of a variable"
        if looks_like_secret(name, value):
            yield f"-e {name}=...: looks like a secret: it belongs into .env on the data disk, or the account"
        if len(name) + len(value) > MAX_ENV_VALUE:
            yield f"-e {name}=...: {len(name) + len(value)} characters, and {MAX_ENV_VALUE} are taken"


def _find_port_problems(ports: Sequence[str], mode: str, image: str) -> Iterator[str]:
    own = {*_MODE_PORTS[mode], *(_PORTAL_PORTS if image.startswith("vastai/") else ())}
    for port in ports:
        match = _PORT.fullmatch(port)
        if not match:
            yield f"-p {port}: PORT:PORT is taken, or PORT:PORT/udp (from 70000 on: one number on both sides)"
        elif int(match[2]) in own:
            yield f"-p {port}: {match[2]} is the platform's own in {mode} mode"


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
    """Return the newest CUDA image that a driver for `cuda_driver` starts; without a version, the oldest."""
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
    disk: float
    label: str
    env: dict[str, str]
    onstart: str
    mode: Literal["ssh", "jupyter"]
    bid: float = 0.0


def make_create_request(
    target: Target, needs: OfferFilter, env: dict[str, str], onstart: str, *, image: str, job: str = ""
) -> CreateRequest:
    """Return the request for an instance of a target; `job` is what it is for."""
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
        label=f"{LABEL_PREFIX}{target.name} {job}".rstrip(),
        env=env,
        onstart=onstart,
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

    def format(self) -> str:
        request = self.request
        rows = [("image", request.image), *([("setup", self.setup_summary)] if self.setup_summary else [])]
        rows += [("disk", format_gb(request.disk)), ("label", request.label), ("mode", request.mode)]
        rows += [("env", f"{name}={value}") for name, value in request.env.items()]
        rows += [("onstart", f"{len(request.onstart)} characters"), ("query", self.needs.query())]
        rows += [("cost", line) for line in self.cost_lines()]
        return "\n".join(f"{key:<8} {value}" for key, value in rows)

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
            "request": asdict(self.request),
            "setup": self.setup_summary,
            "query": self.needs.query(),
            "offer": offer,
            "cost": cost,
        }
