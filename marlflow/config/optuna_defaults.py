"""Defaults of Hydra's sweeper for Optuna that suit training: returns are maximized, and a failed job ends nothing."""

from __future__ import annotations

from importlib.util import find_spec

from hydra.core.config_store import ConfigStore

PLUGIN = "hydra_plugins.hydra_optuna_sweeper"


def set_optuna_defaults() -> None:
    """Store `hydra/sweeper=optuna` again with defaults of marlflow's, if the plugin is installed."""
    # A file of the same name in conf/ would be refused by Hydra: the plugin's own has a defaults list.
    if not is_installed(PLUGIN):
        return
    from hydra_plugins.hydra_optuna_sweeper.config import Direction, OptunaSweeperConf, TPESamplerConfig

    store = ConfigStore.instance().store
    # One trial at a time knows all earlier results; the plugin's own default suggests two without the other's.
    sweeper = OptunaSweeperConf(direction=Direction.maximize, n_jobs=1, max_failure_rate=1.0)
    store(group="hydra/sweeper", name="optuna", node=sweeper, provider="marlflow")
    store(group="hydra/sweeper/sampler", name="tpe", node=TPESamplerConfig(seed=0), provider="marlflow")


def is_installed(plugin: str) -> bool:
    """Return whether a plugin of Hydra, by its import path, is installed."""
    try:
        return find_spec(plugin) is not None
    except ModuleNotFoundError:
        return False
