"""Define the range of each number and text of a configuration, by its name.

A test requires an entry for every number. limits.py and the algorithms' `validate` check combinations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from marlflow.base.fault_kind import FaultKind

INFINITY = math.inf
# At a million steps a second, this many take 31 years.
_MOST_STEPS = 10**15
_LARGEST_FLOAT32 = 3.4e38


@dataclass(frozen=True, slots=True)
class Range:
    """Describe numbers from `low` to `high`; `above` and `below` exclude the bounds, `infinite` allows infinity.

    In errors, `shown` replaces `low`, and `unit` follows a bound.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    infinite: bool = False
    shown: str = ""
    unit: str = ""

    def problem(self, value: float) -> str | None:
        """Return what `value` should be, such as `must be at least 1`; None if it is in range."""
        # By comparisons alone, because whole numbers of hundreds of digits fit into no float.
        if not abs(value) < INFINITY and not (self.infinite and value == INFINITY):
            return "must be a number or inf" if self.infinite else f"must be {self}"
        if value < self.low or (self.above and value == self.low):
            return f"must be {'more than' if self.above else 'at least'} {self.shown or _written(self.low)}{self.unit}"
        if value > self.high or (self.below and value == self.high):
            return f"must be {'less than' if self.below else 'at most'} {_written(self.high)}{self.unit}"
        return None

    def __str__(self) -> str:
        if self.low <= -_LARGEST_FLOAT32:
            return "a finite number"
        low = f"{'more than' if self.above else 'at least'} {self.shown or _written(self.low)}"
        high = f"{'less than' if self.below else 'at most'} {_written(self.high)}"
        return f"a number, {low} and {high}{self.unit}"


