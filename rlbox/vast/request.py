"""An instance of vast.ai to be created or destroyed: the request within the platform's limits, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlbox.errors import SpecError, page
from rlbox.i18n import _
from rlbox.image.forms.onstart import LIMIT
from rlbox.vast.offers import gb_text

if TYPE_CHECKING:
    from rlbox.image.forms.onstart import OnStart
    from rlbox.target.target import Target
    from rlbox.vast.offers import Needs
    from rlbox.vast.options import VastOptions

LABEL = "rlbox-"
"""What the label of every instance begins with that rlbox created; it destroys no other."""
# Source: vast-ai/docs api-reference/openapi/yaml/create_instance.yaml, x-input-validation.
_MOST_IMAGE, _LEAST_DISK, _PRICES = 1024, 8.0, (0.001, 128.0)


# Small images that have no more than the platform needs; the lock brings Python packages, compilers and CUDA.
# Ubuntu 24.04 where there is one: the glibc of 22.04 is older than that of the targets' locks (manylinux_2_36).
# Source: hub.docker.com/r/nvidia/cuda, tags; the image's NVIDIA_REQUIRE_CUDA refuses older drivers.
_PLAIN_IMAGES = (
    ("13.0", "nvidia/cuda:13.0.2-base-ubuntu24.04"),
    ("12.8", "nvidia/cuda:12.8.1-base-ubuntu24.04"),
    ("12.6", "nvidia/cuda:12.6.3-base-ubuntu24.04"),
    ("12.4", "nvidia/cuda:12.4.1-base-ubuntu22.04"),
)


def plain_image(cuda_driver: str) -> str:
    """Return the CUDA image for an instance that gets the target's lock over ssh.

    It is the newest that a driver for `cuda_driver` starts; without a version, the oldest.
    """
    driver = tuple(map(int, cuda_driver.split("."))) if cuda_driver else (0,)
    fitting = [image for cuda, image in _PLAIN_IMAGES if tuple(map(int, cuda.split("."))) <= driver]
    return fitting[0] if fitting else _PLAIN_IMAGES[-1][1]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `create` sends. `env` is the platform's object (variables, ports), `disk` in GB.

    `bid` is what an hour of an instance is worth that the platform may stop for who pays more; 0: it may not.
    """

    target: str
    image: str
    disk: float
    label: str
    env: Mapping[str, str]
    onstart: str
    mode: str
    bid: float = 0.0


def plan_request(
    target: Target, needs: Needs, options: VastOptions, onstart: OnStart, *, image: str = "", job: str = ""
) -> Request:
    """Return the request for an instance of a target; `image` overrides the target's own, `job` is what it is for.

    Raises
    ------
    SpecError
        No image or no price ceiling is named, or something is beyond a limit of the platform; all problems at once.
    """
    image = image or target.vast.image
    problems = []
    if not image:
        problems.append("no image is named that the platform could pull: --image, or vast.image")
    if len(image) > _MOST_IMAGE:
        problems.append(f"the image's name has {len(image)} characters, and {_MOST_IMAGE} are taken")
    if not needs.price:
        problems.append("no price ceiling: --price, or vast.max_price")
    elif not _PRICES[0] <= needs.price <= _PRICES[1]:
        problems.append(f"a price of ${needs.price:g} an hour is not between ${_PRICES[0]:g} and ${_PRICES[1]:g}")
    if needs.disk < _LEAST_DISK:
        problems.append(f"a disk of {gb_text(needs.disk)}: the platform's smallest has {gb_text(_LEAST_DISK)}")
    if max(onstart.characters, onstart.size) > LIMIT:
        problems.append(f"the on-start script has {onstart.size} bytes, and {LIMIT} are taken")
    if problems:
        raise SpecError(
            "\n  ".join(problems),
            where=f"images/{target.name}/target.toml: vast",
            next_step=_("rlbox push {target} --to REGISTRY/NAME:TAG, then --image that; {page}").format(
                target=target.name, page=page("vast")
            ),
        )
    return Request(
        target=target.name,
        image=image,
        disk=needs.disk,
        label=f"{LABEL}{target.name}" + (f" {job}" if job else ""),
        env=options.as_env(),
        onstart=onstart.text,
        mode=target.vast.mode,
        bid=needs.bid,
    )


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance as the platform tells of it; `status` is empty before it has one, `price` dollars an hour.

    `wanted` is the state that somebody asked for, `host` and `port` where its sshd is reached.
    """

    id: int
    label: str
    status: str
    message: str
    image: str
    price: float
    wanted: str
    host: str
    port: int

    @property
    def target(self) -> str:
        """The target that it was created for."""
        return self.label.removeprefix(LABEL).partition(" ")[0]

    @property
    def ssh(self) -> str:
        """How a person reaches it; empty while it has no address."""
        return f"ssh -p {self.port} root@{self.host}" if self.host and self.port else ""

    @property
    def own(self) -> bool:
        """Whether rlbox created it."""
        return self.label.startswith(LABEL)


def read_instance(row: Mapping[str, Any]) -> Instance:
    """Return an instance of the platform's answer."""
    return Instance(
        id=int(row["id"]),
        label=str(row.get("label") or ""),
        status=str(row.get("actual_status") or ""),
        message=str(row.get("status_msg") or "").strip(),
        image=str(row.get("image_uuid") or ""),
        price=float(row.get("dph_total") or 0.0),
        wanted=str(row.get("intended_status") or ""),
        host=str(row.get("ssh_host") or ""),
        port=int(row.get("ssh_port") or 0),
    )


DEAD = frozenset({"exited", "unknown", "offline"})
"""States from which an instance never comes to run. Source: vast-ai/docs, instance states."""


def own_instances(instances: Mapping[int, Instance], ids: tuple[int, ...]) -> tuple[Instance, ...]:
    """Return the instances of these ids.

    Raises
    ------
    SpecError
        One of them is not there, or rlbox did not create it.
    """
    problems = [f"there is no instance {number} of this account" for number in ids if number not in instances]
    found = [instances[number] for number in ids if number in instances]
    problems += [f"instance {one.id} (label {one.label!r}) was not created by rlbox" for one in found if not one.own]
    if problems:
        own = ", ".join(str(one.id) for one in instances.values() if one.own) or _("none")
        raise SpecError(
            "\n  ".join(problems),
            where="the account's instances",
            next_step=_("instances of rlbox: {own}; for others there is the platform's own client, vastai").format(
                own=own
            ),
        )
    return tuple(found)
