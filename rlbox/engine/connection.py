"""The engine for all who ask one; docker-py, whose import costs 0.12 s of a processor, is imported when it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlbox.errors import EngineError
from rlbox.foreign import parse_digits
from rlbox.i18n import _

if TYPE_CHECKING:
    from rlbox.engine.docker import DockerEngine


def connect_engine() -> DockerEngine:
    from rlbox.engine.docker import DockerEngine

    return DockerEngine.connect()


def find_image(tag: str) -> dict[str, Any] | None:
    return connect_engine().find_image(tag)


def require_image(tag: str, target_name: str) -> dict[str, Any]:
    if (image := find_image(tag)) is None:
        raise EngineError(_("the engine has no image {tag}").format(tag=tag), next_step=f"rlbox build {target_name}")
    return image


def read_docker_server_version_or_raise() -> tuple[int, ...]:
    """Return the engine's version, as far as it is numbers: (26, 1, 5)."""
    numbers = connect_engine().version().partition("+")[0].split(".")
    return tuple(number for part in numbers if (number := parse_digits(part)) is not None)
