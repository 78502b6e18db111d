"""compile=true of a learner that cannot be compiled is one error before anything starts; auto of the same is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest

import marlflow as mf
from marlflow.base.errors import ConfigInvalid
from marlflow.cli.main import main
from tests.config.composition import experiment_of

CART = ("env=cartpole_team", "runtime=ray")
OWN = "policies.cart.algorithm"
APART = "gradients are computed by one stage, and applied by another"
CASES = {
    "a3c": ((*CART, "policy@policies.cart=a3c"), f"policy 'cart' (a3c) cannot have compile=true: {APART}"),
    "microbatches": (
        (*CART, "policy@policies.cart=a2c", f"{OWN}.microbatches=2"),
        f"policy 'cart' (a2c) cannot have compile=true: {APART}",
    ),
    "maml": (
        ("env=cartpole_family", "policy@policies.cart=maml"),
        "policy 'cart' (maml) cannot have compile=true: its loss takes gradient steps itself, and is differentiated "
        "through them",
    ),
    "bfloat16": (
        (*CART, "policy@policies.cart=ppo", "policies.cart.placement.precision=bfloat16"),
        "policy 'cart' (ppo) cannot have compile=true: updates are compiled in float32 only, and this learner is in "
        "bfloat16",
    ),
}
MACHINES = [{"CPU": 16}]


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_compiled_is_refused_with_true_and_accepted_with_auto(name: str) -> None:
    words, says = CASES[name]
    mf.plan(experiment_of(*words, f"{OWN}.compile=auto"), machines=MACHINES)
    with pytest.raises(ConfigInvalid) as caught:
        mf.plan(experiment_of(*words, f"{OWN}.compile=true"), machines=MACHINES)
    assert list(map(str, caught.value.problems)) == [f"{says}; set {OWN}.compile=auto"]


@pytest.mark.parametrize(
    "words",
    [
        (*CART, "policy@policies.cart=a2c"),
        (*CART, "policy@policies.cart=ddppo", "rollouts.num_workers=2"),
        (*CART, "policy@policies.cart=ppo", "placement.learners.num_learners=2"),
    ],
)
def test_what_can_be_compiled_is_accepted_with_true(words: Sequence[str]) -> None:
    mf.plan(experiment_of(*words, f"{OWN}.compile=true"), machines=MACHINES)


BATCHED = "env.batched=true"
ROLLOUTS = "rollouts.compiled=true"


@pytest.mark.parametrize(("env", "package"), [("lbf", "lbforaging"), ("rware", "rware")])
def test_rollouts_of_functional_environments_are_accepted_with_true(env: str, package: str) -> None:
    pytest.importorskip(package)
    mf.plan(experiment_of(f"env={env}", BATCHED, ROLLOUTS, "runtime=inline"), machines=MACHINES)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("env=cartpole_team",), r"cartpole_team\S* is no functional environment \("),
        (("env=lbf", "env.batched=false"), "env.batched=false steps environments one by one"),
    ],
)
def test_rollouts_of_other_environments_are_refused_with_true(words: Sequence[str], reason: str) -> None:
    if "env=lbf" in words:
        pytest.importorskip("lbforaging")
    with pytest.raises(ConfigInvalid, match=f"rollouts cannot be compiled: .*{reason}"):
        mf.plan(experiment_of(*words, ROLLOUTS, "runtime=inline"), machines=MACHINES)


@dataclass(frozen=True)
class Applying(mf.PPO):
    """PPO by a plan of one's own, with gradients that another stage applies."""

    name: ClassVar[str] = "applying"

    def plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replays: Sequence[mf.Replay] = ()) -> mf.Plan:
        gradients = (
            experience.gather(mf.Concat(agent_steps=64))
            .then(mf.Advantages(0.99, 0.95), at=learner)
            .then(mf.ComputeGradients(), at=learner)
        )
        return mf.Plan("applying", gradients.then(mf.ApplyGradients(), at=learner).then(mf.Publish(), at=learner))


def test_a_plan_of_a_users_own_is_refused_by_its_stages() -> None:
    experiment = mf.Experiment(
        mf.Env("cartpole_team"), default_policy=mf.Policy(Applying(compile=True)), runtime=mf.RuntimeConfig("inline")
    )
    with pytest.raises(ConfigInvalid) as caught:
        mf.train(experiment)
    says = f"policy 'cart' (applying) cannot have compile=true: {APART}; set default_policy.algorithm.compile=auto"
    assert list(map(str, caught.value.problems)) == [says]


@pytest.mark.parametrize("command", ["plan", "train"])
def test_commands_refuse_it_before_anything_starts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["env=cartpole_team", "policy@policies.cart=a3c", f"{OWN}.compile=true"]
    assert main([command, *words]) == 2
    assert f"policy 'cart' (a3c) cannot have compile=true: {APART}; set {OWN}.compile=auto" in capsys.readouterr().err
