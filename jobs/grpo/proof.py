"""Proof that this machine and stack have passed the debug profile: asked for before a long run.

A proof is a file on the data disk named after the GPUs and the versions that decide whether the loop works; another
machine or another stack has none.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "vllm", "verl", "ray", "transformers")


def machine() -> dict[str, str]:
    """Return what a proof holds for: the GPUs by their UUIDs, and versions; what is not there is empty."""
    try:
        listed = subprocess.run(("nvidia-smi", "-L"), capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        listed = ""
    found = {"gpus": listed.strip()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def proof_file(folder: Path, facts: Mapping[str, str]) -> Path:
    """Return where the proof of such a machine lies."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"debug-passed-{digest}.json"


def main() -> None:
    """Ask for the proof, or give it."""
    parser = argparse.ArgumentParser(prog="grpo.proof", description=__doc__)
    parser.add_argument("action", choices=("ask", "give", "skip"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--at", choices=("start", "end"), required=True, help="of the run; a proof is given at its end")
    parser.add_argument("--run", default="")
    args = parser.parse_args()
    facts = machine()
    path = proof_file(args.folder, facts)
    if args.action == "give" and args.at == "end":
        args.folder.mkdir(parents=True, exist_ok=True)
        told = {"passed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "run": args.run, **facts}
        path.write_text(json.dumps(told, indent=2) + "\n")
        print(f"[proof] this machine and stack have passed the debug profile: {path}", flush=True)
    elif args.action == "ask" and args.at == "start" and not path.is_file():
        sys.exit(
            "grpo.proof: error: the debug profile has not passed on this machine with this stack: "
            "run `rlbox run grpo --profile debug` first (2 to 5 minutes), or --set proof=skip"
        )
    print("[proof] passed", flush=True)


if __name__ == "__main__":
    main()
