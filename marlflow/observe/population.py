"""Population-based training (Jaderberg et al., 2017, arXiv:1711.09846): policies copy and perturb each other.

At an interval, the policies of a population with the lowest scores continue with the parameters of some with the
highest (exploit), and with settings near theirs (explore). This callback says who copies whom;
`driver.policy_changes` copies.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import numpy as np

from marlflow.base.files import replacing
from marlflow.base.random import key, named_seed
from marlflow.base.ranges import Range, Share, Steps, Threshold
from marlflow.observe.callback import Callback, ChangePolicy, MayChange, RoundEvent
from marlflow.observe.report import ChangeableSetting, Report, RunInfo, metric
from marlflow.observe.sinks import AppendedFile, as_line

POPULATION: Final = "population.jsonl"
"""Name of the file with what populations did, in a run's folder."""


@dataclass
class PopulationBasedTraining(Callback):
    """Has the worst of `policies` copy the best every `every_env_steps`, and perturbs the copied `settings`.

    The lowest `quantile` copies random policies of the highest: parameters, target, optimizer and statistics. A policy
    takes no part if it has no score, or no update since it last took part: policies that have not learned yet differ by
    chance alone. A policy whose score is NaN or infinite is the worst, and is not copied.
    """

    policies: Sequence[str]  #: [<id>, ...]: policies with the same algorithm, model and spaces
    #: <setting>: [low, high], or None for the range of the setting: copied and perturbed
    settings: Mapping[str, Sequence[float] | None] = field(default_factory=dict)
    every_env_steps: Steps = 50_000  #: env steps from one comparison to the next
    #: share of the policies that copies, and share that is copied; at least one of each
    quantile: Annotated[float, Range(0.0, 0.5, above=True)] = 0.25
    factors: Sequence[Threshold] = (0.8, 1.2)  #: a copied setting is multiplied by one of these
    resample: Share = 0.0  #: probability that it is drawn from within its bounds instead
    #: number of policies in reports that they are compared by, such as eval_return_mean; None: the mean return of all
    #: training episodes since the last comparison
    metric: str | None = None

    def __post_init__(self) -> None:
        self._env_steps = self._intervals = self._copies = 0
        # Sum and count of the returns since the last interval, or the last value of the metric.
        self._returns: dict[str, tuple[float, int]] = {}
        # The updates of each policy when it was last compared.
        self._judged: dict[str, int] = {}
        self._changed: dict[str, dict[str, float]] = {}
        self._scores: dict[str, float] = {}
        self._allowed: Mapping[str, Mapping[str, ChangeableSetting]] = {}
        self._seed = 0
        self._file: AppendedFile | None = None

    def problems(self) -> Iterator[str]:
        """Yield why these settings are no population."""
        if len(set(self.policies)) < 2:
            yield f"needs two policies or more, which copy each other, and has {', '.join(self.policies) or 'none'}"
        if repeated := sorted({policy for policy in self.policies if self.policies.count(policy) > 1}):
            yield f"names policy {repeated[0]!r} twice"
        if not self.factors:
            yield "has no factors; give at least one, such as 0.8 and 1.2"
        for name, bounds in self.settings.items():
            if bounds is not None and not (len(bounds) == 2 and bounds[0] < bounds[1]):
                yield f"has bounds of {name} that are not [low, high], but {list(bounds)}"
            elif bounds is None and self.resample:
                yield f"cannot draw {name}, which has no bounds; give it [low, high], or set resample=0"

    def metric_paths(self) -> list[str]:
        """Return where reports have `metric`, by policy; nothing if the returns of episodes are counted."""
        return [] if self.metric is None else [f"policies.{policy}.{self.metric}" for policy in self.policies]

    def may_change(self) -> MayChange:
        """Return the population and the settings."""
        return MayChange(self.policies, self.settings)

    def began(self, info: RunInfo) -> None:
        """Read what the settings are at the start, and open the file; raises OSError."""
        self.__post_init__()
        self._seed = int(info.configuration["seed"])
        self._allowed = {policy: info.policies[policy].settings for policy in self.policies}
        path = info.run_dir / POPULATION
        if info.resumed is not None and path.exists():
            # Text after the last newline is empty, or a line that a crash cut off.
            *lines, cut_off = path.read_text(encoding="utf-8").split("\n")
            kept = [line for line in lines if _env_steps(line) <= info.resumed.env_steps]
            if cut_off or len(kept) < len(lines):
                with replacing(path) as aside:
                    aside.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        self._file = AppendedFile(path)

    def played(self, round: RoundEvent) -> list[ChangePolicy]:
        """Count the round's episodes; at an interval, return what changes."""
        if self.metric is None:
            for policy in self.policies:
                returns = round.returns.get(policy, ())
                total, count = self._returns.get(policy, (0.0, 0))
                self._returns[policy] = total + sum(returns), count + len(returns)
        before, self._env_steps = self._env_steps, round.env_steps
        if round.env_steps // self.every_env_steps <= before // self.every_env_steps:
            return []
        self._scores = {
            policy: total / count
            for policy, (total, count) in self._returns.items()
            if count and round.updates.get(policy, 0) != self._judged.get(policy, 0)
        }
        self._intervals += 1
        # A single policy cannot be compared: its episodes and updates count for the next comparison.
        if len(self._scores) < 2:
            return []
        self._judged |= {policy: round.updates[policy] for policy in self._scores}
        self._returns = {}
        return self._changes(round.env_steps)

    def reported(self, record: Report) -> None:
        """Remember the metric; raises KeyError if policies have none of this name."""
        for policy, path in zip(self.policies, self.metric_paths(), strict=False):
            if (value := metric(record, path)) is not None:
                self._returns[policy] = float(value), 1

    def _changes(self, env_steps: int) -> list[ChangePolicy]:
        before = {policy: self._present(policy) for policy in self._scores}
        changes = {}
        for policy, source in self._copied():
            generator = self._generator("settings", policy)
            settings = {name: self._near(name, value, policy, generator) for name, value in before[source].items()}
            changes[policy] = ChangePolicy(policy, source, settings)
            self._changed[policy] = settings
        self._copies += len(changes)
        for policy, score in self._scores.items():
            change = changes.get(policy)
            line: dict[str, Any] = {"env_steps": env_steps, "policy": policy, "score": score, "source": None}
            line |= {"source_score": None, "settings": before[policy], "new_settings": None}
            if change is not None and change.source is not None:
                line |= {"source": change.source, "source_score": self._scores[change.source]}
                line |= {"new_settings": dict(change.settings)}
            self._write(line)
        return [*changes.values()]

    def _copied(self) -> list[tuple[str, str]]:
        """Return who copies whom: each of the lowest quantile a random one of the highest, if that is better."""
        rank = {policy: score if math.isfinite(score) else -math.inf for policy, score in self._scores.items()}
        # Sorted by score, in the order of `policies` where scores are equal.
        ordered = sorted((policy for policy in self.policies if policy in rank), key=rank.__getitem__)
        count = max(1, int(self.quantile * len(ordered)))
        if len(ordered) < 2:
            return []
        best = ordered[-count:]
        generator = self._generator("sources", self.policies[0])
        drawn = [best[int(generator.integers(count))] for _ in range(count)]
        return [(policy, source) for policy, source in zip(ordered, drawn, strict=False) if rank[source] > rank[policy]]

    def _generator(self, purpose: str, policy: str) -> np.random.Generator:
        # Counted by intervals, so that a resumed run draws the same numbers.
        return np.random.default_rng(key(named_seed(self._seed, purpose, policy), *b"population", self._intervals))

    def _near(self, name: str, value: float, policy: str, generator: np.random.Generator) -> float:
        """Return a value near that of a source, within the bounds."""
        allowed, bounds = self._allowed[policy][name], self.settings[name]
        low, high = (allowed.low, allowed.high) if bounds is None else (float(bounds[0]), float(bounds[1]))
        if bounds is not None and generator.random() < self.resample:
            # By its logarithm, as factors perturb.
            drawn = generator.uniform(*np.log((low, high))) if low > 0 else generator.uniform(low, high)
            value = math.exp(drawn) if low > 0 else drawn
        else:
            value *= self.factors[int(generator.integers(len(self.factors)))]
        return float(min(max(value, low), high))

    def _present(self, policy: str) -> dict[str, float]:
        first = {name: self._allowed[policy][name].value for name in self.settings}
        return {**first, **self._changed.get(policy, {})}

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        # A line that the disk refuses is written with the next one, or is an error at the end.
        with suppress(OSError):
            self._file.append(as_line(line, "line"))

    def metrics(self) -> Mapping[str, float | None]:
        """Return the copies so far, and the score and the present settings of each policy."""
        numbers: dict[str, float | None] = {"copies": self._copies}
        for policy in self.policies if self._allowed else ():
            of_policy = {"score": self._scores.get(policy), **self._present(policy)}
            numbers |= {f"{name}/{policy}".replace(".", "_"): value for name, value in of_policy.items()}
        return numbers

    def ended(self, result: object) -> None:
        """Close the file; raises OSError if some lines are lost."""
        if self._file is not None:
            self._file.close()

    def state(self) -> Mapping[str, Any]:
        """Return counts, scores, and the settings that were changed."""
        counts = {"env_steps": self._env_steps, "intervals": self._intervals, "copies": self._copies}
        returns = {policy: list(pair) for policy, pair in self._returns.items()}
        of_policies = {"returns": returns, "judged": self._judged, "changed": self._changed, "scores": self._scores}
        return {**counts, **of_policies}

    def load_state(self, state: Mapping[str, Any]) -> None:
        # Earlier versions saved when the next comparison was due.
        self._env_steps = state["env_steps"] if "env_steps" in state else state["due"] - 1
        self._intervals, self._copies = state["intervals"], state["copies"]
        self._returns = {policy: (total, count) for policy, (total, count) in state["returns"].items()}
        self._changed, self._scores = dict(state["changed"]), dict(state["scores"])
        # Earlier versions did not save it.
        self._judged = dict(state.get("judged", {}))


def _env_steps(line: str) -> float:
    # A crash may have damaged a line, which is left out then.
    try:
        return float(json.loads(line)["env_steps"])
    except (ValueError, TypeError, KeyError):
        return math.inf
