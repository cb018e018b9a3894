"""Checks of Ray's command line: ports, paths, configuration, what a submitted job may rely on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlbox.foreign import parse_json, whole_number
from rlbox.lint.drift import DriftRule
from rlbox.lint.hits import Hit, Where, hit_call, hit_setting
from rlbox.lint.read.calls import Call, Option
from rlbox.lint.read.document import Document

WORKER_PORTS = range(10002, 20000)  # Ray's own choice for its workers
# `<temp>/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store` is a Unix socket: 107 bytes at most.
SOCKET_TAIL = len("/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
LONGEST_TEMP = 107 - SOCKET_TAIL
_OUTPUT = re.compile(
    r"-{0,2}[\w.]*?(?:save|ckpt|checkpoint|output|export|default_local|log)[\w.-]*(?:path|dir|folder)|-{1,2}(?:save|out|output)",
)
_KEY_VALUE = re.compile(r"(?P<name>[\w.+]+)=(?P<value>.*)", re.DOTALL)
_RELATIVE = re.compile(r"\.{1,2}/(?=[^/])|(?![-$~/{<\"'])[\w.-]+/", re.ASCII)
_LOOPBACK = re.compile(r"^(?:https?://)?(?:127\.0\.0\.1|localhost|\[::1\])(?::|/|$)")
_ADDRESSED = re.compile(r"(?:url|addr|address|host|endpoint|server)s?$", re.IGNORECASE)
_NODES = re.compile(r"(?:^|[._-])n?num[-_.]?nodes$|(?:^|[._-])nnodes$", re.IGNORECASE)
_FLAT = re.compile(
    r"(?!--(?:local_rank|use_ms|max_norm|lr_scheduler|lr_warmup_ratio|min_lr_ratio|batch_size)$)--[a-z0-9]+(?:_[a-z0-9]+)+"
)
_BOUND = {"--host", "host", "--address"}  # where a server listens, and Ray's own


def ray_ports(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find ports of Ray's services inside the range that it gives to its workers."""
    for call in document.called("ray start"):
        low = _port(document, call.option("--min-worker-port")) or WORKER_PORTS.start
        high = _port(document, call.option("--max-worker-port")) or WORKER_PORTS.stop - 1
        if call.has("--worker-port-list"):
            continue
        for option in call.options():
            port = _port(document, option) if option.name in rule.names else 0
            if low <= port <= high:
                yield hit_call(call, option.start, name=option.name, value=str(port))


