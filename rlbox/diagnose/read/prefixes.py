"""What programs and launchers put before a line: who wrote it, when, how grave it is. One pattern a family.

Groups of a pattern: `lane` (a process or worker by name), `host`, `rank`, `clock`, `level`, `source` (file and line of
the statement that wrote it). Whatever a pattern fits is taken off, and the rest is tried again, as launchers stack.
"""

from __future__ import annotations

_DAY = r"\d{4}[-/]\d\d[-/]\d\d"
_TIME = r"\d\d:\d\d:\d\d"
_PART = r"(?:[.,]\d{1,9})?"
_ZONE = r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_LEVEL = r"(?P<level>TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|ERR|CRITICAL|FATAL|SEVERE|PANIC)"
_LOWER = r"(?P<level>(?i:trace|debug|info|notice|warning|warn|error|critical|fatal|panic))"
_RANKS = r"(?: ?(?:DP|PP|TP|EP|CP|MoE_\w+?|ATTN_\w+?|moe_\w+?)_?\d+)+"

WHO = (
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

WHEN = (
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

GRAVE = (
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
