"""What all tests share: how the libraries behave under test, and one Ray instance for the session."""

import atexit
import contextlib
import copy
import dataclasses
import functools
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Set before any library is imported, because each reads them once. One thread per process: several processes at once
# share few cores, and the sums of a matrix product do not then depend on how many cores there are.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# A test calls a compiled program a few times: without LLVM's passes, and each as one module, compiling costs a quarter.
# `make test-all` sets XLA_FLAGS to nothing, for programs as in a run.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)

import psutil
import pytest
from absl import logging as absl_logging
from hypothesis import is_hypothesis_test, settings
from xdist.scheduler import LoadScopeScheduling

# Until the tests are collected: imports make a million objects, and none of them is garbage.
gc.disable()

# A deadline would test the machine, not the code. `make test-all` has --hypothesis-profile=thorough.
settings.register_profile("marlflow", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("marlflow")

# OpenSpiel imports absl, whose log handler closes the stream that it finds when Hydra configures logs: pytest's own.
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__

# Where a user's key is that signs configurations: not in the home of whoever runs the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="marlflow-tests-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)


# Nor compiled programs; one folder for all processes of a session, as pytest-xdist hands its environment on.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="marlflow-tests-xla-")
    # Quick ones are kept, too; with a limit, JAX locks the folder, which several processes write to.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**30)
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)


class ByFile(LoadScopeScheduling):
    """Keeps the tests of a file in one process, as they share fixtures, and all that share a Ray in one, too.

    pytest-xdist's own `loadgroup` writes groups into ids where pytest 9.2 does not look for them.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _group_of(nodeid.partition("::")[0])


@functools.cache
def _group_of(path: str) -> str:
    return "ray" if "ray_session" in (Path(__file__).parent.parent / path).read_text(encoding="utf-8") else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Make the scheduler of pytest-xdist."""
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests by hypothesis."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.drawn)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, seldom, and not among what was imported and the tests themselves."""
    gc.collect()
    gc.freeze()
    # Python's own 700 collects so often that it is a tenth of the tests' time.
    gc.set_threshold(20_000)
    gc.enable()


def pytest_runtest_teardown() -> None:
    """Remove the log handlers of Hydra and Ray: they would print records of later tests, to a stream that is closed."""
    for logger in (logging.getLogger(), logging.getLogger("ray")):
        for handler in logger.handlers[:]:
            if not type(handler).__module__.startswith("_pytest."):
                logger.removeHandler(handler)


PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="session", autouse=True)
def _runs_draw_no_curves() -> Iterator[None]:
    """Runs in this process write an empty picture: drawing learning curves is half of the time of a small run."""
    from marlflow.driver import reporting

    def empty_picture(metrics_path: Path, out_png: Path, title: str) -> None:
        out_png.write_bytes(PNG)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporting, "draw_learning_curves", empty_picture)
        yield


@pytest.fixture(scope="session", autouse=True)
def _files_are_not_forced_to_disk() -> Iterator[None]:
    """No test cuts the power; those about crashes look at the calls of fsync themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _hydra_keeps_what_no_test_changes() -> Iterator[None]:
    """Composing takes half as long: files of packages are read once, and what is not used is not made.

    The files of folders are read again each time, as tests write some.
    """
    from hydra._internal import config_loader_impl, config_repository, defaults_list
    from hydra.core.object_type import ObjectType

    read: dict[tuple[str, str], Any] = {}
    loader, repository = config_loader_impl.ConfigLoaderImpl, config_repository.ConfigRepository
    load, embed = repository.load_config, loader._embed_result_config
    interpolated = defaults_list._create_interpolation_map

    def load_once(this: Any, config_path: str) -> Any:
        source = this._find_object_source(config_path, ObjectType.CONFIG)
        # Not by its class, as Hydra imports its plugins again when it looks for them.
        if source is None or source.scheme() != "pkg":
            return load(this, config_path)
        key = source.path, config_path
        if key not in read:
            read[key] = load(this, config_path)
        return copy.copy(read[key])

    def embedded(result: Any, package_override: str | None) -> Any:
        whole = embed(result, package_override)
        # Hydra copies what it puts into a package. Of all else the composed configuration would take the nodes.
        return dataclasses.replace(whole, config=copy.deepcopy(whole.config)) if whole is result else whole

    def known_choices(overrides: Any, defaults: list[Any], self_added: bool) -> Any:
        needed = any(not default.is_self() and default.is_interpolation() for default in defaults)
        return interpolated(overrides, defaults, self_added) if needed else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repository, "load_config", load_once)
        patch.setattr(loader, "_embed_result_config", staticmethod(embedded))
        patch.setattr(defaults_list, "_create_interpolation_map", known_choices)
        patch.setattr(repository, "__deepcopy__", lambda this, memo: copy.copy(this), raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _speeds_are_measured_briefly() -> Iterator[None]:
    """check-env steps an environment for some seconds to measure its speed, which no test looks at."""
    from marlflow.check_env import speed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "_ROUND_S", 0.01)
        yield


@pytest.fixture(scope="module")
def drawn_curves() -> Iterator[None]:
    """Runs draw their learning curves, in spite of `_runs_draw_no_curves`."""
    from marlflow.driver import reporting
    from marlflow.observe.figure import draw_learning_curves

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporting, "draw_learning_curves", draw_learning_curves)
        yield


RAY_CPUS = 4
RAY_OBJECT_STORE_BYTES = 256 * 2**20
RAY_EXIT_S = 60


def _with_descendants(processes: set[psutil.Process]) -> set[psutil.Process]:
    found = set(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= set(process.children(recursive=True))
    return found


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray of 4 CPUs for all tests of the session; when it is shut down, no process of it may be left.

    The 4 CPUs are what Ray believes in, whatever the machine has, so that placement is the same everywhere.
    """
    import ray

    from tests.forked_workers import closed_template, forked_workers

    this = psutil.Process()
    with closed_template() as template:
        before = set(this.children())
        with forked_workers(template):
            ray.init(
                address="local",
                num_cpus=RAY_CPUS,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=RAY_OBJECT_STORE_BYTES,
            )
        daemons = set(this.children()) - before
        assert daemons, "ray.init started no process; was a Ray already running, or RAY_ADDRESS set?"
        yield
        # Taken while Ray still runs: workers whose parent died first are no descendants any more.
        parent = psutil.Process(template.session)
        started = _with_descendants(daemons | {parent}) - {parent}
        ray.shutdown()
        _, left = psutil.wait_procs(started, timeout=RAY_EXIT_S)
        assert not left, f"{RAY_EXIT_S} s after ray.shutdown() these processes of it are still there: {left}"
