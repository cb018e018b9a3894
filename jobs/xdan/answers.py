"""Answers of mathematics: where one stands in a response, and whether two are the same.

Two answers are the same when their plain forms are (`7/2`, `3.5`, `\\frac{7}{2}`); where these differ and `math-verify`
is there, it decides, since it knows algebra (`x+1` and `1+x`).
"""

from __future__ import annotations

import re
from fractions import Fraction

FORM = re.compile(r"\s*<think>.*?</think>\s*<answer>.*?</answer>\s*", re.S)
"""The form that earns half a point, as the original server has it; blanks between the parts are let pass."""

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.S)
_DROPPED = re.compile(r"\\left|\\right|\\[!,;: ]|\\displaystyle|\\limits|~|\$|\s+")
_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textbf)\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dtc]?frac\{([^{}]+)\}\{([^{}]+)\}")
_SHORT_FRACTION = re.compile(r"\\[dtc]?frac(\d)(\d)")
_PLAIN_NUMBER = re.compile(r"[-+]?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)")


def well_formed(response: str) -> bool:
    """Whether a response is exactly `<think>…</think><answer>…</answer>`."""
    return FORM.fullmatch(response) is not None and response.count("<answer>") == 1


def final_answer(response: str) -> str:
    """Return the last box of a response's last `<answer>`, else that part, else the last box of all, else nothing."""
    parts = _ANSWER.findall(response)
    if parts:
        return _last_box(parts[-1]) or parts[-1].strip()
    return _last_box(response)


def _last_box(text: str) -> str:
    """Return what is in the last `\\boxed{…}`, braces counted."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    depth, begin = 0, start + len("\\boxed{")
    for place in range(begin - 1, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return text[begin:place].strip()
    return ""


def plain(answer: str) -> str:
    """Return an answer without the marks that do not change what it says."""
    text = _last_box(answer) or answer
    text = _TEXT.sub(r"\1", text)
    text = _DROPPED.sub("", text)
    text = _SHORT_FRACTION.sub(r"\1/\2", text)
    while (shorter := _FRACTION.sub(_as_quotient, text)) != text:
        text = shorter
    text = text.replace("\\%", "%").replace("^{\\circ}", "").replace("^\\circ", "").replace("\\cdot", "*")
    return text.rstrip(".").strip("()" if text.count("(") == 1 and "," not in text else "").lower()


def _as_quotient(match: re.Match[str]) -> str:
    parts = [part if re.fullmatch(r"[-+]?[\w.]+", part) else f"({part})" for part in match.groups()]
    return "/".join(parts)


def number(text: str) -> Fraction | None:
    """Return the number that a plain form is: `-1,234.5`, `3/4`, `12%`, `x=7`; else None."""
    text = text.rpartition("=")[2]
    share = text.endswith("%")
    parts = text.removesuffix("%").split("/")
    if len(parts) > 2 or not all(_PLAIN_NUMBER.fullmatch(part) for part in parts):
        return None
    values = [Fraction(part.replace(",", "")) for part in parts]
    if len(values) == 2 and values[1] == 0:
        return None
    value = values[0] / values[1] if len(values) == 2 else values[0]
    return value / 100 if share else value


def same_plainly(given: str, wanted: str) -> bool:
    """Whether two answers are the same as plain forms or as numbers."""
    if not given or not wanted:
        return False
    one, other = plain(given), plain(wanted)
    if one == other:
        return bool(one)
    first, second = number(one), number(other)
    return first is not None and first == second


def same_by_algebra(pair: tuple[str, str]) -> bool:
    """Ask math-verify whether two answers are the same; for the main thread of a process: its limits are signals."""
    from math_verify import LatexExtractionConfig, parse, verify

    given, wanted = (
        parse(f"${answer.strip().strip('$')}$", extraction_config=[LatexExtractionConfig()]) for answer in pair
    )
    return bool(given and wanted and verify(wanted, given))


def knows_algebra() -> bool:
    """Whether math-verify is installed."""
    from importlib.util import find_spec

    return find_spec("math_verify") is not None
