"""File names for things that have names of their own, such as policies."""

from __future__ import annotations

import hashlib
import string

_LONGEST = 255
_PLAIN = frozenset(string.ascii_lowercase + string.digits + "_-~")


def file_name(name: str, suffix: str = "", plain: str = "") -> str:
    """A name on disk for `name`, which may hold any characters, with `suffix` at its end.

    Distinct names give distinct results, also on file systems that ignore case, and no result leads out of its folder.
    All but lower-case letters, digits, `_`, `-`, `~` and the characters in `plain` are percent-encoded.

    >>> file_name("prey"), file_name("Prey"), file_name("manifest.json")
    ('prey', '%50rey', 'manifest%2Ejson')
    """
    quoted = "".join(one if one in _PLAIN or one in plain else _encoded(one) for one in name) or "%"
    if len(quoted) + len(suffix) > _LONGEST:
        digest = hashlib.sha256(quoted.encode()).hexdigest()
        quoted = f"{quoted[: _LONGEST - len(suffix) - len(digest) - 1]}-{digest}"
    return quoted + suffix


def _encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
