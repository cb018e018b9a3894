"""What is wrong with an export, from what the comparison of its tensors said, and how that is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_UNTOLD = (
    *("transformers_version", "_name_or_path", "architectures", "use_cache", "dtype", "torch_dtype", "auto_map"),
    *("_attn_implementation", "attn_implementation", "pad_token_id", "bos_token_id", "eos_token_id"),
)
"""Keys of a configuration that savers and trainers write as they please; none decides what a model computes."""


@dataclass(frozen=True, kw_only=True)
class ExportFault:
    """Something of an export that is not the checkpoint's: `of` is a tensor, a file or a part, `says` a sentence."""

    of: str
    says: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """How a check went: the form of the trainer's checkpoint, tensors that are equal, their casts, what is wrong."""

    form: str
    ranks: int
    tensors: int
    equal: int
    casts: Sequence[Mapping[str, Any]]
    faults: Sequence[ExportFault]
    words: int
    logits: Mapping[str, Any] | None = None

    @property
    def good(self) -> bool:
        """Whether the export is the checkpoint."""
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "good": self.good,
            "source": {"form": self.form, "ranks": self.ranks},
            "tensors": self.tensors,
            "equal": self.equal,
            "casts": [dict(cast) for cast in self.casts],
            "tokenizer": {"words": self.words},
            "logits": dict(self.logits) if self.logits else None,
            "faults": [{"of": one.of, "says": one.says, **one.facts} for one in self.faults],
        }


def tensor_fault(row: Mapping[str, Any]) -> ExportFault:
    """Return what a row of the comparison means."""
    facts = {key: value for key, value in row.items() if key != "step"}
    says = _SAYS[str(row["kind"])](row)
    return ExportFault(of=str(row.get("tensor") or row.get("file")), says=says, facts=facts)


def config_faults(export: Mapping[str, Any], own: Mapping[str, Any], path: str = "") -> Iterator[ExportFault]:
    """Yield the keys of both configurations that differ and that decide what the model computes."""
    for key in sorted({*export} & {*own} - {*_UNTOLD}):
        one, other, name = export[key], own[key], f"{path}{key}"
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from config_faults(one, other, f"{name}.")
        elif one != other:
            yield ExportFault(of=f"config.json: {name}", says=f"{one!r}, not {other!r}", facts={"kind": "config"})


def report_lines(report: ExportReport, named: int) -> Iterator[str]:
    """Yield how a check went; `named` faults at most."""
    yield f"compared with {report.form} of {report.ranks} ranks"
    yield f"tensors: {report.equal} of {report.tensors} are the trainer's, bit by bit"
    for cast in report.casts:
        own, into = cast["own"], cast["export"]
        yield f"  {cast['tensors']} kept in {own}" if own == into else f"  {cast['tensors']} cast from {own} to {into}"
    if not any(fault.facts.get("kind") == "words" for fault in report.faults):
        yield f"tokenizer: the same {report.words} tokens and chat template"
    if report.logits:
        yield _logits_line(report.logits)
    for fault in report.faults[:named]:
        yield f"[FAIL] {fault.of}: {fault.says}"
    if len(report.faults) > named:
        yield f"and {len(report.faults) - named} more"


def _logits_line(logits: Mapping[str, Any]) -> str:
    told = "the same" if logits["same"] else f"up to {logits['largest']:.3g} apart"
    return f"logits of {logits['tokens']} tokens in transformers {logits['transformers']}: {told}"


def _differs(row: Mapping[str, Any]) -> str:
    told = f"{row['wrong']} of {row['numbers']} numbers differ"
    if "largest" in row:
        told = f"{told}, by {row['largest']:.3g} at most"
    if "holds" in row:
        return f"{told}; it is the trainer's {row['holds']}"
    if "rounded" in row:
        return f"{told}; it was rounded to {row['rounded']} on its way"
    return f"{told}; it was cut, not rounded" if row.get("cut") else told


def _dtype(row: Mapping[str, Any]) -> str:
    if row["named"]:
        return f"it is {row['got']}, neither the trainer's {row['own']} nor the {row['named']} that is named"
    return f"it is {row['got']}, the trainer's is {row['own']}, and no cast is named"


_SAYS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "differs": _differs,
    "dtype": _dtype,
    "shape": lambda row: f"its shape is {row['got']}, the trainer's {row['own']}",
    "missing": lambda row: "the export has no such tensor",
    "extra": lambda row: "the trainer has no such tensor",
    "unread": lambda row: str(row["why"]),
    "gone": lambda row: "the index names it, and it is not there",
    "misplaced": lambda row: f"it holds {row['tensor']}, for which the index names another file or none",
    "stale": lambda row: (
        "weights of another form beside the safetensors: which of both is loaded depends on who loads"
        if row["why"] == "beside"
        else "no index names it: it is of another export"
    ),
}
"""What is said of each kind of fault."""
