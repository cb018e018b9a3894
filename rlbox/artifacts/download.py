"""Download one file from the first mirror that has the right bytes: resumed, verified, failing over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rlbox.artifacts.mirrors import DownloadLocation, MirrorName, explain_bad_response
from rlbox.artifacts.object_store import PartialObject
from rlbox.errors import Interrupted
from rlbox.i18n import _
from rlbox.secrets.url_credentials import mask_url_and_header_credentials
from rlbox.system.http import (
    RETRYABLE_STATUSES,
    HttpClient,
    HttpResponse,
    NoFullResponseError,
    compute_exponential_backoff_s,
    describe_response_error,
)
from rlbox.target.artifact import Artifact

_ROUNDS = 4
_BLOCK = 1 << 18
_SHY_AFTER = 3


@dataclass(frozen=True, kw_only=True)
class FailedAttempt:
    """One place that did not give a file; `http_status` is the answer's, if one came."""

    mirror: str
    reason: str
    http_status: int | None = None


class AllMirrorsFailedError(Exception):
    def __init__(self, tries: tuple[FailedAttempt, ...]) -> None:
        super().__init__("; ".join(f"{one.mirror}: {one.reason}" for one in tries))
        self.tries = tries


class _LinkFailed(Exception):
    """`spoils_partial`: what is there is of no use for going on."""

    def __init__(
        self,
        reason: str,
        *,
        status: int = 0,
        transient: bool = False,
        spoils_partial: bool = False,
        retry_after: str = "",
    ) -> None:
        super().__init__(reason)
        self.status, self.transient, self.spoils_partial = status, transient, spoils_partial
        self.retry_after = retry_after


