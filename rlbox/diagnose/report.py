"""A diagnosis as text for people: four lines, then the chain; and a redacted extract for `--ask`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rlbox.diagnose.candidates import Candidate
from rlbox.diagnose.diagnosis import UNKNOWN, Diagnosis, StallAtEnd, get_clipped_full_line
from rlbox.diagnose.root_cause import CausalLink
from rlbox.i18n import _, join
from rlbox.secrets.masks import SecretMasker, mask_tokens_and_random_text

WIDTH = 160
_FIRST_WIDTH = 320
"""What of the root's line is shown: errors tell the numbers that matter late."""
_CHAIN_SHOWN = 12
_ALSO_SHOWN = 4
_NOISE_SHOWN = 6
ROLES = {"root": _("root"), "relayed": _("relayed"), "victim": _("victim"), "death": _("death")}
LINK_REASONS = {
    "": _("it broke first"),
    "same-lane": _("same process, later"),
    "quoted": _("it repeats that line"),
    "collective": _("it waited for it"),
    "kill-order": _("it was ended after it"),
    "time": _("logged later"),
}
BENIGN_REASONS = {
    "signature": _("known to be harmless"),
    "survived": _("the work went on after it"),
    "shutdown": _("the job was ending"),
    "level": _("no more than a warning"),
    "declared": _("the job declares it harmless"),
}
"""Why an error is no failure."""
ENDINGS = {
    "failed": "",
    "survived": _("there are errors, and the work went on after each of them"),
    "clean": _("the log ends as it should"),
    "stalled": "",
    "unseen": _("the log has no ending: what comes behind its last line is not known"),
}


def format_report(diagnosis: Diagnosis, excerpt: str = "", *, include_benign: bool = False) -> str:
    """Return the whole report.

    `excerpt`: The text around the root.
    `include_benign`: Add what was not taken for a failure.
    """
    if diagnosis.root is None:
        parts = [_format_healthy(diagnosis)]
    else:
        parts = [join("\n", _format_failure_summary(diagnosis)), _format_chain(diagnosis)]
        if excerpt:
            parts.append(excerpt)
    if include_benign or diagnosis.root is None:
        parts.append(_format_benign(diagnosis))
    if diagnosis.root:
        parts += _list_damage(diagnosis)
    return join("\n\n", (part for part in parts if part))


def _format_failure_summary(diagnosis: Diagnosis) -> Iterator[str]:
    root = diagnosis.root
    if root is None:
        return
    yield _("first: {line}").format(line=_format_line(diagnosis, root, _FIRST_WIDTH))
    yield _("cause: {cause}").format(cause=_format_cause(diagnosis))
    yield _("after: {consequences}").format(consequences=_format_consequences(diagnosis))
    yield _("next:  {step}").format(step=_format_next(diagnosis))


def _format_cause(diagnosis: Diagnosis) -> str:
    if known := diagnosis.signature:
        return _("{cause}: {title} (sure to {confidence})").format(
            cause=known.cause or known.fix, title=_(known.title), confidence=f"{diagnosis.confidence:.2f}"
        )
    if diagnosis.raised_in:
        return _("unknown: raised in {place}; no signature knows it").format(place=diagnosis.raised_in.where)
    return _("unknown: no signature knows this line")


def _format_next(diagnosis: Diagnosis) -> str:
    remedy = diagnosis.remedy
    if diagnosis.missing_log_description:
        fetch = _("these are consequences; look at {log}").format(log=diagnosis.missing_log_description)
        return _("{fetch}. {remedy}").format(fetch=fetch, remedy=_(remedy)) if remedy else fetch
    if (code := diagnosis.raised_in) and not remedy:
        return _("search the issues of {name} for this message, or try another release").format(name=code.package)
    return _(remedy) if remedy else _("none is known; `rlbox diagnose LOG --why` tells what else went wrong there")


def _format_consequences(diagnosis: Diagnosis) -> str:
    rest = diagnosis.chain[1:]
    if not rest:
        return _("nothing more that failed")
    lanes = dict.fromkeys(
        link.candidate.event.writer or diagnosis.files[link.candidate.event.log_index].name for link in rest
    )
    shown = ", ".join(list(lanes)[:3]) + (", …" if len(lanes) > 3 else "")
    last = _limit(get_clipped_full_line(rest[-1].candidate), WIDTH)
    if len(rest) == 1:
        return _("one consequence, in {places}: {line}").format(places=shown, line=last)
    return _("{count} consequences, in {places}; the last: {line}").format(count=len(rest), places=shown, line=last)


