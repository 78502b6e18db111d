"""The files of examples/cluster are what Ray and Kubernetes expect, of this version, and their runs fit their pods."""

from __future__ import annotations

import json
import re
import shlex
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
import yaml

import marlflow
from marlflow.checks.commands import check
from marlflow.cli.arguments import split
from marlflow.cli.job import prepared
from marlflow.config.placement import described_machines
from marlflow.config.schema import read
from tests.architecture.sources import REPOSITORY

CLUSTER = REPOSITORY / "examples" / "cluster"
IMAGE = f"marlflow:{marlflow.__version__}"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text(encoding="utf-8")))


def test_ray_up_takes_the_file_of_machines() -> None:
    (machines,) = documents("machines.yaml")
    jsonschema.validate(machines, json.loads((files("ray.autoscaler") / "ray-schema.json").read_text(encoding="utf-8")))
    assert machines["docker"]["image"] == IMAGE


def test_the_pods_have_the_image_and_the_volume_of_this_version() -> None:
    job, volume, policy = documents("rayjob.yaml")
    assert [job["kind"], volume["kind"], policy["kind"]] == ["RayJob", "PersistentVolumeClaim", "NetworkPolicy"]
    cluster = job["spec"]["rayClusterSpec"]
    constraints = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    assert f"\nray=={cluster['rayVersion']}\n" in constraints
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert [container["image"] for container in pod["containers"]] == [IMAGE]
        claims = [mounted["persistentVolumeClaim"]["claimName"] for mounted in pod["volumes"]]
        assert claims == [volume["metadata"]["name"]]


def lines() -> dict[str, tuple[list[str], list[dict[str, float]]]]:
    """The runs that are started on clusters of these files, each with the machines that it has."""
    job = documents("rayjob.yaml")[0]["spec"]
    workers = job["rayClusterSpec"]["workerGroupSpecs"][0]
    cpus = float(workers["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    executed = re.findall(r'ray exec \S+ "marlflow (.*)"', (REPOSITORY / "docs" / "cluster.md").read_text("utf-8"))
    assert len(executed) == 1
    return {
        "rayjob": (shlex.split(job["entrypoint"])[1:], [{"CPU": cpus, "count": 1 + workers["replicas"]}]),
        "ray exec": (shlex.split(executed[0]), [{"CPU": 16, "count": 3}]),
    }


@pytest.mark.parametrize("line", ["rayjob", "ray exec"])
def test_each_run_fits_its_cluster(line: str) -> None:
    (command, *words), machines = lines()[line]
    ready = prepared(split(words, command))
    problems = list(ready.problems)
    check(read(ready.config, problems), problems, described_machines(machines, "machines"))
    assert ready.config is not None
    assert "runtime.address=auto" in words


def test_the_dockerfile_copies_what_it_builds_from() -> None:
    ignored = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert not {"conf", "marlflow", "README.md", "LICENSE", "constraints.txt", "setup.py"} & set(ignored)
    assert f"-t {IMAGE} ." in (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