class Downloader:
    """Downloads files over one pool of connections; its methods may be called by several threads.

    Places that failed for a passing reason are tried again after a pause, four rounds in all; a stream that was cut
    goes on where it ended. A mirror with wrong bytes comes last from then on.

    `stop`: Set by whoever wants all downloads to end soon.
    `on_skip`: Told the mirror and the reason when one has been silent so often that its turn comes last.
    `wrong_mirrors`: Those that gave wrong bytes before.
    `on_wrong_bytes`: Told the mirror and the reason when another one did.
    """

    def __init__(
        self,
        http: HttpClient,
        *,
        stop: threading.Event,
        on_skip: Callable[[str, str], None] = lambda mirror, reason: None,
        wrong_mirrors: Iterable[MirrorName] = (),
        on_wrong_bytes: Callable[[MirrorName, str], None] = lambda mirror, reason: None,
    ) -> None:
        self._http, self._stop, self._on_skip, self._on_wrong_bytes = http, stop, on_skip, on_wrong_bytes
        self._silent: dict[str, int] = {}
        self._wrong = set(wrong_mirrors)

    def download_and_commit(
        self,
        artifact: Artifact,
        urls: Iterable[DownloadLocation],
        partial: PartialObject,
        on_block_bytes: Callable[[MirrorName, int], None],
    ) -> MirrorName:
        """Fill `partial` and keep it; return the mirror that gave the last byte.

        `on_block_bytes` is called with the mirror's name and the bytes of every block that came.

        Raises AllMirrorsFailedError: no link gave the right bytes; what came of them stays in the draft.
        """
        failed: dict[str, FailedAttempt] = {}
        again: list[DownloadLocation] = []
        retry_after = ""
        for number in range(_ROUNDS):
            if number and self._stop.wait(compute_exponential_backoff_s(number, retry_after)):
                raise Interrupted(_("stopped"))
            places, again, retry_after = (urls if number == 0 else again), [], ""
            for link in self._shy_last(places):
                try:
                    self._from_link(artifact, link, partial, on_block_bytes)
                    self._silent[link.mirror] = 0
                    return link.mirror
                except _LinkFailed as error:
                    retry_after = error.retry_after or retry_after
                    failed[link.url] = FailedAttempt(
                        mirror=link.mirror, reason=mask_url_and_header_credentials(str(error)), http_status=error.status
                    )
                    again += [link] if error.transient else []
            if not again:
                break
        raise AllMirrorsFailedError(tuple(failed.values()))

    def _shy_last(self, links: Iterable[DownloadLocation]) -> Iterator[DownloadLocation]:
        later = []
        for link in links:
            if link.mirror in self._wrong or self._silent.get(link.mirror, 0) >= _SHY_AFTER:
                later.append(link)
            else:
                yield link
        yield from later

    def _from_link(
        self, artifact: Artifact, link: DownloadLocation, partial: PartialObject, tell: Callable[[str, int], None]
    ) -> None:
        """Fill and keep the draft; bytes of other origin are dropped once."""
        resumed = partial.size > 0
        while True:
            try:
                if not artifact.size or partial.size != artifact.size:
                    self._stream(artifact, link, partial, tell)
                if partial.digest_so_far == artifact.sha256:
                    partial.commit()
                    return
                reason = _("wrong bytes: sha256 {found}…, locked is {locked}…").format(
                    found=partial.digest_so_far[:12], locked=artifact.sha256[:12]
                )
                begun_by = partial.begun_by if resumed else link.mirror
                partial.truncate()
                if not begun_by:  # a killed process: this mirror may have begun it, so that another comes first
                    raise _LinkFailed(reason, transient=True)
                if begun_by != link.mirror:
                    raise _LinkFailed(reason, spoils_partial=True)
                if link.mirror not in self._wrong:
                    self._wrong.add(link.mirror)
                    self._on_wrong_bytes(link.mirror, f"{artifact.file}: {reason}")
                raise _LinkFailed(reason)
            except _LinkFailed as error:
                if error.spoils_partial:
                    partial.truncate()
                if not (error.spoils_partial and resumed):
                    raise
                resumed = False

    def _stream(
        self, artifact: Artifact, link: DownloadLocation, partial: PartialObject, tell: Callable[[str, int], None]
    ) -> None:
        local = link.url.startswith("file:")
        with closing(_local_blocks(link, partial) if local else self._remote_blocks(artifact, link, partial)) as blocks:
            for block in blocks:
                if self._stop.is_set():
                    raise Interrupted(_("stopped"))
                if artifact.size and partial.size + len(block) > artifact.size:
                    reason = _("has more than the locked {size} bytes").format(size=artifact.size)
                    raise _LinkFailed(reason, spoils_partial=True)
                partial.begun_by = partial.begun_by if partial.size else link.mirror
                partial.write(block)
                tell(link.mirror, len(block))
        if partial.size < artifact.size:
            reason = _("ends after {count} of {size} bytes").format(count=partial.size, size=artifact.size)
            raise _LinkFailed(reason, transient=True)

    def _remote_blocks(
        self, artifact: Artifact, link: DownloadLocation, partial: PartialObject
    ) -> Generator[bytes, None, None]:
        headers = {"Range": f"bytes={partial.size}-"} if partial.size else {}
        if link.token:
            headers["Authorization"] = f"Bearer {link.token.reveal()}"
        began = False
        try:
            with self._http.stream("GET", link.url, headers=headers) as answer:
                _check_answer(artifact, partial, answer)
                for block in answer.iter_bytes():
                    began = True
                    yield block
        except NoFullResponseError as error:
            if began and error.kind == "cut":
                reason = _("cut after {count} of {size} bytes").format(count=partial.size, size=artifact.size)
                raise _LinkFailed(reason, transient=True) from error
            self._silent[link.mirror] = count = self._silent.get(link.mirror, 0) + 1
            why = mask_url_and_header_credentials(describe_response_error(error))
            if count == _SHY_AFTER:
                self._on_skip(link.mirror, why)
            raise _LinkFailed(why, transient=error.kind != "address") from error


def _check_answer(artifact: Artifact, partial: PartialObject, answer: HttpResponse) -> None:
    """Raise unless the answer's body is the file, or the rest of it; a whole body empties the draft."""
    status = answer.status
    if status == 206 and partial.size:
        if answer.headers.get("content-range", "").startswith(f"bytes {partial.size}-"):
            return
        raise _LinkFailed(_("answers with another range than was asked for"), spoils_partial=True)
    if status == 416 and partial.size:
        raise _LinkFailed(_("has no such range"), spoils_partial=True)
    size = None if "content-encoding" in answer.headers else answer.content_length
    if why := explain_bad_response(status, answer.headers.get("content-type", ""), size, artifact):
        retry_after = answer.headers.get("retry-after", "")
        raise _LinkFailed(why, status=status, transient=status in RETRYABLE_STATUSES, retry_after=retry_after)
    if partial.size:
        partial.truncate()


def _local_blocks(link: DownloadLocation, partial: PartialObject) -> Generator[bytes, None, None]:
    path = Path(unquote(urlsplit(link.url).path))
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(partial.size)
            while block := file.read(_BLOCK):
                yield block
    except OSError as error:
        raise _LinkFailed(f"{path}: {error.strerror}") from error
