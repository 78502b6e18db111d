"""Write the files of conf/ whose keys are fields of classes, with the order, defaults and comments of the fields.

A field's comment is `#:` after it or in lines above it, in its class or in the nearest base that has one. The head of
a file, down to its `_target_`, is written by hand.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import marlflow as mf
from marlflow import league
from marlflow.config.target_nodes import TARGET, hints_of
from marlflow.env.factories import import_factory

CONF = Path(__file__).resolve().parents[1] / "conf"
WIDTH, COLUMN = 140, 40
BY_CLASS = ("algorithm", "model", "parts", "callback", "sinks")
"""The groups whose files name a class by `_target_`."""
BY_MODE = league.SnapshotRules(every_agent_steps=None)
NO_SNAPSHOTS = league.SnapshotRules(at_start=False, every_agent_steps=None)
OWNERS: Mapping[str, Any] = {
    "policy_keys": mf.Policy,
    "learner_keys": mf.LearnerConfig,
    "runtime/ray": mf.RuntimeConfig,
    "record/dataset": mf.Record,
    "league/alphastar": league.League(league.AlphaStar(), snapshots=BY_MODE),
    "league/delta_uniform": league.League(league.DeltaUniform()),
    "league/fictitious": league.League(league.Fictitious()),
    "league/latest_past": league.League(league.LatestPast()),
    "league/nfsp": league.League(league.NFSP(), snapshots=NO_SNAPSHOTS),
    "league/pfsp": league.League(league.PFSP()),
    "league/psro": league.League(league.PSRO(), snapshots=BY_MODE),
    "league/self_play": league.League(league.NaiveSelfPlay(), snapshots=NO_SNAPSHOTS),
}
"""The classes of files with their defaults, or objects with other values."""
IN_FILES_OF_THEIR_OWN = ("algorithm", "model")
RUN_NAME = "${run_name:${hydra:runtime.choices.env}}"
IN_YAML = {"None": "null", "True": "true", "False": "false"}


def written_files() -> Iterator[tuple[Path, str]]:
    """Yield each file with its text."""
    for path in sorted(path for group in BY_CLASS for path in CONF.glob(f"{group}/*.yaml")):
        head = head_of(path)
        indent, target = re.findall(rf"^( *){TARGET}: (\S+)$", head, re.MULTILINE)[-1]
        yield path, head + keys(import_factory(target), len(indent) // 2)
    for name, owner in OWNERS.items():
        path = CONF / f"{name}.yaml"
        yield path, head_of(path) + keys(owner, without=IN_FILES_OF_THEIR_OWN)
    path = CONF / "placement" / "inference_gpu.yaml"
    yield path, head_of(path) + key(mf.RunPlacement, "inference", mf.InferencePlacement(num_gpus=1.0))
    yield CONF / "train.yaml", whole_run()


def whole_run() -> str:
    """Return train.yaml with each key of an experiment in the place that it has there, if only as `key:`."""
    values = {field.name: default_of(field) for field in fields(mf.Experiment)} | {"name": RUN_NAME}
    return re.sub(
        r"^(\w+):.*\n(?: +\S.*\n)*",
        lambda found: key(mf.Experiment, found[1], values[found[1]]) if found[1] in values else found[0],
        (CONF / "train.yaml").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )


def head_of(path: Path) -> str:
    """Return the text of a file down to its first `_target_`, or else its first comment."""
    text = path.read_text(encoding="utf-8")
    if found := re.match(rf"(?:.*\n)*?\s*{TARGET}: \S+\n", text):
        return found[0]
    return "".join(itertools.takewhile(lambda one: one.startswith("#"), text.splitlines(keepends=True)))


def keys(owner: Any, depth: int = 0, without: Sequence[str] = ()) -> str:
    """Return the keys of a class with its defaults, or of an object with its values, in the order of its arguments."""
    kind = owner if isinstance(owner, type) else type(owner)
    return "".join(
        key(kind, field.name, default_of(field) if owner is kind else getattr(owner, field.name), depth)
        for field in arguments(kind)
        if field.name not in without
    )


def arguments(kind: type) -> list[Field[Any]]:
    """Return the fields of a dataclass in the order of its arguments."""
    return sorted((field for field in fields(kind) if field.init), key=lambda field: bool(field.kw_only))


def key(kind: type, name: str, value: Any, depth: int = 0) -> str:
    """Return the lines of a key and of those below it."""
    if isinstance(value, Mapping) and value:
        entries = "".join(
            line(f"{one}:", summary(made), depth + 1)
            + line(f"{TARGET}: {path_of(type(made))}", "", depth + 2)
            + keys(made, depth + 2)
            for one, made in value.items()
        )
        return line(f"{name}:", comment_of(kind, name), depth) + entries
    if not is_dataclass(value):
        return line(f"{name}: {in_yaml(value)}", comment_of(kind, name), depth)
    made, hint = type(value), hints_of(kind)[name]
    # A class that the field itself names needs no `_target_`.
    target = "" if made in (hint, *get_args(hint)) else line(f"{TARGET}: {path_of(made)}", "", depth + 1)
    return line(f"{name}:", comment_of(kind, name), depth) + target + keys(value, depth + 1)


def summary(made: Any) -> str:
    """Return the first line of the docstring of an object's class."""
    return (inspect.getdoc(type(made)) or "").partition("\n")[0]


