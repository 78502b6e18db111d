"""A choice in the wrong place is answered with the group that it is in, or with the place of its group."""

from __future__ import annotations

import pytest

import marlflow as mf
from tests.config.composition import experiment_of
from tests.sentences import refusals

PARTS = "parts@policies.<id>.algorithm.parts.<name>"
CASES = {
    "parts@policies.cart.algorithm.parts.x=mlp": (
        "there is no parts 'mlp'; it is in group model: write model@policies.<id>.model=mlp"
    ),
    "wrappers=[padding,wandb]": "there is no wrappers 'wandb'; it is in group sinks: write sinks=wandb",
    "sinks=padding": "there is no sinks 'padding'; it is in group wrappers: write wrappers=padding",
    "league=population": "there is no league 'population'; it is in group callback: write callback=population",
    "callback=none": (
        "there is no callback 'none'; there are early_stop, population; a callback of your own needs "
        "--config-dir <folder>"
    ),
    "sinks=elsewhere": (
        "there is no sinks 'elsewhere'; there are films, mlflow, page, trackio, wandb; one of your own needs "
        "--config-dir <folder>"
    ),
    "learner=dqn": (
        "there is no learner 'dqn'; it is in groups algorithm and policy: write algorithm@policies.<id>.algorithm=dqn "
        "or policy@policies.<id>=dqn"
    ),
    "parts=pop_art": f"parts=pop_art does not say whose: write {PARTS}=pop_art",
    "parts.values=null": "parts.values does not say whose: write policies.<id>.algorithm.parts.values",
    "parts@policies.cart.parts.x=pop_art": f"there is no parts@policies.cart.parts.x to choose; write {PARTS}",
    "model@policies.cart=mlp": ("there is no model@policies.cart to choose; did you mean 'model@policies.cart.model'?"),
}


@pytest.mark.parametrize("override", CASES)
def test_a_choice_in_a_wrong_place_is_answered_with_its_own(override: str) -> None:
    found = refusals(mf.ConfigInvalid, experiment_of, "env=cartpole_team", "policy@policies.cart=ppo", override)
    assert found == [CASES[override]]
