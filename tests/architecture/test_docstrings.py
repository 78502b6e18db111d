"""Public modules and methods have a docstring, unless they inherit one or say no more than their name.

Ruff asks for the docstrings of public classes and functions (D101, D103). Methods are checked here, because ruff does
not know which of them override a base class's method or implement a protocol's.
"""

import ast
import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.architecture.sources import PACKAGE, modules, parsed, within


def _is_public(path: Path) -> bool:
    return all(not part.startswith("_") or part == "__init__.py" for part in path.parts)


def test_public_modules_have_a_docstring() -> None:
    silent = [within(path) for path in modules() if _is_public(path) and not ast.get_docstring(parsed(path))]
    assert not silent, f"a module opens with one line that says its purpose; these do not: {silent}"


def _name(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):
        return _name(base.value)
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)]


def _attributes(node: ast.ClassDef) -> set[str]:
    """Return the names that a class defines itself: methods, fields, and what its methods assign to `self`."""
    fields = {_name(child.target) for child in node.body if isinstance(child, ast.AnnAssign)}
    fields |= {_name(target) for child in node.body if isinstance(child, ast.Assign) for target in child.targets}
    stored = {
        inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute) and _name(inner.value) == "self"
    }
    return {method.name for method in _methods(node)} | fields | stored


def _ancestry(trees: Iterable[ast.Module]) -> Mapping[ast.ClassDef, list[ast.ClassDef]]:
    """Return every class with itself and its bases; a name means the class of the same module before any other."""
    classes = [[node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)] for tree in trees]
    bases = {}
    for module in classes:
        for node in module:
            names = {_name(base) for base in node.bases}
            local = [other for other in module if other.name in names and other is not node]
            elsewhere = names - {other.name for other in local}
            bases[node] = local + [
                other for others in classes if others is not module for other in others if other.name in elsewhere
            ]

    def lineage(node: ast.ClassDef) -> list[ast.ClassDef]:
        return [node, *(ancestor for base in bases[node] for ancestor in lineage(base))]

    return {node: lineage(node) for node in bases}


def _implemented(trees: Iterable[ast.Module]) -> Mapping[ast.ClassDef, set[str]]:
    """Return by class the methods and properties of the protocols that it, or a subclass of it, implements."""
    ancestry = _ancestry(trees)
    protocols = [
        {method.name for ancestor in lineage for method in _methods(ancestor)}
        for node, lineage in ancestry.items()
        if "Protocol" in map(_name, node.bases)
    ]
    implemented: dict[ast.ClassDef, set[str]] = {node: set() for node in ancestry}
    for lineage in ancestry.values():
        available = set[str]().union(*map(_attributes, lineage))
        members = set[str]().union(*(protocol for protocol in protocols if protocol <= available))
        for ancestor in lineage:
            implemented[ancestor] |= members
    return implemented


def _is_trivial_property(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the method is a property that returns an attribute or a constant."""
    if not any(_name(decorator) == "property" for decorator in method.decorator_list) or len(method.body) != 1:
        return False
    returned = method.body[0].value if isinstance(method.body[0], ast.Return) else None
    if isinstance(returned, ast.Call) and _name(returned.func) == "cast":
        returned = returned.args[1]
    return isinstance(returned, ast.Attribute | ast.Constant)


def _is_overload(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(_name(decorator) == "overload" for decorator in method.decorator_list)


def _silent(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield each public method without docstring, with its class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in _methods(node):
                if not (method.name.startswith("_") or ast.get_docstring(method) or _is_overload(method)):
                    yield node, method


def _missing(tree: ast.Module, namespace: Mapping[str, Any], implemented: Mapping[ast.ClassDef, set[str]]) -> list[str]:
    return [
        f"{owner.name}.{method.name}"
        for owner, method in _silent(tree)
        if not _is_trivial_property(method)
        and method.name not in implemented[owner]
        # The bases are looked up at run time, because many are other packages' classes.
        and not any(method.name in vars(base) for base in namespace[owner.name].__mro__[1:])
    ]


def _namespace(path: Path) -> Mapping[str, Any] | None:
    """Return a module's names, or None if it belongs to an extra that is not installed."""
    try:
        return vars(importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)))
    except ModuleNotFoundError as error:
        if str(error.name).startswith("marlflow"):
            raise
        return None


def test_methods_have_a_docstring_unless_they_inherit_one() -> None:
    trees = {path: parsed(path) for path in modules()}
    implemented = _implemented(trees.values())
    missing = []
    for path, tree in trees.items():
        if _is_public(path.relative_to(PACKAGE)) and any(_silent(tree)) and (names := _namespace(path)) is not None:
            missing += [f"{within(path)}: {name}" for name in _missing(tree, names, implemented)]
    assert not missing, (
        f"these methods override nothing and have no docstring: {missing}. Say in one sentence what each does or "
        "returns, with shapes, units and errors"
    )


class Speaker(Protocol):
    def speak(self) -> str:
        """Say something."""
        ...

    def louder(self) -> None:
        """Raise the volume."""
        ...


class Parent:
    def walk(self) -> None:
        """Walk."""


class Child(Parent):
    volume = 0

    def walk(self) -> None:
        pass

    def speak(self) -> str:
        return ""

    def louder(self) -> None:
        pass

    @property
    def level(self) -> int:
        return self.volume

    @property
    def doubled(self) -> int:
        return 2 * self.volume

    def run(self) -> None:
        pass


class Mute:
    def speak(self) -> str:
        return ""


@pytest.mark.parametrize(
    ("owner", "missing"), [(Child, ["Child.doubled", "Child.run"]), (Mute, ["Mute.speak"])], ids=["child", "mute"]
)
def test_overrides_and_trivial_properties_need_none(owner: type[Any], missing: list[str]) -> None:
    tree = parsed(Path(__file__))
    found = _missing(tree, globals(), _implemented([tree]))
    assert [name for name in found if name.startswith(owner.__name__)] == missing
