"""`_args_`, `_partial_`, `_recursive_` and `_convert_` mean what they mean to Hydra, or are refused."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import hydra.utils
import pytest
import torch

import marlflow as mf
from marlflow.base.ranges import Range, Share
from marlflow.config.construct import build, fit
from marlflow.config.settings import range_of
from marlflow.config.target_nodes import hints_of
from tests.config.composition import experiment_of, prepared, ready_of

HERE = __name__


@dataclass(frozen=True)
class Wheel:
    """A part of a car."""

    inches: float
    name: str = "spare"


class Cart:
    """Takes arguments in every way."""

    def __init__(self, first: Any, /, second: int = 2, *more: Any, named: Any = None) -> None:
        self.given = (first, second, more, named)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cart) and other.given == self.given

    __hash__ = None  # type: ignore[assignment]


def crowded_env(num_agents: int = 2, num_envs: int = 1, wrappers: str = "none") -> Any:
    """Make an environment whose arguments have names that marlflow's keys have."""
    env = mf.Env("cartpole_team", {"num_agents": num_agents})
    made = hydra.utils.get_method(str(env.factory))(**env.arguments)
    made.given = (num_agents, num_envs, wrappers)
    return made


NODES: list[dict[str, Any]] = [
    {"_target_": f"{HERE}.Wheel", "_args_": [3.5], "name": "left"},
    {"_target_": f"{HERE}.Wheel", "_args_": [3.5, "left"]},
    {"_target_": f"{HERE}.Wheel", "_args_": [], "inches": 3.5},
    {"_target_": f"{HERE}.Wheel", "inches": 3.5, "_partial_": False, "_recursive_": True, "_convert_": "all"},
    {"_target_": f"{HERE}.Cart", "_args_": [1, 2, 3, 4], "named": {"_target_": f"{HERE}.Wheel", "inches": 1.0}},
    {"_target_": f"{HERE}.Cart", "_args_": [{"_target_": f"{HERE}.Wheel", "_args_": [1.0]}]},
    {"_target_": "builtins.dict", "_args_": [[["a", 1]]], "b": 2},
]


def _with(values: Mapping[str, Any], kind: Any = Any) -> tuple[Any, list[str]]:
    problems: list[str] = []
    return fit(values, kind, "car", problems), problems


@pytest.mark.parametrize("node", NODES)
def test_a_node_makes_what_hydra_makes_of_it(node: dict[str, Any]) -> None:
    assert _with(node) == (hydra.utils.instantiate(node, _convert_="all"), [])


@pytest.mark.parametrize("node", NODES)
def test_a_partial_node_is_called_later(node: dict[str, Any]) -> None:
    later, problems = _with({**node, "_partial_": True})
    theirs = hydra.utils.instantiate({**node, "_partial_": True}, _convert_="all")
    assert (problems, type(later)) == ([], functools.partial)
    assert (later.func, later.args, later.keywords) == (theirs.func, theirs.args, theirs.keywords)
    assert later() == theirs()


def test_what_a_partial_node_lacks_is_given_later() -> None:
    later, problems = _with({"_target_": f"{HERE}.Wheel", "_partial_": True, "name": "left"})
    assert (problems, later(inches=3)) == ([], Wheel(3, "left"))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"_args_": ["wide"]}, "car._args_[0] must be a number, not 'wide'"),
        ({"_args_": [1, "left", 3]}, "car._args_ has 3 entries, but Wheel takes at most 2"),
        ({"_args_": [1], "inches": 2}, "car.inches is given twice: _args_ has it already"),
        ({"_args_": 1, "inches": 2}, "car._args_ must be a list of positional arguments, not 1"),
        ({"inches": 1, "_partial_": "yes"}, "car._partial_ must be true or false, not 'yes'"),
        ({"_partial_": True, "nme": "left"}, "there is no car.nme; did you mean 'car.name'?"),
        ({"inches": 1, "_recursive_": False}, "car._recursive_ must be true: a _target_ inside another is always made"),
        ({"inches": 1, "_convert_": "partial"}, "car._convert_ must be all: values are plain lists and mappings"),
        ({"_args_": [], "name": "left"}, "car.inches is missing: Wheel needs it"),
    ],
)
def test_what_does_not_fit_is_said_with_its_path(node: dict[str, Any], expected: str) -> None:
    _, problems = _with({"_target_": f"{HERE}.Wheel", **node})
    assert len(problems) == 1
    assert problems[0].startswith(expected)


def test_an_optimizer_is_partial_in_any_case() -> None:
    node = {"_target_": "torch.optim.AdamW", "weight_decay": 0.1}
    made = [build({**node, **given}, "optimizer", []) for given in ({}, {"_partial_": True})]
    assert made == [mf.TorchOptimizer(torch.optim.AdamW, {"weight_decay": 0.1})] * 2
    problems: list[str] = []
    build({**node, "_args_": [1]}, "optimizer", problems)
    assert problems == [
        "optimizer._args_: the first argument is the learner's parameters, so name the others by keys of their own"
    ]


