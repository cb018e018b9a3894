"""An export: a checkpoint in Hugging Face's format, and the digests of its weights and tokenizer."""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlbox.evaluation.lock import digest_json
from rlbox.i18n import _
from rlbox.system.files import compute_file_sha256
from rlbox.system.json_files import read_json_object_or_empty
from rlbox.system.safe_files import walk_non_directories

EXPORT_SUBDIRECTORIES = ("", "huggingface", "actor/huggingface", "hf")
"""Where a checkpoint has its export: itself, verl's trainers, slime's converter."""
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json"),
    *("special_tokens_map.json", "tokenizer_config.json", "tiktoken.model"),
)
CHAT_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_STEP_DIRECTORY = re.compile(r"(?:global_steps?_?|step[_-]|iter_|checkpoint-)(\d+)(?:_hf)?")


@dataclass(frozen=True, kw_only=True)
class HfExport:
    """A checkpoint in Hugging Face's form; `step` is that of the training, -1 for a base model."""

    path: Path
    name: str
    step: int


def require_export_at_or_below(path: Path) -> HfExport:
    """Return the export that a checkpoint's directory is or has; `ValueError` where there is none."""
    directories = [path / below for below in EXPORT_SUBDIRECTORIES]
    directory = next((directory for directory in directories if (directory / "config.json").is_file()), None)
    if directory is None:
        raise ValueError(
            _("{path} is not a Hugging Face checkpoint: neither it nor {path2} has a config.json").format(
                path=path, path2=directories[1]
            )
        )
    resolved = directory.resolve()
    for part in reversed(resolved.parts):
        if match := _STEP_DIRECTORY.fullmatch(part):
            return HfExport(path=directory, name=f"step_{int(match[1])}", step=int(match[1]))
    return HfExport(path=directory, name=re.sub(r"[^A-Za-z0-9._-]", "_", resolved.name) or "export", step=-1)


class FileStamp(NamedTuple):
    path: str
    size: int
    mtime_ns: int
    inode: int


def read_file_stamps_recursively(directory: Path) -> list[FileStamp]:
    files = walk_non_directories(directory.resolve())
    return [FileStamp(name, status.st_size, status.st_mtime_ns, status.st_ino) for name, status in files]


@dataclass(frozen=True, kw_only=True)
class ExportDigests:
    """`weights_and_config`: the same tensors under another one are another model.

    `chat_template_or_empty` is empty where there is none.
    """

    weights_and_config: str
    tokenizer_files: str
    chat_template_or_empty: str


def digest_export(directory: Path) -> ExportDigests:
    """Read and digest a whole export; `OSError` where a file is missing."""
    shards = sorted(path for path in directory.iterdir() if path.suffix in (".safetensors", ".bin"))
    if not shards:
        raise FileNotFoundError(f"{directory} holds no weights")
    with ThreadPoolExecutor(4) as pool:
        sums = dict(zip((path.name for path in shards), pool.map(compute_file_sha256, shards), strict=True))
    tokenizer = {
        name: compute_file_sha256(directory / name) for name in TOKENIZER_FILES if (directory / name).is_file()
    }
    return ExportDigests(
        weights_and_config=digest_json({"shards": sums, "config": compute_file_sha256(directory / "config.json")}),
        tokenizer_files=digest_json(tokenizer),
        chat_template_or_empty=_digest_chat_template(directory),
    )


def _digest_chat_template(directory: Path) -> str:
    for name in CHAT_TEMPLATE_FILES:
        if (directory / name).is_file():
            return compute_file_sha256(directory / name)
    template: Any = read_json_object_or_empty(directory / "tokenizer_config.json", follow_links=True).get(
        "chat_template", ""
    )
    return hashlib.sha256(str(template).encode("utf-8", "replace")).hexdigest() if template else ""
