"""Record what users and scripts see of rlbox: help, JSON keys and exit codes of calls, a run directory, scores.

    python tests/contract/record.py             rewrite tests/contract/outside.json.xz
    python tests/contract/record.py --print     print it instead
    python tests/contract/record.py --sandbox   record the verdicts on all hostile programs instead; a minute

Nothing here uses more of rlbox than its command line, so that a recording stays comparable while the inside changes.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from rlbox.cli import main as run_rlbox  # noqa: E402
from rlbox.cli.root import root  # noqa: E402
from rlbox.config.project import Project as RlboxProject  # noqa: E402
from rlbox.diagnose.signatures import load_signatures  # noqa: E402
from rlbox.fixes.catalogue import load_fix_catalogue  # noqa: E402

RECORDING = Path(__file__).with_name("outside.json.xz")
VERDICTS = Path(__file__).with_name("verdicts.json.xz")

DIGEST = "0123456789abcdef" * 4
TARGET = f"""
title = "smallest target on an image"
[base]
image = "registry.example/base@sha256:{DIGEST}"
[[stack]]
name = "tools"
packages = ["six==1.16.0"]
[env]
MINE = "1"
[disk]
host = "../disk"
create = true
need_gib = 0
"""
JOB = """
title = "two small stages"
target = "mine"
[params]
steps = { default = 2, help = "steps", at_least = 1 }
[profiles.more]
steps = 3
[[stages]]
name = "first"
title = "writes a file"
command = ["sh", "-c", "for i in 1 2; do echo step $i loss 0.$i; done; echo {param.steps} > {run}/made"]
limits = { total_s = 60, silence_s = 30 }
[stages.gate]
require = [{ pattern = "step 2" }]
files = [{ path = "{run}/made" }]
[[stages]]
name = "second"
title = "needs it"
command = ["sh", "-c", "cat {run}/made"]
"""
BROKEN = JOB.replace("step 2", "step 9").replace("two small stages", "a gate that nothing passes")
LOG = """step 1 loss 0.5
Traceback (most recent call last):
  File "/data/job/train.py", line 3, in <module>
    torch.save(model, path)
