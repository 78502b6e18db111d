"""MLflow: a sink that logs reports to a tracking server or a folder."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from marlflow.observe.callback import Callback, RunEnd, missing_extra
from marlflow.observe.report import Report, RunInfo
from marlflow.observe.sinks import scalars_by_step, settings
from marlflow.observe.wandb import run_title

log = logging.getLogger("marlflow")
T = TypeVar("T")

_RUN_TAG = "marlflow.run"
# Limits of MLflow's API, per request.
_MOST_METRICS, _MOST_PARAMS, _LONGEST_PARAM, _LONGEST_NAME = 1_000, 100, 6_000, 240
_NO_NAME = re.compile(r"[^\w\-. /]")


@dataclass
class MlflowSink(Callback):
    """Logs all numbers of reports over env steps, and the configuration as parameters, to a run of MLflow.

    User and password come from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. A resumed run continues the same
    run of MLflow; points of dropped reports stay, so that the last value of a step is the right one.
    """

    tracking_uri: str | None = None  #: address of a server, or a folder; None: MLFLOW_TRACKING_URI, or else mlruns
    experiment: str | None = None  #: experiment at MLflow; None: name of the run
    name: str | None = None  #: name among the experiment's runs; None: last two parts of the run's folder
    tags: Mapping[str, str] = field(default_factory=dict)  #: <tag>: <text>, further tags of the run

    def __post_init__(self) -> None:
        self._client: Any = None
        self._run_id = ""
        # The path of each name at MLflow.
        self._names: dict[str, str] = {}

    def problems(self) -> Sequence[str]:
        return missing_extra("mlflow", "mlflow")

    def began(self, info: RunInfo) -> None:
        """Create a run of MLflow, or continue the one of a resumed run."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "mlruns"
        if "://" not in uri and not uri.startswith(("file:", "sqlite:", "databricks")):
            # MLflow asks for this before it writes to a folder.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = os.path.abspath(uri)
        client = MlflowClient(tracking_uri=uri)
        name = self.experiment or info.name
        known = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name) if known is None else known.experiment_id
        self._run_id = _found(client, experiment, info) if info.resumed is not None else ""
        if self._run_id:
            client.update_run(self._run_id, status="RUNNING")
            client.set_tag(self._run_id, "marlflow.resumed_at_env_steps", str(info.resumed and info.resumed.env_steps))
        else:
            tags = {**self.tags, _RUN_TAG: info.id, "marlflow.folder": str(info.run_dir.absolute())}
            run = client.create_run(experiment, run_name=self.name or run_title(info), tags=tags)
            self._run_id = run.info.run_id
            params = (
                Param(self._valid(path), str(value)[:_LONGEST_PARAM]) for path, value in settings(info.configuration)
            )
            for some in _chunks(params, _MOST_PARAMS):
                client.log_batch(self._run_id, params=some)
        self._client = client
        log.info("MLflow run %s in %s", self._run_id, uri)

    def reported(self, record: Report) -> None:
        """Log a report's numbers, each at the env steps at which it was measured."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = (
            Metric(self._valid(path), value, now_ms, env_steps)
            for env_steps, numbers in scalars_by_step(record).items()
            for path, value in numbers.items()
        )
        for some in _chunks(metrics, _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=some)

    def _valid(self, path: str) -> str:
        # MLflow's names have no other characters, at most 250 of them, and each only once.
        name = _NO_NAME.sub("_", path)[:_LONGEST_NAME]
        while self._names.setdefault(name, path) != path:
            name += "_"
        return name

    def ended(self, result: RunEnd) -> None:
        """End the run of MLflow, as failed if there was an error."""
        if self._client is not None:
            self._client.set_tag(self._run_id, "marlflow.stopped_by", result.stopped_by)
            self._client.set_terminated(self._run_id, status="FINISHED" if result.error is None else "FAILED")
            self._client = None


def _found(client: Any, experiment: str, info: RunInfo) -> str:
    runs = client.search_runs([experiment], f"tags.`{_RUN_TAG}` = '{info.id}'", max_results=1)
    return str(runs[0].info.run_id) if runs else ""


def _chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
