"""Look at one data file, or folder, without the stack: there, readable, whole as far as its format tells."""

from __future__ import annotations

import json
import os
from pathlib import Path

_PARQUET = b"PAR1"
_FIRST = 1 << 20


def probe_data_file(path: Path) -> tuple[str, str]:
    """Return what a file is, in words, and what is wrong with it (empty: nothing).

    Of a Parquet file both ends are read, of JSON Lines the first line, of a folder its names, of others one byte.
    """
    try:
        if path.is_dir():
            names = os.listdir(path)
            return f"a folder of {len(names)}", "" if names else "the folder is empty"
        size = path.stat().st_size
        with open(path, "rb") as file:
            first = file.read(_FIRST)
            if not first:
                return "", "the file is empty"
            match path.suffix:
                case ".parquet":
                    file.seek(-4, os.SEEK_END)
                    whole = first.startswith(_PARQUET) and file.read(4) == _PARQUET
                    return f"Parquet, {size} bytes", "" if whole else "no Parquet file, or one that is cut short"
                case ".jsonl":
                    return f"JSON Lines, {size} bytes", _json_error(first)
    except FileNotFoundError:
        return "", "it is not there"
    except OSError as error:
        return "", str(error.strerror)
    return f"{size} bytes", ""


def _json_error(first: bytes) -> str:
    line, newline, _ = first.partition(b"\n")
    if not newline and len(first) == _FIRST:
        return ""  # a line of more than a MiB is not read whole
    try:
        json.loads(line)
    except ValueError as error:
        return f"its first line is no JSON: {error}"
    return ""
