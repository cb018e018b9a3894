"""Actions in hold'em: read from what the policy wrote and from the solver's label, and how near they are."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

SYSTEM = (
    "You are a strong no-limit hold'em player. Think briefly, then end with your decision as one line:\n"
    "<action>fold</action>, <action>check</action>, <action>call</action>, <action>bet AMOUNT</action> or "
    "<action>raise AMOUNT</action>, where AMOUNT is in chips."
)
MALFORMED = -1.0
"""Score of an answer without an action; a wrong action scores 0, so that the form is learnt first."""
SAME_AIM = 0.25
"""Score of a bet where a raise is right, or the other way round: both put pressure on."""

_TAG = re.compile(r"<action>(.*?)</action>", re.S)
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.S)
_ACTION = re.compile(r"\s*(fold|check|call|bet|raise|all[- ]?in)\b(?:\s*(?:to|:)?\s*\$?(\d+(?:\.\d+)?))?", re.I)
_SIZED = ("bet", "raise")


@dataclass(frozen=True, kw_only=True)
class Action:
    """A decision; `amount` in chips for a bet or a raise that names one."""

    kind: str
    amount: float | None = None

    def __str__(self) -> str:
        """Return it as PokerBench writes it: `call`, `raise 11.5`."""
        return self.kind if self.amount is None else f"{self.kind} {self.amount:g}"


def read_action(text: str) -> Action | None:
    """Return the action that `text` begins with, or None."""
    match = _ACTION.match(text)
    if match is None:
        return None
    kind = match.group(1).lower()
    kind = "raise" if kind.startswith("all") else kind
    amount = float(match.group(2)) if match.group(2) and kind in _SIZED else None
    return Action(kind=kind, amount=amount)


def read_answer(text: str) -> Action | None:
    """Return the decision of an answer: its last `<action>`, else its last call of the tool `make_action`, else None.

    The tool call is how the customer's fork of slime lets the model act: a model trained there answers so.
    """
    tags = _TAG.findall(text)
    if tags:
        return read_action(tags[-1])
    calls = [_tool_action(body) for body in _CALL.findall(text)]
    acted = [action for action in calls if action is not None]
    return acted[-1] if acted else None


def _tool_action(body: str) -> Action | None:
    try:
        call = json.loads(body)
        arguments = call["arguments"] if call["name"] == "make_action" else {}
        kind, amount = str(arguments["action_type"]), arguments.get("amount")
        return read_action(kind if amount is None else f"{kind} {float(amount)}")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def judge(text: str, label: str) -> dict[str, Any]:
    """Return the reward of an answer, compared with the solver's.

    Returns
    -------
    dict
        `score`: 1 for the same action (a bet or raise loses up to a half by its amount), 0.25 for a bet in place of a
        raise, 0 for any other action, -1 for an answer without one. `action`, `label` as text, `well_formed`, `exact`.

    Raises
    ------
    ValueError
        The label names no action: the data are wrong, not the answer.
    """
    wanted = read_action(label)
    if wanted is None:
        raise ValueError(f"the label {label!r} names no action; expected for example 'call' or 'raise 11.5'")
    given = read_answer(text)
    score = MALFORMED if given is None else _nearness(given, wanted)
    return {
        "score": score,
        "action": "" if given is None else str(given),
        "label": str(wanted),
        "well_formed": given is not None,
        "exact": score == 1.0,
    }


def _nearness(given: Action, wanted: Action) -> float:
    if given.kind != wanted.kind:
        return SAME_AIM if given.kind in _SIZED and wanted.kind in _SIZED else 0.0
    if given.kind not in _SIZED or wanted.amount is None:
        return 1.0
    if given.amount is None or not math.isfinite(given.amount):
        return 0.5
    return 1.0 - 0.5 * abs(given.amount - wanted.amount) / max(given.amount, wanted.amount, 1e-9)
