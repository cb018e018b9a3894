"""One line of a log without its prefixes: who wrote it, when, and how severe it is."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

from rlbox.foreign import parse_json
from rlbox.logs.lines import strip_terminal_codes

_DAY = r"\d{4}[-/]\d\d[-/]\d\d"
_TIME = r"\d\d:\d\d:\d\d"
_PART = r"(?:[.,]\d{1,9})?"
_ZONE = r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_LEVEL = r"(?P<level>TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|ERR|CRITICAL|FATAL|SEVERE|PANIC)"
_LOWER = r"(?P<level>(?i:trace|debug|info|notice|warning|warn|error|critical|fatal|panic))"
_RANKS = r"(?: ?(?:DP|PP|TP|EP|CP|MoE_\w+?|ATTN_\w+?|moe_\w+?)_?\d+)+"

WRITER_PREFIXES = (
    # Ray and vLLM: (WorkerDict pid=12, ip=10.0.0.2), (EngineCore_DP0 pid=7), (raylet, ip=10.0.0.1)
    r"[ \t]*\((?P<lane>(?=[^()\n]*\bpid=\d|raylet|gcs_server|autoscaler|driver|dashboard|ProxyActor|Replica)"
    r"[^()\n]*)\) ?",
    # the same with its first bracket cut off
    r"(?P<lane>[A-Z]\w+ pid=\d+)\) ",
    # torch, torchrun --tee, and others: [rank0]: [default3]: [Rank 2] [rank-0]:
    r"\[(?P<lane>(?i:(?:local[_-]?|global[_-]?)?rank|default|trainer|worker|gpu|gpu_id|node)"
    r"[ =_-]?(?P<rank>\d{1,5}))\]:? ?",
    # launchers that name host and process: [node1:3]
    r"\[(?P<host>[a-zA-Z][\w.-]*):(?P<rank>\d{1,5})\] ?(?=\s*File |\w+Error|Traceback|  )",
    r"(?P<lane>[rR]ank ?(?P<rank>\d{1,5})): ",
    # mpirun --tag-output
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?\[(?P<lane>\d+,(?P<rank>\d+))\]<std(?:err|out)>:? ?",
    # srun --label
    r" {0,3}(?P<lane>(?P<rank>\d{1,5})): (?=\S|  )",
    # DeepSpeed, pdsh: node1: text
    r"(?P<host>[a-z][\w-]*\d[\w.-]*): (?=\[|Traceback|  File|    |\w+Error: )",
    # kubectl logs --prefix, stern
    r"\[(?P<lane>pod/[^\]\s]+)\] ",
    # docker compose
    r"(?P<lane>[a-zA-Z][\w.-]{0,60}[-_]\d{1,3}) {1,40}\| ?",
    r"(?P<lane>(?P<host>(?!(?:TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL) )[a-zA-Z][\w.-]{0,60})) {2,40}\| ?",
    # files of one job in one: node-1/rank2.stderr.log | text
    r"(?P<lane>(?:(?P<host>(?:node|host|head|worker|gpu)[\w.-]*)/)?(?:[\w.-]+/)*(?:[\w.-]*?rank[-_.]?(?P<rank>\d{1,5}))?"
    r"[\w.-]*\.(?:log|out|err|txt)) \| ?",
    # Determined: container || text
    r"(?P<lane>[0-9a-f]{8}) \|\| ",
    # a container's log on its node: stderr F text
    r"(?:stdout|stderr) [FP] ",
    # docker buildx
    r"(?P<lane>#\d{1,3}) (?:\d+\.\d+ )?(?=\S| )",
    # docker build through a terminal: => => # text, and below a step that failed: 12.34 text
    r"(?: => ?)+(?:# )?",
    r"\d{1,4}\.\d{1,3} (?=[EW]: |ERROR|error|Err:|Traceback|  |/bin/|fatal|make|ninja|cc1|curl|npm|[A-Z]\w*Error\b)",
    # NCCL: host:pid:tid [2] misc/socket.cc:72 NCCL WARN text
    r"(?P<host>[\w.-]+):(?P<lane>\d+):\d+ \[(?P<rank>\d+)\] (?:(?P<source>[\w./-]+:\d+) )?"
    r"(?:[\w./<>-]+ )?(?=NCCL (?P<level>INFO|WARN|ERROR|TRACE|ABORT|VERSION)\b)",
    # vLLM under Ray or lemonade: [Info] (Process)
    r"\[(?P<level>Info|Warning|Error|Debug)\] \(\w+\) ",
)

CLOCK_PREFIXES = (
    # a container's stamp before vLLM's own
    rf"\[?(?P<clock>{_DAY}[ T]{_TIME}{_PART}{_ZONE})\]? (?=[A-Z]{{4,8}} \d\d-\d\d {_TIME})",
    # vLLM: ERROR 04-30 10:20:36 [core.py:396] text; ERROR 04-26 01:59:07 worker_base.py:157] text
    rf"{_LEVEL} (?P<clock>\d\d-\d\d {_TIME}{_PART}) \[?(?P<source>[^\]\s]+:\d+)\] ?",
    # glog, klog, c10d: [E207 01:29:36.730311765 ProcessGroupNCCL.cpp:616] text; E0112 10:20:30.1 77 api.py:869] text
    rf"\[?(?P<level>[EWIFC])(?:\d{{4}})?(?P<clock>\d{{3,4}} {_TIME}(?:\.\d{{1,9}})?) +(?:\d+ )?"
    r"(?P<source>[^\]\s]+:\d+)\] ?",
    rf"(?P<level>[EWIF])(?P<clock>\d{{4}} {_TIME}(?:\.\d{{1,9}})?) (?=\S)",
    # c10d of torch before 2.2: [W socket.cpp:558] text
    r"\[(?P<level>[EWIFC]) (?P<source>[\w./-]+\.(?:cpp|cc|h|py):\d+)\] ?",
    # Ray's C++: [2025-01-01 00:00:00,123 E 12 34] (raylet) worker_pool.cc:586: text
    rf"\[(?P<clock>{_DAY} {_TIME}{_PART}) (?P<level>[DIWECF]) \d+ \d+\] (?:\(\w+\) )?"
    r"(?:(?P<source>[\w./-]+\.cc:\d+): ?)?",
    # Ray's Python: 2025-01-01 00:00:00,123<tab>ERROR worker.py:406 -- text
    rf"(?P<clock>{_DAY} {_TIME}{_PART})\s+{_LEVEL}\s+(?P<source>[\w./-]+:\d+) --(?: |$)",
    # DeepSpeed: [2025-01-01 00:00:00,123] [ERROR] [launch.py:325:sigkill_handler] text
    rf"\[(?P<clock>{_DAY} {_TIME}{_PART})\] \[{_LEVEL}\] \[(?P<source>[^\]\n]*)\] ?",
    # torch 2.1: [2024-01-01 00:00:00,123] torch.distributed.run: [WARNING] text
    rf"\[(?P<clock>{_DAY} {_TIME}{_PART})\] (?P<source>[\w.]+): \[{_LEVEL}\] ",
    # hydra: [2024-01-01 00:00:00,123][my.module][ERROR] - text
    rf"\[(?P<clock>{_DAY} {_TIME}{_PART})\](?:\[(?P<source>[\w.]+)\])?\[{_LEVEL}\] (?:- )?",
    # NeMo: [NeMo E 2024-01-01 00:00:00 nemo_logging:349] text
    rf"\[NeMo (?P<level>[EWIDC]) (?P<clock>{_DAY} {_TIME})(?: (?P<source>[^\]\n]*))?\] ?",
    # SGLang: [2025-02-08 00:55:32 DP2 TP5] text, [01:37:48 TP0] text, [2025-01-01 00:00:00] text
    rf"\[(?P<clock>(?:{_DAY} )?{_TIME}{_PART})(?P<lane>{_RANKS})?(?: \w+)?\](?:\[[\w ]+\])? ?",
    # transformers: [ERROR|trainer.py:12] 2025-01-01 00:00:00,123 >> text; LLaMA-Factory the other way round
    rf"\[{_LEVEL}\|(?P<source>[\w./-]+:\d+)\] (?P<clock>{_DAY} {_TIME}{_PART}) >> ?",
    rf"\[{_LEVEL}\|(?P<clock>{_DAY} {_TIME}{_PART})\] (?P<source>[\w./-]+:\d+) >> ?",
    # loguru and fastchat: 2025-01-01 00:00:00.123 | ERROR    | module:function:12 - text
    rf"(?P<clock>(?:{_DAY} )?{_TIME}{_PART}) ?\| *{_LEVEL} *\| (?:(?P<source>[\w.<>/-]+:[\w<>]+:\d+) - |\w+ \| )?",
    # logging: 2025-01-01 00:00:00,123 - name - ERROR - text, and its other orders
    rf"\[?(?P<clock>{_DAY}[ T]{_TIME}{_PART}{_ZONE})\]? ?[-:|]? ?(?:\[?[\w.:/-]+\]? ?[-:|] )?\[?{_LEVEL}\]? *[-:|]? "
    r"?(?:\[?(?P<source>[\w./-]+\.(?:py|cc|cpp|rs|go):\d+)\]?(?: ?[-:|>]+ |: ?| ))?",
    rf"(?P<clock>\d\d/\d\d/\d{{4}} {_TIME}(?: [AP]M)?) - {_LEVEL} - [\w.]+ ?- ? ?",
    rf"(?P<clock>\d\d/\d\d {_TIME}) - [\w.]+ - {_LEVEL} - ",
    rf"(?P<clock>{_DAY} {_TIME}{_PART}) (?P<source>[a-z_][\w.]*|\[[\w./-]+:\d+\]) {_LEVEL} ",
    rf"\[{_LEVEL} (?P<clock>{_DAY}[ T]{_TIME}{_PART})\] ?",
    # rich: [01/01/24 00:00:00] ERROR    text
    rf"\[(?P<clock>\d\d/\d\d/\d\d {_TIME})\] (?=[A-Z]{{4,8}} )",
    # syslog and the kernel
    rf"(?P<clock>[A-Z][a-z]{{2}} [ \d]\d {_TIME}) (?P<host>[\w.-]+) (?P<lane>[\w./@-]+(?:\[\d+\])?): "
    r"(?:\[ *\d+\.\d+\] )?",
    r"(?:kern  :\w+ +: )?\[ *(?P<clock>\d+\.\d{6})\] ",
    rf"\[(?P<clock>[A-Z][a-z]{{2}} [A-Z][a-z]{{2}} [ \d]\d {_TIME} \d{{4}})\] ",
    # containers, CI and Rust: 2025-01-01T00:00:00.123456Z text
    rf"\[?(?P<clock>{_DAY}T{_TIME}{_PART}(?:Z|[+-]\d\d:?\d\d)?)\]? ?",
    rf"(?P<clock>{_DAY} {_TIME}{_PART}{_ZONE})(?: [-|:]|:)? ?",
    rf"(?P<clock>{_TIME}{_PART}) +(?:[-|] +)?(?=\[|[A-Z])",
    rf"(?P<clock>[A-Z][a-z]{{2}} [ \d]\d {_TIME}) (?=\S)",
)

LEVEL_PREFIXES = (
    # uvicorn: ERROR:    text; basicConfig: ERROR:name:text
    rf"{_LEVEL}: {{2,8}}",
    rf"{_LEVEL}:(?:root|__main__|[a-z_][\w.]+):",
    # Rust: ERROR sglang::router: text, ERROR router: src/main.rs:1: text
    rf"{_LEVEL} (?P<source>[a-z_]\w*(?:::\w+)+)(?:\{{[^}}\n]*\}})?: ?",
    rf"\[{_LOWER}\] ?(?:\[(?P<source>[^\]\s]+:\d+)\] ?)?",
    rf"{_LEVEL}(?:[ \t]+| ?[-|] ?)(?=\S)",
    rf" {{8,}}{_LEVEL} {{2,}}(?=\S)",
    # GitHub's runner
    r"##\[(?P<level>error|warning|debug)\]",
    # docker's daemon and others in logfmt
    rf'(?:(?:time|ts)="?(?P<clock>[^"\s]+)"? )?(?:caller=(?P<source>\S+) )?level={_LOWER} (?:msg=)?',
    # a warning that its program spells out
    r"(?P<level>WARNING|Warning|warning|WARN): (?=\S)",
)


LEVELS = {
    "T": 0, "D": 0, "TRACE": 0, "DEBUG": 0,
    "I": 1, "INFO": 1, "NOTICE": 1, "VERSION": 1,
    "W": 2, "WARN": 2, "WARNING": 2,
    "E": 3, "ERR": 3, "ERROR": 3, "SEVERE": 3,
    "C": 4, "F": 4, "CRITICAL": 4, "FATAL": 4, "PANIC": 4, "ABORT": 4,
}  # fmt: skip
"""How grave a level is: 0 below information, 1 information, 2 a warning, 3 an error, 4 the end."""
LevelDebug0ToFatal4 = int
NO_LEVEL = -1
"""The level of a line that states none."""
LEVEL_WARNING, LEVEL_ERROR, LEVEL_FATAL = 2, 3, 4

_STACKED = 8
_LONGEST_LINE = 4000
"""Characters of a line in which something is looked for; what stands behind them is payload."""
_BAR = re.compile(
    r"^[^\n]{0,300}?(?:\d{1,3}%(?: Completed ?)?\|[^|\n]{0,200}\||\d{1,3}% Completed \||\d{1,3}% \d+/\d+)"
    r"[^\[\n]{0,60}\[[^\]\n]{0,80}\]\s*(?:,\s*)?"
)
_CODES = re.compile(r"\[\d{1,3}(?:;\d{1,3}){0,4}m")
"""Codes of a terminal that lost their first character where somebody copied them."""
_REPEAT = re.compile(r"\s*\[repeated \d{1,7}x across cluster\].*$")
_WARNING = re.compile(r"(?:^|[\s:])[A-Z]?\w*Warning: ")
_RANK = re.compile(r"(?i)\b(?:TP|rank)[ _=-]?(\d{1,5})\b")
_WRITER = re.compile(
    r"^\s*(?:\((?=[^()]*\bpid=\d)[^()]*\)"  # Ray and vLLM: (WorkerDict pid=12, ip=10.0.0.2)
    r"|\[(?:rank|default) ?\d+\]"  # torch, torchrun --tee
    r"|\[\d+,\d+\]<std(?:err|out)>"  # mpirun --tag-output
    r"|\d{1,4}:\s"  # srun --label
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?((?: (?:DP|PP|TP|EP)\d+)+)\])"  # SGLang
)
_ADDRESS = re.compile(r"\bip=([\w.:-]+)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line, split. `number` counts from 1; `body` is the text without prefixes, its indent kept.

    `writer` is the process or worker as its prefix names it; `rank` is -1 and the other texts are empty where the line
    does not say. `level` is a number of `LEVELS`, or `NO_LEVEL`. `logging_call_site` is file and line of the logging
    statement.
    """

    number: int
    text: str
    body: str
    writer: str = ""
    host: str = ""
    rank: int = -1
    level: LevelDebug0ToFatal4 = NO_LEVEL
    clock: str = ""
    logging_call_site: str = ""
    has_prefix: bool = False
    follows_progress_bar: bool = False
    clock_count: int = 0

    @property
    def has_timestamp_but_no_level(self) -> bool:
        """Whether one clock, and neither level nor place of the logging statement, is in front of it."""
        return self.clock_count == 1 and not self.logging_call_site and self.level == NO_LEVEL


