"""Parts of algorithms: every method is called, plans have their points, and what cannot be is refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.algorithms.part import kind_of
from marlflow.base.spaces import Spaces
from marlflow.config.renamed import with_parts
from marlflow.learner.loss_groups import as_groups
from tests.algorithms.parts import CONTINUOUS, make_learner, make_plan
from tests.learner.experience import ACTIONS, FEATURES, estimated
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run
from tests.sentences import wrong_with

FOUR = ("fresh", "estimated", "before_learning", "after_update")
TWO = ("before_learning", "after_update")
SEEN = Spaces(gym.Box(-1.0, 1.0, (FEATURES,)), gym.Discrete(ACTIONS))


def mark_fresh(batch: mf.Batch) -> mf.Batch:
    return batch


def mark_estimated(batch: mf.EstimatedBatch) -> mf.EstimatedBatch:
    return batch


def mark_before_learning(batch: Any) -> Any:
    return batch


def mark_after_update(update: mf.Update) -> mf.Update:
    return update


MARKS: dict[str, Any] = {
    "fresh": mark_fresh,
    "estimated": mark_estimated,
    "before_learning": mark_before_learning,
    "after_update": mark_after_update,
}


@dataclass(frozen=True)
class Marks(mf.Part):
    """A stage at each of these points."""

    points: tuple[str, ...]

    def stages(self, algorithm: Any) -> Any:
        return {point: [MARKS.get(point, mark_fresh)] for point in self.points}


@pytest.mark.parametrize(
    ("algorithm", "points"),
    [
        *((kind(), FOUR) for kind in (mf.PPO, mf.MAPPO, mf.DDPPO, mf.A2C, mf.IMPALA, mf.APPO)),
        (mf.A2C(microbatches=2), FOUR),
        *((kind(), TWO) for kind in (mf.DQN, mf.SAC)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_plans_have_the_points_that_the_page_says(algorithm: Any, points: tuple[str, ...]) -> None:
    if isinstance(algorithm, mf.MAPPO):
        algorithm = replace(algorithm, critic_sees=("obs",))
    drawn = str(make_plan(replace(algorithm, parts={"marks": Marks(points)})))
    plain = str(make_plan(algorithm))
    where = [drawn.index(MARKS[point].__name__) for point in points]
    assert where == sorted(where)
    assert where[-1] < drawn.index("Publish" if points is FOUR else "SyncTarget")
    for point in points:
        drawn = drawn.replace(f"{MARKS[point].__name__} → ", "")
    assert drawn.split("[")[-1] == plain.rsplit("[", maxsplit=1)[-1]


def test_box_and_recurrent_plans_have_them_too() -> None:
    for algorithm in (mf.TD3(), mf.DDPG()):
        drawn = str(make_plan(replace(algorithm, parts={"marks": Marks(TWO)}), spaces=CONTINUOUS))
        assert all(MARKS[point].__name__ in drawn for point in TWO)
    drawn = str(make_plan(mf.RecurrentPPO(parts={"marks": Marks(FOUR)}), model=mf.GRU(6)))
    assert all(MARKS[point].__name__ in drawn for point in FOUR)


# -- methods ----------------------------------------------------------------------------------------------------------


class Counted(mf.PartState):
    name = "counted"
    value = np.zeros(1)

    def begin(self, module: Any) -> None:
        assert module.bias_of_everything.shape == (1,)

    def restarted(self, start: Any) -> Any:
        return np.concatenate([start])


class OwnLoss:
    def __init__(self) -> None:
        self.scale = 1.0

    def set_schedule(self, values: Any) -> None:
        self.scale = values.get("Everything.scale", self.scale)

    def __call__(self, module: Any, target_module: Any, minibatch: Any) -> mf.LossTerms:
        error = (module.bias_of_everything - self.scale).square().mean()
        return mf.LossTerms(error, {"own": error.detach()})


@dataclass(frozen=True)
class Everything(mf.Part):
    """Every method of a part."""

    scale: mf.ScheduledFloat = 1.0
    fixed: float = 0.0

    def validate(self, algorithm: Any, spaces: Any, model: Any) -> Any:
        if self.fixed < 0.0:
            yield mf.Problem("cannot have a negative Everything", algorithm.name)

    def extend(self, network: Any, algorithm: Any, members: Any, seed: int) -> None:
        network.bias_of_everything = torch.nn.Parameter(torch.full((1,), float(seed)))

    def losses(self, groups: Any, algorithm: Any, members: Any) -> Any:
        return mf.LossGroup("own", lambda module: [module.bias_of_everything], OwnLoss(), 0.125).beside(groups)

    def extra_losses(self) -> Any:
        return {
            "shown": mf.ExtraLoss(lambda module, rows: 7.0 * rows["seen"].mean(), coefficient=None),
            "added": mf.ExtraLoss(lambda module, rows: module.actor(rows["obs"]).square().mean(), coefficient=0.5),
        }

    def state(self) -> Counted:
        return Counted()

    def stages(self, algorithm: Any) -> Any:
        return {"fresh": [self.see]}

    def see(self, batch: mf.Batch, learner: Any) -> mf.Batch:
        counted = learner.part_state("counted")
        counted.value = counted.value + 1.0
        counted.terms = {"counted": float(counted.value[0])}
        return batch.with_columns(seen=np.full(batch.rows, self.now("scale", learner), np.float32))


class Derived(Everything):
    """A subclass, whose overrides are called and whose settings are scheduled as its base's are."""

    def see(self, batch: mf.Batch, learner: Any) -> mf.Batch:
        return super().see(batch.with_columns(reward=batch["reward"] + 1.0), learner)


