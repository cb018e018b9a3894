"""The lab's containers: one recipe at a time, bounded in time, memory and processes, and nothing left behind."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faultrecipe import LAB, Recipe, tomllib

BASE = "rlbox/faultlab:base"
LABEL = "rlbox.faultlab=1"
PACKAGES = (
    "build-essential", "ca-certificates", "curl", "git", "iproute2", "iptables", "libnuma1", "netcat-openbsd",
    "ninja-build", "openssh-client", "openssh-server", "openssl", "procps", "python3", "python3-dev", "python3-venv",
    "rsync", "squashfs-tools", "tmux", "wget",
)  # fmt: skip
HOST = "node-a"
JOB = "/data/job"
_GENTLE = ("--cpu-shares=256", "--pids-limit=1500")


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a recipe left: its exit code (None: stopped when its time was up) and its logs by file, the output first.

    `forms` holds the same run told in several ways, where it has them.
    """

    code: int | None
    logs: dict[str, str]
    versions: dict[str, str]
    forms: dict[str, dict[str, str]] = field(default_factory=dict)


def state_folder() -> Path:
    """Return where environments and caches lie: FAULTLAB_DIR, else a folder of the user's cache."""
    return Path(os.environ.get("FAULTLAB_DIR") or Path.home() / ".cache/rlbox/faultlab")


def environments() -> dict[str, dict[str, Any]]:
    """Return the table of `envs.toml`."""
    return tomllib.loads((LAB / "envs.toml").read_text(encoding="utf-8"))


def make_base() -> None:
    """Make the image that recipes run in, from apt alone."""
    if docker("image", "inspect", BASE, check=False).returncode == 0:
        return
    archive = state_folder() / "base.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", "bookworm", str(archive)], check=True
    )
    path = "ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    docker("import", f"--change=LABEL {LABEL}", f"--change={path}", str(archive), BASE)
    archive.unlink()


def make_environment(name: str) -> Path:
    """Fill the virtual environment of that name, with this machine's certificates and pip's find-links."""
    env = environments()[name]
    folder = state_folder() / "envs" / name
    if env.get("image") or name == "system" or (folder / "pyvenv.cfg").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (state_folder() / "cache").mkdir(exist_ok=True)
    words = [f"--volume={folder}:/opt/venv", f"--volume={state_folder() / 'cache'}:/cache", "--env=UV_CACHE_DIR=/cache"]
    _in_base(
        _install(env), *words, "--env=UV_LINK_MODE=copy", "--env=VIRTUAL_ENV=/opt/venv", "--env=UV_HTTP_TIMEOUT=300"
    )
    return folder


def make_extra(packages: tuple[str, ...]) -> Path:
    """Lay packages, without what they ask for, into a folder."""
    folder = state_folder() / "extra" / hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    if folder.exists():
        return folder
    draft = folder.with_suffix(".new")
    draft.mkdir(parents=True, exist_ok=True)
    install = f"uv pip install -q --no-deps --no-cache --python-version 3.11 --target /opt/extra {' '.join(packages)}"
    _in_base(install, f"--volume={draft}:/opt/extra")
    draft.rename(folder)
    return folder


def make_models() -> Path:
    """Make the small random model that recipes load, with its tokenizer, and one with heads that are too narrow."""
    folder = state_folder() / "models"
    if (folder / "narrow/model.safetensors").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"--volume={folder}:/models", f"--volume={LAB / 'tools'}:/lab:ro", *_venv("openrlhf-0-8", "/opt/venv")]
    _in_base(
        "python3 /lab/tiny.py /models/tiny 128; python3 /lab/tiny.py /models/narrow 64; chmod -R a+r /models", *words
    )
    return folder


def _in_base(script: str, *words: str) -> None:
    uv = shutil.which("uv") or str(LAB.parents[1] / ".venv/bootstrap/bin/uv")
    common = [
        "--rm",
        f"--label={LABEL}",
        *_GENTLE,
        "--network=host",
        f"--volume={uv}:/usr/local/bin/uv:ro",
        *_host_settings(),
    ]
    docker("run", *common, *words, BASE, "sh", "-ec", script, timeout_s=3600)


def _install(env: dict[str, Any]) -> str:
    def quoted(key: str) -> str:
        return " ".join(f"'{package}'" for package in env.get(key, ()))

    return f"""
    uv venv -q --clear --python /usr/bin/python3 /opt/venv
    uv pip install -q {quoted("first")}
    uv pip freeze | grep -E '^(torch|nvidia|triton|numpy)' >/tmp/pins
    uv pip install -q -c /tmp/pins {quoted("packages")} {quoted("first")}
    [ -z "{quoted("bare")}" ] || uv pip install -q --no-deps {quoted("bare")}
    uv pip uninstall -q torchvision torchaudio torchcodec || true
    """