def parse_line(number: int, text: str) -> LogLine:
    """Split a line into prefixes and body; never fails."""
    text = strip_terminal_codes(text[:_LONGEST_LINE]).rstrip()
    plain = _CODES.sub("", text) if "[0" in text else text
    body = _strip_progress_bar(plain)
    glued = len(body) < len(plain)
    if body.startswith("{") and (row := _parse_json_line(number, text, body)):
        return row
    said = _PrefixFields()
    rest = said.strip(body)
    rest = _REPEAT.sub("", rest) if "[repeated " in rest else rest
    if said.level == NO_LEVEL and rest.startswith("{") and (row := _parse_json_line(number, text, rest)):
        return row
    if said.level == NO_LEVEL and "Warning: " in rest and _WARNING.search(rest):
        said.level = LEVEL_WARNING
    behind = _strip_progress_bar(rest)
    if len(behind) < len(rest):
        glued, rest = True, said.strip(behind)
    return LogLine(
        number, text, rest, said.writer, said.host, said.rank, said.level, said.clock, said.source,
        has_prefix=len(rest) < len(body), follows_progress_bar=glued, clock_count=said.clock_count,
    )  # fmt: skip


def find_writer(text: str) -> str:
    """Return what a line puts before itself to name the process or rank that wrote it; empty when it names none.

    Of the commonest forms alone, as whoever asks of every line of a log can afford it.
    """
    found = _WRITER.match(text)
    return (found.group(1) or found.group(0)).strip() if found else ""


