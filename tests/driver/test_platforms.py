"""marlflow is imported and trains where parts of Linux are missing, as on macOS and Windows."""

import subprocess
import sys
from pathlib import Path

import pytest

from marlflow.runtime.resources import local_resources

# Modules that other packages need of these are imported before they are removed.
_PROGRAM = """
import os, signal, sys
import filelock, hydra, matplotlib.pyplot, pettingzoo, pyarrow.parquet, rich.live, safetensors, tensorboard, torch
import subprocess, selectors, asyncio, tempfile
for name in {of_os!r}:
    delattr(os, name)
for name in {of_signal!r}:
    delattr(signal, name)
for name in {modules!r}:
    sys.modules[name] = None
real_open = open
def no_proc(path, *rest, **named):
    if str(path).startswith("/proc"):
        raise FileNotFoundError(path)
    return real_open(path, *rest, **named)
import builtins, io
builtins.open = no_proc
import marlflow as mf
def run(env_steps):
    return mf.Experiment(
        mf.Env("cartpole_team", {{"max_cycles": 20}}, num_envs=2),
        policies={{"cart": mf.Policy(mf.PPO(batch_agent_steps=80, epochs=1, minibatch_agent_steps=40), mf.MLP((8,)))}},
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=40),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=env_steps),
    )
assert mf.train(run(80), {folder!r}).metrics["env_steps"] == 80
assert mf.resume(run(160), {folder!r}).metrics["env_steps"] == 160
"""

_MACOS = {"of_os": ["sched_getaffinity", "sched_setaffinity"], "of_signal": [], "modules": []}
_WINDOWS = {
    "of_os": [*_MACOS["of_os"], "O_DIRECTORY", "sysconf", "getuid"],
    "of_signal": ["SIGALRM", "setitimer", "ITIMER_REAL", "SIGHUP", "pthread_kill"],
    "modules": ["fcntl", "resource", "termios", "pwd", "grp"],
}


@pytest.mark.parametrize("lacks", [pytest.param(_MACOS, marks=pytest.mark.slow), _WINDOWS], ids=["macos", "windows"])
def test_a_run_and_its_resume_need_nothing_of_linux(lacks: dict[str, list[str]], tmp_path: Path) -> None:
    program = _PROGRAM.format(**lacks, folder=str(tmp_path / "run"))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=200)
    assert ran.returncode == 0, ran.stderr


def test_without_affinity_all_cpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert local_resources()["CPU"] == 7.0
