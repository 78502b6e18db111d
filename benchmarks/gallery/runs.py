"""Trains a gallery experiment and keeps its runs, each with a record of its command, versions and hardware."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.gallery.cases import FOLDER, RECORDED, GalleryCase
from marlflow import __version__
from marlflow.observe.sinks import METRICS, read_metrics

RECORD = "gallery.json"
"""A file of a run's folder, written when the run is complete: its command, what it was made with, and its time."""

_QUIET = ("log.console=none", "log.tensorboard=false")
_PACKAGES = ("numpy", "torch", "gymnasium", "pettingzoo", "mpe2", "open_spiel")
# Later commits that change only other files train the same.
_TRAINING = ("marlflow", "conf", ":!marlflow/html_report", ":!marlflow/cli")


def run_folder(case: GalleryCase, seed: int) -> Path:
    """Return the folder of a run."""
    return FOLDER / case.experiment / str(seed)


def trained(case: GalleryCase, seed: int) -> Path:
    """Train in one thread, unless the same run is there already; return the folder of the run.

    Raises CalledProcessError if training fails.
    """
    folder, words = run_folder(case, seed), case.words(seed)
    record_expert(case, seed)
    if (record := _record(folder)) is not None and record["words"] == words:
        return folder
    if folder.exists():
        shutil.rmtree(folder)
    commit = training_commit()
    before_s, began_s = _cpu_s(), time.perf_counter()
    _marlflow("train", *words, *_QUIET, f"hydra.run.dir={folder}")
    record = {
        "words": words,
        "commit": commit,
        "versions": versions(),
        "hardware": hardware(),
        "command_s": time.perf_counter() - began_s,
        "cpu_s": _cpu_s() - before_s,
    }
    last = read_metrics(folder / METRICS)[-1]
    print(
        f"   {last['env_steps']:,} env steps in {last['time_s']:.0f} s, {record['cpu_s']:.0f} s of CPU time", flush=True
    )
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return folder


def record_expert(case: GalleryCase, seed: int) -> None:
    """Train the expert of a case, if it has one, and record RECORDED env steps more, unless they are there."""
    if case.expert is None:
        return
    folder = case.expert_run(seed)
    done = folder / RECORD
    if done.exists():
        return
    if folder.exists():
        shutil.rmtree(folder)
    _marlflow(
        "train", f"experiment={case.expert}", f"seed={seed}", "runtime=inline", *_QUIET, f"hydra.run.dir={folder}"
    )
    before = int(read_metrics(folder / METRICS)[-1]["env_steps"])
    _marlflow("resume", str(folder), f"stop.env_steps={before + RECORDED}", "record=dataset")
    done.write_text(json.dumps({"trained_env_steps": before}) + "\n", encoding="utf-8")


def trained_env_steps(case: GalleryCase, seed: int) -> int:
    """Return the env steps of an expert before it was recorded; raises FileNotFoundError."""
    record = json.loads((case.expert_run(seed) / RECORD).read_text(encoding="utf-8"))
    return int(record["trained_env_steps"])


def _marlflow(*words: str) -> None:
    command = [str(Path(sys.executable).with_name("marlflow")), *words]
    print(f"-- {' '.join(command)}", flush=True)
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _record(folder: Path) -> dict[str, Any] | None:
    path = folder / RECORD
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def made_with(folder: Path) -> dict[str, Any]:
    """Return the record of a complete run; raises FileNotFoundError."""
    record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    return record


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def training_commit() -> str:
    """Return the last commit that changed what trains; raises RuntimeError if there are changes without a commit."""
    if changed := _git("status", "--porcelain", "--", *_TRAINING):
        raise RuntimeError(f"commit first, so that a page can name the commit of its runs: {changed}")
    return _git("log", "-1", "--format=%H", "--", *_TRAINING)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    found = {"marlflow": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Return the number of cores, and the processor's name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"cores": os.cpu_count(), "cpu": names[0] if names else platform.processor(), "gpu": None}
