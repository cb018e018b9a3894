"""A rented machine: root in a container without Docker or systemd, with an odd /etc/environment."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

from enginebox import CHECKOUT, Result, docker
from projectbox import own

ODD = """# written by the platform
CONTAINER_ID=4711
export OPEN_BUTTON_TOKEN='a "quoted" token'
PATH=/opt/conda/bin:/usr/local/nvidia/bin:/usr/bin:/bin
no equals sign here
EMPTY=
"""
# A virtual environment with rlbox's own requirements, as a user would make it; of the image of rlbox nothing stays.
BARE = """
set -e
python3 -m venv --without-pip /srv/rl
cp -r /opt/rlbox/lib/python3.11/site-packages /srv/rl/lib/python3.11/
rm -f /srv/rl/lib/python3.11/site-packages/rlbox.pth
echo /srv/tool >/srv/rl/lib/python3.11/site-packages/tool.pth
cp /opt/rlbox/bin/uv /srv/rl/bin/
cp -r /srv/rlbox-*.dist-info /srv/rl/lib/python3.11/site-packages/
rm -rf /opt/rlbox /opt/venv /etc/conda /etc/profile.d/*rlbox* /etc/apt/apt.conf.d/*rlbox* /usr/local/bin/*
cp /srv/odd /etc/environment
printf '#!/bin/sh\\necho of the user\\n' >/usr/local/bin/python
chmod 755 /usr/local/bin/python
useradd --create-home --home-dir /srv/tenant --uid 12345 tenant
mkdir -p /data && chmod 1777 /data
"""
OUTSIDE = """
set --
for path in /proc /sys /tmp /srv /var/cache /root /data; do set -- "$@" -path "$path" -o; done
find / -xdev \\( "$@" -false \\) -prune -o ! -type d -printf '%p %y %m %s %l\n'
find /etc /usr/local /opt -type f -exec sha256sum {} + | sed 's/\\([^ ]*\\)  \\(.*\\)/\\2:sum \\1/'
"""


class Machine:
    """One rented machine."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *words: str, user: str = "root", env: tuple[str, ...] = (), check: bool = True) -> Result:
        """Run a program on the machine."""
        options = [f"--user={user}", *(f"--env={row}" for row in env)]
        argv = ["docker", "exec", *options, self.name, *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return Result(code=done.returncode, out=done.stdout, err=done.stderr)

    def rlbox(self, *words: str, env: tuple[str, ...] = (), check: bool = True) -> Result:
        """Run rlbox as root, in a shell with further variables."""
        own = ("RLBOX_STORE=/srv/store", "RLBOX_PROJECT=/srv/project", "RLBOX_DATA=/data", "HOME=/root")
        return self.run("/srv/rl/bin/python", "-m", "rlbox", *words, env=(*own, *env), check=check)

    def apply(self, *words: str, user: str = "root", check: bool = True) -> Result:
        """Run `rlbox apply small`."""
        home = "/root" if user == "root" else "/srv/tenant"
        argv = ("/srv/rl/bin/python", "-m", "rlbox", "apply", "small", "--offline", "--yes", "--data", "/data", *words)
        env = ("RLBOX_STORE=/srv/store", "RLBOX_PROJECT=/srv/project", f"HOME={home}")
        return self.run(*argv, user=user, env=env, check=check)

    def files(self) -> dict[str, str]:
        """Every file outside of what rlbox may use, with mode and sum or target."""
        rows = self.run("sh", "-c", OUTSIDE).out.splitlines()
        return {row.split(" ")[0]: row for row in rows if row}


@contextmanager
def rented(carried: Path, words: Sequence[str] = (), network: str = "none") -> Iterator[Machine]:
    """Yield a machine that sees project, store and the file `odd` of a folder; `words` are more of `docker run`."""
    name = f"rlbox-apply-{uuid.uuid4().hex[:12]}"
    mounts = {CHECKOUT: "/srv/tool", carried / "project": "/srv/project", carried / "store": "/srv/store"}
    known = Path(str(distribution("rlbox").locate_file(""))).glob("rlbox-*.dist-info")
    argv = [f"--volume={source}:{target}:ro" for source, target in mounts.items()]
    argv += [f"--volume={path}:/srv/{path.name}:ro" for path in known]
    argv += [f"--volume={carried / 'odd'}:/srv/odd:ro", *words]
    docker("run", "--detach", "--init", f"--network={network}", "--label=rlbox.test=apply", f"--name={name}", *argv,
           "--entrypoint=sleep", own("tiny"), "900")  # fmt: skip
    made = Machine(name)
    try:
        made.run("sh", "-c", BARE)
        yield made
    finally:
        docker("rm", "--force", name)
