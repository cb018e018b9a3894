"""The instance of a recorded account: a real container, whose on-start script, stops, disk and files are real.

Python's own library alone: the journeys carry it to a bare machine.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Sequence
from typing import Any

OWN_KEY = "4d1c9a07" * 8
"""What the platform gives an instance to stop itself with."""
# What the platform starts: sshd without the container's environment, for the account's keys; and, in its place, the
# account's address as the instance sees it.
BOOT = """
set -e
mkdir -p /run/sshd "$HOME/.ssh" && chmod 700 "$HOME" "$HOME/.ssh"
ssh-keygen -q -A
[ -e /key.pub ] || ssh-keygen -q -t ed25519 -N '' -f /key
cp /key.pub "$HOME/.ssh/authorized_keys"
env -i /usr/sbin/sshd -p 2222 -o ListenAddress={listen}
python3 /account.py >/dev/null 2>&1 &
"""
ACCOUNT = """
import http.server
class Api(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with open("/account.log", "a") as log:
            print(self.path, self.headers["Authorization"], body, file=log)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"success": true}')
http.server.HTTPServer(("127.0.0.1", 8900), Api).serve_forever()
"""


def docker(*words: str, stdin: bytes | None = None) -> str:
    """Run the docker client and return what it printed."""
    done = subprocess.run(["docker", *words], input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr.decode()}"
    return done.stdout.decode()


class Instance:
    """The container of a name; `words` are more of `docker create`, `key` is the public key that the account knows.

    `image` stands in for the one that is rented. With a `port` of this machine sshd is reached by that, else by 2222 of
    the container's own network.
    """

    def __init__(self, name: str, words: Sequence[str] = (), key: str = "", image: str = "", port: int = 0) -> None:
        self.name, self._words, self._key, self._image, self._port = name, words, key, image, port
        if port:
            self._words = (*words, f"--publish=127.0.0.1:{port}:2222")

    def create(self, row: dict[str, Any]) -> None:
        """Make and start it, as the platform does with what was rented."""
        row |= {"ssh_host": "127.0.0.1", "ssh_port": self._port or 2222}
        env = {"VAST_URL": "http://127.0.0.1:8900", "CONTAINER_API_KEY": OWN_KEY, "FROM_PLATFORM": "yes"}
        given = [f"--env={name}={value}" for name, value in {**env, "CONTAINER_ID": str(row["id"])}.items()]
        words = [*given, "--init", f"--name={self.name}", "--label=rlbox.test=vast", *self._words]
        docker("create", *words, "--entrypoint=sleep", self._image or row["image_uuid"], "infinity")
        self.put("/onstart.sh", row["onstart"])
        self.put("/account.py", ACCOUNT)
        if self._key:
            self.put("/key.pub", self._key)
        self.power("running")

    def power(self, state: str) -> None:
        """Cut its power, or give it, and start what the platform starts."""
        if state == "stopped":
            docker("kill", self.name)
            return
        docker("start", self.name)
        self.sh(BOOT.format(listen="0.0.0.0" if self._port else "127.0.0.1"))
        docker("exec", "--detach", self.name, "sh", "/onstart.sh")

    def destroy(self) -> None:
        """Remove it with its disk."""
        docker("rm", "--force", "--volumes", self.name)

    def put(self, path: str, text: str) -> None:
        """Write a file there."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            row = tarfile.TarInfo(path.lstrip("/"))
            row.size = len(text.encode())
            tar.addfile(row, io.BytesIO(text.encode()))
        docker("cp", "-", f"{self.name}:/", stdin=archive.getvalue())

    def sh(self, text: str) -> str:
        """Return what a shell there printed."""
        return docker("exec", self.name, "sh", "-c", text)