class _PrefixFields:
    """The fields of a line's prefixes, collected while these are stripped."""

    def __init__(self) -> None:
        self.writer = self.host = self.clock = self.source = ""
        self.rank = self.level = -1
        self.clock_count = 0

    def strip(self, body: str) -> str:
        for _ in range(_STACKED):
            found = next((hit for pattern in _prefix_patterns() if (hit := pattern.match(body))), None)
            if found is None or found.end() == 0:
                break
            self._take(found.groupdict())
            body = body[found.end() :]
        return body

    def _take(self, said: dict[str, str | None]) -> None:
        if writer := (said.get("lane") or "").strip():
            self.writer = f"{self.writer} {writer}".strip()
            if rank := _RANK.search(writer):
                self.rank = int(rank.group(1))
            if address := _ADDRESS.search(writer):
                self.host = address.group(1)
        self.host = self.host or said.get("host") or ""
        self.rank = int(said.get("rank") or self.rank)
        self.clock_count += bool(said.get("clock"))
        self.clock = self.clock or (said.get("clock") or "").strip()
        self.source = said.get("source") or self.source
        if level := said.get("level"):
            self.level = LEVELS.get(level.upper(), self.level)


@functools.cache
def _prefix_patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(text) for text in (*WRITER_PREFIXES, *CLOCK_PREFIXES, *LEVEL_PREFIXES))


