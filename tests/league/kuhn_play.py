"""Kuhn poker played by a rollout worker, with policies in the normal form of `games.kuhn`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from marlflow.batches.items import Weights
from marlflow.env.simulators import openspiel
from marlflow.policy.actor import Acted
from marlflow.sampling import RolloutWorker, Rule, SamplerConfig
from marlflow.sampling.protocol import EvaluationRequest, FrozenPolicy
from marlflow.sampling.receipts import Evaluated

UNIFORM = np.full(12, 0.5, np.float32)


def pure(strategy: int) -> np.ndarray:
    """The parameters of a policy that plays this pure strategy in both seats: probabilities to bet, [12]."""
    bits = [(strategy >> (5 - place)) & 1 for place in range(6)]
    return np.array(bits * 2, np.float32)


class TabularActor:
    """Bets with the probability of its situation, or if greedy, when that is above one half."""

    def __init__(self) -> None:
        self.chances = UNIFORM.copy()

    def act(self, obs: Any, action_mask: Any, memory: Any, mode: Any, generator: Any) -> Acted:
        # OpenSpiel's tensor: player [2], card [3], and for each of three moves whether it was a pass or a bet.
        player, card = obs[:, :2].argmax(axis=1), obs[:, 2:5].argmax(axis=1)
        is_second = np.where(player == 0, obs[:, 5:7].any(axis=1), obs[:, 6] > 0)
        chance = self.chances[6 * player + 2 * card + is_second]
        bet = chance > (0.5 if mode == "greedy" else generator.uniform())
        return Acted(bet.astype(np.int64), np.zeros(len(obs), np.float32), memory)

    def set_schedule(self, values: Mapping[str, float]) -> None:
        pass

    def flat(self) -> np.ndarray:
        return self.chances.copy()

    def load_flat(self, flat: np.ndarray) -> None:
        self.chances = flat.copy()


class KuhnWorkers:
    """One rollout worker with the policy `main`, and `frozen` versions of it by id; `calls` has the games of each."""

    def __init__(self, frozen: Mapping[str, np.ndarray]) -> None:
        config = SamplerConfig(lambda: openspiel.env("kuhn_poker"), [0], [Rule("*", "main")], seed=1)
        self.worker = RolloutWorker(config, {"main": TabularActor})
        self.frozen = {name: FrozenPolicy("main", Weights(0, flat)) for name, flat in frozen.items()}
        self.calls: list[int] = []

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        self.calls.append(len(request.episodes))
        return self.worker.evaluate(replace(request, frozen=self.frozen))
