"""Operators and networks of a user's own are tried on two rows before a run, and errors name policy and stage."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Space
from torch import nn

import marlflow as mf
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.spaces import Spaces
from marlflow.checks.rehearsal import rehearsal_problems
from marlflow.checks.validation import ready
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.env.spaces_only import SpacesOnlyEnv
from marlflow.runtime.spec import LearnerSpec, PolicySpec, RunSpec
from tests.algorithms.conversations import SPACES as CONVERSATION

PIXELS = Box(0, 255, (36, 36, 3), np.uint8)
NUMBERS = Box(-np.inf, np.inf, (4,), np.float32)
PARTS = Dict({"picture": PIXELS, "speed": NUMBERS})
BOARD = Box(0, 1, (6, 7, 2), np.int8)
SMALL_CNN = mf.CNN((4,), (5,), (3,), (8,))


@dataclass(frozen=True)
class Signs:
    """An operator that says nothing of where it runs."""

    def __call__(self, batch: mf.Batch) -> mf.Batch:
        return batch.with_columns(reward=np.sign(batch["reward"]))


@dataclass(frozen=True)
class Bonus:
    """One beside its learner, that adds a column to the reward."""

    column: str = "novelty"
    least_rows: int = 1

    def __call__(self, batch: mf.Batch) -> mf.Batch:
        if batch.rows < self.least_rows:
            raise ValueError(f"{batch.rows} rows are not enough")
        np.random.rand()  # noqa: NPY002  of the run's own random numbers
        return batch.with_columns(reward=batch["reward"] + batch[self.column] + random.random() + torch.rand(1).item())


@dataclass(frozen=True)
class Silent:
    """An operator that forgets to return its rows."""

    traits: ClassVar[mf.Traits] = mf.Traits(movable="fragments")

    def __call__(self, batch: mf.Batch) -> Any:
        batch.with_columns(reward=np.sign(batch["reward"]))


@dataclass(frozen=True)
class With(mf.PPO):
    """PPO with one stage more."""

    name: ClassVar[str] = "with"
    stage: Any = None

    def plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replays: Sequence[mf.Replay]) -> mf.Plan:
        if self.stage is None:
            raise KeyError("stage")
        reports = (
            experience.gather(mf.Concat(agent_steps=self.batch_agent_steps))
            .then(mf.DropStale(self.max_staleness), at=learner)
            .then(self.stage, at=None if isinstance(self.stage, Signs) else learner)
            .then(mf.Advantages(mf.initial_value(self.discount), mf.initial_value(self.gae_lambda)), at=learner)
            .then(mf.Normalize(), at=learner)
            .then(mf.Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps), at=learner)
            .then(mf.Publish(), at=learner)
        )
        return mf.Plan("with", output=reports, waits_for_rounds=True)


@dataclass(frozen=True)
class Net:
    """A network that takes observations as they come, and says that it makes `said` features."""

    features: int = 8
    said: int = 8

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(obs_shape)), self.features)), self.said


@dataclass(frozen=True)
class Unbuildable:
    """A network whose build() looks for a fourth dimension."""

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        return nn.Linear(obs_shape[3], 8), 8


@dataclass(frozen=True)
class Alone:
    """A network that does not say how many features it makes."""

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> Any:
        return nn.Linear(obs_shape[0], 8)


@dataclass(frozen=True)
class Late:
    """A network whose build() reads weights, unless it is only asked for its size."""

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        if torch.get_default_device().type != "meta":
            raise OSError("no weights")
        return nn.Linear(obs_shape[0], 8), 8


@dataclass(frozen=True)
class Flat:
    """A network that takes what is flat already."""

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        return nn.Linear(int(np.prod(obs_shape)), 8), 8


@dataclass(frozen=True)
class Batched:
    """A network that normalizes over its batch: by running statistics when it acts, or not at all on one row."""

    running: bool = True

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        normalize = nn.BatchNorm1d(8, track_running_stats=self.running)
        return nn.Sequential(nn.Linear(obs_shape[0], 8), nn.Dropout(0.5), normalize), 8


class Count(nn.Module):
    """A layer that counts the minibatches that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("minibatches", torch.zeros(()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            self.minibatches += 1
        return rows


@dataclass(frozen=True)
class Counting:
    """A network whose buffer changes in updates alone."""

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        return nn.Sequential(Count(), nn.Linear(obs_shape[0], 8)), 8


def _board() -> SpacesOnlyEnv:
    return SpacesOnlyEnv({"player_0": Spaces(BOARD, Discrete(7), masked=True)})


def _problems(policy: mf.Policy, factory: Any = CartPoleTeam) -> list[str]:
    group = "player" if factory is _board else "cart"
    experiment = mf.Experiment(mf.Env(factory), {group: policy}, stop=mf.Stop(env_steps=1_000))
    try:
        mf.plan(experiment)
    except mf.ConfigInvalid as error:
        return list(error.problems)
    return []


def test_an_operator_without_a_place_that_wants_rows_is_told_to_have_one() -> None:
    (problem,) = _problems(mf.Policy(With(stage=Signs())))
    first, _, lines = problem.partition("\n")
    assert first.startswith("policy 'cart' (with): stage 'Signs' of its plan has no place, so it runs on the driver")
    assert "it wants them as a Batch; give it one with .then(..., at=learner): " in first
    assert lines.count("File ") == 1
    assert 'reward=np.sign(batch["reward"])' in lines


@pytest.mark.parametrize("where", ["learner", "worker"])
def test_a_stage_that_returns_nothing_is_named_and_not_the_one_after_it(where: str) -> None:
    placement = mf.PlacementOverrides(stages={"Silent": where} if where == "worker" else {})
    (problem,) = _problems(mf.Policy(With(stage=Silent()), placement=placement))
    assert "stage 'Silent' of its plan" in problem
    assert "it returned None" in problem
    assert "observations" not in problem


def test_a_column_that_does_not_exist_is_named_with_those_that_there_are() -> None:
    (problem,) = _problems(mf.Policy(With(stage=Bonus(column="rewrad"))))
    assert problem.startswith("policy 'cart' (with): stage 'Bonus' of its plan breaks on 2 rows")
    assert "a batch has no column 'rewrad'; did you mean 'reward'?" in problem
    (problem,) = _problems(mf.Policy(With(stage=Bonus())))
    assert "a batch has no column 'novelty'; it has obs, action," in problem


def test_an_operator_that_needs_more_rows_than_two_is_not_refused_and_draws_nothing_of_the_runs_numbers() -> None:
    policies = {"cart": mf.Policy(With(stage=Bonus(column="version", least_rows=100)))}
    made = ready(mf.Experiment(mf.Env(CartPoleTeam), policies, stop=mf.Stop(env_steps=1_000)))
    _seed()
    expected = _draw()
    _seed()
    assert list(rehearsal_problems(made.spec)) == []
    assert _draw() == expected


def _seed() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)


def _draw() -> tuple[float, ...]:
    return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002


def test_a_network_that_cannot_take_the_dtype_of_its_observations_is_told_which_it_is() -> None:
    (problem,) = _problems(mf.Policy(mf.PPO(), Net()), _board)
    assert problem.startswith(
        "policy 'player' (ppo): the network of Net is to make features [N, 8] of obs [N, 6, 7, 2]"
    )
    assert (
        "in int8, and cannot; the dtype is the space's own, so let it begin with obs.float(): RuntimeError" in problem
    )


def test_a_network_that_makes_other_features_than_it_says_is_told_so() -> None:
    (problem,) = _problems(mf.Policy(mf.DQN(), Net(said=9)))
    assert "is to make features [N, 9] of obs [N, 4] in float32, and makes [2, 8] in float32 of 2 rows" in problem


@pytest.mark.parametrize("algorithm", [mf.PPO(), mf.DQN()], ids=["ppo", "dqn"])
def test_networks_that_fit_are_not_refused(algorithm: Any) -> None:
    assert _problems(mf.Policy(algorithm, Net())) == []


@pytest.mark.parametrize("algorithm", [mf.PPO(), mf.DQN()], ids=["ppo", "dqn"])
def test_buffers_that_change_are_refused_as_nothing_saves_or_sends_them(algorithm: Any) -> None:
    for model, buffer in ((Batched(), "2.running_mean"), (Counting(), "0.minibatches")):
        (problem,) = _problems(mf.Policy(algorithm, model))
        assert "its network changes the buffer " in problem
        assert f"{buffer}, and buffers are neither saved nor sent to the workers; make it an nn.Parameter" in problem
    (problem,) = _problems(mf.Policy(algorithm, Batched(running=False)))
    assert "and cannot of one row, which is all that one environment has: ValueError: Expected more than 1" in problem


class Unregistered(nn.Module):
    """Layers in a list, of which torch knows nothing; one of them is not to learn."""

    def __init__(self, features: int, learns: bool) -> None:
        super().__init__()
        self.layers = [nn.Linear(features, 8).requires_grad_(learns)]
        self.last = nn.Linear(8, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            rows = torch.tanh(layer(rows))
        return torch.tanh(self.last(rows))


@dataclass(frozen=True)
class Listed:
    learns: bool = True

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        return Unregistered(obs_shape[0], self.learns), 8


@pytest.mark.parametrize("algorithm", [mf.PPO(), mf.DQN(), mf.SAC()], ids=["ppo", "dqn", "sac"])
def test_parameters_that_no_module_has_are_refused_as_they_would_never_learn(algorithm: Any) -> None:
    (problem,) = _problems(mf.Policy(algorithm, Listed()))
    assert "the network computes with an nn.Parameter [8" in problem
    assert (
        "that its module does not have, so that it would never learn, and not be saved; keep layers in nn.M" in problem
    )
    assert _problems(mf.Policy(algorithm, Listed(learns=False))) == []


@dataclass(frozen=True)
class Losing(mf.PPO):
    """PPO whose loss is changed."""

    name: ClassVar[str] = "losing"
    change: Any = None
    compile: Any = "auto"

    def losses(self, spaces: Spaces) -> Any:
        change = self.change

        class Loss(mf.PPOLoss):
            def __call__(self, *given: Any) -> Any:
                return change(super().__call__(*given))

        return Loss(mf.Coefficients())


@pytest.mark.parametrize("compiled", [False, "auto", True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda terms: terms.total, "the loss Loss must return marlflow.LossTerms(total, terms), not a "),
        (lambda terms: None, "the loss Loss must return marlflow.LossTerms(total, terms), not a NoneType"),
        (lambda terms: terms._replace(total=0.0), "must have a scalar tensor as its total, not a float"),
        (lambda terms: terms._replace(total=terms.total[None]), "must have a scalar tensor as its total, not a "),
        (lambda terms: terms._replace(terms={"grad_norm": 0.0}), "has a term 'grad_norm', as the learner has; rename"),
        (lambda terms: terms, None),
    ],
)
def test_what_a_loss_returns_is_looked_at(change: Any, message: str | None, compiled: Any) -> None:
    found = _problems(mf.Policy(Losing(change=change, compile=compiled)))
    assert [message in problem for problem in found] == [True] * bool(message)


@dataclass(frozen=True)
class Careless(mf.PPO):
    """PPO with other answers; `answers` by method."""

    name: ClassVar[str] = "careless"
    answers: Any = None

    def __getattribute__(self, name: str) -> Any:
        answers = object.__getattribute__(self, "__dict__").get("answers") or {}
        return answers[name] if name in answers else object.__getattribute__(self, name)


def _raises(*_: Any) -> Any:
    raise OSError("it is not there")


@pytest.mark.parametrize(
    ("answers", "messages"),
    [
        ({"validate": lambda *_: None}, []),
        ({"validate": _raises}, ["its validate() fails: OSError: it is not there"]),
        ({"plan": lambda *_: None}, ["its plan() returned a NoneType, and no Plan"]),
        ({"schedules": _raises}, ["its schedules() fails: OSError: it is not there"]),
        ({"schedules": lambda _: None}, ["its schedules() returned a NoneType, and no mapping of names to numbers"]),
        (
            {"schedules": lambda _: {"learning_rate": "fast", "epsilon": np.float32(0.5), "kappa": float("nan")}},
            ["its schedules() has learning_rate='fast', which is no number", "has kappa=nan, which is no number"],
        ),
    ],
)
def test_methods_of_an_algorithm_that_break_are_named(answers: Any, messages: list[str]) -> None:
    found = _problems(mf.Policy(Careless(answers=answers)))
    assert len(found) == len(messages)
    for problem, message in zip(found, messages, strict=True):
        assert problem.startswith("policy 'cart' (careless): ")
        assert message in problem


@dataclass(frozen=True)
class Failing(mf.Part):
    """A part of which one method raises."""

    method: str = "validate"

    def validate(self, *given: Any) -> Any:
        return _raises() if self.method == "validate" else ()

    def state(self) -> Any:
        return _raises() if self.method == "state" else None

    def extra_losses(self) -> Any:
        return None if self.method == "extra_losses" else {}


@pytest.mark.parametrize("method", ["validate", "state", "extra_losses"])
def test_methods_of_a_part_that_break_are_named(method: str) -> None:
    found = _problems(mf.Policy(mf.PPO(parts={"own": Failing(method)})))
    assert any("policy 'cart' (ppo) has a part 'own' (Failing) that fails: " in problem for problem in found)


@dataclass(frozen=True)
class Dropping:
    """A network that drops units while it is trained."""

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        return nn.Sequential(nn.Linear(obs_shape[0], 64), nn.Dropout(0.5)), 64


def test_actors_act_as_in_evaluation_and_learners_train() -> None:
    experiment = mf.Experiment(mf.Env(CartPoleTeam), {"cart": mf.Policy(mf.PPO(), Dropping())}, stop=mf.Stop(1_000))
    (learner,), (policy,) = (of.values() for of in (ready(experiment).spec.learners, ready(experiment).spec.policies))
    actor: Any = policy.actor()
    obs = np.ones((1, 4), np.float32)
    assert len({actor.outputs_of(obs).tobytes() for _ in range(20)}) == 1
    module = learner.learner().module
    assert len({module.actor.outputs(torch.from_numpy(obs), None)[0].detach().numpy().tobytes() for _ in range(20)}) > 1


def test_a_network_without_the_number_of_its_features_is_refused() -> None:
    (problem,) = _problems(mf.Policy(mf.PPO(), Alone()))
    assert (
        "Alone.build() returned a Linear; it returns a network and the number of its features, (network, F)" in problem
    )


def test_what_build_raises_keeps_its_own_lines_under_one_of_ours() -> None:
    (problem,) = _problems(mf.Policy(mf.PPO(), Unbuildable()))
    first, _, lines = problem.partition("\n")
    assert first == (
        "policy 'cart' (ppo): its network (Unbuildable) cannot be built: IndexError: tuple index out of range"
    )
    assert lines.count("File ") == 1
    assert "return nn.Linear(obs_shape[3], 8), 8" in lines


def test_what_build_raises_only_when_there_is_memory_to_write_to_is_told_too() -> None:
    (problem,) = _problems(mf.Policy(mf.PPO(), Late()))
    assert problem.startswith("policy 'cart' (ppo): what acts cannot be made: OSError: no weights\n")
    assert 'raise OSError("no weights")' in problem


def test_a_network_that_fails_for_another_reason_than_its_dtype_is_not_told_to_change_that() -> None:
    (problem,) = _problems(mf.Policy(mf.PPO(), Flat()), _board)
    assert "obs [N, 6, 7, 2] in int8, and cannot: " in problem


def test_what_plan_raises_keeps_its_own_lines_too() -> None:
    (problem,) = _problems(mf.Policy(With()))
    assert problem.startswith("policy 'cart' (with): its plan cannot be made: KeyError: 'stage'\n")
    assert 'raise KeyError("stage")' in problem


def test_a_run_is_refused_before_it_has_a_folder(tmp_path: Any) -> None:
    policies = {"cart": mf.Policy(With(stage=Signs()))}
    experiment = mf.Experiment(
        mf.Env(CartPoleTeam), policies, runtime=mf.RuntimeConfig("inline"), stop=mf.Stop(env_steps=1_000)
    )
    with pytest.raises(mf.ConfigInvalid, match="stage 'Signs' of its plan has no place"):
        mf.train(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def _as_a_users(algorithm: Any) -> Any:
    """An instance of a class of this module, which adds nothing to the algorithm's."""
    return type(f"Own{type(algorithm).__name__}", (type(algorithm),), {"__module__": __name__})()


LEARNING = [one for one in SHIPPED if isinstance(one, mf.LearningAlgorithm)]


@pytest.mark.parametrize("observation", [NUMBERS, PIXELS, PARTS, BOARD], ids=["numbers", "pixels", "parts", "board"])
@pytest.mark.parametrize("algorithm", LEARNING, ids=[one.name for one in LEARNING])
def test_plans_of_all_shipped_algorithms_hold(algorithm: Any, observation: Space[Any]) -> None:
    action: Space[Any] = Discrete(3) if "Discrete" in algorithm.capabilities.actions else Box(-1.0, 1.0, (2,))
    spaces = Spaces(observation, action, masked=isinstance(action, Discrete))
    models: list[Any] = [mf.MLP((8,)), mf.GRU(8), mf.LSTM(8)] if observation is not PIXELS else [SMALL_CNN]
    fitting = [model for model in models if not algorithm.validate(spaces, model)]
    for number, model in enumerate(fitting):
        own = _as_a_users(algorithm)
        policy = PolicySpec("own", own, model, spaces, seed=number)
        assert list(rehearsal_problems(_spec(policy, "own"))) == []


class WrongWidth:
    """A model that says it makes more features than it does."""

    def build(self, obs_shape: tuple[int, ...], generator: Any) -> Any:
        return nn.Linear(obs_shape[0], 3), 4


def test_of_archer_the_networks_alone_are_tried() -> None:
    """Rows made up from spaces say no utterances, and would be refused."""
    own = _as_a_users(mf.ArCHer())
    assert list(rehearsal_problems(_spec(PolicySpec("own", own, mf.MLP((8,)), CONVERSATION, seed=0)))) == []
    (problem,) = rehearsal_problems(_spec(PolicySpec("own", mf.ArCHer(), WrongWidth(), CONVERSATION, seed=0)))
    assert "is to make features [N, 4]" in problem


def _spec(policy: PolicySpec, replay: Literal["with_learner", "own"] = "with_learner") -> RunSpec:
    return RunSpec(
        {"own": policy},
        {"own": LearnerSpec("own", (policy,), policy.algorithm, policy.seed, mf.LearnerPlacement(replay=replay))},
        {"agent_0": "own"},
        SpacesOnlyEnv,
        num_envs=2,
        num_workers=1,
        fragment_env_steps=8,
        seed=0,
    )


class Unexpected(Exception):
    """What nobody should ask for was asked for."""


def test_policies_of_marlflows_own_parts_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(self: mf.PPO, *given: Any) -> Any:
        raise Unexpected

    monkeypatch.setattr(mf.PPO, "learner", asked)
    spaces = Spaces(NUMBERS, Discrete(3))
    assert list(rehearsal_problems(_spec(PolicySpec("own", mf.PPO(), mf.MLP(), spaces, seed=0)))) == []
    (problem,) = rehearsal_problems(_spec(PolicySpec("own", _as_a_users(mf.PPO()), mf.MLP(), spaces, seed=0)))
    assert problem.startswith("policy 'own' (ppo): its learner cannot be made: Unexpected: ")
