"""docs/glossary.md explains every public name and every configuration key, and a name has one meaning."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import marlflow
from marlflow.config.experiment import Env, Experiment
from marlflow.config.target_nodes import ENV_KEYS
from tests.architecture.sources import REPOSITORY, modules, parsed, within

GLOSSARY = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8")
# `learners.<id>` and `default_policy` have the keys of a policy, which the glossary says in one sentence.
SHARED = ("default_policy.", "learners.<id>.placement.", "learners.<id>.stop.")

SECTIONS = ("marlflow.config.experiment", "marlflow.runtime.spec", "marlflow.algorithms.from_run")


def explained(heading: str) -> list[str]:
    """The first cell of each row in the tables between a heading and the next of its level."""
    section = re.split(r"^## ", GLOSSARY.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.M)[0]
    return re.findall(r"^\| `([^`]+)` \| .", section, re.M)


def keys(kind: Any, prefix: str = "") -> Iterator[str]:
    """The keys of a dataclass as a configuration has them, and those of the dataclasses in its fields."""
    for field in fields(kind):
        if not field.init:
            continue
        if kind is Env and field.name not in ENV_KEYS:
            continue  # the factory and its arguments stand in `env` under the names of that factory
        path = prefix + field.name
        yield path
        hint = get_type_hints(kind)[field.name]
        below = f"{path}.<id>." if get_origin(hint) is Mapping else f"{path}."
        for part in (hint, *get_args(hint)):
            if is_dataclass(part) and part.__module__ in SECTIONS:
                yield from keys(part, below)


def listed_once(heading: str, expected: set[str]) -> None:
    listed = explained(heading)
    missing, unknown = sorted(expected - set(listed)), sorted(set(listed) - expected)
    assert not missing, f"add a row with one sentence to docs/glossary.md, '{heading}', for each of {missing}"
    assert not unknown, f"docs/glossary.md, '{heading}', explains what is not there: {unknown}"
    assert len(listed) == len(set(listed)), f"docs/glossary.md, '{heading}', explains a name twice"


def test_every_public_name_is_explained_once() -> None:
    listed_once("Names of the Python API", set(marlflow.__all__))


def test_every_configuration_key_is_explained_once() -> None:
    listed_once("Configuration keys", {key for key in keys(Experiment) if not key.startswith(SHARED)})


def test_no_class_name_is_defined_twice() -> None:
    defined = defaultdict(list)
    for path in modules():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(within(path))
    twice = {name: paths for name, paths in defined.items() if len(paths) > 1}
    assert not twice, f"give each class a name of its own: {twice}"
