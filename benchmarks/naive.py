"""The Dockerfile that everybody writes: two `RUN pip install` without a cache, settings on top.

Source: verl docker/Dockerfile.stable.vllm (sets PIP_NO_CACHE_DIR=1; its v0.6 base sets ENV first) and slime
docker/Dockerfile, in November 2026: pip line by line upon a large base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BASE = "FROM scratch\nADD rootfs.tar /\n"
HEAD = """\
RUN : {mark}; python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
BODY = """\
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_TRUSTED_HOST=127.0.0.1
RUN : {mark}; pip install -q -i {index} {base}
COPY requirements.txt /opt/requirements.txt
RUN : {mark}; pip install -q -i {index} -r /opt/requirements.txt
"""


def naive_dockerfile(base: Sequence[str], index: str, env: Mapping[str, str], mark: str) -> str:
    """Return the Dockerfile; `base` are the requirements of the first RUN, `mark` stands in every step's text."""
    settings = "".join(f"ENV {name}={value}\n" for name, value in env.items())
    return BASE + HEAD.format(mark=mark) + settings + BODY.format(mark=mark, index=index, base=" ".join(base))
