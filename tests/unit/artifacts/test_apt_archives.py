"""Where Debian's packages are read: this machine's own apt sources, else those that mmdebstrap would write."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlbox.artifacts.locator import probe_apt_or_mmdebstrap_url_by_archive

MMDEBSTRAP = """#!/bin/sh
echo 'deb https://debian.example/debian bookworm main' >&{stream}
echo 'deb [signed-by=/k.gpg] https://security.example/debian-security bookworm-security main' >&{stream}
exit 25
"""


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.allow("processes")
@pytest.mark.parametrize("stream", [1, 2], ids=["1.3 on stdout", "0.8 on stderr"])
def test_another_distribution_reads_what_mmdebstrap_would(path: Path, stream: int) -> None:
    program(path, "apt-get", "#!/bin/sh\necho https://ubuntu.example/ubuntu\n")
    program(path, "mmdebstrap", MMDEBSTRAP.format(stream=stream))
    assert probe_apt_or_mmdebstrap_url_by_archive() == {
        "debian": "https://debian.example/debian",
        "debian-security": "https://security.example/debian-security",
        "ubuntu": "https://ubuntu.example/ubuntu",
    }


@pytest.mark.allow("processes")
def test_a_debian_machine_is_not_asked_twice(path: Path) -> None:
    program(path, "apt-get", "#!/bin/sh\necho https://mirror.example/debian/\n")
    assert probe_apt_or_mmdebstrap_url_by_archive() == {"debian": "https://mirror.example/debian"}


def test_nobody_knows(path: Path) -> None:
    assert probe_apt_or_mmdebstrap_url_by_archive() == {}
