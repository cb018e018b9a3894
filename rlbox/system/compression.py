"""The zstd of Python's library from 3.14 on, of its backport before."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd
