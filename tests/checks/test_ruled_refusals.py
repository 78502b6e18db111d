"""Whatever rules, limits, managers, and references cannot do is one error before anything starts, with its remedy."""

from __future__ import annotations

import pytest

import marlflow as mf
from tests.config.composition import experiment_of
from tests.sentences import refusals

CLIFF = ("env=python", "env._target_=marlflow.env.games.cliff.parallel_env")
CLIFF_IN_TURNS = ("env=python", "env._target_=marlflow.env.games.cliff.env")
SIGN = ("env=python", "env._target_=marlflow.env.games.sign.parallel_env")
GRID = ("env=python", "env._target_=marlflow.env.games.gridworld.parallel_env")
BOX = "{_target_: gymnasium.spaces.Box, low: -1.0, high: 1.0, shape: [1]}"


def managed(*settings: str) -> tuple[str, ...]:
    return ("wrappers=managed", *(f"env.wrappers.managed.{setting}" for setting in settings))


def shielded(*settings: str) -> tuple[str, ...]:
    return ("wrappers=shield", *(f"env.wrappers.shield.{setting}" for setting in settings))


def tasked(transitions: str, also: str = "") -> tuple[str, ...]:
    automaton = (
        f"{{states: [a, b], initial: a, accepting: [[b]], {also}transitions: [{transitions}, {{from: b, to: b}}]}}"
    )
    labels = ("labels=marlflow.env.games.gridworld.labels", "sees=env")
    return ("wrappers=automaton", *(f"env.wrappers.automaton.{s}" for s in (*labels, f"automaton={automaton}")))


def car(algorithm: str, *settings: str) -> tuple[str, ...]:
    return ("env=toll", f"policy@policies.car={algorithm}", *settings)


OWN = "policies.car.algorithm"
LIMIT = "{_target_: marlflow.CostLimit, limit: .1}"
NEAR = "{_target_: marlflow.KLToReference, beta: .1}"
REFUSED = {
    # Two time scales
    "managers in turns": ((*CLIFF_IN_TURNS, *managed()), "it takes a Parallel environment, in which all agents act"),
    "no reward": ((*CLIFF, *managed("worker_share=0.0")), "worker_share=0 without intrinsic leaves workers without"),
    "no state": ((*CLIFF, *managed("manager_sees=state")), "no state_space; put wrappers=joint_state before it"),
    "forced goals": (
        (*CLIFF, *managed("manager_acts=every_env_step", f"options={BOX}")),
        "to continue is one more number, and options are Box(-1.0, 1.0, (1,), float32); set options to a number",
    ),
    "dqn for goals": (
        (*SIGN, *managed(f"options={BOX}", "manager=manager"), "policy@policies.manager=dqn"),
        "policy 'manager' (dqn) cannot act in Box(1,) of agent 'manager'; use sac, td3, ddpg or ppo",
    ),
    # One learner at two rates
    "no utterances": (car("archer"), "policy 'car' (archer) needs an observation that is a Dict with 'utterance'"),
    # Tokens
    "negative beta": (
        car("ppo", f"{OWN}.parts.near={NEAR}", f"{OWN}.parts.near.beta=-1"),
        "parts.near.beta must be at least 0, not -1",
    ),
    "reference elsewhere": (
        car("ppo", f"{OWN}.parts.near={NEAR}", "+policies.car.placement.stages={KLToReference: worker}"),
        "stage 'KLToReference' cannot run on the worker: the reference is with its learner",
    ),
    "no tokens": (car("ppo", "model@policies.car.model=transformer"), "a Transformer sees up to 16 tokens of one"),
    "many tokens": (
        (
            "env=token_signal",
            "env.length=17",
            "policy@policies.speaker=ppo",
            "model@policies.speaker.model=transformer",
        ),
        "MultiDiscrete([V] * T), not 18 of them; use MLP",
    ),
    # Limits on costs
    "costs in turns": (
        ("env=python", "env._target_=marlflow.env.games.toll.env", *car("ppo", f"{OWN}.parts.cost={LIMIT}")[1:]),
        "so that a cost would count several times; use the environment's parallel_env",
    ),
    "no batched costs": (
        (
            "env=cartpole_team",
            "env.batched=true",
            "policy@policies.cart=ppo",
            f"policies.cart.algorithm.parts.cost={LIMIT}",
        ),
        "has a batched version (env.batched=true) that gives no costs; set env.batched=auto",
    ),
    "costs of replicas": (car("ddppo", f"{OWN}.parts.cost={LIMIT}"), "use ppo, mappo or sac, or leave the part out"),
    "negative limit": (
        car("ppo", f"{OWN}.parts.cost={LIMIT}", f"{OWN}.parts.cost.limit=-1"),
        "cost.limit must be at least 0, not -1",
    ),
    "costs of others": (
        (
            *car(
                "sac", f"{OWN}.parts.cost={LIMIT}", "policies.car.learns_from=[car,other]", "policy@policies.other=ppo"
            ),
            "mapping=[{match: car_0, policy: car},{match: car_1, policy: other}]",
        ),
        "learns from rows of other policies, whose costs are not its own; set algorithm.parts.cost=null, or leave",
    ),
    # Shields
    "no shield": ((*CLIFF, *shielded()), "set safe, the import path of a function that says which actions are safe"),
    "masked torque": (
        ("env=pendulum_team", *shielded("safe=marlflow.env.games.cliff.stays_up")),
        "leave it out by agents=<pattern>, or correct joint actions by post",
    ),
    "least of bool": (
        (*CLIFF, *shielded("safe=marlflow.env.games.cliff.stays_up", "when_none=least")),
        "when_none=least compares risks, so safe must return float [4], not bool",
    ),
    "when none": (
        (*CLIFF, *shielded("safe=marlflow.env.games.cliff.stays_up", "when_none=some")),
        "when_none must be one of error, all, least, not 'some'",
    ),
    "joint in turns": (
        (*CLIFF_IN_TURNS, *shielded("post=marlflow.env.games.cliff.stays_up")),
        "post corrects joint actions, of Parallel environments; here agents take turns, so use safe",
    ),
    # Automata
    "two next states": (
        (*GRID, *tasked("{from: a, when: goal1, to: b}, {from: a, to: a}")),
        "state a leads to both a and b with goal1; each label needs exactly one next state",
    ),
    "no next state": ((*GRID, *tasked("{from: a, when: goal1, to: b}")), "state a leads nowhere without any label"),
    "unreachable": ((*GRID, *tasked("{from: a, to: a}")), "state b cannot be reached from state a"),
    "unknown guess": (
        (*GRID, *tasked("{from: a, to: a}", "epsilon: {a: [c]}, ")),
        "automaton.epsilon.a: there is no state 'c'; states are a, b",
    ),
    "no noop": (
        (*GRID, "env.num_agents=2", *tasked("{from: a, to: a}", "epsilon: {a: [b]}, ")),
        "noop is not set: while others act, the environment needs an action from agents that move by epsilon",
    ),
}


