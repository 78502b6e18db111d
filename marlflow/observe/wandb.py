"""Weights & Biases: a sink that sends reports to wandb, or writes them to a folder to be sent later."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from marlflow.observe.callback import Callback, RunEnd, missing_extra
from marlflow.observe.report import Report, RunInfo
from marlflow.observe.sinks import scalars_by_step

log = logging.getLogger("marlflow")


@dataclass
class WandbSink(Callback):
    """Logs all numbers of reports over `env_steps`, and the configuration, to a run of Weights & Biases.

    None is wandb's own choice, which environment variables decide. The key comes from WANDB_API_KEY or `wandb login`. A
    resumed run continues the same run of wandb; after a resume, points of dropped reports stay.
    """

    project: str | None = None  #: project at wandb; None: name of the run
    entity: str | None = None  #: user or team; None: wandb's default
    name: str | None = None  #: name among the project's runs; None: last two parts of the run's folder
    group: str | None = None  #: group of runs, such as the runs of a sweep; None: none
    tags: Sequence[str] = ()  #: tags of the run
    #: online; offline: wandb/ in the run's folder, for `wandb sync`; disabled: none
    mode: Literal["online", "offline", "disabled"] = "online"

    def __post_init__(self) -> None:
        self._run: Any = None

    def problems(self) -> Iterator[str]:
        """Yield what is missing: the package, or a key for `online`."""
        if missing := missing_extra("wandb", "wandb"):
            yield from missing
        elif self.mode == "online" and not _has_key():
            yield (
                "has mode=online, and there is no key: set WANDB_API_KEY, run `wandb login`, or choose mode=offline, "
                "which `wandb sync` sends later"
            )

    def began(self, info: RunInfo) -> None:
        """Begin a run of wandb, or continue the one of a resumed run."""
        import wandb

        # The console shows a view of its own, which wandb's output would break.
        quiet = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(
            project=self.project or info.name,
            entity=self.entity,
            id=info.id,
            name=self.name or run_title(info),
            group=self.group,
            tags=[*self.tags],
            mode=self.mode,
            resume="allow",
            config=dict(info.configuration),
            dir=str(info.run_dir),
            settings=quiet,
        )
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")
        # wandb warns where there is no address.
        log.info("wandb run %s: %s", info.id, self._run.url if self.mode == "online" else self._run.dir)

    def reported(self, record: Report) -> None:
        """Log a report's numbers, each at the env steps at which it was measured."""
        for env_steps, numbers in scalars_by_step(record).items():
            self._run.log({**numbers, "env_steps": env_steps})

    def ended(self, result: RunEnd) -> None:
        """Finish the run of wandb, as failed if there was an error."""
        if self._run is not None:
            self._run.summary["stopped_by"] = result.stopped_by
            self._run.finish(exit_code=0 if result.error is None else 1)
            self._run = None


def run_title(info: RunInfo) -> str:
    """Return a name for a run among others: the last two parts of its folder, such as `simple_tag/2026-11-22_10-00-00`.

    >>> run_title(RunInfo("tag", Path("runs/tag/2026-11-22_10-00-00"), {}, "inline"))
    'tag/2026-11-22_10-00-00'
    """
    return "/".join(info.run_dir.absolute().parts[-2:])


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    # `wandb login` writes the key to this file.
    netrc = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:
        return "wandb" in netrc.read_text() or "WANDB_BASE_URL" in os.environ
    except OSError:
        return False
