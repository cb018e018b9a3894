"""Make `smoke` importable the way its launcher does: the jobs folder on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))