def _strip_progress_bar(text: str) -> str:
    """Return what follows progress bars on their line; the line itself when nothing does."""
    if "%" not in text:
        return text
    at = 0
    while found := _BAR.match(text[at:]):
        at += found.end()
    rest = text[at:]
    return rest if rest.strip() else text


def _parse_json_line(number: int, text: str, body: str) -> LogLine | None:
    """Return a line that is one JSON object with a message; else None."""
    if not body.endswith("}"):
        return None
    try:
        data = parse_json(body)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    if isinstance(log := data.get("log"), str) and "level" not in data:  # docker's json-file
        row = parse_line(number, log.rstrip("\n"))
        return row if row.clock else replace(row, clock=str(data.get("time", ""))[:40], has_prefix=True)
    message = next((data[key] for key in ("message", "msg", "event", "log") if isinstance(data.get(key), str)), None)
    level = next((data[key] for key in ("level", "levelname", "severity", "lvl") if isinstance(data.get(key), str)), "")
    if message is None or not level:
        return None
    extra = next((data[key] for key in ("exc_info", "error", "err", "exception") if isinstance(data.get(key), str)), "")
    clock = next((data[key] for key in ("time", "timestamp", "ts", "asctime") if isinstance(data.get(key), str)), "")
    said = f"{message}: {extra}" if extra and extra not in message else message
    writer = next((str(data[key]) for key in ("rank", "actor_name", "process", "pid") if key in data), "")
    return LogLine(
        number,
        text,
        said.split("\n")[0],
        writer,
        level=LEVELS.get(level.upper(), NO_LEVEL),
        clock=clock,
        has_prefix=True,
    )
