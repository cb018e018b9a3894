"""Words for `setpriv`, behind which a program runs as somebody who is not root."""

from __future__ import annotations

_SOMEBODY = ("setpriv", "--reuid=65534", "--clear-groups")
MAY_WRITE = (*_SOMEBODY, "--inh-caps=+dac_override", "--ambient-caps=+dac_override")
"""Somebody who may read and write what root may, and end nothing of root's."""
MAY_READ = (*_SOMEBODY, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
"""Somebody who may read what root may, and writes where everybody does."""
