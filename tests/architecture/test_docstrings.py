"""Every module that a user may open says first what it is for."""

import ast
from pathlib import Path

from tests.architecture.sources import modules, parsed, within


def _is_public(path: Path) -> bool:
    return all(not part.startswith("_") or part == "__init__.py" for part in path.parts)


def test_public_modules_have_a_docstring() -> None:
    silent = [within(path) for path in modules() if _is_public(path) and not ast.get_docstring(parsed(path))]
    assert not silent, f"a module opens with one line that says its purpose; these do not: {silent}"
