"""Checks of `drift.toml` about packages: what is installed, Ray's commands, Python's calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rlbox.foreign import parse_json, whole_number
from rlbox.lint.document import Call, Document, Option, Snippet, parse_docker_run
from rlbox.lint.drift import DriftRule, Hit, MachineInfo, make_call_hit, make_setting_hit

# What an image matches to its CUDA, driver and torch: a newer one that a resolver picks breaks the rest.
_MATCHED = re.compile(
    r"(?:torch(?:vision|audio|data|codec)?|vllm|sglang|sgl[-_]kernel|flash[-_]attn|flashinfer[-_\w]*|xformers|triton|numpy"
    r"|pyarrow|tensordict|transformers|tokenizers|nvidia-\w+-cu\d+|deepspeed|megatron-core|transformer[-_]engine)$",
    re.IGNORECASE,
)
_COMPILED = re.compile(r"flash[-_]attn|transformer[-_]engine|apex|deep[-_]ep")  # have a rule of their own
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?(?P<bound>.*)", re.DOTALL)
_TAKING = {"-i", "-f", "-t", "-r", "-c", "-e", "-C", "-b", "-d", "-p"}
_TAKES = re.compile(r"--[^=]*(index|url|links|host|python|prefix|target|root|platform|constraint|requirement|dir)")
_MOVING = re.compile(r"(?:^|[._-])(?:latest|nightly|main|master|edge|dev)(?:$|[._-])|^$")
_CONDA_BIN = re.compile(r"(?:^|[\"'=])(?:[^:\"']*/)?(?:mini|ana)?conda3?/(?:base/)?bin:")
_OLD_CUDA = re.compile(r"(?<![a-z])cu(?:11\d|12[0-6])\b|cuda[:-](?:11\.\d+|12\.[0-6])\b")
_HONOURED = re.compile(r"-[ephn]$|-[ep]\S|--(?:env|publish|hostname)(?:=|$)")


def _requirements(call: Call) -> Iterator[tuple[str, str, int]]:
    """Yield name, bound and place of what a `pip install` asks for by name."""
    skip = False
    for word in call.words[1:]:
        value = word.value
        if skip or value.startswith("-"):
            skip = not skip and (value in _TAKING or _TAKES.fullmatch(value) is not None)
            continue
        hit = _REQUIREMENT.fullmatch(value)
        if hit and "/" not in value and "://" not in value and not value.endswith((".whl", ".gz", ".txt")):
            yield hit["name"], hit["bound"], word.start


def _installs(document: Document) -> Iterator[Call]:
    for call in document.called("pip"):
        if call.values[:1] == ["install"]:
            yield call


def unpinned(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find installs that may replace what the image matched."""
    if any(setting.name in ("PIP_CONSTRAINT", "UV_CONSTRAINT") for setting in document.settings):
        return
    for call in _installs(document):
        if call.has("--no-deps", "-c", "--constraint", "--target", "--dry-run"):
            continue
        wanted = list(_requirements(call))
        torch = any(name == "torch" and "==" in bound for name, bound, _ in wanted)
        loose = [
            (name, start)
            for name, bound, start in wanted
            if not (torch and name.startswith("torch"))  # it decides theirs
            and _MATCHED.match(name)
            and not _COMPILED.fullmatch(name)
            and not re.search(r"==|<|~=|@", bound)
            and "$" not in bound
        ]
        if loose:
            yield make_call_hit(call, loose[0][1], name=", ".join(name for name, _ in loose))


