"""Environments, and experiments on them, whose extras may be missing where the tests run."""

from importlib.util import find_spec

MODULES = {
    **{name: name for name in ("jaxmarl", "jumanji", "pgx", "rware", "vmas")},
    "lbf": "lbforaging",
    "vmas_balance_ppo": "vmas",
    **dict.fromkeys(
        (
            "overcooked_cramped_room_ppo",
            "smax_3m_ppo",
            "smax_3m_mappo",
            "smax_3m_mappo_gru",
            "smax_3m_qmix",
            "smax_3m_qmix_ppo",
            "smax_3m_pfsp",
        ),
        "jaxmarl",
    ),
    "mpe_tag_ppo": "jaxmarl",
    **{f"mpe_spread_{algorithm}": "jaxmarl" for algorithm in ("ppo", "mappo", "vdn", "qmix")},
    **dict.fromkeys(("pgx_connect_four_self_play", "pgx_connect_four_pfsp"), "pgx"),
}


def is_installed(name: str) -> bool:
    """Whether the environment of conf/env, or of conf/experiment, can be made here."""
    return name not in MODULES or find_spec(MODULES[name]) is not None
