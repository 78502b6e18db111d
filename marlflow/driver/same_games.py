"""Detects misleading metrics: identical evaluation episodes, and self-play returns that cancel out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from marlflow.config.experiment import Evaluation
from marlflow.driver.episode_metrics import game
from marlflow.sampling.receipts import EpisodeResult, Receipt

_WATCHED_EPISODES = 20
_TOLERANCE = 1e-6


def same_games(episodes: Sequence[EpisodeResult], settings: Evaluation) -> str | None:
    """Return a warning if evaluation episodes of the same players were all identical, else None."""
    games, matchups = {game(episode) for episode in episodes}, {(*episode.matchup.items(),) for episode in episodes}
    # Different seatings are different games, and one episode each cannot repeat anything.
    if len(games) > len(matchups) or len(episodes) == len(matchups):
        return None
    same = "the same game" if len(games) == 1 else f"{len(games)} games, one for each seating"
    return (
        f"the {len(episodes)} evaluation episodes were {same}, repeated: observations, actions and rewards are "
        f"identical; {_remedies(settings, len(matchups))}"
    )


def _remedies(settings: Evaluation, seatings: int) -> str:
    remedies = []
    if settings.mode == "greedy":
        remedies.append("evaluation.mode=as_learned draws actions from what was learned, where that is a distribution")
    if "random" not in (settings.opponents or ()):
        remedies.append("evaluation.opponents=[random] evaluates each policy against random ones")
    return ", ".join([*remedies, f"evaluation.episodes={seatings} plays no game twice"])


@dataclass(slots=True)
class _Returns:
    mean: float
    episodes: int = 0
    agents_differed: bool = False


class SelfPlay:
    """Detects policies whose mean return in zero-sum self-play never changes."""

    def __init__(self) -> None:
        self._watched: dict[str, _Returns] = {}
        self._done: set[str] = set()

    def check(self, receipts: Sequence[Receipt]) -> Iterator[str]:
        """Check a round's training episodes; yield one warning per policy."""
        texts = (self._check_episode(episode) for receipt in receipts for episode in receipt.episodes)
        return (text for text in texts if text is not None)

    def _check_episode(self, episode: EpisodeResult) -> str | None:
        names = set(episode.matchup.values())
        if names <= self._done:
            return None
        # A policy that meets another one can win or lose on average.
        if len(names) > 1:
            self._done |= names
        name = next(iter(names), "")
        if name in self._done or not episode.returns:
            return None
        returns = [*episode.returns.values()]
        mean = sum(returns) / len(returns)
        watched = self._watched.setdefault(name, _Returns(mean))
        tolerance = _TOLERANCE * (1.0 + max(map(abs, returns)))
        if abs(mean - watched.mean) > tolerance:
            self._done.add(name)
            return None
        watched.episodes += 1
        watched.agents_differed |= max(returns) - min(returns) > tolerance
        if watched.episodes < _WATCHED_EPISODES or not watched.agents_differed:
            return None
        self._done.add(name)
        return (
            f"policy {name} plays all agents, and what one of them wins the others lose: its mean return was "
            f"{watched.mean:.2f} in each of {_WATCHED_EPISODES} episodes, and will be, however well it plays; "
            "evaluation.opponents=[random] evaluates it against random ones"
        )
