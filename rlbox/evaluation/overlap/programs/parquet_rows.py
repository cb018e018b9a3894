"""The rows of a parquet file, argv[1], as JSON lines, by an interpreter that has pyarrow. Exit status 3: it has not."""

import json
import sys

try:
    from pyarrow import parquet
except ImportError as error:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    raise SystemExit(3) from error

for batch in parquet.ParquetFile(sys.argv[1]).iter_batches(batch_size=256):
    for row in batch.to_pylist():
        sys.stdout.write(json.dumps(row, default=str) + "\n")
