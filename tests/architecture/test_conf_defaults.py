"""The files of conf/ that are written by hand fit the dataclasses, and each line has a comment."""

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pettingzoo
import pytest
import yaml
from omegaconf import OmegaConf

import marlflow as mf
from marlflow.config.comments import names
from marlflow.config.compose import Groups, composing
from marlflow.env.factories import import_factory
from marlflow.env.simulators import pettingzoo_registry
from tests.architecture.sources import REPOSITORY, within
from tests.env.optional import is_installed

CONF = REPOSITORY / "conf"


def _read(path: Path) -> dict[str, Any]:
    read = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(read, dict)
    return {str(key): value for key, value in read.items()}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return list(value) if isinstance(value, tuple) else value


def _defaults(kind: type) -> dict[str, Any]:
    """What the dataclass says; `???` for what it leaves to the user."""
    found = {}
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        if field.default is not dataclasses.MISSING:
            found[field.name] = _plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = _plain(field.default_factory())
        else:
            found[field.name] = "???"
    return found


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


@pytest.mark.parametrize("path", sorted(CONF.glob("placement/*.yaml")), ids=within)
def test_a_placement_says_only_what_differs_so_that_several_go_together(path: Path) -> None:
    values, usual = _read(path), _defaults(mf.RunPlacement)
    learners = values.pop("learners", {})
    assert values.keys() <= usual.keys()
    assert learners.keys() <= usual["learners"].keys()
    assert not [key for key in values if values[key] == usual[key]]
    assert not [key for key in learners if learners[key] == usual["learners"][key]]


LEARNING = sorted(
    path.stem
    for path in CONF.glob("policy/*.yaml")
    if path.stem not in ("random", "scripted", "one_ply", "member", "frozen")
)


@pytest.mark.parametrize("name", LEARNING)
def test_a_policy_has_the_defaults_of_the_dataclass(name: str) -> None:
    defaults, changes = _defaults_of("policy", name)
    assert [list(entry) for entry in defaults[:2]] == [["/algorithm@algorithm"], ["/model@model"]]
    assert (defaults[2:], changes) == (["/policy_keys", "_self_"], {"placement": {}} if name == "ddppo" else {})


def _defaults_of(group: str, name: str) -> tuple[Sequence[Any], dict[str, Any]]:
    values = _read(CONF / group / f"{name}.yaml")
    return values.pop("defaults"), values


def test_the_files_of_shared_keys_are_no_choices() -> None:
    with composing():
        offered = {*Groups([]).names(), *Groups([]).options("policy"), *names("policy"), *names("learner")}
    assert {"policy_keys", "learner_keys"}.isdisjoint(offered)


def test_a_member_of_a_learner_has_a_model_alone() -> None:
    values = _read(CONF / "policy" / "member.yaml")
    assert values == {"defaults": [{"/model@model": "mlp"}, "_self_"], "algorithm": mf.Policy().algorithm}


@pytest.mark.parametrize("path", sorted(CONF.glob("learner/*.yaml")), ids=within)
def test_a_learner_has_the_defaults_of_the_dataclass_and_the_algorithm_of_its_name(path: Path) -> None:
    assert _defaults_of("learner", path.stem) == ([{"/algorithm@algorithm": path.stem}, "/learner_keys", "_self_"], {})
    assert (CONF / "algorithm" / path.name).exists()


def test_one_process_changes_the_runtime_alone() -> None:
    assert _read(CONF / "runtime" / "inline.yaml") == {"name": "inline"}


def test_the_root_has_every_section() -> None:
    composed = {"env", "runtime", "default_policy"}
    keys = set(_read(CONF / "train.yaml")) - {"defaults", "hydra"}
    assert keys == {field.name for field in dataclasses.fields(mf.Experiment)} - composed


