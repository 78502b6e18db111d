"""The experiments of the gallery, in the order in which they are trained, and those without a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

"""No setting was chosen on them."""
EPISODES, GAMES = 100, 400
"""Of the final policies together, and of each against random opponents."""
LEAST_ENV_STEPS = 5
"""Of the episode in a film, if any has as many: a game may be over soon after a random opening."""
RECORDED = 20_000
"""Env steps of an expert that are recorded, after its training."""
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
    expert: str | None = None
    """The experiment whose final policies are recorded, for what learns from records; None: it learns from play."""

    def words(self, seed: int, records: Path | None = None) -> list[str]:
        """Return the words after `marlflow train`; `records`: folder of the expert's rows, by default this seed's."""
        words = [f"experiment={self.experiment}", *self.overrides, f"seed={seed}", "runtime=inline"]
        if self.expert is not None:
            words.append(f"env.folder={self.expert_run(seed) / 'record' if records is None else records}")
        return words

    def expert_run(self, seed: int) -> Path:
        """Return the folder of the expert's run."""
        return FOLDER / f"{self.expert}_recorded" / str(seed)


_NASH_CONV = "NashConv is computed during the run, which changes nothing of what is learned."


def _shorter(env_steps: int, own: int) -> tuple[tuple[str, ...], str]:
    """Return the override and its reason, for an experiment that takes long with its `own` env steps."""
    shorter = f"The run is shorter than the experiment's own `stop.env_steps`, {own:,}"
    return (f"stop.env_steps={env_steps}",), f"{shorter}; it may not have learned all that it can."


_ALL = (
    GalleryCase("cartpole_team_ppo_dqn"),
    GalleryCase("cartpole_team_ppo"),
    GalleryCase("cartpole_team_dqn"),
    GalleryCase("pendulum_team_sac"),
    GalleryCase("simple_spread_mappo", *_shorter(200_000, 500_000)),
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
    GalleryCase("cartpole_team_bc", expert="cartpole_team_ppo"),
    GalleryCase("cartpole_team_marwil", expert="cartpole_team_ppo"),
    GalleryCase("cartpole_team_a3c"),
    GalleryCase("cartpole_team_apex"),
    GalleryCase("cartpole_team_memory_recurrent_ppo"),
    GalleryCase("cartpole_team_memory_r2d2"),
    GalleryCase("simple_speaker_listener_maddpg"),
    GalleryCase("simple_tag_ppo_dqn", *_shorter(100_000, 500_000), has_opponents=True),
    GalleryCase("connect_four_ppo_dqn", *_shorter(100_000, 500_000), has_opponents=True),
    GalleryCase(
        "kuhn_nfsp",
        ("league.nash_conv_every_env_steps=60000",),
        _NASH_CONV,
        members=("average",),
        film_policy="average",
    ),
    GalleryCase("kuhn_psro", ("league.nash_conv_every_env_steps=60000",), _NASH_CONV, members=("mixture",)),
    GalleryCase(
        "toll_ppo_lagrangian",
        why="A car's return is 1 and, if it pays the toll, 1 more; its cost is the toll. The limit of .25 allows 1.25: "
        "higher returns, of random policies and of early evaluations, are over the limit.",
    ),
    GalleryCase("simple_tag_three_algorithms", *_shorter(100_000, 500_000)),
    GalleryCase("simple_tag_qmix_ppo", *_shorter(100_000, 400_000), has_opponents=True),
    GalleryCase("simple_spread_qmix", *_shorter(200_000, 400_000)),
    GalleryCase("token_signal_ppo_dqn"),
    GalleryCase("connect_four_self_play"),
    GalleryCase("connect_four_pfsp"),
    GalleryCase("simple_tag_pfsp", *_shorter(200_000, 500_000)),
    GalleryCase("connect_four_random_seats", has_opponents=True),
    GalleryCase(
        "connect_four_alphastar",
        ("stop.env_steps=300000",),
        f"{_shorter(300_000, 2_000_000)[1]} Exploiters are reset at times, so one may have learned little yet.",
    ),
    GalleryCase(
        "leduc_psro",
        ("league.nash_conv_every_env_steps=300000", "stop.env_steps=600000"),
        f"{_NASH_CONV} {_shorter(600_000, 3_600_000)[1]}",
        members=("mixture",),
    ),
    GalleryCase("vmas_balance_ppo"),
    GalleryCase("lbf_10x10_3p_3f_ppo"),
    GalleryCase("lbf_10x10_3p_3f_mappo"),
    GalleryCase("lbf_10x10_3p_3f_vdn"),
    GalleryCase("lbf_10x10_3p_3f_qmix"),
    GalleryCase("lbf_10x10_3p_3f_ppo_dqn"),
    GalleryCase("rware_tiny_2ag_ppo"),
    GalleryCase("rware_tiny_2ag_mappo"),
    GalleryCase("smax_3m_ppo"),
    GalleryCase("smax_3m_mappo"),
    GalleryCase("smax_3m_mappo_gru"),
    GalleryCase("smax_3m_qmix"),
    GalleryCase("smax_3m_qmix_ppo", has_opponents=True),
    GalleryCase("smax_3m_pfsp"),
    GalleryCase("pgx_connect_four_self_play"),
    GalleryCase("pgx_connect_four_pfsp"),
    GalleryCase("overcooked_cramped_room_ppo"),
)
CASES = {case.experiment: case for case in _ALL}

WITHOUT_PAGE: Mapping[str, str] = {
    "cartpole_team_pbt": "has its results in docs/population.md, of three seeds",
    "lbf_10x10_3p_3f_ppo": "has its results in docs/results.md, of five seeds",
    "lbf_10x10_3p_3f_mappo": "is of the benchmark suite `lbf`",
    "lbf_10x10_3p_3f_vdn": "has its results in docs/results.md",
    "lbf_10x10_3p_3f_qmix": "is of the benchmark suite `lbf`",
    "lbf_10x10_3p_3f_dqn": "is of the benchmark suite `lbf`",
    "lbf_10x10_3p_3f_ppo_dqn": "has its results in docs/results.md",
    "mpe_tag_ppo": "trains the opponents of the suite mpe, see docs/results.md",
    "mpe_spread_ppo": "has its results in docs/results.md",
    "mpe_spread_mappo": "has its results in docs/results.md",
    "mpe_spread_vdn": "has its results in docs/results.md",
    "mpe_spread_qmix": "has its results in docs/results.md",
    "rware_tiny_2ag_ppo": "has its results in docs/results.md",
    "rware_tiny_2ag_mappo": "has its results in docs/results.md",
    "smax_3m_ppo": "has its results in docs/results.md",
    "smax_3m_mappo": "has its results in docs/results.md",
    "smax_3m_mappo_gru": "has its results in docs/results.md",
    "smax_3m_qmix": "has its results in docs/results.md",
    "smax_3m_qmix_ppo": "has its results in docs/results.md",
    "smax_3m_pfsp": "has its results in docs/results.md",
    "pgx_connect_four_self_play": "three seeds are in docs/results.md",
    "pgx_connect_four_pfsp": "three seeds are in docs/results.md",
    "overcooked_cramped_room_ppo": "has its results in docs/results.md",
    "pursuit_ppo": "has its results in docs/results.md",
    "pistonball_ppo": "has its results in docs/results.md",
    "multiwalker_ppo": "has its results in docs/results.md",
    "vmas_balance_ppo": "needs the extra `vmas`, which is not installed with all others",
}
"""Shipped experiments that have no page, and why."""