class Clashing(Everything):
    """Its state reports a term under the name of a loss term."""

    def see(self, batch: mf.Batch, learner: Any) -> mf.Batch:
        seen = super().see(batch, learner)
        learner.part_state("counted").terms = {"policy": 1.0}
        return seen


def test_a_term_of_a_state_replaces_no_term_of_a_loss(tmp_path: Any) -> None:
    problem = "the state 'counted' of a part reports the term 'policy', as another of its learner does"
    with pytest.raises(mf.MarlflowError, match=problem):
        mf.train(run(replace(SMALL_PPO, parts={"all": Clashing()})), tmp_path)


def run(algorithm: Any, **changes: Any) -> mf.Experiment:
    return small_run(policies={"cart": mf.Policy(algorithm, SMALL)}, mapping=None, **changes)


@pytest.mark.parametrize("kind", [Everything, Derived])
def test_each_method_is_called_in_a_run(kind: type[Everything], tmp_path: Any) -> None:
    part = kind(mf.Linear(3.0, 0.0, 10**9))
    assert kind_of(part) == "Everything"
    experiment = run(replace(SMALL_PPO, parts={"all": part, "none": None}))
    metrics = mf.train(experiment, tmp_path).metrics["learners"]["cart"]
    assert metrics["loss"]["shown"] == pytest.approx(21.0, rel=1e-3)
    assert metrics["loss"]["counted"] >= 1.0
    assert {"own", "added", "policy"} <= metrics["loss"].keys()
    # Its own learning rate, and a schedule that reaches the loss: it moves toward 3.
    assert metrics["loss"]["own"] != 0.0
    assert wrong_with(run(replace(SMALL_PPO, parts={"all": kind(fixed=-1.0)}))) == [
        "policy 'cart' (ppo) cannot have a negative Everything"
    ]


def test_its_parameters_are_trained_and_saved_and_its_state_is_restored_and_reset() -> None:
    algorithm = mf.PPO(parts={"all": Everything(2.0)})
    learner, other = make_learner(algorithm, SEEN, seed=5), make_learner(algorithm, SEEN, seed=6)
    assert [group.name for group in learner.parameters.groups] == ["rest", "own"]
    batch = Everything().see(estimated(11, 0), learner)
    before = learner.module.bias_of_everything.item()
    report = learner.update(mf.EstimatedBatch(batch.columns, batch.segments))
    assert report.loss["counted"] == 1.0
    assert learner.module.bias_of_everything.item() == pytest.approx(before - 0.125, abs=1e-3)
    other.load_state(learner.state())
    assert other.part_state("counted").value.tolist() == [1.0]
    assert other.module.bias_of_everything.item() == learner.module.bias_of_everything.item()
    other.reset(make_learner(algorithm, SEEN, seed=7))
    assert other.part_state("counted").value.tolist() == [0.0]
    # The first value is one array of the class, and each learner has its own.
    other.part_state("counted").value += 1.0
    assert make_learner(algorithm, SEEN, seed=8).part_state("counted").value.tolist() == [0.0]
    with pytest.raises(TypeError, match="'hunter' was made without a counted"):
        make_learner(mf.PPO()).part_state("counted")


class Tagged:
    """A class of one's own that is no part."""


class Kept(mf.PartState):
    name = "counted"
    value = np.zeros(1)


class One(Tagged, mf.Part):
    def state(self) -> Kept:
        return Kept()

    def stages(self, algorithm: Any) -> Any:
        return {"fresh": [self.look], "estimated": [self.look, lambda batch: batch, lambda batch: batch]}

    def look(self, batch: mf.Batch) -> mf.Batch:
        return batch