@pytest.mark.filterwarnings("ignore:The base environment:UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_one_error_before_anything_starts(name: str) -> None:
    words, told = REFUSED[name]
    (problem,) = refusals((mf.ConfigInvalid, mf.PlanInvalid), lambda: mf.plan(experiment_of(*words)))
    assert told in str(problem)


# Parts that an algorithm cannot have.
@pytest.mark.parametrize("algorithm", ["a3c", "sac", "dqn", "r2d2"])
def test_other_algorithms_have_no_reference_and_say_so(algorithm: str) -> None:
    model = ("model@policies.car.model=gru",) if algorithm == "r2d2" else ()
    words = car(algorithm, *model, f"{OWN}.parts.near={NEAR}")
    (problem,) = refusals((mf.ConfigInvalid, mf.PlanInvalid), lambda: mf.plan(experiment_of(*words)))
    if model:
        assert (
            problem == "policy 'car' (r2d2) cannot have a KLToReference: its reference has no memory; use another model"
        )
        return
    assert problem == (
        f"policy 'car' ({algorithm}) cannot have the part 'near' (KLToReference), whose plan has no point 'fresh' for "
        "its stage KLToReference; set parts.near=null, or have plan() call with_stages('fresh', ...), as PPO's does"
    )


@pytest.mark.parametrize("algorithm", ["a2c", "dqn", "recurrent_ppo", "appo"])
def test_other_algorithms_have_no_limit_and_say_so(algorithm: str) -> None:
    model = ("model@policies.car.model=gru",) if algorithm == "recurrent_ppo" else ()
    words = car(algorithm, *model, f"{OWN}.parts.cost={LIMIT}")
    (problem,) = refusals(mf.ConfigInvalid, lambda: mf.plan(experiment_of(*words)))
    assert problem == (
        f"policy 'car' ({algorithm}) cannot have a CostLimit: nothing of it weighs rewards and costs; use ppo, mappo "
        "or sac, or leave the part out"
    )


@pytest.mark.parametrize("prefix", ["", "+"])
def test_settings_of_before_are_answered_with_parts(prefix: str) -> None:
    (problem,) = refusals(mf.ConfigInvalid, lambda: experiment_of(*car("ppo", f"{prefix}{OWN}.kl_to_reference=.1")))
    assert problem == (
        "there is no policies.car.algorithm.kl_to_reference; it has become "
        "parts@policies.car.algorithm.parts.reference=kl_to_reference "
        "policies.car.algorithm.parts.reference.beta=<beta>"
    )
