"""Checks of what is installed and built on: pip, conda, images, docker's options."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rlbox.lint.drift import DriftRule
from rlbox.lint.hits import Hit, Where, hit_call, hit_setting
from rlbox.lint.read.calls import Call, split_run
from rlbox.lint.read.document import Document

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


def unpinned(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
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
            yield hit_call(call, loose[0][1], name=", ".join(name for name, _ in loose))


def redirected_bound(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find version bounds without quotes, which a shell takes for a redirection."""
    for call in document.called("pip", "uv add", "uv tool", "conda install", "conda create"):
        for operator, word in call.redirects:
            if operator in ("<", ">") and re.match(r"=?\d", word.value):
                yield hit_call(call, word.start, value=f"{operator}{word.value}")


def isolated_build(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find builds of extensions that cannot see the torch that they are built for."""
    if any(setting.name in ("PIP_NO_BUILD_ISOLATION", "UV_NO_BUILD_ISOLATION") for setting in document.settings):
        return
    for call in _installs(document):
        if call.has("--no-build-isolation", "--only-binary", "--no-build-isolation-package"):
            continue
        for name, bound, start in _requirements(call):
            if _COMPILED.fullmatch(name) and "@" not in bound:
                yield hit_call(call, start, name=name)


def conda_first(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find conda put in front of the image's own Python for every program."""
    blocks = {call.block for call in document.called("conda init", "mamba init")}
    for call in document.called("conda init", "mamba init"):
        yield hit_call(call, name=call.program)
    for setting in document.settings:
        lasting = setting.how == "dockerfile" or setting.block in blocks
        if setting.name == "PATH" and lasting and _CONDA_BIN.search(setting.value):
            yield hit_setting(setting)


def moving_tag(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
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


def old_cuda(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find wheels and images whose CUDA is older than the GPU's architecture."""
    new = where.arch in ("sm_100", "sm_103", "sm_120", "sm_121")
    if not (new or (not where.target and document.says(r"\b(RTX[ _-]?)?50[789]0\b|sm_120|RTX PRO 6000|Blackwell"))):
        return
    for call in _installs(document):
        for word in call.words:
            if hit := _OLD_CUDA.search(word.value):
                yield hit_call(call, word.at[hit.start()], value=hit.group())
    for image in document.images:
        if hit := _OLD_CUDA.search(image.name):
            yield Hit(start=image.start, within=image.within, fields={"value": image.name})


def small_shm(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find GPU containers with the default 64 MB of shared memory."""
    for call in document.called("docker run", "docker create"):
        options, image, rest = split_run(call)
        names = {option.name for option in options}
        mounted = any("dev/shm" in option.value for option in options)
        probe = rest and re.match(r"nvidia-smi|echo|cat|ls|true", rest[0].value)
        if image and "--gpus" in names and not names & {"--shm-size", "--ipc"} and not mounted and not probe:
            yield hit_call(call)


def privileged(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find privileged containers in what is written for a rented container, which has no Docker daemon."""
    if where.platform not in ("vast", "autodl") and (where.target or not document.says(r"vast\.ai|\bvastai\b|autodl")):
        return
    for call in document.called("docker run", "docker create"):
        for option in split_run(call)[0]:
            if option.name == "--privileged" or "docker.sock" in option.value:
                yield hit_call(call, option.start, name=option.name)
    for name, start in document.flags:
        if name == "privileged":
            yield Hit(start=start, fields={"name": name})


def docker_option(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find options of `docker run` that a rule names, with the value that it names."""
    for call in document.called("docker run", "docker create"):
        for option in split_run(call)[0]:
            if option.name in rule.names and re.search(rule.value, option.value):
                yield hit_call(call, option.start, name=option.name, value=option.value)


def ignored_on_vast(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find docker options that vast.ai drops without a word."""
    for call in document.called("vastai"):
        given = [i for i, value in enumerate(call.values[:-1]) if value == "--env"]
        word = call.words[given[0] + 1] if given else None
        for text in word.value.split() if word else ():
            if word and text.startswith("-") and not _HONOURED.match(text):
                yield hit_call(call, word.start, value=text)


def unattended_apt(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find build steps that wait for an answer."""
    for call in document.called("apt-get", "apt") if document.kind == "dockerfile" else ():
        short = "".join(value for value in call.values if re.fullmatch(r"-[a-zA-Z]+", value))
        asks = re.search(r"\b(install|upgrade|dist-upgrade|full-upgrade)\b", call.text)
        if asks and "y" not in short and not call.has("--yes", "--assume-yes") and "qq" not in short:
            yield hit_call(call, name=call.program)


def scraped(document: Document, rule: DriftRule, where: Where) -> Iterator[Hit]:
    """Find versions that are cut out of the text that nvidia-smi shows."""
    for call in document.called("grep", "awk", "sed"):
        before = document.before(call)
        if before and before[-1].program == "nvidia-smi" and not before[-1].words and "Version" in call.text:
            yield hit_call(before[-1])
