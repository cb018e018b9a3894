"""What the command line says of a cluster; nothing heavy is imported for it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The target, and nodes, the cluster's name and the data disk in place of what it says; empty: as it says."""

    target: str
    nodes: str = ""
    name: str = ""
    data: str = ""

    @property
    def option_text(self) -> str:
        """The same, as it is typed behind a command."""
        options = (("--nodes", self.nodes), ("--name", self.name), ("--data", self.data))
        return " ".join([self.target, *(f"{option} {shlex.quote(text)}" for option, text in options if text)])


@dataclass(frozen=True, kw_only=True)
class UpOptions(ClusterOptions):
    """How a cluster is started: without `first_port` on the first ports that fit, `image` is one of a registry."""

    first_port: int = 0
    prove: bool = False
    limit_s: float = 300.0
    required_paths: tuple[str, ...] = ()
    image: str = ""
    plain_http: bool = False


@dataclass(frozen=True, kw_only=True)
class LogsOptions(ClusterOptions):
    """Which logs: those of a job (empty: all), the last `lines` (None: all), and with `follow` what comes later."""

    job: str = ""
    lines: int | None = None
    follow: bool = False


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(ClusterOptions):
    """A job: its command, the directory that goes along, what of that stays here, names of its secrets."""

    command: tuple[str, ...]
    folder: str = ""
    excludes: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    env_file: str = ""
    detach: bool = False
