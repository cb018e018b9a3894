"""Which phase of its work a stage is in, told from the lines of its log."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from rlbox.config.schema import SpecModel, validate_spec
from rlbox.config.toml_files import load_toml
from rlbox.job.phase import FLOORS, Phase, PhasePlan
from rlbox.logs.lines import strip_ray_prefix_and_repeat
from rlbox.logs.patterns import compile_pattern_set

PHASES = Path(__file__).with_name("phases.toml")

_MOST_HITS = 16
"""Lines of one block that are looked at closely; of a flood, the phase is that of its end."""
_TAIL_BYTES = 1024


class _ShippedPhases(SpecModel):
    phases: tuple[Phase, ...]
    background: tuple[str, ...] = Field(description="processes whose activity proves nothing, by the start of a name")


@functools.cache
def load_phases() -> _ShippedPhases:
    return validate_spec(_ShippedPhases, load_toml(PHASES), str(PHASES))


@dataclass(frozen=True, kw_only=True)
class PhaseChange:
    """A line that began a phase, or ended one (`phase` None)."""

    phase: PhasePlan | None
    text: str


def merge_phases(
    job_phases: Sequence[PhasePlan],
    shipped_phases: Sequence[PhasePlan],
    silence_s: float,
    *,
    override_shipped_silence: bool,
) -> tuple[PhasePlan, ...]:
    """Return the phases that a stage may be in, in the order in which they are asked.

    Parameters
    ----------
    job_phases
        The job's own, which are taken as they are; one of them replaces the shipped one of its name.
    silence_s
        The stage's limit for silence. When the job states it, it is that of every shipped phase too.
    """
    names = {phase.name for phase in job_phases}
    kept = [phase for phase in shipped_phases if phase.name not in names]
    if override_shipped_silence:
        kept = [dataclasses.replace(phase, silence_s=silence_s) for phase in kept]
    return (*job_phases, *kept)


def make_unnamed_phase(silence_s: float, name: str = "") -> PhasePlan:
    """Return what a stage is in before any marker: only its own limit counts, and reading or computing is life."""
    return PhasePlan(name=name, silence_s=silence_s, progress={sign: FLOORS[sign] for sign in ("read", "write", "gpu")})


class PhaseMatcher:
    def __init__(self, phases: Sequence[PhasePlan]) -> None:
        self._ended_by = [(text, phase) for phase in phases for text in phase.ends]
        self._begun_by = [(text, phase) for phase in phases for text in phase.begins]
        texts = tuple(text for text, _ in (*self._begun_by, *self._ended_by))
        self._set = compile_pattern_set(texts) if texts else None

    def find_phase_changes(self, block: bytes) -> list[PhaseChange]:
        found: list[PhaseChange] = []
        if self._set is None:
            return found
        at = hits = 0
        while (at := self._set.find_next_candidate(block, at)) >= 0:
            if (hits := hits + 1) == _MOST_HITS:
                at = max(at, len(block) - _TAIL_BYTES)
            start = block.rfind(b"\n", 0, at) + 1
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            if line := self.find_phase_change(block[start:end].decode("utf-8", "replace")):
                found.append(line)
            at = end + 1
            if at >= len(block):
                break
        return found

    def find_phase_change(self, text: str) -> PhaseChange | None:
        """Return what one line begins or ends; one that does both ends the phase."""
        if self._set is None:
            return None
        fitting = self._set.find_matching_indexes(strip_ray_prefix_and_repeat(text))
        if not fitting:
            return None
        if fitting[-1] >= len(self._begun_by):
            return PhaseChange(phase=None, text=text)
        return PhaseChange(phase=self._begun_by[fitting[0]][1], text=text)
