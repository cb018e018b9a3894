"""Make tasks of reasoning-gym: a JSON list of datasets on standard input, a JSON row for each task on standard output.

Exit status 3: reasoning-gym is missing.
"""

import json
import sys

try:
    import reasoning_gym
except ImportError as error:
    sys.stderr.write(f"{error}\n")
    raise SystemExit(3) from error

for made in json.load(sys.stdin):
    settings = {**made["settings"], "size": made["size"], "seed": made["seed"]}
    for number, entry in enumerate(reasoning_gym.create_dataset(made["dataset"], **settings)):
        row = {"id": f"{made['dataset']}/{number}", "question": entry["question"], "answer": str(entry["answer"])}
        wanted = {"dataset": made["dataset"], "settings": settings, "entry": entry}
        sys.stdout.write(json.dumps({**row, "wanted": json.dumps(wanted, sort_keys=True, default=str)}) + "\n")
