"""File names for user-chosen names."""

from __future__ import annotations

import hashlib
import string

_LONGEST = 255
_PLAIN = frozenset(string.ascii_lowercase + string.digits + "_-~")


def file_name(name: str, suffix: str = "", plain: str = "") -> str:
    """Encode `name`, any text, as a file name that ends in `suffix`.

    Distinct names stay distinct, also on case-insensitive file systems. No result is in another folder.

    >>> file_name("prey"), file_name("Prey"), file_name("manifest.json")
    ('prey', '%50rey', 'manifest%2Ejson')
    """
    # The empty name becomes a lone %, which no other name gives.
    quoted = "".join(char if char in _PLAIN or char in plain else _encoded(char) for char in name) or "%"
    if len(quoted) + len(suffix) > _LONGEST:
        # File systems limit names to 255 bytes; the hash keeps shortened ones distinct.
        digest = hashlib.sha256(quoted.encode()).hexdigest()
        quoted = f"{quoted[: _LONGEST - len(suffix) - len(digest) - 1]}-{digest}"
    return quoted + suffix


def _encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