def test_functions_that_marlflow_calls_take_settings_and_no_positions() -> None:
    wrapper = "+env.wrappers.clip={_target_: marlflow.env.wrappers.shipped.clip_observations, _partial_: true}"
    (clip,) = experiment_of("env=cartpole_team", wrapper).env.wrappers
    assert clip.arguments == {}
    with pytest.raises(mf.ConfigInvalid, match=r"env.wrappers.clip._args_: the first argument of a wrapper is the env"):
        experiment_of("env=cartpole_team", f"{wrapper[:-1]}, _args_: [1]}}")
    pairing = "{_target_: marlflow.matchmaking.matchmakers.RandomSeats, _partial_: true, policies: [a]}"
    with pytest.raises(mf.ConfigInvalid, match="mapping"):
        ready_of("env=cartpole_team", f"mapping={pairing}")


CROWDED = ("env=python", f"env._target_={HERE}.crowded_env")


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["env._kwargs_.num_envs=5", "env._kwargs_.wrappers=many"], {"num_envs": 5, "wrappers": "many"}),
        (["env._args_=[3,4]", "env.num_envs=8"], {"num_agents": 3, "num_envs": 4}),
        (["env.num_agents=3", "env._kwargs_={num_envs: 6}"], {"num_agents": 3, "num_envs": 6}),
    ],
)
def test_arguments_with_names_of_marlflows_keys_reach_the_factory(words: list[str], arguments: dict[str, Any]) -> None:
    checked = ready_of(*CROWDED, *words)
    assert checked.experiment.env.arguments == arguments
    expected = (arguments.get("num_agents", 2), arguments["num_envs"], arguments.get("wrappers", "none"))
    assert checked.spec.make_env().given == expected
    assert checked.spec.num_envs == (8 if "env.num_envs=8" in words else 16)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("env._kwargs_.num_env=5", "there is no env._kwargs_.num_env; did you mean 'env._kwargs_.num_envs'?"),
        ("env._kwargs_=5", "env._kwargs_ must be arguments by name, {<name>: <value>}, not 5"),
        ("env._kwargs_={num_agents: 1}", "env._kwargs_.num_agents is given twice: env.num_agents has it already"),
        ("env._args_=[1]", "env.num_agents is given twice: env._args_ has it already"),
        ("env._args_=[1,2,3,4]", f"env._args_ has 4 entries, but {HERE}.crowded_env takes at most 3"),
        ("env._partial_=true", "env._partial_ must be false: marlflow calls the factory once for each environment"),
    ],
)
def test_a_wrong_argument_of_the_environment_is_said(word: str, expected: str) -> None:
    with pytest.raises(mf.ConfigInvalid) as caught:
        experiment_of(*CROWDED, "env.num_agents=2", word)
    assert expected in str(caught.value)


def test_positions_need_a_signature() -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"the order of the arguments of builtins\.dict is not known"):
        experiment_of("env=python", "env._target_=builtins.dict", "env._args_=[1]")


def test_a_configuration_with_such_arguments_is_written_as_it_is_read() -> None:
    from marlflow.config.description import plain

    words = ("env.num_agents=3", "env._kwargs_={num_envs: 6}")
    written = plain(experiment_of(*CROWDED, *words).env)
    assert written["_kwargs_"] == {"num_envs": 6}
    assert (written["num_agents"], written["num_envs"]) == (3, 16)


@pytest.mark.parametrize("word", ["wrappers=null", "placement=null", "league=null", "experiment=null", "record=null"])
def test_a_group_that_a_run_does_without_may_be_null(word: str) -> None:
    assert experiment_of("env=cartpole_team", word) == experiment_of("env=cartpole_team")


def test_record_is_a_group() -> None:
    assert experiment_of("record=none").record is None
    assert experiment_of("record=dataset").record == mf.Record() == experiment_of("record={}").record
    chosen = experiment_of("record=dataset", "record.policies=[cart]", "record.folder=rows").record
    assert chosen == mf.Record(("cart",), "rows")
    assert experiment_of("record={policies: [cart]}").record == mf.Record(("cart",))
    with pytest.raises(mf.ConfigInvalid, match="there is no record 'datset'; did you mean 'dataset'"):
        prepared("record=datset")


class OfAnUnknownKind:
    """Has an annotation whose name is imported for type checkers only."""

    def __init__(self, share: Annotated[float, Range(0, 1)], other: "Unknown", more: Share = 0.5) -> None:  # noqa: F821
        self.share, self.other, self.more = share, other, more


@dataclass(frozen=True)
class Base:
    share: Share = 0.5
    hidden: Share = 0.5


@dataclass(frozen=True)
class Derived(Base):
    weight: Annotated[float, Range(0, 10)] = 1.0
    hidden: "Unknown" = None  # type: ignore[name-defined]  # noqa: F821


def of_an_unknown_kind(share: Share, other: "Unknown") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Have an annotation that does not exist at run time."""


def test_only_annotations_that_cannot_be_resolved_are_skipped() -> None:
    assert hints_of(OfAnUnknownKind) == {
        "share": Annotated[float, Range(0, 1)],
        "more": Share,
        "return": type(None),
    }
    assert hints_of(Derived) == {"share": Share, "weight": Annotated[float, Range(0, 10)]}
    assert hints_of(of_an_unknown_kind) == {"share": Share, "return": type(None)}
    assert (range_of(Derived, "weight").high, range_of(OfAnUnknownKind, "share").high) == (10, 1)
