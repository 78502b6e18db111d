"""Every key of a configuration times values that are likely to be wrong, and what each gives.

`python -m tests.config.every_setting` prints the table.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from marlflow.base.schedules import CosineDecay, Linear, PiecewiseConstant
from marlflow.config.construct import LEFT, construct, imported
from marlflow.config.schema import read_values
from marlflow.config.settings import range_of, setting_problems
from marlflow.config.target_nodes import TARGET
from tests.architecture.sources import REPOSITORY
from tests.sentences import sentences, wrong_with_settings

CONF = REPOSITORY / "conf"

VALUES: Mapping[str, Any] = {
    "text": "abc",
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "-1": -1,
    "0": 0,
    "1e30": 1e30,
    "2**63": 2**63,
    "10**400": 10**400,
    "null": None,
    "true": True,
    "''": "",
    "[]": [],
    "[nan]": [math.nan],
    "{}": {},
    "{a: 1}": {"a": 1},
    "{1: 2}": {1: 2},
}


FIRST = ("text", "nan", "-1", "0", "1e30", "null", "true", "[]", "{a: 1}")
"""Of these values, those that `make test` tries; `make test-all` tries all."""


@dataclass(frozen=True)
class Tried:
    """One value of one key, and the problems that were said of it: none if it was accepted."""

    key: str
    value: str
    problems: tuple[str, ...]

    @property
    def outcome(self) -> str:
        """`accepted`, `refused` by a sentence that names the key, or `refused without its name`."""
        if not self.problems:
            return "accepted"
        section, _, name = self.key.partition("[")[0].rpartition(".")
        named = any(self.key in said or (f"{section}:" in said and name in said) for said in self.problems)
        return "refused" if named else "refused without its name"


def _read(path: Path) -> dict[str, Any]:
    values: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    return {key: value for key, value in values.items() if key not in ("defaults", "hydra")}


def run_values() -> dict[str, Any]:
    """A run with every key of every section: of what can be left out too."""
    root = _read(CONF / "train.yaml")
    taken = {**root["placement"]["learners"], "resources": {"fpga": 1.0}, "node": "10.0.0.1"}
    process = {name: taken[name] for name in ("num_cpus", "num_gpus", "resources", "node")}
    policy = _read(CONF / "policy_keys.yaml")
    policy |= {
        "algorithm": {TARGET: "marlflow.algorithms.ppo.PPO"},
        "model": {TARGET: "marlflow.policy.torso.MLP"},
        "placement": {**taken, "stages": {"Advantages": "worker"}},
        "experience": {"folder": "records", "policy": "cart", "passes": 1},
        "init": {"run": "runs/a", "policy": "cart", "checkpoint": 100, "parts": ["actor"], "trust": ["their.Model"]},
    }
    return {
        **root,
        "name": "cartpole_team",
        "env": {**_read(CONF / "env" / "cartpole_team.yaml"), "wrappers": None},
        "policies": {"cart": policy},
        "default_policy": {key: policy[key] for key in ("algorithm", "model")},  # else of the keys of policies.cart
        "mapping": [{"match": "*", "policy": "cart"}],
        "rollouts": {**root["rollouts"], "placement": process},
        "placement": {**root["placement"], "learners": taken, "inference": {**process, "device": "cpu"}},
        "runtime": _read(CONF / "runtime" / "ray.yaml"),
        "stop": {**root["stop"], "policies": {"cart": {"return_mean": 1.0}}},
        "record": {"policies": ["cart"], "folder": "records"},
    }


def _of_run(values: dict[str, Any]) -> list[str]:
    problems: list[str] = []
    experiment = read_values(values, problems)
    return problems + ([] if experiment is None else wrong_with_settings(experiment))


def _of_part(path: str) -> Callable[[dict[str, Any]], list[str]]:
    def check(values: dict[str, Any]) -> list[str]:
        problems: list[str] = []
        make = imported(values[TARGET], f"{path}.{TARGET}", problems)
        made = LEFT
        if make is not LEFT:
            made = construct(make, {key: one for key, one in values.items() if key != TARGET}, path, problems)
        return problems if made is LEFT else [*problems, *sentences(setting_problems(made, path))]

    return check


def _schedules() -> Iterator[tuple[str, dict[str, Any]]]:
    settings: Mapping[type, dict[str, Any]] = {
        Linear: {"start": 0.5, "end": 0.1, "agent_steps": 100},
        CosineDecay: {"start": 0.5, "end": 0.1, "agent_steps": 100},
        PiecewiseConstant: {"values": [0.5, 0.1], "at_agent_steps": [100]},
    }
    for kind, values in settings.items():
        yield kind.__name__.lower(), {TARGET: f"{kind.__module__}.{kind.__name__}", **values}


def sites() -> Iterator[tuple[str, dict[str, Any], Callable[[dict[str, Any]], list[str]]]]:
    """Path, values and check of the run, and of each algorithm, model, and schedule."""
    yield "", run_values(), _of_run
    offline = {**_read(CONF / "env" / "offline.yaml"), "folder": "records"}
    run = run_values()
    yield "env", offline, lambda env: _of_run({**run, "env": env})
    for path in sorted(CONF.glob("algorithm/*.yaml")):
        if path.stem not in ("random", "scripted"):
            run = {"run": "runs/a"} if path.stem == "frozen" else {}
            yield f"algorithm.{path.stem}", {**_read(path), **run}, _of_part(f"algorithm.{path.stem}")
    for path in sorted(CONF.glob("model/*.yaml")):
        yield f"model.{path.stem}", _read(path), _of_part(f"model.{path.stem}")
    for name, values in _schedules():
        yield f"schedule.{name}", values, _of_part(f"schedule.{name}")
        held = {TARGET: "marlflow.algorithms.ppo.PPO", "learning_rate": values}
        yield f"scheduled.{name}", held, _of_part(f"scheduled.{name}")
    for path in sorted(CONF.glob("league/*.yaml")):
        if path.stem != "none":
            yield f"league.{path.stem}", _read(path), _of_part(f"league.{path.stem}")
    sgd = {TARGET: "marlflow.algorithms.ppo.PPO", "optimizer": {TARGET: "torch.optim.SGD", "momentum": 0.9}}
    yield "algorithm.sgd", sgd, _of_part("algorithm.sgd")


def _keys(values: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _keys(value, (*path, key))


def _written(path: tuple[str | int, ...], root: str) -> str:
    text = root
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _declared(values: dict[str, Any], path: tuple[str | int, ...]) -> Any:
    """The type and the range of the setting at a path, which decide what is said of a value."""
    made: Any = imported(values[TARGET], TARGET, [])
    if not dataclasses.is_dataclass(made) or path[0] not in (fields := made.__dataclass_fields__):
        return made, path
    setting = fields[path[0]]
    return str(setting.type), path, str(range_of(made, setting.name))


def tried(again: bool) -> Iterator[Tried]:
    """Every key with the FIRST values, one of the same type and range once; `again`: every value, for each class."""
    seen = set()
    for root, values, check in sites():
        for path in _keys(values):
            if TARGET in values and not again:
                if (declared := _declared(values, path)) in seen:
                    continue
                seen.add(declared)
            for name in VALUES if again else FIRST:
                changed = copy.deepcopy(values)
                inner: Any = changed
                for part in path[:-1]:
                    inner = inner[part]
                inner[path[-1]] = VALUES[name]
                yield Tried(_written(path, root), name, tuple(check(changed)))


def table() -> Iterator[str]:
    """One line for each key: what was accepted of it, all else being refused; then how many gave what."""
    found = list(tried(again=True))
    accepted: dict[str, list[str]] = {one.key: [] for one in found}
    for one in found:
        if one.outcome != "refused":
            accepted[one.key].append(one.value if one.outcome == "accepted" else f"{one.value} ({one.outcome})")
    yield from (f"{key:70} {', '.join(values) or '-'}" for key, values in accepted.items())
    yield f"{len(accepted)} keys x {len(VALUES)} values = {len(found)}"
    yield f"accepted by value: {dict(Counter(one.value for one in found if one.outcome == 'accepted'))}"
    yield f"by outcome: {dict(Counter(one.outcome for one in found))}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(table()) + "\n")