def line(text: str, comment: str, depth: int) -> str:
    """Return a line with its comment, which may continue on further lines; in it, constants are as YAML writes them."""
    comment = re.sub(r"\b(None|True|False)\b", lambda constant: IN_YAML[constant[0]], comment)
    first, *more = textwrap.wrap(comment, WIDTH - COLUMN - 2, break_long_words=False, break_on_hyphens=False) or [""]
    indented = "  " * depth + text
    lines = [f"{indented:<{COLUMN - 1}} # {first}" if comment else indented]
    return "".join(f"{one}\n" for one in [*lines, *(f"{'':<{COLUMN}}# {one}" for one in more)])


def path_of(kind: type) -> str:
    """Return the import path of a class; leagues and their modes are known by that of their package."""
    return f"{'marlflow.league' if hasattr(league, kind.__name__) else kind.__module__}.{kind.__qualname__}"


def default_of(field: Field[Any]) -> Any:
    """Return the default of a field; MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def in_yaml(value: Any) -> str:
    """Return a value as YAML; numbers below 0.005 have exponents."""
    if value is MISSING:
        return "???"
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(in_yaml, value))}]"
    if isinstance(value, float) and math.isinf(value):
        return f"{'-' * (value < 0)}.inf"
    if isinstance(value, float) and 0 < abs(value) < 0.005:
        return re.sub(r"\.?0*e-0*", "e-", f"{value:.15e}")
    return IN_YAML.get(str(value), str(value))


def comment_of(kind: type, name: str) -> str:
    """Return the comment of a field, of the class or of the nearest base that has one."""
    found = next((text for owner in kind.__mro__ if (text := comments(owner).get(name))), None)
    assert found, f"{kind.__name__}.{name} needs a comment: #: after it or in lines above it"
    return found


@functools.cache
def comments(kind: type) -> Mapping[str, str]:
    """Return the comments of the fields that a class itself declares; empty texts where it has none."""
    if not vars(kind).get("__annotations__"):
        return {}
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    (body,) = [node.body for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.ClassDef)]
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above = list(itertools.takewhile(lambda one: one.lstrip().startswith("#:"), lines[node.lineno - 2 :: -1]))
            texts = [*reversed(above), *lines[node.lineno - 1 : node.end_lineno]]
            # A default that has the mark in a text would be read as a comment.
            found[node.target.id] = " ".join(filter(None, (one.partition("#:")[2].strip() for one in texts)))
    return found
