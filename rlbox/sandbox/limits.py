"""What a program may take: the server's limits, which a request may only lower."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ProgramLimits:
    """What one request may take, all its programs and their children together.

    Attributes
    ----------
    cpu_s
        Seconds of processor time. A program that sleeps that long without any is stopped, too; waiting for a processor
        is not sleeping, so the verdict does not depend on what else the machine does.
    compile_s
        The same for the compiler, where the language has one.
    memory_mb, disk_mb
        MiB of memory, and of its folder.
    tasks
        Processes and threads at a time.
    output
        Bytes of standard output, and of standard error, each.
    """

    cpu_s: float = 30.0
    compile_s: float = 30.0
    memory_mb: int = 1024
    disk_mb: int = 64
    tasks: int = 64
    output: int = 1 << 20

    def lowered(self, cpu_s: float | None, compile_s: float | None, memory_mb: float | None) -> ProgramLimits:
        """Return these limits, lowered to what is asked; what is no number above zero asks for nothing."""
        return replace(
            self,
            cpu_s=_lower(self.cpu_s, cpu_s),
            compile_s=_lower(self.compile_s, compile_s),
            memory_mb=int(_lower(self.memory_mb, memory_mb)) or 1,
        )

    def as_json(self) -> dict[str, float]:
        """Return all of them, by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ProgramLimits:
        """Return what `as_json` gave."""
        return cls(**{field.name: data[field.name] for field in fields(cls)})


def wall_s(cpu_s: float) -> float:
    """Return after how many seconds one is stopped that neither sleeps nor gets a processor, or hides what it takes.

    `cpu_s`: the processor time that it may take.
    """
    return 20 * cpu_s + 10


def _lower(own: float, asked: float | None) -> float:
    if asked is None or not math.isfinite(asked) or asked <= 0:
        return own
    return min(own, asked)
