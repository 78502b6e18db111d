"""Recurrent PPO: its plan, refusals, memories in acting and learning, and its loss by plain loops over rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from mpe2 import simple_spread_v3
from pettingzoo.classic import connect_four_v3

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.batches.sequences import Sequences, cut_sequences
from marlflow.env.games import cartpole_team
from marlflow.learner.advantages import advantages
from marlflow.learner.compute import ON_CPU
from marlflow.sampling.protocol import Request
from tests.algorithms.parts import DISCRETE, MASKED, NUM_ACTIONS, loss_and_gradient
from tests.sampling.workers import rollout_worker

DEFAULT = mf.RecurrentPPO()
SMALL_GRU, SMALL_LSTM = mf.GRU(6, (5,)), mf.LSTM(6, (5,))


def learner_of(
    config: mf.RecurrentPPO = DEFAULT, spaces: Spaces = DISCRETE, model: mf.GRU | mf.LSTM = SMALL_GRU
) -> mf.TorchLearner:
    """A network whose actor has larger logits than at the start, so that observations and memory change its actions."""
    learner = config.learner("hunter", {"hunter": mf.Member(spaces, model)}, 0, ON_CPU)
    with torch.no_grad():
        learner.module.actor.head.head.weight.mul_(1_000.0)
    learner.publish()
    return learner


# -- what acts is what learns ---------------------------------------------------------------------------------------

ENVIRONMENTS: dict[str, Callable[[], Any]] = {
    "agents that die": lambda: cartpole_team.parallel_env(velocities=False, max_cycles=30),
    "masks, in turns": connect_four_v3.env,
    "box actions": lambda: simple_spread_v3.parallel_env(continuous_actions=True, max_cycles=9),
}


@pytest.mark.parametrize("model", [SMALL_GRU, SMALL_LSTM], ids=["gru", "lstm"])
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_unrolled_probabilities_are_those_acted_by_and_values_those_estimated_by(
    name: str, model: mf.GRU | mf.LSTM
) -> None:
    batches, spaces = collected(ENVIRONMENTS[name], model)
    learner = learner_of(spaces=spaces, model=model)
    batch = mf.Batch.concat(batches)
    assert batch.segments["carried"].any() == (name == "masks, in turns")
    assert batch.columns["t_agent"][np.cumsum(batch.segments["length"]) - batch.segments["length"]].any()
    estimated = advantages(batch, learner, 0.99, 0.95)
    cut = cut_sequences(estimated, 4)
    assert cut.count > len(batch.segments["length"])
    columns = {key: torch.from_numpy(column) for key, column in cut.columns_for_losses().items()}
    with torch.no_grad():
        valid = columns["valid"]
        outputs, values = learner.module(columns["obs"], columns["memory"], valid)
        mask = columns["action_mask"][valid] if "action_mask" in columns else None
        logp, _ = learner.module.actor.head.log_prob_and_entropy(outputs[valid], columns["action"][valid], mask)
    np.testing.assert_allclose(logp.numpy(), batch.columns["behavior_logp"], atol=1e-5)
    np.testing.assert_allclose(values[valid].numpy(), estimated.columns["value"], atol=1e-5)
    assert np.ptp(batch.columns["behavior_logp"]) > 0.1


def test_a_segment_that_goes_on_is_valued_by_what_the_next_one_begins_with() -> None:
    """So the memory of a bootstrap is that of the row that comes after it."""
    batches, spaces = collected(ENVIRONMENTS["agents that die"], SMALL_GRU)
    learner = learner_of(spaces=spaces)
    first, second = (advantages(batch, learner, 0.5, 0.0) for batch in batches[:2])
    goes_on = ~first.segments["terminated"] & ~first.segments["truncated"]
    last = {name: column[first.ends()[goes_on]] for name, column in first.columns.items()}
    begins = np.cumsum(second.segments["length"]) - second.segments["length"]
    # The first of each lane: others belong to episodes that began later.
    values = zip(second.segments["lane"][::-1].tolist(), second.columns["value"][begins][::-1].tolist(), strict=True)
    by_lane = dict(values)
    followed_by = [by_lane[lane] for lane in first.segments["lane"][goes_on].tolist()]
    one_step = last["reward"] + 0.5 * np.array(followed_by) - last["value"]
    np.testing.assert_allclose(last["advantage"], one_step, atol=1e-6)
    assert len(followed_by) > 2


def collected(make_env: Callable[[], Any], model: mf.GRU | mf.LSTM) -> tuple[list[mf.Batch], Spaces]:
    """Fragments by the actor that `learner_of` publishes, with its observations and actions."""
    spaces = spaces_of(make_env)
    actor = mf.RecurrentPPO().actor(spaces, model, 7)
    worker = rollout_worker(make_env, [0, 1, 2], [mf.Rule("*", "all")], {"all": actor}, seed=1)
    weights = {"all": learner_of(spaces=spaces, model=model).published["hunter"]}
    batches = [worker.collect(11, Request(weights=weights))[1]["all"] for _ in range(5)]
    worker.close()
    return batches, spaces


def spaces_of(make_env: Callable[[], Any]) -> Spaces:
    env = make_env()
    agent = env.possible_agents[0]
    observation = env.observation_space(agent)
    masked = hasattr(observation, "spaces")
    return Spaces(observation["observation"] if masked else observation, env.action_space(agent), masked)


# -- the loss -------------------------------------------------------------------------------------------------------


def sequences(masked: bool = True, lengths: tuple[int, ...] = (5, 1, 3)) -> Sequences:
    rng, rows = np.random.default_rng(5), sum(lengths)
    action = rng.integers(0, NUM_ACTIONS, rows)
    mask = rng.random((rows, NUM_ACTIONS)) < 0.6
    mask[np.arange(rows), action] = True
    columns: dict[str, Array] = {
        "obs": rng.standard_normal((rows, 2)).astype(np.float32),
        "action": action,
        "reward": np.zeros(rows),
        "behavior_logp": np.log(rng.uniform(0.15, 0.6, rows)).astype(np.float32),
        "advantage": rng.standard_normal(rows).astype(np.float32),
        "value": rng.standard_normal(rows).astype(np.float32),
        "value_target": rng.standard_normal(rows).astype(np.float32),
        "version": np.zeros(rows, np.int64),
        "memory": rng.standard_normal((rows, 6)).astype(np.float32),
    }
    segments = {"length": np.array(lengths, np.int64), "carried": np.zeros(len(lengths), bool)}
    return cut_sequences(mf.EstimatedBatch(columns | ({"action_mask": mask} if masked else {}), segments), 2)


def naive_terms(config: mf.RecurrentPPO, module: Any, cut: Sequences) -> dict[str, float]:
    """Equation 9, sequence by sequence and step by step."""
    sums = {"policy": 0.0, "value": 0.0, "entropy": 0.0, "kl": 0.0}
    for number in range(cut.count):
        memory = torch.from_numpy(cut.memory[number : number + 1])
        for t in range(int(cut.valid[number].sum())):
            row = {name: column[number, t] for name, column in cut.columns.items()}
            with torch.no_grad():
                features, memory = module.actor.torso.step(torch.from_numpy(row["obs"][None]), memory)
                logits = module.actor.head.head(features)[0].double().numpy()
                value = float(module.critic_head(features))
            legal = [a for a in range(NUM_ACTIONS) if "action_mask" not in row or row["action_mask"][a]]
            total = sum(math.exp(logits[a]) for a in legal)
            logp = {a: logits[a] - math.log(total) for a in legal}
            log_ratio = logp[int(row["action"])] - float(row["behavior_logp"])
            ratio, advantage = math.exp(log_ratio), float(row["advantage"])
            clipped = min(max(ratio, 1 - config.clip_range), 1 + config.clip_range)
            sums["policy"] -= min(ratio * advantage, clipped * advantage)
            sums["value"] += 0.5 * (value - float(row["value_target"])) ** 2
            sums["entropy"] -= sum(math.exp(logp[a]) * logp[a] for a in legal)
            sums["kl"] += ratio - 1 - log_ratio
    return {name: total / cut.rows for name, total in sums.items()}


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_is_the_mean_over_all_rows_of_a_naive_loop(masked: bool) -> None:
    config, cut = mf.RecurrentPPO(), sequences(masked)
    learner = learner_of(config, MASKED if masked else DISCRETE)
    terms, gradient, _ = loss_and_gradient(learner, cut.columns_for_losses())
    assert terms == pytest.approx(naive_terms(config, learner.module, cut), abs=1e-5)
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).min(initial=1.0, where=gradient != 0.0) > 0.0


def test_what_stands_where_no_row_is_has_no_part_in_it() -> None:
    cut, learner = sequences(), learner_of(spaces=MASKED)
    terms, gradient, _ = loss_and_gradient(learner, cut.columns_for_losses())
    spoiled = {name: column.copy() for name, column in cut.columns.items()}
    for column in spoiled.values():
        column[~cut.valid] = 1 if column.dtype == bool else 2
    again, same, _ = loss_and_gradient(learner, replace(cut, columns=spoiled).columns_for_losses())
    assert again == terms
    np.testing.assert_allclose(same, gradient, atol=1e-7)


def test_gradients_of_shares_of_the_sequences_add_up() -> None:
    """So several processes learn what one would, though some have shorter sequences than others."""
    cut, learner = sequences(), learner_of(spaces=MASKED)
    columns = cut.columns_for_losses()
    terms, gradient, _ = loss_and_gradient(learner, columns)
    total, of_terms = np.zeros_like(gradient), dict.fromkeys(terms, 0.0)
    for share in (slice(0, 1), slice(1, 4), slice(4, cut.count)):
        part = {name: column[share] for name, column in columns.items()}
        weight = len(part["valid"]) / cut.count
        found, gradient_of_share, _ = loss_and_gradient(learner, part)
        total += weight * gradient_of_share
        of_terms = {name: of_terms[name] + weight * found[name] for name in terms}
    np.testing.assert_allclose(total, gradient, atol=1e-6)
    assert of_terms == pytest.approx(terms, abs=1e-6)


def test_an_update_uses_each_row_once_per_epoch_in_whole_sequences() -> None:
    learner, seen = learner_of(spaces=MASKED), []
    loss = learner.parameters.groups[0].loss

    def watching(module: Any, target: Any, minibatch: Any) -> Any:
        seen.append(minibatch["valid"].sum(1).tolist())
        return loss(module, target, minibatch)

    learner.parameters.groups[0].loss = watching  # type: ignore[assignment]
    cut = sequences(lengths=(7, 4, 1, 6))
    update = learner.update(cut, epochs=3, minibatch_agent_steps=5)
    assert (update.rows, update.updates) == (3 * 18, 9)
    lengths = sorted(cut.valid.sum(1).tolist())
    assert [sorted(n for part in seen[e : e + 3] for n in part) for e in (0, 3, 6)] == [lengths] * 3
    assert learner.update(sequences(lengths=()), epochs=3, minibatch_agent_steps=5).updates == 0