def _host_settings() -> list[str]:
    words = []
    if (bundle := os.environ.get("SSL_CERT_FILE")) and Path(bundle).exists():
        words += [f"--volume={bundle}:/run/ca.crt:ro", "--env=SSL_CERT_FILE=/run/ca.crt"]
    if (links := os.environ.get("PIP_FIND_LINKS")) and Path(links).is_dir():
        words += [f"--volume={links}:/wheels:ro", "--env=UV_FIND_LINKS=/wheels"]
    return words


def docker(*words: str, check: bool = True, timeout_s: float = 600) -> subprocess.CompletedProcess[bytes]:
    """Call the engine's client."""
    done = subprocess.run(["docker", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s)
    if check and done.returncode != 0:
        raise RuntimeError(f"docker {words[0]}: {done.stdout.decode('utf-8', 'replace')[-2000:]}")
    return done


def run_recipe(recipe: Recipe, env: str) -> Ran:
    """Carry out a recipe in an environment and return what it printed."""
    if recipe.nodes > 1:
        from twonodes import run_nodes

        return run_nodes(recipe, env)
    name = f"faultlab-{uuid.uuid4().hex[:10]}"
    with tempfile.TemporaryDirectory(prefix="faultlab-") as place:
        job = lay_files(recipe, Path(place))
        words = [*container_words(recipe, env, name, job), f"--network={recipe.network}", f"--hostname={HOST}"]
        words += [f"--add-host={HOST}:127.0.0.1"] if recipe.network == "none" else []
        try:
            code, text = start(
                [*words, image_of(env), "bash", "-c", "exec nice -n 19 bash launch.sh 2>&1"], recipe.timeout_s
            )
            versions = versions_of(recipe, env)
        finally:
            docker("rm", "--force", name, check=False)
        return Ran(code=code, logs=logs_of(Path(place), text), versions=versions)


def lay_files(recipe: Recipe, place: Path) -> Path:
    """Write what a recipe runs into a folder of its own, with an empty folder for its logs beside it."""
    job = place / "job"
    job.mkdir()
    (place / "logs").mkdir()
    for name, text in {**recipe.files, "launch.sh": recipe.run}.items():
        (job / name).parent.mkdir(parents=True, exist_ok=True)
        (job / name).write_text(text, encoding="utf-8")
    return job


def container_words(recipe: Recipe, env: str, name: str, job: Path) -> list[str]:
    """Return the options of a recipe's container; its network and host name are the caller's."""
    words = ["run", "--rm", "--init", f"--name={name}", f"--label={LABEL}", *_GENTLE, f"--workdir={JOB}"]
    words += [f"--memory={recipe.memory}", f"--memory-swap={recipe.memory}", f"--shm-size={recipe.shm}"]
    words += [f"--volume={job}:{JOB}", f"--volume={job.parent / 'logs'}:/data/logs", "--env=HOME=/data/home"]
    words += ["--env=PYTHONUNBUFFERED=1", "--env=HF_HUB_DISABLE_TELEMETRY=1", "--env=RAY_USAGE_STATS_ENABLED=0"]
    words += ["--env=LANG=C.UTF-8", f"--volume={LAB / 'tools'}:/lab:ro", "--entrypoint="]
    words += [f"--volume={make_models()}:/models:ro", *_venv(env, "/opt/venv")]
    if recipe.other:
        words += _venv(recipe.other, "/opt/other")
    if recipe.extra:
        words.append(f"--volume={make_extra(recipe.extra)}:/opt/extra:ro")
    return [*words, *recipe.options]


def _venv(env: str, at: str) -> list[str]:
    if environments()[env].get("image") or env == "system":
        return []
    return [f"--volume={make_environment(env)}:{at}:ro"]


def image_of(env: str) -> str:
    """Return the image of an environment."""
    return str(environments()[env].get("image") or BASE)


def start(words: list[str], timeout_s: float) -> tuple[int | None, str]:
    """Run a container to its end, or until its time is up; return its exit code and all that it printed."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(["docker", *words], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            name = next(word.partition("=")[2] for word in words if word.startswith("--name="))
            docker("rm", "--force", name, check=False)
            process.wait(30)
            code = None
        out.seek(0)
        return code, out.read().decode("utf-8", "replace")


def logs_of(place: Path, text: str) -> dict[str, str]:
    """Return the logs of a run: its output, or the files that it left in /data/logs."""
    folder = place / "logs"
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    found = {name: path.read_bytes().decode("utf-8", "replace") for name, path in files.items()}
    return {**({"": text} if text.strip() or not found else {}), **found}


def versions_of(recipe: Recipe, env: str) -> dict[str, str]:
    """Return the versions of what a recipe is about, as its environment has them."""
    if not recipe.versions:
        return {}
    ask = "import sys, importlib.metadata as m\nfor n in sys.argv[1:]: print(n, m.version(n))"
    words = ["run", "--rm", f"--label={LABEL}", "--network=none", "--entrypoint="]
    words += _venv(env, "/opt/venv")
    done = docker(*words, image_of(env), "python3", "-c", ask, *recipe.versions, check=False)
    rows = [row.split() for row in done.stdout.decode().splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}