# What an environment needs to keep what it declares.
WRAPPED = {"knights_archers_zombies": {"clip"}}
# Observations of 160 and 400 kB, of which each lane of each environment holds some. A step of VMAS or
# of functional environments costs nearly the same for 64 as for one.
NUM_ENVS = {
    "pistonball": 4,
    "cooperative_pong": 4,
    **dict.fromkeys(("functional", "jaxmarl", "jumanji", "pgx", "vmas"), 64),
}
ENVIRONMENTS = sorted(CONF.glob("env/*.yaml"))


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=within)
def test_an_environment_has_the_defaults_of_the_dataclass(path: Path) -> None:
    values, defaults = _read(path), _defaults(mf.Env)
    assert values["num_envs"] == NUM_ENVS.get(path.stem, defaults["num_envs"])
    assert values["step_timeout_s"] == defaults["step_timeout_s"]
    assert values["batched"] == defaults["batched"]
    assert set(values["wrappers"] or ()) == WRAPPED.get(path.stem, set())


# Pixels are drawn only in a render mode.
NEEDED = {name: {"render_mode": "rgb_array"} for name in ("cooperative_pong", "pistonball")}
# Factories that pass all on, and what says what they take.
TAKEN_BY = {
    "butterfly/cooperative_pong-v6": "pettingzoo.butterfly.cooperative_pong.cooperative_pong.CooperativePong",
    "sisl/multiwalker-v9": "pettingzoo.sisl.multiwalker.multiwalker_base.MultiWalkerEnv",
    "sisl/pursuit-v5": "pettingzoo.sisl.pursuit.pursuit_base.Pursuit",
}


@pytest.mark.parametrize(
    "path",
    [path for path in ENVIRONMENTS if path.stem not in ("functional", "python") and is_installed(path.stem)],
    ids=within,
)
def test_an_environments_arguments_have_the_defaults_of_its_factory(path: Path) -> None:
    values = _read(path)
    module, _, name = values["_target_"].rpartition(".")
    arguments = _without(values, "_target_", "num_envs", "step_timeout_s", "batched", "wrappers")
    if values["_target_"] == pettingzoo_registry.TARGET and path.stem != "pettingzoo":
        chosen = {key: arguments.pop(key) for key in pettingzoo_registry.OWN_ARGUMENTS}
        module = pettingzoo.spec(chosen["api"], chosen["id"]).entry_point.rpartition(":")[0]
        raw = TAKEN_BY.get(chosen["id"], f"{module}.raw_env")
    else:
        raw = f"{module}.raw_env" if module.startswith("mpe2.") else f"{module}.{name}"
    parameters = inspect.signature(import_factory(raw)).parameters
    different = NEEDED.get(path.stem, {})
    assert different.items() <= arguments.items()
    arguments = {name: value for name, value in arguments.items() if value != "???" and name not in different}
    assert arguments.items() <= {name: _plain(one.default) for name, one in parameters.items()}.items()


@pytest.mark.parametrize("path", sorted(CONF.glob("wrappers/*.yaml")), ids=within)
def test_wrappers_have_names_that_no_other_set_has(path: Path) -> None:
    names = set(_read(path))
    assert path.read_text(encoding="utf-8").startswith("# @package env.wrappers\n")
    assert not any(names & set(_read(other)) for other in CONF.glob("wrappers/*.yaml") if other != path)


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.yaml")), ids=within)
def test_a_configuration_file_says_what_it_is_for_and_each_value_what_it_means(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert next(line for line in lines if not line.startswith("# @package")).startswith("# ")
    if path.parent.name in {"hydra_logging", "job_logging", "experiment"}:
        return
    valued = [line for line in lines if re.match(r"\s*[a-z_]+: +[^ #]", line, re.IGNORECASE)]
    explained = ("_target_:", "name: ray", "name: inline", "  dir:", "subdir:", "dir:")
    silent = [line for line in valued if "#" not in line and not line.strip().startswith(explained)]
    assert not silent


def test_every_configuration_file_is_yaml() -> None:
    for path in CONF.rglob("*.yaml"):
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)
