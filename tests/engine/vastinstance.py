"""A container that imitates an instance of vast.ai.

No Docker, another first process than the image's entrypoint, sshd and cron started without the container's environment,
a process limit far below the number of cores times 16, Jupyter on 8080, and an /etc/environment as platforms leave it.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from enginebox import CHECKOUT, docker
from faultbox import SPEC, STACK, _tar, lab_env, tag

from rlbox.config.project import Project
from rlbox.config.schema import validate_spec
from rlbox.config.toml_files import load_toml, merge_tables_and_named_lists
from rlbox.fixes.catalogue import load_fix_catalogue
from rlbox.fixes.conditions import map_packages_to_version_or_empty
from rlbox.fixes.fix import BakedFile
from rlbox.fixes.render import render_fixes_or_raise_refusal
from rlbox.foreign import parse_untrusted_toml
from rlbox.image.forms import render_onstart
from rlbox.target.platform import load_platform
from rlbox.target.target import DEFAULTS, Target

OVER = """
[hardware]
platform = "vast"
[disk]
mount = "/workspace"
need_gib = 8.0
[env]
FROM_IMAGE = "yes"
"""
WITH_SANDBOX = """
[[git]]
name = "sandbox"
url = "https://github.com/bytedance/SandboxFusion"
ref = "469de08"
into = "/opt/sandbox"
"""
GIVEN = {
    "SPACED": "two words",
    "QUOTED": 'say "hi" for $5',
    "APOSTROPHE": "it's",
    "HASHED": "a#b",
    "HF_TOKEN": "hf_not-a-real-one",
    "CONTAINER_ID": "4711",
    "VAST_TCP_PORT_22": "40022",
}
LINES = "one\ntwo"
# Without a line feed at the end, with a name twice, a line of Windows, something that is no assignment.
ODD = r"""
printf 'PATH="/usr/local/sbin:/usr/bin:/bin"\r\nexport MINE="stays"\n\n# a note\nSPACED=old\n' >/etc/environment
printf 'SPACED=older\nnot an assignment\nLAST=1' >>/etc/environment
"""
BOOT = f"""
set -e
mkdir -p /run/sshd "$HOME/.ssh"
chmod 700 "$HOME" "$HOME/.ssh"
[ -e /booted ] || {{ {ODD}
    touch /booted
}}
if command -v cron >/dev/null; then
    [ -e /key ] || {{ ssh-keygen -q -A && ssh-keygen -q -t ed25519 -N '' -f /key; }}
    cp /key.pub "$HOME/.ssh/authorized_keys"
    env -i /usr/sbin/sshd -p 2222
    env -i /usr/sbin/cron
fi
env -i /usr/bin/python3 -m http.server --bind 127.0.0.1 8080 >/dev/null 2>&1 &
"""
# Everything that a start may change, but for times.
STATE = r"""
{ cat /etc/environment /etc/rlbox/environment.sh /etc/bash.bashrc /workspace/onstart.status; crontab -l; } 2>/dev/null |
    sed '/RLBOX_INIT/d' | sha256sum
