"""What happens between two rounds, where rounds that were in flight arrive before it does."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from marlflow.driver.round_hooks import BetweenRounds
from marlflow.sampling.population import Reset
from marlflow.sampling.protocol import Drain, Request


class Run:
    """As much of a run as `BetweenRounds` asks: `reason` to stop, and a matchmaker that asks for `resets` once."""

    def __init__(self, resets: Sequence[Reset] = (), is_due: bool = False) -> None:
        self.reason: str | None = None
        self.resets, self.done, self.saved = list(resets), list[str](), 0
        self.hooks = BetweenRounds(
            published=dict,
            scheduler=self._of(by_policy=dict, now=dict),
            dealer=self._of(renew=lambda *_: [self.resets.pop() for _ in list(self.resets)]),
            metrics=self._of(agent_steps_sampled={}),
            time_limit=self._of(limit_training=lambda: None),
            stops=self._of(reason=lambda: self.reason, before_round=lambda: None),
            checkpoints=self._of(is_due=is_due, has_news=is_due, take=self._save, stopped=lambda: None),
            resets=self._of(reset_learner=lambda reset: self.done.append(reset.policy)),
            changes=self._of(take=lambda: False),
            notify=lambda text: None,
        )

    def _of(self, **attributes: Any) -> Any:
        return SimpleNamespace(**attributes)

    def _save(self) -> None:
        self.saved += 1


def test_a_stop_that_is_reached_while_a_checkpoint_waits_ends_the_run_with_it() -> None:
    run = Run(is_due=True)
    at_rest = run.hooks.before_round()
    assert isinstance(run.hooks.next_request(), Drain)
    run.reason = "stop.env_steps=80"
    assert at_rest is not None
    at_rest()
    assert run.saved == 1
    assert run.hooks.next_request() is None
    assert run.hooks.why_ended() == "stop.env_steps=80"


def test_a_reset_is_made_before_the_end_and_told_to_the_workers_of_a_resumed_run() -> None:
    run = Run(resets=[Reset("exploiter", to="initial")])
    at_rest = run.hooks.before_round()
    run.reason = "stop.env_steps=80"
    assert at_rest is not None
    at_rest()
    assert run.done == ["exploiter"]
    assert run.hooks.next_request() is None
    resumed = Run()
    resumed.hooks.load_state(run.hooks.state())
    assert resumed.hooks.before_round() is None
    requests = [resumed.hooks.next_request() for _ in range(2)]
    assert [one.reset for one in requests if isinstance(one, Request)] == [("exploiter",), ()]
    # Without a reset that waits, the state is what it was in earlier versions.
    assert resumed.hooks.state() == 2