def redirected_bound(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find version bounds without quotes, which a shell takes for a redirection."""
    for call in document.called("pip", "uv add", "uv tool", "conda install", "conda create"):
        for operator, word in call.redirects:
            if operator in ("<", ">") and re.match(r"=?\d", word.value):
                yield make_call_hit(call, word.start, value=f"{operator}{word.value}")


def isolated_build(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find builds of extensions that cannot see the torch that they are built for."""
    if any(setting.name in ("PIP_NO_BUILD_ISOLATION", "UV_NO_BUILD_ISOLATION") for setting in document.settings):
        return
    for call in _installs(document):
        if call.has("--no-build-isolation", "--only-binary", "--no-build-isolation-package"):
            continue
        for name, bound, start in _requirements(call):
            if _COMPILED.fullmatch(name) and "@" not in bound:
                yield make_call_hit(call, start, name=name)


def conda_first(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find conda put in front of the image's own Python for every program."""
    blocks = {call.block for call in document.called("conda init", "mamba init")}
    for call in document.called("conda init", "mamba init"):
        yield make_call_hit(call, name=call.program)
    for setting in document.settings:
        lasting = setting.how == "dockerfile" or setting.block in blocks
        if setting.name == "PATH" and lasting and _CONDA_BIN.search(setting.value):
            yield make_setting_hit(setting)


def moving_tag(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find images whose tag is another image tomorrow."""
    built = {option.value for call in document.called("docker build", "docker buildx") for option in call.options()}
    for image in document.images:
        name, at, _ = image.name.partition("@")
        if name in built:
            continue
        last = name.rsplit("/", 1)[-1]
        tag = last.partition(":")[2]
        local = not tag and "/" not in name and "." in name  # a named build context
        if at or local or "$" in name or "{" in name or "<" in name or not name or "rlbox/" in name:
            continue
        if _MOVING.search(tag):
            yield Hit(start=image.start, within=image.within, fields={"value": image.name})


def old_cuda(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find wheels and images whose CUDA is older than the GPU's architecture."""
    new = where.arch in ("sm_100", "sm_103", "sm_120", "sm_121")
    if not (new or (not where.target and document.says(r"\b(RTX[ _-]?)?50[789]0\b|sm_120|RTX PRO 6000|Blackwell"))):
        return
    for call in _installs(document):
        for word in call.words:
            if hit := _OLD_CUDA.search(word.value):
                yield make_call_hit(call, word.at[hit.start()], value=hit.group())
    for image in document.images:
        if hit := _OLD_CUDA.search(image.name):
            yield Hit(start=image.start, within=image.within, fields={"value": image.name})


def small_shm(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find GPU containers with the default 64 MB of shared memory."""
    for call in document.called("docker run", "docker create"):
        options, image, rest = parse_docker_run(call)
        names = {option.name for option in options}
        mounted = any("dev/shm" in option.value for option in options)
        probe = rest and re.match(r"nvidia-smi|echo|cat|ls|true", rest[0].value)
        if image and "--gpus" in names and not names & {"--shm-size", "--ipc"} and not mounted and not probe:
            yield make_call_hit(call)


def privileged(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find privileged containers in what is written for a rented container, which has no Docker daemon."""
    if where.platform not in ("vast", "autodl") and (where.target or not document.says(r"vast\.ai|\bvastai\b|autodl")):
        return
    for call in document.called("docker run", "docker create"):
        for option in parse_docker_run(call)[0]:
            if option.name == "--privileged" or "docker.sock" in option.value:
                yield make_call_hit(call, option.start, name=option.name)
    for name, start in document.flags:
        if name == "privileged":
            yield Hit(start=start, fields={"name": name})


def docker_option(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find options of `docker run` that a rule names, with the value that it names."""
    for call in document.called("docker run", "docker create"):
        for option in parse_docker_run(call)[0]:
            if option.name in rule.names and re.search(rule.value, option.value):
                yield make_call_hit(call, option.start, name=option.name, value=option.value)


def ignored_on_vast(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find docker options that vast.ai drops without a word."""
    for call in document.called("vastai"):
        given = [i for i, value in enumerate(call.values[:-1]) if value == "--env"]
        word = call.words[given[0] + 1] if given else None
        for text in word.value.split() if word else ():
            if word and text.startswith("-") and not _HONOURED.match(text):
                yield make_call_hit(call, word.start, value=text)


def unattended_apt(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find build steps that wait for an answer."""
    for call in document.called("apt-get", "apt") if document.kind == "dockerfile" else ():
        short = "".join(value for value in call.values if re.fullmatch(r"-[a-zA-Z]+", value))
        asks = re.search(r"\b(install|upgrade|dist-upgrade|full-upgrade)\b", call.text)
        if asks and "y" not in short and not call.has("--yes", "--assume-yes") and "qq" not in short:
            yield make_call_hit(call, name=call.program)


def scraped(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find versions that are cut out of the text that nvidia-smi shows."""
    for call in document.called("grep", "awk", "sed"):
        before = document.before(call)
        if before and before[-1].program == "nvidia-smi" and not before[-1].words and "Version" in call.text:
            yield make_call_hit(before[-1])


_HUB_USERS = {"huggingface_hub", "transformers", "datasets", "diffusers", "vllm", "sglang", "trl", "peft", "accelerate"}
_PROBES = {"get_runtime_context", "is_initialized", "nodes", "cluster_resources", "available_resources"}
_LAUNCHED = {"MASTER_ADDR", "RANK", "WORLD_SIZE"}


def _alone(document: Document) -> Iterator[Snippet]:
    """Yield the snippets that `python -c` or a here-document runs by themselves."""
    return (snippet for snippet in document.snippets if snippet.how != "file" and snippet.call)


def _hit(snippet: Snippet, node: ast.expr | ast.stmt, **fields: str) -> Hit:
    start = snippet.start(node)
    return make_call_hit(snippet.call, start, **fields) if snippet.call else Hit(start=start, fields=fields)


def _called(snippet: Snippet) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(snippet.tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def find_shell_commands_in_python(document: Document, rule: DriftRule, machine: MachineInfo) -> Iterator[Hit]:
    """Find command lines that are written as Python: `torch.distributed.launch --help` is a subtraction."""
    for snippet in _alone(document):
        for node in ast.walk(snippet.tree):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.BinOp)):
                continue
            value = node.value
            minus = isinstance(value.op, ast.Sub) and isinstance(value.right, ast.UnaryOp)
            if minus and isinstance(value.left, (ast.Attribute, ast.Name)):
                yield _hit(snippet, node, name=ast.unparse(value.left))


def lone_process_group(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find process groups that one process without a launcher is to open."""
    known = {setting.name for setting in document.settings}
    for snippet in _alone(document):
        outer = snippet.call.outer if snippet.call else None
        launched = outer is not None and outer.program in ("torchrun", "srun", "mpirun", "mpiexec")
        if launched or known >= _LAUNCHED:
            continue
        for name, node in _called(snippet):
            given = {keyword.arg for keyword in node.keywords}
            if name.endswith("init_process_group") and not given & {"init_method", "rank", "store", "world_size"}:
                yield _hit(snippet, node, name=name)


def unattached_probe(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find questions about a cluster that a process asks without having joined it."""
    for snippet in _alone(document):
        calls = list(_called(snippet))
        if any(name == "ray.init" for name, _ in calls):
            continue
        for name, node in calls:
            if name.startswith("ray.") and name[4:] in _PROBES:
                yield _hit(snippet, node, name=name)


def late_hub_setting(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find variables of the Hugging Face hub that are set after the library has read them."""
    for snippet in document.snippets:
        first = _first_hub_import(snippet)
        for setting in document.settings if first else ():
            if setting.how == "python" and setting.name in rule.names:
                begin = snippet.piece.at[0]
                inside = begin <= setting.start <= snippet.piece.at[-1]
                if inside and document.lines.number(setting.start) > document.lines.number(begin) + first - 1:
                    yield Hit(start=setting.start, within=setting.within, fields={"name": setting.name})


def _first_hub_import(snippet: Snippet) -> int:
    """Return the line of the snippet, from 1, that first imports a user of the hub at top level; 0: none does."""
    for node in snippet.tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        if any(name.split(".")[0] in _HUB_USERS for name in names):
            return node.lineno
    return 0


def renamed_in_python(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find keyword arguments and attributes that have another name now."""
    for snippet in document.snippets:
        for node in ast.walk(snippet.tree):
            found = ""
            if isinstance(node, ast.keyword):
                found, place = node.arg or "", node.value
            elif isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
                found, place = node.attr, node
            if found in rule.names and f"has{found}" not in rule.names:
                yield _hit(snippet, place, name=found, new=rule.renamed.get(found, ""))


def keyword_of(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find calls of the function `rule.command` with one of the keywords that the rule names."""
    for snippet in document.snippets:
        for name, node in _called(snippet):
            for keyword in node.keywords if name == rule.command else ():
                if keyword.arg in rule.names:
                    yield _hit(snippet, keyword.value, name=keyword.arg or "")


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


def ray_ports(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find ports of Ray's services inside the range that it gives to its workers."""
    for call in document.called("ray start"):
        low = _port(document, call.option("--min-worker-port")) or WORKER_PORTS.start
        high = _port(document, call.option("--max-worker-port")) or WORKER_PORTS.stop - 1
        if call.has("--worker-port-list"):
            continue
        for option in call.options():
            port = _port(document, option) if option.name in rule.names else 0
            if low <= port <= high:
                yield make_call_hit(call, option.start, name=option.name, value=str(port))


def service_ports(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
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
            yield make_setting_hit(setting)
    for call in document.calls:
        if call.program not in ("ray start", "ssh", "scp", "docker run", "curl"):
            for option in call.options():
                if option.name == "--port" and whole_number(option.value) and _port(document, option) in WORKER_PORTS:
                    yield make_call_hit(call, option.start, name=option.name, value=option.value)


def _port(document: Document, option: Option | None) -> int:
    value = document.value(option) if option else ""
    return whole_number(value, digits=5) or 0


def long_temp(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find folders that are too long for Ray's sockets below them."""
    for call in document.called("ray start"):
        if option := call.option("--temp-dir"):
            yield from _too_long(document.value(option), make_call_hit(call, option.start))
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


def spill_object(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find a spilling configuration that is an object where Ray wants a text."""
    for call, option in _system_configs(document):
        data = _json(option.value)
        given = data.get("object_spilling_config") if isinstance(data, dict) else None
        loose = re.search(r"object_spilling_config\\?[\"']?\s*:\s*\{", option.value) if data is None else None
        if isinstance(given, dict) or loose:
            folder = re.search(r"directory_path\\?[\"']?\s*:\s*\\?[\"']([^\"'\\]+)", option.value)
            yield make_call_hit(call, option.start, new=folder.group(1) if folder else "/data/spill")


def config_key(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find keys in Ray's configuration that it does not know."""
    for call, option in _system_configs(document):
        for name in rule.names:
            if re.search(rf"[\"']{name}\\?[\"']\s*:", option.value):
                yield make_call_hit(call, option.start, name=name)


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


def job_address(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
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
            yield make_call_hit(call, value=given)


def relative_output(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find outputs of a submitted job that end up in Ray's copy of the working directory."""
    for call in document.calls:
        if "ray-job" not in call.within or not _packs_folder(call):
            continue
        for option in call.options():
            if _OUTPUT.fullmatch(option.name) and _is_relative(document.value(option)):
                yield make_call_hit(call, option.start, name=option.name, value=option.value)
        for word in call.words:
            hit = _KEY_VALUE.fullmatch(word.value)
            if (
                hit
                and _OUTPUT.fullmatch(hit["name"])
                and _is_relative(document.names.resolve(hit["value"], word.start))
            ):
                yield make_call_hit(call, word.start, name=hit["name"], value=hit["value"])


def _packs_folder(call: Call) -> bool:
    outer: Call | None = call
    while outer and outer.program != "ray job submit":
        outer = outer.outer
    return outer is None or "working-dir" in outer.text or "working_dir" in outer.text


def _is_relative(value: str) -> bool:
    return bool(_RELATIVE.match(value)) and "://" not in value


def loopback(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
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
                yield make_call_hit(call, start, name=name, value=value)


def _named_values(document: Document, call: Call) -> Iterator[tuple[str, str, int]]:
    """Yield name, value and place of options and of `name=value` words."""
    for option in call.options():
        yield option.name, document.value(option), option.start
    for word in call.words:
        if (hit := _KEY_VALUE.fullmatch(word.value)) and not word.value.startswith("-"):
            yield hit["name"], document.names.resolve(hit["value"], word.start), word.start


def entry_ends(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find a Ray node that is to be a container's process, and ends at once."""
    for call in document.called("ray start"):
        if call.has("--block"):
            continue
        as_entry = "entry" in call.within and call.pipeline.after not in ("&&", ";", "||")
        run = call.outer is not None and call.outer.program == "docker run"
        if as_entry or run:
            yield make_call_hit(call)


def openrlhf_flags(document: Document, rule: DriftRule, where: MachineInfo) -> Iterator[Hit]:
    """Find options with underscores in OpenRLHF's command lines, those that the table does not know included."""
    for call in document.calls:
        if not re.search(rule.needs[0], call.text):
            continue
        behind = False
        for option in call.options():
            behind = behind or "openrlhf.cli" in call.program or option.value.startswith("openrlhf.cli")
            if behind and (option.name in rule.renamed or _FLAT.fullmatch(option.name)):
                new = rule.renamed.get(option.name, f"{option.name} is not known any more: --help lists the options")
                yield make_call_hit(call, option.start, name=option.name, new=new)