def _limit(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _format_line(diagnosis: Diagnosis, candidate: Candidate, width: int = WIDTH) -> str:
    row = candidate.event.log_line
    place = f"{diagnosis.files[candidate.event.log_index].name}:{candidate.line_number}"
    where = ", ".join(part for part in (place, row.writer, row.clock) if part)
    return f"{where}: {_limit(get_clipped_full_line(candidate), width)}"


def _format_chain(diagnosis: Diagnosis) -> str:
    if len(diagnosis.chain) < 2 and not diagnosis.independent:
        return ""
    rows = [_format_link(diagnosis, place, link) for place, link in enumerate(diagnosis.chain[:_CHAIN_SHOWN])]
    if (left := len(diagnosis.chain) - _CHAIN_SHOWN) > 0:
        rows.append(_("  … and {count} more").format(count=left))
    for candidate in diagnosis.independent[:_ALSO_SHOWN]:
        cause = candidate.cause_id_or_empty or UNKNOWN
        rows.append(_("  also: {line} [{cause}]").format(line=_format_line(diagnosis, candidate), cause=cause))
    return join("\n", rows)


def _format_link(diagnosis: Diagnosis, place: int, link: CausalLink) -> str:
    candidate = link.candidate
    times = _(" ({count} times)").format(count=candidate.event.count) if candidate.event.count > 1 else ""
    of = f" {link.cause_index + 1}" if link.cause_index > 0 else ""
    start = f"  {place + 1}. {_format_line(diagnosis, candidate)}"
    return join("", (start, times, " [", ROLES[link.role_in_chain], ", ", LINK_REASONS[link.reason], of, "]"))


def _list_damage(diagnosis: Diagnosis) -> list[str]:
    return [
        _("not read completely: {file}: {problem}").format(file=one.name, problem=one.problem)
        for one in diagnosis.damaged_files
    ]


def _format_healthy(diagnosis: Diagnosis) -> str:
    if damage := _list_damage(diagnosis):
        step = _("next:  rlbox diagnose LOG, with the complete log as text")
        return join("\n", (_("no result: a log was not read completely"), *damage, step))
    ending = _format_stall(diagnosis, diagnosis.stall) if diagnosis.stall else ENDINGS[diagnosis.ending]
    lines = sum(one.lines for one in diagnosis.files)
    return _("nothing fatal in {count} lines; {ending}").format(count=lines, ending=ending)


def _format_stall(diagnosis: Diagnosis, stall: StallAtEnd) -> str:
    return _("but the work stopped at {clock}, {minutes} min before the last line: {place}: {line}").format(
        clock=stall.clock,
        minutes=round(stall.stalled_s / 60),
        place=f"{diagnosis.files[stall.log_index].name}:{stall.line_number}",
        line=_limit(stall.text.strip(), WIDTH),
    )


def _format_benign(diagnosis: Diagnosis) -> str:
    rows: list[str] = []
    seen: Sequence[dict[str, object]] = diagnosis.as_json()["benign"]
    for row in seen[:_NOISE_SHOWN]:
        line = f"{row['file']}:{row['line']}: {_limit(str(row['text']), WIDTH)}"
        count = _("{count} times").format(count=row["count"])
        facts = filter(None, (str(row["cause"] or ""), count, BENIGN_REASONS[str(row["why"])]))
        remedy = f"\n    {_(str(row['remedy']))}" if row["remedy"] else ""
        rows.append(_("  no failure: {line} [{facts}]").format(line=line, facts=join(", ", facts)) + remedy)
    if (left := len(seen) - _NOISE_SHOWN) > 0:
        rows.append(_("  … and {count} more that are none").format(count=left))
    return join("\n", rows)


MAX_BYTES = 8000
_QUESTION = "What is the cause of this failure, and the smallest next step? What is known so far:"
_REDACTIONS = (
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), "***"),
    (
        re.compile(r"(?i)\b((?:api[_-]?key|token|secret|password|passwd)\w*[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]{4,}"),
        r"\1***",
    ),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\b"), "***@***"),
    (re.compile(r"(\w+://)[^\s/'\"<>)]+"), r"\1***"),
    (re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"), "***"),
    (re.compile(r"(?i)\b(host(?:name)?\s*[=:]\s*['\"]?|\bip=|on node )[\w.-]+"), r"\1***"),
    (re.compile(r"(?:/[^\s/:'\"`]+)+/((?:site|dist)-packages/)"), r"\1"),
    (re.compile(r"(?<![\w.:/*])/(?:[^\s/:'\"`,()\[\]]+/)+([^\s/:'\"`,()\[\]]*)"), r"***/\1"),
)
"""What is hidden, and what stands in its place: keys, people, hosts, and the folders of paths but for packages'."""


def format_redacted_help_request(diagnosis: Diagnosis, excerpt: str, secrets_environment: Mapping[str, str]) -> str:
    """Return what a stranger may be asked with: the question, the answer so far, and the lines around the root.

    `secrets_environment` holds the secrets of this process, which are masked however they are written.
    """
    text = f"{_QUESTION}\n\n{format_report(diagnosis, excerpt)}\n"
    text = _redact_secrets_hosts_and_paths(SecretMasker(secrets_environment).mask_text(text))
    return text.encode("utf-8", "replace")[:MAX_BYTES].decode("utf-8", "ignore")


def _redact_secrets_hosts_and_paths(text: str) -> str:
    text = mask_tokens_and_random_text(text)
    for pattern, other in _REDACTIONS:
        text = pattern.sub(other, text)
    return text
