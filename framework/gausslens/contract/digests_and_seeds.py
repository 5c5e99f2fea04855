"""Digests of canonical JSON, and seeds derived from what a thing is: equal across processes, orders and machines."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, no NaN, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def derive(*what: Any) -> int:
    """A seed of 63 bits (torch takes no more) for this thing: ``derive(run_seed, "edit", {...}, draw, "0.W_Q")``."""
    return int(digest(list(what))[:16], 16) >> 1
