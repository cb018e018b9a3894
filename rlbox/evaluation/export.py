"""An export: a checkpoint in Hugging Face's format, and the digests of its weights and tokenizer."""

from __future__ import annotations

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlbox.evaluation.lock import content_digest
from rlbox.foreign import parse_json
from rlbox.i18n import _
from rlbox.system.files import compute_sha256
from rlbox.system.safe_files import walk_files

EXPORT_SUBDIRECTORIES = ("", "huggingface", "actor/huggingface", "hf")
"""Where a checkpoint has its export: itself, verl's trainers, slime's converter."""
_STEP = re.compile(r"(?:global_steps?_?|step[_-]|iter_|checkpoint-)(\d+)(?:_hf)?")


@dataclass(frozen=True, kw_only=True)
class Export:
    """A checkpoint in Hugging Face's form: its folder, a name, the training step (-1: none, as of a base model)."""

    path: Path
    name: str
    step: int


def find_export(path: Path) -> Export:
    """Return the export that a checkpoint's folder is or has; `ValueError` where there is none."""
    folder = next((path / place for place in EXPORT_SUBDIRECTORIES if (path / place / "config.json").is_file()), None)
    if folder is None:
        raise ValueError(
            _("{path} has no config.json, nor has {path2}: it is no export").format(
                path=path, path2=path / EXPORT_SUBDIRECTORIES[1]
            )
        )
    whole = folder.resolve()
    for part in reversed(whole.parts):
        if found := _STEP.fullmatch(part):
            return Export(path=folder, name=f"step_{int(found[1])}", step=int(found[1]))
    return Export(path=folder, name=re.sub(r"[^A-Za-z0-9._-]", "_", whole.name) or "export", step=-1)


TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json"),
    *("special_tokens_map.json", "tokenizer_config.json", "tiktoken.model"),
)
CHAT_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_CONFIG = "tokenizer_config.json"

FileStamps = tuple[tuple[str, int, int, int], ...]
"""Of each file its path, bytes, time of its last change and number: others where anything was written since."""

ExportDigests = tuple[dict[str, Any], dict[str, Any]]
"""The lock's `subject` and its part `tokenizer`."""


def read_file_stamps(folder: Path) -> FileStamps:
    """Return what changes when anything is written below a folder."""
    files = walk_files(folder.resolve())
    return tuple((name, facts.st_size, facts.st_mtime_ns, facts.st_ino) for name, facts in files)


def list_weight_files(folder: Path) -> list[Path]:
    """Return the files of an export's weights, by name; `FileNotFoundError` where there are none."""
    found = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    if not found:
        raise FileNotFoundError(f"{folder} holds no weights")
    return found


def digest_export(folder: Path) -> ExportDigests:
    """Return the lock's `subject` and its part `tokenizer` of a Hugging Face export; `OSError` where a file is missing.

    The configuration of the model counts among its weights: the same tensors under another one are another model.
    """
    shards = list_weight_files(folder)
    with ThreadPoolExecutor(4) as pool:
        sums = dict(zip((path.name for path in shards), pool.map(compute_sha256, shards), strict=True))
    config = compute_sha256(folder / "config.json")
    words = {name: compute_sha256(folder / name) for name in TOKENIZER_FILES if (folder / name).is_file()}
    subject = {"weights": content_digest({"shards": sums, "config": config})}
    return subject, {"sha256": content_digest(words), "chat_template": _template(folder)}


def _template(folder: Path) -> str:
    """Return the digest of the chat template, which lies in a file of its own or in the tokenizer's configuration."""
    for name in CHAT_TEMPLATE_FILES:
        if (folder / name).is_file():
            return compute_sha256(folder / name)
    try:
        told = parse_json((folder / _CONFIG).read_bytes()).get("chat_template", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return hashlib.sha256(str(told).encode("utf-8", "replace")).hexdigest() if told else ""