class Other(Tagged, mf.Part):
    def stages(self, algorithm: Any) -> Any:
        return {"fresh": [self.look]}

    def look(self, batch: mf.Batch) -> mf.Batch:
        return batch


class Same(mf.Part):
    def state(self) -> Kept:
        return Kept()


class NamedTarget(mf.Part):
    def state(self) -> Any:
        state = Kept()
        state.name = "target"
        return state


def test_stages_of_one_name_are_told_apart_and_each_is_in_the_plan() -> None:
    plan = make_plan(mf.PPO(parts={"one": One(), "other": Other()}))
    names = [stage.name for stage in plan.stages() if stage.added_by]
    assert names == [
        "look",
        "look (other, fresh)",
        "look (one, estimated)",
        "<lambda>",
        "<lambda> (one, estimated)",
    ]
    plan.check()


def test_a_state_may_have_the_name_of_something_that_the_learner_saves() -> None:
    learner, other = (make_learner(mf.DQN(parts={"own": NamedTarget()}), seed=seed) for seed in (1, 2))
    learner.part_state("target").value = np.full(1, 5.0)
    other.load_state(learner.state())
    assert other.part_state("target").value.tolist() == [5.0]
    first, second = (one.parameters.target_flat.vector for one in (learner, other))  # type: ignore[union-attr]
    assert torch.equal(first, second)


def test_learners_on_the_workers_keep_no_state_that_changes() -> None:
    told = [str(problem) for problem in mf.DDPPO(parts={"same": Same()}).validate(SEEN, SMALL)]
    assert any("cannot keep the state 'counted' of the part 'same': it learns on the workers" in one for one in told)
    with_reference = mf.DDPPO(parts={"near": mf.KLToReference(0.5)})
    assert list(with_reference.validate(SEEN, SMALL)) == list(mf.DDPPO().validate(SEEN, SMALL))


class Misspelled(mf.Part):
    def extra_loss(self) -> Any:
        raise AssertionError("nothing calls it")


def test_a_part_that_nothing_would_call_is_refused() -> None:
    (told,) = mf.PPO(parts={"own": Misspelled()}).validate(SEEN, SMALL)
    assert str(told) == (
        "ppo has a part 'own' without effect: Misspelled overrides no method of marlflow.Part, so nothing would call "
        "it; did you mean 'extra_losses'?"
    )


def test_groups_of_several_parts_share_no_parameter_and_leave_out_none() -> None:
    for names in (("all", "cost"), ("cost", "all")):
        every = {"all": Everything(), "cost": mf.CostLimit(1.0)}
        learner = make_learner(mf.PPO(parts={name: every[name] for name in names}))
        spans = [group.span for group in learner.parameters.groups]
        assert [group.name for group in learner.parameters.groups][1:] == [
            {"all": "own", "cost": "cost_critic"}[name] for name in names
        ]
        taken = sorted(index for span in spans for index in range(span.start, span.stop))
        assert taken == list(range(len(learner.parameters.flat.vector)))
    groups = make_learner(mf.SAC(parts={"all": Everything()})).parameters.groups
    assert [group.name for group in groups] == ["critics", "actor", "temperature", "own"]


@pytest.mark.parametrize("kind", [mf.PPO, mf.SAC])
def test_a_loss_of_the_users_own_is_called_beside_a_part(kind: Any) -> None:
    calls: list[str] = []

    class Own(kind):  # type: ignore[misc]
        def losses(self, spaces: Any) -> Any:
            groups = as_groups(super().losses(spaces))
            for group in groups:
                loss = type(group.loss)

                def own(self: Any, *given: Any, name: str = group.name, loss: Any = loss) -> Any:
                    calls.append(name)
                    return loss.__call__(self, *given)

                group.loss.__class__ = type("Own", (loss,), {"__call__": own})
            return groups

    learner = make_learner(Own(parts={"cost": mf.CostLimit(1.0)}))
    for group in learner.parameters.groups:
        with suppress(KeyError):
            group.loss(learner.module, learner.parameters.target_module, {})
    assert calls == (["all"] if kind is mf.PPO else ["critics", "actor", "temperature"])


def test_a_part_without_methods_changes_nothing() -> None:
    one, other = (make_learner(mf.PPO(parts=parts), SEEN) for parts in ({}, {"none": mf.Part()}))
    reports = [learner.update(estimated(11, 0), 2, 4).loss for learner in (one, other)]
    assert reports[0] == reports[1]
    assert one.state().keys() == other.state().keys()


