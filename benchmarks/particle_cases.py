"""Cases of benchmarks/team_bars.py on simple_spread and simple_speaker_listener."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.team_case import Case, learner_of, learns_with

_FINAL = ("evaluation.final_episodes=400", "evaluation.every_env_steps=100000")
_SPREAD_PPO = {
    "discount": 0.95,
    "learning_rate": 1e-3,
    "minibatch_agent_steps": 1_000,
    "parts": "{values: {_target_: marlflow.PopArt}}",
}
# Between "nearest" and "assigned" of benchmarks/team_references.py.
_SPREAD_BAR = -16.0
_SPREAD_CASES = (
    Case(
        "spread_ppo",
        ("env=simple_spread", *learns_with("ppo", **_SPREAD_PPO), *_FINAL, "stop.env_steps=500000"),
        _SPREAD_BAR,
    ),
    *(
        Case(
            f"spread_{name}",
            (f"experiment=simple_spread_{name}", *_FINAL, "stop.env_steps=500000"),
            _SPREAD_BAR,
            beside="spread_ppo",
        )
        for name in ("mappo", "qmix")
    ),
)


def _speaker_listener(env: Sequence[str]) -> tuple[str, ...]:
    settings = {"discount": 0.95, "learning_rate": 1e-3, "batch_agent_steps": 2_000, "minibatch_agent_steps": 500}
    learns = (
        word
        for name in ("speaker", "listener")
        for word in learns_with("mappo", name, **settings, critic_sees="[state]")
    )
    return (*env, *learns, *_FINAL, "stop.env_steps=900000")


# The settings of simple_speaker_listener_maddpg, for learners of one agent: the same env steps in a batch, per update,
# before the first update, and in the replay.
_ALONE = {
    "batch_agent_steps": 256,
    "train_every_agent_steps": 16,
    "learning_starts_agent_steps": 2_000,
    "replay_agent_steps": 20_000,
    "learning_rate": 5e-3,
    "actor_learning_rate": 3e-3,
    "logit_penalty": 0.03,
}
_LISTENER_HAPPO = {"discount": 0.95, "learning_rate": 1e-3, "batch_agent_steps": 4_000, "minibatch_agent_steps": 1_000}
_LISTENER_CASES = (
    Case(
        "speaker_listener_maddpg",
        ("experiment=simple_speaker_listener_maddpg", *_FINAL, "stop.env_steps=240000"),
        -12.0,
        policy="listener",
    ),
    # MADDPG of one agent is DDPG, with the same exploration and gradient of Discrete actions.
    Case(
        "speaker_listener_ddpg",
        (
            "env=simple_speaker_listener",
            *(word for name in ("speaker", "listener") for word in learns_with("maddpg", name, **_ALONE)),
            *_FINAL,
            "stop.env_steps=240000",
        ),
        high=-16.0,
        policy="listener",
        is_control=True,
    ),
    Case(
        "speaker_listener_happo",
        (
            "env=simple_speaker_listener",
            *learner_of("happo", ("speaker", "listener"), **_LISTENER_HAPPO),
            *_FINAL,
            "stop.env_steps=300000",
        ),
        -12.0,
        policy="listener",
    ),
    Case("speaker_listener_mappo", _speaker_listener(["env=simple_speaker_listener"]), -12.0, policy="listener"),
    Case(
        "speaker_listener_mappo_deaf",
        _speaker_listener(["env=python", "env._target_=benchmarks.deaf_listener.parallel_env"]),
        high=-13.0,
        policy="listener",
        is_control=True,
    ),
)

PARTICLE_CASES = (*_SPREAD_CASES, *_LISTENER_CASES)
