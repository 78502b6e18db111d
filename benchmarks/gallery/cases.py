"""The experiments of the gallery, in the order in which they are trained, and those without a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SEEDS = (10, 11, 12)
"""No setting was chosen on them."""
EPISODES, GAMES = 100, 400
"""Of the final policies together, and of each against random opponents."""
FOLDER = Path("runs/gallery")
"""Of the runs; a run that is complete is not repeated."""
_ROOT = Path(__file__).resolve().parents[2]
PAGES, CONF = _ROOT / "docs" / "gallery", _ROOT / "conf" / "experiment"


@dataclass(frozen=True)
class GalleryCase:
    """An experiment of `conf/experiment`, with `overrides` if it is changed, whose reason is `why`."""

    experiment: str
    overrides: Sequence[str] = ()
    why: str = ""
    has_opponents: bool = False
    """Whether policies are opponents, who are also measured against random ones; a league always is."""
    members: Sequence[str] = ()
    """Whom the run is for, if not for all policies that learn; they are measured against random opponents."""
    film_policy: str | None = None
    """The policy that plays all agents in the film; None: as in training, of a league its first policy."""

    def words(self, seed: int) -> list[str]:
        """Return the words after `marlflow train`."""
        return [f"experiment={self.experiment}", *self.overrides, f"seed={seed}", "runtime=inline"]


_NASH_CONV = "NashConv is computed during the run, which changes nothing of what is learned."
_SHORTER = (
    "The run is shorter than the experiment's own `stop.env_steps`, 500,000; it may not have learned all that it can."
)

_ALL = (
    GalleryCase("cartpole_team_ppo_dqn"),
    GalleryCase("cartpole_team_ppo"),
    GalleryCase("cartpole_team_dqn"),
    GalleryCase("pendulum_team_sac"),
    GalleryCase("simple_spread_mappo", ("stop.env_steps=200000",), _SHORTER),
    GalleryCase("cartpole_team_a2c"),
    GalleryCase("cartpole_team_impala"),
    GalleryCase("cartpole_team_appo"),
    GalleryCase("cartpole_team_ddppo"),
    GalleryCase("cartpole_team_sac"),
    GalleryCase("pendulum_team_td3"),
    GalleryCase("pendulum_team_ddpg"),
    GalleryCase("cartpole_family_maml"),
    GalleryCase("biased_rps_psro", ("league.nash_conv_every_env_steps=4000",), _NASH_CONV, members=("mixture",)),
    GalleryCase("cartpole_team_c51"),
    GalleryCase("cartpole_team_a3c"),
    GalleryCase("cartpole_team_apex"),
    GalleryCase("cartpole_team_memory_recurrent_ppo"),
    GalleryCase("cartpole_team_memory_r2d2"),
    GalleryCase("simple_speaker_listener_maddpg"),
    GalleryCase("simple_tag_ppo_dqn", ("stop.env_steps=100000",), _SHORTER, has_opponents=True),
    GalleryCase("connect_four_ppo_dqn", ("stop.env_steps=100000",), _SHORTER, has_opponents=True),
    GalleryCase(
        "kuhn_nfsp",
        ("league.nash_conv_every_env_steps=60000",),
        _NASH_CONV,
        members=("average",),
        film_policy="average",
    ),
    GalleryCase("kuhn_psro", ("league.nash_conv_every_env_steps=60000",), _NASH_CONV, members=("mixture",)),
    GalleryCase("simple_tag_three_algorithms", has_opponents=True),
    GalleryCase("toll_ppo_lagrangian"),
    GalleryCase("simple_tag_qmix_ppo", has_opponents=True),
    GalleryCase("simple_spread_qmix"),
    GalleryCase("token_signal_ppo_dqn"),
    GalleryCase("connect_four_self_play"),
    GalleryCase("connect_four_pfsp"),
    GalleryCase("simple_tag_pfsp"),
    GalleryCase("connect_four_random_seats", has_opponents=True),
    GalleryCase("connect_four_alphastar"),
    GalleryCase("vmas_balance_ppo"),
    GalleryCase("leduc_psro", ("league.nash_conv_every_env_steps=300000",), _NASH_CONV, members=("mixture",)),
)
CASES = {case.experiment: case for case in _ALL}

_OFFLINE = "recorded rows of an expert have to be made first; see `python -m benchmarks.imitation`"
_LONG = "not run yet; leagues take the longest"
_NOT_YET = "not run yet"
WITHOUT_PAGE: Mapping[str, str] = {
    "cartpole_team_a2c": _NOT_YET,
    "cartpole_team_a3c": _NOT_YET,
    "cartpole_team_apex": _NOT_YET,
    "cartpole_team_appo": _NOT_YET,
    "cartpole_team_bc": _OFFLINE,
    "cartpole_team_c51": _NOT_YET,
    "cartpole_team_impala": _NOT_YET,
    "cartpole_team_marwil": _OFFLINE,
    "cartpole_team_memory_r2d2": _NOT_YET,
    "cartpole_team_memory_recurrent_ppo": _NOT_YET,
    "connect_four_alphastar": _LONG,
    "connect_four_pfsp": _LONG,
    "connect_four_random_seats": _NOT_YET,
    "connect_four_self_play": _LONG,
    "kuhn_nfsp": _NOT_YET,
    "kuhn_psro": _NOT_YET,
    "leduc_psro": _LONG,
    "pendulum_team_ddpg": _NOT_YET,
    "simple_speaker_listener_maddpg": _NOT_YET,
    "simple_spread_qmix": _NOT_YET,
    "simple_tag_pfsp": _LONG,
    "simple_tag_ppo_dqn": _NOT_YET,
    "simple_tag_qmix_ppo": _NOT_YET,
    "simple_tag_three_algorithms": _NOT_YET,
    "vmas_balance_ppo": _NOT_YET,
    "token_signal_ppo_dqn": _NOT_YET,
    "toll_ppo_lagrangian": _NOT_YET,
}
"""Shipped experiments that have no page, and why."""