def test_updates_are_compiled_with_parts_as_without() -> None:
    losses = {}
    for compiled in (True, False):
        learner = make_learner(mf.PPO(compile=compiled, parts={"all": Everything(2.0)}), SEEN)
        learner.set_schedule({"Everything.scale": 3.0})
        batch = Everything().see(estimated(11, 0), learner)
        losses[compiled] = [
            learner.update(mf.EstimatedBatch(batch.columns, batch.segments), 1, 4).loss for _ in range(3)
        ]
    for one, other in zip(*losses.values(), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)


# -- what cannot be ---------------------------------------------------------------------------------------------------


class Dropping(mf.PPO):
    """A plan of its own, which calls no part."""

    def plan(self, experience: Any, learner: Any, replays: Any) -> mf.Plan:
        rows = experience.gather(mf.Concat(agent_steps=self.batch_agent_steps)).then(mf.DropStale(0), at=learner)
        learned = rows.then(mf.Advantages(0.9, 0.9), at=learner).then(mf.Learn(), at=learner)
        return mf.Plan("dropping", output=learned.then(mf.Publish(), at=learner), waits_for_rounds=True)


PARTS = "cannot have the part 'marks' (Marks),"
REFUSED = {
    "no such point in the plan": (SMALL_DQN, {"marks": Marks(("fresh",))}, f"{PARTS} whose plan has no point 'fresh'"),
    "a plan that calls no part": (
        Dropping(batch_agent_steps=256),
        {"marks": Marks(("after_update",))},
        f"{PARTS} whose plan has no point 'after_update' for its stage mark_after_update; set parts.marks=null",
    ),
    "a misspelt point": (SMALL_PPO, {"marks": Marks(("fersh",))}, f"{PARTS} and 'fersh' is no point of a plan"),
    "two of a kind": (
        SMALL_PPO,
        {"one": Everything(), "other": Derived()},
        "has two parts of the kind Everything, 'one' and 'other'; set parts.other=null",
    ),
    "two states of a name": (
        SMALL_PPO,
        {"one": Same(), "other": One()},
        "has two states named 'counted', of the parts 'one' and 'other'; rename one of them",
    ),
    "a part of another name at a point that the plan lacks": (
        SMALL_DQN,
        {"one": Marks(("before_learning",)), "other": Other()},
        "cannot have the part 'other' (Other), whose plan has no point 'fresh'",
    ),
    "a term of another": (
        replace(SMALL_PPO, extra_losses={"added": lambda module, rows: module.actor(rows["obs"]).sum()}),
        {"all": Everything()},
        "has two terms 'added', of parts.all and of extra_losses; rename one of them",
    ),
    "a schedule where none may be": (
        SMALL_PPO,
        {"all": Everything(fixed=mf.Linear(0.0, 1.0, 5))},  # type: ignore[arg-type]
        "policies.cart.algorithm.parts.all.fixed must be a number",
    ),
    "no unit of rewards": (
        SMALL_PPO,
        {"rewards": mf.RewardUnit()},
        "cannot have a RewardUnit: its loss has no unit of",
    ),
    "no critic": (SMALL_DQN, {"values": mf.PopArt()}, "cannot have a PopArt: it has no critic of states"),
    "no part": (SMALL_PPO, {"all": 3}, "policies.cart.algorithm.parts.all must be Part or null, not 3"),
    "a list": (SMALL_PPO, [Everything()], "policies.cart.algorithm.parts must be a mapping {...}, not"),
    "out of range": (SMALL_PPO, {"near": mf.KLToReference(-1.0)}, "parts.near.beta must be at least 0, not -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_one_sentence_before_the_run(name: str) -> None:
    algorithm, parts, told = REFUSED[name]
    with pytest.raises((mf.ConfigInvalid, mf.PlanInvalid)) as refused:
        mf.plan(run(replace(algorithm, parts=parts)))
    (problem,) = refused.value.problems
    assert told in problem


# -- records of before ------------------------------------------------------------------------------------------------


def test_settings_that_have_become_parts_are_read_as_parts() -> None:
    of_before = {"_target_": "marlflow.PPO", "cost_limit": 0.5, "initial_multiplier": 1.0, "kl_to_reference": 0.25}
    assert with_parts({"model": 1, "algorithm": {**of_before, "multiplier_learning_rate": 0.125, "epochs": 3}}) == {
        "model": 1,
        "algorithm": {
            "_target_": "marlflow.PPO",
            "epochs": 3,
            "parts": {
                "reference": {"_target_": "marlflow.KLToReference", "beta": 0.25},
                "cost": {
                    "_target_": "marlflow.CostLimit",
                    "limit": 0.5,
                    "multiplier_learning_rate": 0.125,
                    "initial_multiplier": 1.0,
                },
            },
        },
    }
    unset = {"algorithm": {"_target_": "marlflow.PPO", "cost_limit": None, "kl_to_reference": None}}
    assert with_parts(unset) == {"algorithm": {"_target_": "marlflow.PPO", "parts": {}}}
    assert with_parts({"algorithm": {"epochs": 3}}) == {"algorithm": {"epochs": 3}}


@pytest.mark.parametrize(("normalizes", "values"), [(True, {"_target_": "marlflow.PopArt"}), (False, None)])
def test_normalization_of_values_is_read_as_a_part_and_other_parts_stay(normalizes: bool, values: Any) -> None:
    others = {"cost": {"_target_": "marlflow.CostLimit", "limit": 0.5}}
    target = {"_target_": "marlflow.algorithms.ppo.PPO"}
    for key in ("normalize_values", "normalise_returns"):
        read = with_parts({"algorithm": {**target, key: normalizes, "parts": others}})
        assert read == {"algorithm": {**target, "parts": {"values": values, **others}}}
        assert list(read["algorithm"]["parts"]) == ["values", "cost"]
    of_team = with_parts({"algorithm": {"_target_": "marlflow.VDN", "normalize_rewards": normalizes}})
    assert of_team["algorithm"]["parts"] == ({"rewards": {"_target_": "marlflow.RewardUnit"}} if normalizes else {})


def test_a_setting_of_a_users_own_algorithm_keeps_its_name() -> None:
    own = {"algorithm": {"_target_": "theirs.Mine", "normalize_values": 0.25}}
    assert with_parts(own) == own


# -- critics ----------------------------------------------------------------------------------------------------------


class Tenfold(torch.nn.Module):
    """Outputs are tenths of values."""

    variance = 100.0

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return 10.0 * outputs


class InTenths(mf.Part):
    """A part of the user's own, with the means of PopArt."""

    def change_critic(self, critic: mf.ValueCritic) -> None:
        critic.returns = Tenfold()


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [
        *((kind(), SMALL) for kind in (mf.PPO, mf.A2C, mf.IMPALA, mf.APPO, mf.MARWIL, mf.HAPPO)),
        (mf.PPO(shared_torso=True), SMALL),
        (mf.RecurrentPPO(), mf.GRU(6)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_part_of_the_users_own_changes_the_unit_of_values(algorithm: Any, model: Any) -> None:
    if isinstance(algorithm, mf.HAPPO):
        algorithm = replace(algorithm, critic_sees=("obs",), parts={"values": None})
    changed = replace(algorithm, parts={**algorithm.parts, "tenths": InTenths()})
    plain, tenths = (make_learner(one, SEEN, model=model).module for one in (algorithm, changed))
    obs = torch.from_numpy(estimated(11, 0).columns["obs"])
    memory = () if model is SMALL else (torch.zeros(11, 6),)
    torch.testing.assert_close(tenths.critic(obs, *memory), 10.0 * plain.critic(obs, *memory))
    assert float(tenths.value_error(torch.tensor(300.0))) == 3.0


@pytest.mark.parametrize("names", [("values", "cost"), ("cost", "values")])
def test_critics_of_other_parts_are_changed_in_any_order(names: tuple[str, str]) -> None:
    parts = {"values": mf.PopArt(), "cost": mf.CostLimit(1.0)}
    module = make_learner(mf.PPO(parts={name: parts[name] for name in names})).module
    assert module.returns is not None
    assert module.cost_critic.returns is not None


def test_parts_add_to_those_of_the_class_and_none_takes_one_away() -> None:
    limit = mf.CostLimit(1.0)
    assert mf.MAPPO().used_parts == {"values": mf.PopArt()}
    assert mf.MAPPO(parts={"cost": limit}).used_parts == {"values": mf.PopArt(), "cost": limit}
    assert mf.MAPPO(parts={"values": None, "cost": limit}).used_parts == {"cost": limit}
    assert mf.PPO().used_parts == {}


class WithoutCritic(mf.PPO):
    def network(self, spaces: Any, model: Any, seed: int) -> Any:
        network = torch.nn.Module()
        network.actor = mf.PPO().actor(spaces, model, seed)  # type: ignore[assignment]
        return network


def test_a_critic_that_is_no_value_critic_is_an_error() -> None:
    with pytest.raises(TypeError, match="Module has no ValueCritic, whose values PopArt normalizes"):
        make_learner(WithoutCritic(parts={"values": mf.PopArt()}))