def service_ports(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find ports of other services inside that range, where Ray is started with it."""
    starts = list(document.called("ray start"))
    if not starts or any(call.has("--min-worker-port", "--worker-port-list") for call in starts):
        return
    used = {document.names.resolve(word.value, word.start) for call in starts for word in call.words}
    for setting in document.settings:
        value = setting.value.strip("\"'")
        inside = whole_number(value, digits=5) in WORKER_PORTS
        taken = any(value in text for text in used)  # by Ray itself: the other rule says it
        if (setting.name.endswith("PORT") or setting.name.startswith("ports.")) and inside and not taken:
            yield hit_setting(setting)
    for call in document.calls:
        if call.program not in ("ray start", "ssh", "scp", "docker run", "curl"):
            for option in call.options():
                if option.name == "--port" and whole_number(option.value) and _port(document, option) in WORKER_PORTS:
                    yield hit_call(call, option.start, name=option.name, value=option.value)


def _port(document: Document, option: Option | None) -> int:
    value = document.value(option) if option else ""
    return whole_number(value, digits=5) or 0


def long_temp(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find folders that are too long for Ray's sockets below them."""
    for call in document.called("ray start"):
        if option := call.option("--temp-dir"):
            yield from _too_long(document.value(option), hit_call(call, option.start))
    for setting in document.settings:
        if setting.name in rule.names:
            value = document.names.resolve(setting.value, setting.start)
            yield from _too_long(value, Hit(start=setting.start, within=setting.within))


def _too_long(path: str, hit: Hit) -> Iterator[Hit]:
    known = re.sub(r"\$\w+|\$\{[^}]*\}|\{[\w.]+\}", "", path)
    size = len(known.rstrip("/").encode())
    if size > LONGEST_TEMP:
        fields = {"value": path, "size": str(size + SOCKET_TAIL), "most": str(LONGEST_TEMP)}
        yield Hit(start=hit.start, begin=hit.begin, within=hit.within, fields=fields)


def spill_object(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find a spilling configuration that is an object where Ray wants a text."""
    for call, option in _system_configs(document):
        data = _json(option.value)
        given = data.get("object_spilling_config") if isinstance(data, dict) else None
        loose = re.search(r"object_spilling_config\\?[\"']?\s*:\s*\{", option.value) if data is None else None
        if isinstance(given, dict) or loose:
            folder = re.search(r"directory_path\\?[\"']?\s*:\s*\\?[\"']([^\"'\\]+)", option.value)
            yield hit_call(call, option.start, new=folder.group(1) if folder else "/data/spill")


def config_key(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find keys in Ray's configuration that it does not know."""
    for call, option in _system_configs(document):
        for name in rule.names:
            if re.search(rf"[\"']{name}\\?[\"']\s*:", option.value):
                yield hit_call(call, option.start, name=name)


def _system_configs(document: Document) -> Iterator[tuple[Call, Option]]:
    for call in document.called("ray start"):
        if option := call.option("--system-config"):
            yield call, option


def _json(text: str) -> object:
    try:
        found: object = parse_json(text)
        return found
    except (ValueError, RecursionError):
        return None


def job_address(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find jobs that are sent to the port of the cluster instead of that of the dashboard."""
    gcs = {6379} | {
        port
        for call in document.called("ray start")
        if call.has("--head")
        for port in [_port(document, call.option("--port"))]
        if port
    }
    for call in document.called("ray job submit"):
        option = call.option("--address")
        given = document.value(option) if option else ""
        for word in call.env:
            name, _, value = word.value.partition("=")
            if name == "RAY_ADDRESS" and not given:
                given = document.names.resolve(value, word.start)
        hit = re.fullmatch(r"(?:https?://|ray://)?[\w.-]+:(\d{2,5})/?", given)
        if hit and int(hit.group(1)) in gcs:
            yield hit_call(call, value=given)


def relative_output(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find outputs of a submitted job that end up in Ray's copy of the working directory."""
    for call in document.calls:
        if "ray-job" not in call.within or not _packs_folder(call):
            continue
        for option in call.options():
            if _OUTPUT.fullmatch(option.name) and _is_relative(document.value(option)):
                yield hit_call(call, option.start, name=option.name, value=option.value)
        for word in call.words:
            hit = _KEY_VALUE.fullmatch(word.value)
            if (
                hit
                and _OUTPUT.fullmatch(hit["name"])
                and _is_relative(document.names.resolve(hit["value"], word.start))
            ):
                yield hit_call(call, word.start, name=hit["name"], value=hit["value"])


def _packs_folder(call: Call) -> bool:
    outer: Call | None = call
    while outer and outer.program != "ray job submit":
        outer = outer.outer
    return outer is None or "working-dir" in outer.text or "working_dir" in outer.text


def _is_relative(value: str) -> bool:
    return bool(_RELATIVE.match(value)) and "://" not in value


def loopback(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find addresses of one machine in commands that run on several."""
    for call in document.calls:
        if call.program in ("curl", "wget", "ray start", "ray job submit", "ssh", "docker run") or not call.words:
            continue
        pairs = list(_named_values(document, call))
        nodes = [whole_number(value) or 0 for name, value, _ in pairs if _NODES.search(name)]
        if max(nodes, default=1) < 2:
            continue
        for name, value, start in pairs:
            if _ADDRESSED.search(name) and _LOOPBACK.match(value) and name not in _BOUND:
                yield hit_call(call, start, name=name, value=value)


def _named_values(document: Document, call: Call) -> Iterator[tuple[str, str, int]]:
    """Yield name, value and place of options and of `name=value` words."""
    for option in call.options():
        yield option.name, document.value(option), option.start
    for word in call.words:
        if (hit := _KEY_VALUE.fullmatch(word.value)) and not word.value.startswith("-"):
            yield hit["name"], document.names.resolve(hit["value"], word.start), word.start


def entry_ends(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find a Ray node that is to be a container's process, and ends at once."""
    for call in document.called("ray start"):
        if call.has("--block"):
            continue
        as_entry = "entry" in call.within and call.pipeline.after not in ("&&", ";", "||")
        run = call.outer is not None and call.outer.program == "docker run"
        if as_entry or run:
            yield hit_call(call)


def openrlhf_flags(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find options with underscores in OpenRLHF's command lines, those that the table does not know included."""
    for call in document.calls:
        if not re.search(rule.needs[0], call.text):
            continue
        behind = False
        for option in call.options():
            behind = behind or "openrlhf.cli" in call.program or option.value.startswith("openrlhf.cli")
            if behind and (option.name in rule.renamed or _FLAT.fullmatch(option.name)):
                new = rule.renamed.get(option.name, f"{option.name} is not known any more: --help lists the options")
                yield hit_call(call, option.start, name=option.name, new=new)