def _written(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


_SHARE = Range(0.0, 1.0)
_SOME_SHARE = Range(0.0, 1.0, above=True)
_STEPS, _STEPS_OR_NONE = Range(1, _MOST_STEPS), Range(0, _MOST_STEPS)
_COUNT, _COUNT_OR_NONE = Range(1, 10**9), Range(0, 10**9)
_PROCESSES = Range(1, 10_000)
_WIDTH = Range(1, 2**31 - 1)
_PIXELS = Range(1, 2**16)
_FINITE = Range(-_LARGEST_FLOAT32, _LARGEST_FLOAT32)
_WEIGHT = Range(0.0, 1e6)
# Clipping thresholds: infinity disables the clipping.
_THRESHOLD = Range(0.0, INFINITY, above=True, infinite=True)

RANGES: Mapping[str, Range] = {
    # The run. A key `Class.name` takes precedence over the name alone.
    "seed": Range(0, 2**63 - 1),
    "num_envs": Range(1, 10**6),
    "step_timeout_s": Range(0.001, 1e6, unit=" seconds"),
    "num_workers": _PROCESSES,
    "workers": Range(0, 10_000),
    "fragment_env_steps": _STEPS,
    "queue_fragments": _COUNT,
    "env_steps": _STEPS,
    "time_s": Range(0.0, 1e9, above=True, unit=" seconds"),
    "grace_period_s": Range(0.0, 1e6, unit=" seconds"),
    "return_mean": _FINITE,
    **dict.fromkeys(("episodes", "final_episodes"), Range(0, 10**6)),
    "time_share": Range(0.0, 1.0, above=True),
    "every_env_steps": _STEPS,
    "keep": _COUNT,
    "replay_max_env_steps": _STEPS_OR_NONE,
    "passes": _COUNT,
    "checkpoint": _STEPS_OR_NONE,
    "agent_steps": _STEPS,
    # With less, Ray does not start.
    "object_store_bytes": Range(75 * 2**20, 2**50, shown="78643200 (75 MiB)"),
    **dict.fromkeys((kind.value for kind in FaultKind), _COUNT_OR_NONE),
    # Resources of processes.
    "num_learners": _PROCESSES,
    "num_cpus": Range(0.0, 1e6),
    "num_gpus": Range(0.0, 1e5),
    "shared_gpus": Range(0.0, 1e5, above=True),
    "resources": Range(0.0, 1e15),
    # Algorithms: sizes and intervals.
    **dict.fromkeys(("batch_agent_steps", "minibatch_agent_steps", "sequence_agent_steps"), _STEPS),
    **dict.fromkeys(("train_every_agent_steps", "store_agent_steps", "replay_agent_steps"), _STEPS),
    **dict.fromkeys(("target_every_updates", "publish_every_updates", "actor_every_updates"), _STEPS),
    **dict.fromkeys(("learning_starts_agent_steps", "burn_in_agent_steps"), _STEPS_OR_NONE),
    **dict.fromkeys(("batch_utterances", "replay_utterances", "critic_updates"), _STEPS),
    "warm_up_updates": _STEPS_OR_NONE,
    "end_token": Range(0, 2**31 - 1),
    **dict.fromkeys(("epochs", "actor_epochs", "microbatches", "n_step", "minibatch_tasks", "atoms"), Range(1, 10**6)),
    **dict.fromkeys(("queue_fragments", "draws_ahead"), _COUNT),
    "inner_steps": Range(1, 1_000),
    "replay_shards": _PROCESSES,
    "max_staleness": _COUNT_OR_NONE,
    # Algorithms: numbers. A schedule has to stay in the range all the time.
    **dict.fromkeys(("learning_rate", "actor_learning_rate"), _SHARE),
    "inner_learning_rate": Range(0.0, 10.0),
    **dict.fromkeys(
        ("discount", "gae_lambda", "trace_lambda", "td_lambda", "epsilon", "priority_alpha", "priority_beta"), _SHARE
    ),
    **dict.fromkeys(("target_entropy_share", "scale_rate", "priority_max_share"), _SHARE),
    **dict.fromkeys(("tau", "squash_epsilon"), _SOME_SHARE),
    **dict.fromkeys(("entropy_coefficient", "value_coefficient", "temperature", "beta"), _WEIGHT),
    "reward_from": _FINITE,
    "logit_penalty": _WEIGHT,
    **dict.fromkeys(("initial_temperature", "gumbel_temperature", "scale_start"), Range(0.0, 1e6, above=True)),
    **dict.fromkeys(("exploration_noise", "target_noise", "epsilon_ladder"), Range(0.0, 100.0)),
    **dict.fromkeys(("clip_range", "value_clip_range", "huber_delta", "max_grad_norm", "rho_max", "c_max"), _THRESHOLD),
    **dict.fromkeys(("target_noise_clip", "max_weight"), _THRESHOLD),
    **dict.fromkeys(("value_min", "value_max", "target_entropy"), _FINITE),
    # Leagues.
    **dict.fromkeys(("every_agent_steps", "timeout_agent_steps", "phase_agent_steps"), _STEPS),
    "nash_conv_every_env_steps": _STEPS,
    **dict.fromkeys(("min_games", "newest", "best", "window", "games", "patience"), _COUNT),
    **dict.fromkeys(("worker_members", "distinct_members"), _COUNT),
    "memory_bytes": Range(0, 2**60),
    "payoff_se": Range(0.0, 1e6, above=True),
    **dict.fromkeys(("live", "delta", "past"), _SHARE),
    # A probability is never above 1.
    "win_rate": Range(0.0, 1.0, below=True),
    **dict.fromkeys(("pfsp", "verify", "exploiter_past", "exploiter_weak", "strong", "exploited"), _SHARE),
    **dict.fromkeys(("self_play_weak", "reset_probability"), _SHARE),
    **dict.fromkeys(("decay", "eta"), _SOME_SHARE),
    **dict.fromkeys(("share", "prior_games"), Range(0.0, 1e6)),
    "power": Range(0.0, 100.0),
    "RatingSettings.beta": Range(0.0, 1e3, above=True),
    "RatingSettings.tau": Range(0.0, 1e3),
    # Parts of algorithms, whose names are a user's business elsewhere.
    "CostLimit.limit": Range(0.0, _LARGEST_FLOAT32),
    **dict.fromkeys(("CostLimit.multiplier_learning_rate", "CostLimit.initial_multiplier"), _WEIGHT),
    "KLToReference.beta": _WEIGHT,
    # Callbacks, whose names are a user's business elsewhere.
    "EarlyStop.reports": _COUNT,
    "EarlyStop.min_change": Range(0.0, _LARGEST_FLOAT32),
    # Optimizers, schedules and models.
    **dict.fromkeys(("beta_1", "beta_2"), Range(0.0, 1.0, below=True)),
    "eps": _SOME_SHARE,
    **dict.fromkeys(("weight_decay", "momentum", "dampening", "alpha"), _SHARE),
    **dict.fromkeys(("start", "end", "values"), _FINITE),
    "at_agent_steps": _STEPS,
    **dict.fromkeys(("hidden_sizes", "encoder_sizes", "hidden_size", "embed_size"), _WIDTH),
    "hypernet_layers": Range(1, 2),
    **dict.fromkeys(("num_layers", "num_heads"), Range(1, 1_000)),
    **dict.fromkeys(("channels", "kernel_sizes", "strides"), _PIXELS),
}

_LONGEST_NAME, _LONGEST_TEXT = 100, 4_096
_NO_FOLDER_NAME = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]|^[.\s]|[.\s]$|^$')


def name_problem(value: str) -> str | None:
    """Return what the name of a run or a policy should be; None if it can name a folder."""
    if _NO_FOLDER_NAME.search(value) or len(value.encode(errors="replace")) > _LONGEST_NAME:
        return (
            f"must be a name for a folder: 1 to {_LONGEST_NAME} letters, digits, _, - and others, but no / \\ : * ? "
            '" < > |, and neither dots nor spaces at its ends'
        )
    return None


def text_problem(value: str) -> str | None:
    """Return what a text should be; None if it is valid."""
    if not value or len(value) > _LONGEST_TEXT or re.search(r"[\x00-\x1f\x7f]", value):
        return f"must be a text of 1 to {_LONGEST_TEXT:,} characters in one line"
    return None


# Numbers that are allowed but unusual, with the note that a run logs.
REMARKS: Mapping[tuple[str, float], str] = {
    ("discount", 0.0): "only the reward of each decision itself counts, and nothing that comes after it",
    ("learning_rate", 0.0): "nothing is learned",
    ("actor_learning_rate", 0.0): "the actor learns nothing",
}
