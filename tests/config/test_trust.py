"""What a configuration of somebody else may name is a list by place, which has all of marlflow's own parts."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import marlflow as mf
from marlflow import conf
from marlflow.config.compose import composed, composing
from marlflow.config.description import describe
from marlflow.config.schema import plain_values, read_values
from marlflow.config.shipped_parts import (
    ALGORITHM,
    CALLBACK,
    ENVIRONMENT,
    MODEL,
    OPTIMIZER,
    PART,
    SCHEDULE,
    WRAPPER,
    Allowed,
)
from marlflow.config.trust import listed, names, refusal, untrusted, untrusted_records
from marlflow.offline.manifest import Manifest, RecordedEnvironment, read_manifest, write_manifest
from tests.env.optional import is_installed

CONF = Path(conf.__path__[0])
RECORDS = "marlflow.offline.environment.recorded_environment"


# -- the list ---------------------------------------------------------------------------------------------------------


def parts(place: Allowed) -> list[str]:
    return sorted(place.parts)


def imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def is_optimizer(part: Any) -> bool:
    return part is mf.Adam or issubclass(part, torch.optim.Optimizer)


def takes(first: str) -> Callable[[Any], bool]:
    return lambda part: next(iter(inspect.signature(part).parameters)) == first


KINDS: Mapping[str, tuple[Allowed, Callable[[Any], bool]]] = {
    "schedule": (SCHEDULE, lambda part: hasattr(part, "at")),
    "optimizer": (OPTIMIZER, is_optimizer),
    "model": (MODEL, lambda part: hasattr(part, "build")),
    "algorithm": (ALGORITHM, lambda part: hasattr(part, "capabilities")),
    "part": (PART, lambda part: issubclass(part, mf.Part)),
    "callback": (CALLBACK, lambda part: issubclass(part, mf.Callback)),
    "wrapper": (WRAPPER, takes("env")),
    "environment": (ENVIRONMENT, callable),
}


@pytest.mark.parametrize(
    ("kind", "path"), [(kind, path) for kind, (place, _) in KINDS.items() for path in parts(place)]
)
def test_each_part_is_there_and_of_its_kind(kind: str, path: str) -> None:
    for package in ("jaxmarl", "jumanji", "pgx", "vmas"):
        if f".{package}." in path:
            pytest.importorskip(package)
    assert KINDS[kind][1](imported(path))


def test_a_name_is_allowed_in_its_own_place_alone() -> None:
    places = [place for place, _ in KINDS.values()]
    every = [path for place in places for path in place.parts]
    assert len(every) == len(set(every))


WHERE: Mapping[str, Callable[[Any], Any]] = {
    "env": lambda values: {"env": values},
    "algorithm": lambda values: {"policies": {"wolf": {"algorithm": values}}},
    "parts": lambda values: {"policies": {"wolf": {"algorithm": {**PPO, "parts": {"own": values}}}}},
    "model": lambda values: {"default_policy": {"model": values}},
    "wrappers": lambda values: {"env": {"wrappers": values}},
    "league": lambda values: {"league": values},
    "callback": lambda values: {"callbacks": values},
}


@pytest.mark.parametrize(
    "option", [f"{group}/{path.stem}" for group in WHERE for path in sorted((CONF / group).glob("*.yaml"))]
)
def test_every_shipped_part_is_in_the_list(option: str) -> None:
    values = yaml.safe_load((CONF / f"{option}.yaml").read_text(encoding="utf-8"))
    config = WHERE[option.partition("/")[0]](values)
    assert untrusted(config) == []


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "experiment").glob("*.yaml")))
def test_a_shipped_experiment_needs_no_trust_as_configured_and_as_recorded(name: str) -> None:
    if not is_installed(name):
        pytest.skip("its packages are not installed")
    with composing():
        values = plain_values(composed([f"experiment={name}"]))
    assert untrusted(values) == []
    problems: list[str] = []
    if (experiment := read_values(values, problems)) is not None:
        assert untrusted(describe(experiment).values) == []


# -- other names ------------------------------------------------------------------------------------------------------

MAIN = "marlflow.cli.main.main"
PPO = {"_target_": "marlflow.PPO"}
CARTS = {"_target_": "marlflow.env.games.cartpole_team.parallel_env"}
LBF = {"_target_": "marlflow.env.simulators.lbf.parallel_env"}
GYMNASIUM = {"_target_": "marlflow.env.simulators.gymnasium_team.parallel_env"}
PETTINGZOO = {"_target_": "marlflow.env.simulators.pettingzoo_registry.make"}
OPENSPIEL = {"_target_": "marlflow.env.simulators.openspiel.env"}


def policy(**values: Any) -> dict[str, Any]:
    return {"policies": {"wolf": values}}


FOUND: Mapping[str, tuple[dict[str, Any], list[str]]] = {
    "a function of marlflow": ({"env": {"_target_": MAIN}}, [f"env._target_='{MAIN}'"]),
    "of another kind": ({"env": PPO}, ["env._target_='marlflow.PPO'"]),
    "Hydra's": ({"env": {"_target_": "hydra._internal.main"}}, ["env._target_='hydra._internal.main'"]),
    "an algorithm as a model": (policy(model=PPO), ["policies.wolf.model._target_='marlflow.PPO'"]),
    "in a schedule's place": (
        policy(algorithm={**PPO, "learning_rate": {"_target_": "marlflow.Adam"}}),
        ["policies.wolf.algorithm.learning_rate._target_='marlflow.Adam'"],
    ),
    "in an argument that there is not": (
        {"default_policy": {"algorithm": {**PPO, "x": [{"y": {"_target_": "os.system"}}]}}},
        ["default_policy.algorithm.x[0].y._target_='os.system'"],
    ),
    "below an allowed part": (
        policy(algorithm={**PPO, "optimizer": {"_target_": "torch.optim.SGD", "x": {"_target_": MAIN}}}),
        [f"policies.wolf.algorithm.optimizer.x._target_='{MAIN}'"],
    ),
    "only itself, with an optimizer and a schedule of marlflow": (
        policy(
            algorithm={
                "_target_": "mine.Own",
                "optimizer": {"_target_": "marlflow.learner.optimizer.Adam"},
                "rate": {"_target_": "marlflow.base.schedules.Linear", "start": 1.0},
                "parts": {"popart": {"_target_": "marlflow.PopArt"}},
            }
        ),
        ["policies.wolf.algorithm._target_='mine.Own'"],
    ),
    # A name of a policy that looks like a place is none.
    "a name with dots": (
        {"policies": {"callbacks.x": {"_target_": "marlflow.EarlyStop"}}},
        ["policies.callbacks.x._target_='marlflow.EarlyStop'"],
    ),
    "positional": ({"env": {**LBF, "_args_": ["wave:Game-v0"]}}, ["env._args_[0]='wave:Game-v0'"]),
    "keywords": ({"env": {**LBF, "_kwargs_": {"id": "Game-v0"}}}, ["env._kwargs_.id='Game-v0'"]),
    "a module in an id": ({"env": {**LBF, "id": "wave:Foraging-v3"}}, ["env.id='wave:Foraging-v3'"]),
    "any id of gymnasium": ({"env": {**GYMNASIUM, "id": "Game-v0"}}, ["env.id='Game-v0'"]),
    "another id": ({"env": {**PETTINGZOO, "id": "mine/game-v0"}}, ["env.id='mine/game-v0'"]),
    "a file of a game": (
        {"env": {**OPENSPIEL, "game": "crossword(word_list_file=x)", "parameters": {"filename": "x"}}},
        ["env.game='crossword(word_list_file=x)'", "env.parameters.filename='x'"],
    ),
    "a file in a game in a game": (
        {"env": {**OPENSPIEL, "parameters": {"game": "efg_game(filename=x)"}}},
        ["env.parameters.game='efg_game(filename=x)'"],
    ),
    "a path": ({"env": {**CARTS, "x": "/etc/passwd", "y": "../x", "z": "~", "w": "a\\b"}}, ["x", "y", "z", "w"]),
    "a path that is no text": ({"env": {**CARTS, "x": Path("/etc/passwd"), "y": b"../x"}}, ["x", "y"]),
    "an address": ({"runtime": {"address": "ray://x:1"}}, ["runtime.address='ray://x:1'"]),
    "a function": (
        {"env": {**CARTS, "wrappers": [{"_target_": "marlflow.env.wrappers.shield.shield", "safe": "shutil.rmtree"}]}},
        ["env.wrappers[0].safe='shutil.rmtree'"],
    ),
    "a wrapper by name": ({"env": {"wrappers": {"x": CARTS}}}, [f"env.wrappers.x._target_='{CARTS['_target_']}'"]),
    "TorchOptimizer, which calls any function": (
        policy(algorithm={**PPO, "optimizer": {"_target_": "marlflow.TorchOptimizer", "make": "os.system"}}),
        ["policies.wolf.algorithm.optimizer._target_", "policies.wolf.algorithm.optimizer.make='os.system'"],
    ),
    "trust itself": (
        {"league": {"trust": ["os.system"]}, **policy(init={"run": "/a/run", "trust": ["x.Y"]})},
        ["league.trust[0]='os.system'", "policies.wolf.init.trust[0]='x.Y'"],
    ),
    "a tracker": (
        {"log": {"sinks": {"x": {"_target_": "marlflow.WandbSink"}}}},
        ["log.sinks.x._target_='marlflow.WandbSink'"],
    ),
    "a section that there is not": ({"x": {"_target_": "os.system"}}, ["x._target_='os.system'"]),
    "arguments of others": (
        {"env": {"_target_": "a.B", "x": "maps/a.txt", "y": "c.D", "z": "e:f/G-v0", "v": ["g:H-v0.1", "1.5"]}},
        ["env._target_='a.B'", "env.y='c.D'", "env.z='e:f/G-v0'", "env.v[0]='g:H-v0.1'"],
    ),
    "signs for the terminal": ({"x": {"_target_": "\x1b[2J"}}, [r"x._target_='\x1b[2J'"]),
}


@pytest.mark.parametrize("case", FOUND)
def test_anything_else_needs_trust(case: str) -> None:
    sys.modules.pop("wave", None)
    config, expected = FOUND[case]
    found = untrusted(config)
    assert len(found) == len(expected)
    assert all(part in str(one) for part, one in zip(expected, found, strict=True)), [str(one) for one in found]
    assert "wave" not in sys.modules
    assert untrusted(config, trust=None) == untrusted(config, trust=names(found)) == []


@pytest.mark.parametrize(
    "config",
    [
        {"env": {**LBF, "id": "Foraging-8x8-2p-3f-coop-v3", "arguments": {"penalty": 0.1}}},
        {"env": {**PETTINGZOO, "id": "classic/connect_four-v3", "api": "aec"}},
        {"env": {**OPENSPIEL, "game": "goofspiel(num_cards=4,points_order=descending)"}},
        {
            "env": {
                **CARTS,
                "wrappers": {"w": {"_target_": "marlflow.env.wrappers.managed.managed", "manager": "m_{agent}"}},
            }
        },
        {"env": {**CARTS, "wrappers": {"w": {"_target_": "marlflow.env.wrappers.shield.shield", "agents": "a.[0-9]"}}}},
        policy(algorithm={**PPO, "optimizer": {"_target_": "torch.optim.adamw.AdamW", "weight_decay": 0.01}}),
        policy(algorithm={"_target_": "marlflow.Scripted", "choose": "marlflow.policy.connect_four.one_ply"}),
        policy(init={"run": "/somebody/runs/a", "checkpoint": "best", "trust": []}),
        {"callbacks": {"x": {"_target_": "marlflow.EarlyStop", "metric": "policies.a.return_mean"}, "y": None}},
        {"league": {"members": {"old": {"from": "../runs/a", "member": "main@3"}}, "trust": []}},
        {"mapping": [{"match": "agent.*", "policy": "a.b"}], "name": "a.b", "objective": "policies.a.return_mean"},
        {"rollouts": {"placement": {"node": "10.0.0.3"}}, "runtime": {"name": "ray", "address": None}},
        {"placement": {"learners": {"device": "cuda:0"}}},
    ],
)
def test_what_names_and_opens_nothing_needs_none(config: dict[str, Any]) -> None:
    assert untrusted(config) == []


# -- records ----------------------------------------------------------------------------------------------------------


def records(folder: Path, **environment: Any) -> Path:
    """Records whose manifest somebody else has written."""
    made = RecordedEnvironment(**{"factory": "posix.system", "arguments": {}, "wrappers": [], **environment})
    write_manifest(folder, Manifest({}, {}, made))
    assert read_manifest(folder).is_own
    file = folder / "manifest.json"
    file.write_text(file.read_text(encoding="utf-8").replace('"signature": "', '"signature": "0'), encoding="utf-8")
    assert not read_manifest(folder).is_own
    return folder


def test_records_name_what_their_environment_imports(tmp_path: Path) -> None:
    folder = records(tmp_path / "records", arguments={"command": "x.y"}, wrappers=[("json.tool.main", {})])
    config = {"env": {"_target_": RECORDS, "folder": str(folder), "wrappers": []}}
    assert names(untrusted(config)) == ["json.tool.main", "posix.system", "x.y"]
    assert untrusted(config, ["json.tool.main", "posix.system", "x.y"]) == []
    assert names(untrusted({"env": {**config["env"], "trust": ["posix.system"]}})) == names(untrusted(config))
    assert untrusted({"env": {"_target_": RECORDS, "folder": str(tmp_path / "nowhere")}}) == []


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"factory": "marlflow.env.games.cartpole_team.parallel_env", "arguments": {"num_agents": 2}}, []),
        ({"factory": MAIN}, [MAIN]),
        ({"factory": RECORDS, "arguments": {"folder": "x", "trust": ["os.system"]}}, ["os.system"]),
        ({"factory": LBF["_target_"], "arguments": {"_target_": CARTS["_target_"], "id": "x:y"}}, ["x:y"]),
        ({"wrappers": [(MAIN, {"_target_": "marlflow.env.wrappers.shipped.gray"})]}, [MAIN, "posix.system"]),
    ],
)
def test_a_manifest_is_checked_as_a_configuration_is(
    environment: dict[str, Any], found: list[str], tmp_path: Path
) -> None:
    assert names(untrusted_records(records(tmp_path, **environment))) == found


def test_a_message_shows_what_a_stranger_wrote_briefly_and_without_its_signs_for_the_terminal() -> None:
    found = untrusted({f"\x1b[2J{number}" + "x" * 5_000: {"_target_": "y" * 9_000 + "."} for number in range(400)})
    said = refusal("runs/a", found, f"set trust={listed(found)}")
    assert len(found) == 400
    assert len(said) < 2_000
    assert said.isprintable()
    assert "and 395 more" in said