OSError: [Errno 28] No space left on device: '/data/out/step_3.pt'
"""
FILES = {
    "images/mine/target.toml": TARGET,
    "images/broken/target.toml": "title = 'no base'\n",
    "jobs/tiny.toml": JOB,
    "jobs/failing.toml": BROKEN,
    "jobs/wrong.toml": JOB.replace("{param.steps}", "{steps}"),
    "disk-full.log": LOG,
    "fine.log": "step 1 loss 0.5\nstep 2 loss 0.4\n",
    "old.sh": "export VLLM_ATTENTION_BACKEND=FLASHINFER\nexport NCCL_ASYNC_ERROR_HANDLING=1\n",
}

CALLS = Path(__file__).with_name("calls.txt").read_text(encoding="utf-8")
LEVELS = {"doctor": 0, "gpus": 1, "engine": 1, "show --schema": 3}
"""Of these only the keys of the first levels are compared: they say what the machine has, or are large."""


class Project:
    """A project folder with a home and a data disk of its own, in which command lines are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "project"
        home = folder / "home"
        for path in (home, self.path):
            path.mkdir()
        self.env = {
            **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))},
            "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR") or str(Path("~/.cache/uv").expanduser()),
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "COLUMNS": "80",
            "LANG": "C.UTF-8",
            "RLBOX_LANG": "en",
            "RLBOX_PROJECT_NAME": "contract",
            "RLBOX_DATA": str(folder / "disk"),
            "DOCKER_HOST": f"unix://{folder}/no-engine.sock",
        }

    def write(self, name: str, text: str) -> None:
        """Write a file of the project."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def type(self, argv: list[str]) -> tuple[int, str, str]:
        """Run a command line in a fork of this process; return its exit code, stdout and stderr."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            pid = os.fork()
            if not pid:
                self._become(argv, out.fileno(), err.fileno())
            _, status = os.waitpid(pid, 0)
            out.seek(0)
            err.seek(0)
            return os.waitstatus_to_exitcode(status), out.read().decode(), err.read().decode()

    def _become(self, argv: list[str], out: int, err: int) -> None:
        """Go on as the process of a command line."""
        code = 70
        try:
            os.chdir(self.path)
            os.environ.clear()
            os.environ.update(self.env)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out, 1)
            os.dup2(err, 2)
            sys.argv = ["rlbox", *argv]
            code = run_rlbox()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def commands(command: click.Command, context: click.Context, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command."""
    yield path
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        nested = command.get_command(context, name)  # type: ignore[attr-defined]
        yield from commands(nested, click.Context(nested, info_name=name, parent=context), (*path, name))


def shape(value: Any, depth: int = 99) -> Any:
    """Return the keys of a JSON value, those of all rows of a list as one; None stands for what is no container."""
    if depth < 0 or not isinstance(value, (dict, list)):
        return None
    if isinstance(value, dict):
        return {key: shape(value[key], depth - 1) for key in sorted(value)}
    merged: Any = None
    for row in value:
        merged = merge(merged, shape(row, depth))
    return [merged]


def merge(one: Any, other: Any) -> Any:
    """Return the keys of two shapes."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: merge(one.get(key), other.get(key)) for key in sorted({*one, *other})}
    if isinstance(one, list) and isinstance(other, list):
        return [merge(one[0], other[0])]
    return other if one is None else one


def outline(value: Any) -> str:
    """Return a shape as one line: {key, key: {key}, key: [{key}]}."""
    if isinstance(value, list):
        return f"[{outline(value[0])}]"
    if isinstance(value, dict):
        inner = (f"{key}: {outline(one)}" if one is not None else key for key, one in value.items())
        return "{" + ", ".join(inner) + "}"
    return ""


def record_help(project: Project) -> dict[str, list[str]]:
    """Return the usage of every command, and its options and subcommands with their values; the wording is free."""
    found = {}
    for words in commands(root, click.Context(root, info_name="rlbox")):
        code, out, err = project.type([*words, "--help"])
        assert (code, err) == (0, ""), (words, err)
        usage, _, rest = out.partition("\n\n")
        named = re.findall(r"^  (\S.*?)(?:  |$)", rest.partition("\nOptions:\n")[2], re.MULTILINE)
        found[" ".join(("rlbox", *words))] = [" ".join(usage.split()), *named]
    return found


def record_calls(project: Project) -> tuple[dict[str, Any], list[str]]:
    """Return keys and exit code of every call, and the files that the first run left in its directory."""
    found: dict[str, Any] = {}
    names = {"{TMP}": str(project.folder)}
    files: list[str] = []
    for line in CALLS.strip().splitlines():
        argv = [re.sub(r"\{[A-Z]+\}", lambda word: names.get(word[0], word[0]), word) for word in line.split()]
        more = [] if argv[0] == "completion" else ["--json"]
        at = argv.index("--") if "--" in argv else len(argv)
        code, out, _ = project.type([*argv[:at], *more, *argv[at:]])
        data = json.loads(out) if more and out else None
        depth = next((depth for words, depth in LEVELS.items() if line.startswith(words)), 99)
        found.setdefault(line, []).append(f"{code} {tidy(outline(shape(data, depth)), names)}".rstrip())
        made = [path.name for path in (project.folder / "disk/runs").glob("*-*")]
        for name in sorted(set(made) - set(names.values())):
            key = "{RUN}" if "{RUN}" not in names else "{MORE}" if "{MORE}" not in names else "{FAILED}"
            names.setdefault(key, name)
            files = files or sorted(files_of(project.folder / "disk/runs" / name))
    return found, files


def files_of(folder: Path) -> Iterator[str]:
    """Yield the paths of all files below a folder."""
    for path in folder.rglob("*"):
        if not path.is_dir() or path.is_symlink():
            yield path.relative_to(folder).as_posix()


def tidy(text: str, names: dict[str, str]) -> str:
    """Return a text without what differs from time to time: paths of the project, names of runs."""
    for key, name in names.items():
        text = text.replace(name, key)
    return text


def start_scoring() -> subprocess.Popen[str]:
    """Start what says how much `rlbox diagnose` gets right in the fault lab."""
    argv = [sys.executable, str(CHECKOUT / "tests/faultlab/score.py")]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def read_scores(scoring: subprocess.Popen[str]) -> dict[str, str]:
    """Return its table."""
    lines = scoring.communicate()[0].splitlines()
    assert scoring.returncode == 0
    return dict(line.rsplit(": ", 1) for line in lines if re.search(r": \d+ of \d+$", line))


def record_verdicts() -> None:
    """Add the verdicts on all hostile programs to those that were seen before: some depend on the clock."""
    argv = [sys.executable, str(CHECKOUT / "tests/sandbox/campaign.py"), "--verdicts"]
    campaign = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False).stdout)
    fell = {one["attack"]: one["how"] for one in campaign["fell"]}
    print(*(f"{name}: {how}" for name, how in fell.items()), sep="\n")
    said = {name: verdict for name, verdict in campaign["verdicts"].items() if name not in fell}
    seen = json.loads(lzma.decompress(VERDICTS.read_bytes())) if VERDICTS.exists() else {}
    found = seen | {name: sorted({verdict, *seen.get(name, ())}) for name, verdict in said.items()}
    rows = [f" {json.dumps(name)}: {json.dumps(verdicts)}" for name, verdicts in sorted(found.items())]
    VERDICTS.write_bytes(lzma.compress(("{\n" + ",\n".join(rows) + "\n}\n").encode(), preset=9))


def record() -> dict[str, Any]:
    """Return all but the verdicts of the sandbox."""
    folder = Path(tempfile.mkdtemp(prefix="rlbox-contract-"))
    scoring = start_scoring()
    try:
        project = Project(folder)
        for name, text in FILES.items():
            project.write(name, text)
        texts = record_help(project)
        calls, files = record_calls(project)
        return {"help": texts, "calls": calls, "run directory": files, "fault lab": read_scores(scoring)}
    finally:
        scoring.kill()
        scoring.wait()
        shutil.rmtree(folder, ignore_errors=True)


def load_what_commands_share() -> None:
    """Load modules and the fix catalogue once, before the forks that each run a command."""
    list(commands(root, click.Context(root, info_name="rlbox")))
    shipped = RlboxProject(folder=CHECKOUT)
    load_fix_catalogue(shipped)
    load_signatures(shipped.own_pack_and_shipped_fix_files()).has_match("")


def main() -> int:
    """Write or print the recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="printed")
    parser.add_argument("--sandbox", action="store_true")
    args = parser.parse_args()
    if args.sandbox:
        record_verdicts()
        return 0
    load_what_commands_share()
    text = json.dumps(record(), indent=0, sort_keys=True, ensure_ascii=False) + "\n"
    if args.printed:
        print(text, end="")
    else:
        RECORDING.write_bytes(lzma.compress(text.encode(), preset=9))
    return 0


if __name__ == "__main__":
    sys.exit(main())
