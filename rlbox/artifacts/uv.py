"""Drive uv: resolve a target's packages for its lock."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from uv import find_uv_bin

from rlbox.artifacts.python_resolution import PINS, PYLOCK, Inputs, Resolution, Upgrade, chosen_files, plan_compile
from rlbox.artifacts.settings import SourcePlan
from rlbox.errors import WorkFailed
from rlbox.foreign import toml_table
from rlbox.i18n import _
from rlbox.system.command import check_command
from rlbox.system.http import HttpClient, NoResponseError, create_client, explain_no_response, retry
from rlbox.system.network_settings import NetworkSettings
from rlbox.target.target import Target
from rlbox.values import Command

_SIZES_AT_ONCE = 16
_SILENT_S = 30.0
_OTHER = _("lock from another index: --sources PROFILE")


def resolve(
    target: Target,
    inputs: Inputs,
    sources: SourcePlan,
    ca_bundle: str,
    upgrade: Upgrade,
    known_sizes: Mapping[str, int],
) -> Resolution:
    """Resolve one set of packages with uv for the target's interpreter and platform.

    Parameters
    ----------
    known_sizes
        sha256 to bytes, from the lock before: those files need not be asked about.

    Raises
    ------
    WorkFailed
        uv finds no solution (quoted), or an index does not say how large a file is.
    """
    trust = {"SSL_CERT_FILE": ca_bundle} if ca_bundle else {}
    what = f"uv finds no set of packages for the {inputs.name} of target {target.name}"
    with tempfile.TemporaryDirectory(prefix="rlbox-lock-") as folder:
        for name, text in inputs.files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        for command in plan_compile(target, inputs, find_uv_bin(), sources, folder, upgrade):
            env = {**command.env, **trust}
            check_command(Command(argv=command.argv, env=env, cwd=folder, timeout_s=command.timeout_s), what)
        pins = Path(folder, PINS).read_text(encoding="utf-8")
        files = toml_table(Path(folder, PYLOCK).read_text(encoding="utf-8"))
    asked = {sha: url for sha, url in chosen_files(target, files).items() if sha not in known_sizes}
    return Resolution(pins=pins, files=files, sizes={**known_sizes, **_sizes(asked, ca_bundle)})


def _sizes(urls: Mapping[str, str], ca_bundle: str) -> dict[str, int]:
    """Return the bytes of files by their sha256; most indexes do not tell, so each file's server is asked."""
    site = NetworkSettings(ca_bundle=ca_bundle)
    with create_client(site, silent_s=_SILENT_S) as http, ThreadPoolExecutor(_SIZES_AT_ONCE) as pool:
        return dict(zip(urls, pool.map(lambda url: _size(http, url), urls.values()), strict=True))


def _size(http: HttpClient, url: str) -> int:
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return Path(unquote(parts.path)).stat().st_size
    try:
        answer = retry(lambda: http.whole("HEAD", url), attempts=3)
    except NoResponseError as error:
        raise WorkFailed(
            _("{url}: {explain_no_response}").format(url=url, explain_no_response=explain_no_response(error)),
            next_step=_OTHER,
        ) from error
    if answer.status != 200:
        raise WorkFailed(
            _("{url}: the server answered {status}").format(url=url, status=answer.status), next_step=_OTHER
        )
    if answer.length is None:
        raise WorkFailed(_("{url}: the server does not say how large the file is").format(url=url), next_step=_OTHER)
    return answer.length