ls -A /workspace /run /etc/rlbox | grep -v keep-running
pgrep -fc 'rlbox.sandbo[x] serve' || true
"""
SSH = "ssh -q -o StrictHostKeyChecking=no -i /key -p 2222 127.0.0.1"
SHELLS = {
    "ssh": f"{SSH} env",
    "ssh login": f"{SSH} bash -lc env",
    "tmux": (
        f"rm -f /tmp/tmux; {SSH} 'tmux -L t new-session -d \"env >/tmp/tmux\"';"
        " while [ ! -s /tmp/tmux ]; do sleep 0.1; done; cat /tmp/tmux"
    ),
    "jupyter terminal": "env -i HOME=$HOME SHELL=/bin/bash TERM=xterm bash -l -c env",
    "interactive": "env -i HOME=$HOME bash -ic env 2>/dev/null",
    "su": "env -i su root -c env",
    # Debian's cron carries out @reboot when it is started; what it gives a job is the same at any other time.
    "cron": (
        "rm -f /tmp/cron; { crontab -l; echo '@reboot env >/tmp/cron.new; mv /tmp/cron.new /tmp/cron'; } | crontab -;"
        " kill $(cat /run/crond.pid); sleep 0.3; rm -f /run/crond.pid /run/crond.reboot; env -i /usr/sbin/cron;"
        " while [ ! -s /tmp/cron ]; do sleep 0.1; done; cat /tmp/cron"
    ),
}
BARE_SHELLS = ("jupyter terminal", "interactive", "su")


@dataclass(frozen=True, kw_only=True)
class VastInstance:
    """A running imitation; `bare` has neither sshd nor cron nor the sandbox."""

    name: str
    bare: bool

    def sh(self, text: str, timeout_s: float = 120) -> tuple[int, str]:
        """Carry out shell text as the platform does: with the container's environment. Returns exit code and output."""
        words = ["docker", "exec", self.name, "sh", "-c", text]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s)
        return done.returncode, done.stdout

    def cut(self, after_s: float) -> None:
        """Run the on-start script and kill it, with what it runs, after a while."""
        self.sh(f"setsid sh /onstart.sh >/dev/null 2>&1 & sleep {after_s:.3f}; kill -9 -$! 2>/dev/null; wait")

    def restart(self) -> None:
        """Kill the container without warning and start it again, as a stop and start of the instance does."""
        docker("restart", "--time=0", self.name)
        self.boot()

    def boot(self) -> None:
        """Start what the platform starts."""
        code, said = self.sh(BOOT)
        assert code == 0, said

    def state(self) -> str:
        """What a start leaves behind, to be compared."""
        return self.sh(STATE)[1]

    def shells(self) -> dict[str, dict[str, str]]:
        """The environment that each kind of shell has, by its kind."""
        kinds = [kind for kind in SHELLS if not self.bare or kind in BARE_SHELLS]
        text = "".join(f"\necho @@{kind}\n{SHELLS[kind]}" for kind in kinds)
        parts = self.sh(f"cd /; unset SPACED; {text}")[1].split("@@")[1:]
        return {part.partition("\n")[0]: _environment(part) for part in parts}


def _environment(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def spec(image: str) -> Target:
    """The target of a lab image as one of vast.ai; its name is what the lock in the image says."""
    lab = parse_untrusted_toml(SPEC.format(packages='["python3"]', stack=json.dumps(STACK[image])))
    over = parse_untrusted_toml(OVER + ("" if image == "bare" else WITH_SANDBOX))
    data = {
        **merge_tables_and_named_lists(merge_tables_and_named_lists(load_toml(DEFAULTS), lab), over),
        "name": f"lab-{image}",
    }
    return validate_spec(Target, data, "tests/engine/vastinstance.py")


@contextmanager
def vast_instance(added: str = "", *, image: str = "cc") -> Iterator[VastInstance]:
    """An instance of a lab image, with all that fixes bake for it, as the platform has just started it."""
    target = spec(image)
    baked = render_fixes_or_raise_refusal(
        load_fix_catalogue(Project(folder=CHECKOUT)), target, map_packages_to_version_or_empty(target, None)
    )
    inherited = lab_env(image)
    given = {**baked.build_env_including_inherited({**inherited, **target.env}), **GIVEN, "LINES_OF": LINES}
    script = render_onstart(target, load_platform("vast"), [CHECKOUT / "templates"], added).field_text
    laid = [
        *baked.files,
        BakedFile(path="/onstart.sh", mode="0644", text=script),
        # Doctor takes ten seconds and has tests of its own.
        BakedFile(path="/opt/rlbox/bin/rlbox", mode="0755", text='#!/bin/sh\necho "rlbox $*"\n'),
    ]
    one = VastInstance(name=f"rlbox-vast-{uuid.uuid4().hex[:12]}", bare=image == "bare")
    words = ["create", "--init", f"--name={one.name}", "--label=rlbox.test=vast", "--network=none", "--pids-limit=400"]
    words += [f"--env={key}={value}" for key, value in given.items() if value != inherited.get(key)]
    try:
        docker(*words, "--entrypoint=sleep", tag(image), "infinity")
        archive = _tar(laid, dict(baked.link_target_by_path))
        subprocess.run(
            ["docker", "cp", "-", f"{one.name}:/"], input=archive, capture_output=True, timeout=60, check=True
        )
        docker("start", one.name)
        one.boot()
        yield one
    finally:
        subprocess.run(["docker", "rm", "--force", one.name], capture_output=True)
