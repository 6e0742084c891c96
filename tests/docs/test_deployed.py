"""The container file and the Kubernetes objects, tested without a builder and a cluster.

The fields of the objects exist and agree. The commands of the container file make a worker that runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.docs.test_deploy_examples import DEPLOY, containers, options_of
from tests.docs.transcript import EXAMPLES
from tests.kit.processes import ROOT, Child
from tests.kit.servers import RedisServer, free_port
from tests.kit.wait import wait_until

NUMBER, TEXT, TEXTS, WORDS = "a number", "a text", "texts", "texts by name"
OBJECT: Final = {"apiVersion": TEXT, "kind": TEXT, "metadata": "Metadata"}
API: Final[dict[str, dict[str, str]]] = {
    "Deployment": {**OBJECT, "spec": "DeploymentSpec"},
    "Job": {**OBJECT, "spec": "JobSpec"},
    "Metadata": {"name": TEXT, "labels": WORDS, "annotations": WORDS},
    "DeploymentSpec": {"replicas": NUMBER, "selector": "Selector", "template": "Template"},
    "JobSpec": {"backoffLimit": NUMBER, "template": "Template", "ttlSecondsAfterFinished": NUMBER},
    "Selector": {"matchLabels": WORDS},
    "Template": {"metadata": "Metadata", "spec": "Pod"},
    "Pod": {
        "containers": "list of Container", "restartPolicy": TEXT,
        "terminationGracePeriodSeconds": NUMBER,
    },
    "Container": {
        "name": TEXT, "image": TEXT, "args": TEXTS, "command": TEXTS, "envFrom": "list of EnvFrom",
        "ports": "list of Port", "startupProbe": "Probe", "livenessProbe": "Probe",
        "readinessProbe": "Probe", "resources": "Resources",
    },
    "EnvFrom": {"secretRef": "SecretRef"},
    "SecretRef": {"name": TEXT},
    "Port": {"name": TEXT, "containerPort": NUMBER},
    "Probe": {
        "exec": "Exec", "httpGet": "HttpGet", "initialDelaySeconds": NUMBER,
        "periodSeconds": NUMBER, "timeoutSeconds": NUMBER, "failureThreshold": NUMBER,
    },
    "Exec": {"command": TEXTS},
    "HttpGet": {"path": TEXT, "port": "a number or a name"},
    "Resources": {"requests": WORDS, "limits": WORDS},
}  # fmt: skip
"""The fields of apps/v1, batch/v1 and v1 that the objects may have, each with its type. The schemas of Kubernetes 1.25
to 1.37 have each of these fields with this type."""
VERSIONS: Final = {"Deployment": "apps/v1", "Job": "batch/v1"}


def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def wrong_fields(kind: str, found: Any, at: str) -> Iterator[str]:
    """Yield the path of each field that the API does not have, and of each value whose type differs from the API's."""
    if kind == NUMBER:
        fits = type(found) is int
    elif kind == TEXT:
        fits = isinstance(found, str)
    elif kind == "a number or a name":
        fits = type(found) is int or isinstance(found, str)
    elif kind == TEXTS:
        fits = isinstance(found, list) and all(isinstance(each, str) for each in found)
    elif kind == WORDS:
        fits = isinstance(found, dict) and all(isinstance(each, str) for each in found.values())
    elif kind.startswith("list of "):
        fits = isinstance(found, list) and bool(found)
        for number, each in enumerate(found if fits else ()):
            yield from wrong_fields(kind.removeprefix("list of "), each, f"{at}[{number}]")
    else:
        fits = isinstance(found, dict) and bool(found)
        for name, value in (found if fits else {}).items():
            if name in API[kind]:
                yield from wrong_fields(API[kind][name], value, f"{at}.{name}")
            else:
                yield f"{at}.{name}"
    if not fits:
        yield at


def test_each_field_of_the_kubernetes_objects_exists_in_the_kubernetes_api() -> None:
    for each in objects():
        assert VERSIONS[each["kind"]] == each["apiVersion"]
        assert [] == list(wrong_fields(each["kind"], each, each["metadata"]["name"]))


def test_the_check_of_kubernetes_objects_finds_a_wrong_name_and_a_wrong_type() -> None:
    [workers, *_] = objects()
    [container] = workers["spec"]["template"]["spec"]["containers"]
    container["livenesProbe"] = container.pop("livenessProbe")
    container["args"].append(30)
    workers["spec"]["replicas"] = "3"

    assert {
        "it.spec.replicas",
        "it.spec.template.spec.containers[0].args",
        "it.spec.template.spec.containers[0].livenesProbe",
    } == set(wrong_fields("Deployment", workers, "it"))


def test_the_kubernetes_objects_agree_with_each_other_and_with_the_options_of_rq_core() -> None:
    found = objects()
    assert len({each["metadata"]["name"] for each in found}) == len(found)
    for each in found:
        template = each["spec"]["template"]
        # By this label kubectl applies one object after the other.
        assert {"app": each["metadata"]["name"]} == each["metadata"]["labels"]
        if each["kind"] == "Job":
            # A job stays when it has ended, and its template cannot be changed, so the next release could not apply it.
            assert each["spec"]["ttlSecondsAfterFinished"] > 0
            assert template["spec"]["restartPolicy"] in ("Never", "OnFailure")
        else:
            assert each["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    [secret] = {
        source["secretRef"]["name"] for _, each in containers() for source in each["envFrom"]
    }
    assert secret
    [image] = {each["image"] for _, each in containers()}
    assert image.partition(":")[0] in (DEPLOY / "Dockerfile").read_text().splitlines()[0]

    [worker] = [each for _, each in containers() if each["args"][0] == "worker"]
    [workers] = [each for each in found if each["metadata"]["name"] == "shop-workers"]
    host, _, port = str(options_of(worker["args"])["health"]).rpartition(":")
    assert host == "0.0.0.0"  # noqa: S104 - the kubelet asks from outside of the container
    assert [int(port)] == [each["containerPort"] for each in worker["ports"]]
    notes = workers["spec"]["template"]["metadata"]["annotations"]
    assert (port, "/metrics") == (notes["prometheus.io/port"], notes["prometheus.io/path"])
    for name in ("startupProbe", "livenessProbe"):
        # `rq-core health` starts Python, which takes more than the default of one second on a busy node.
        assert worker[name]["timeoutSeconds"] >= 5


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the container file in their order, without those that only root can carry out."""
    text = (DEPLOY / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]
    return [each for each in found if not each[1].startswith("useradd")]


def test_the_container_has_a_python_that_rq_core_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    images = {rest.partition(" ")[0] for name, rest in instructions() if name == "FROM"}

    [(version,)] = [re.findall(r"^python:(\d+\.\d+)-slim$", each) for each in images]
    assert f"Programming Language :: Python :: {version}" in project["classifiers"]
    # Kubernetes' runAsNonRoot needs the user's number.
    [user] = [rest for name, rest in instructions() if name == "USER"]
    assert f" --uid {user} " in (DEPLOY / "Dockerfile").read_text()
    # What the comment says of requirements.txt are extras that exist.
    [extras] = re.findall(
        r"^# rq-core\[([\w,]+)\]", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE
    )
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_of_the_container_file_build_a_worker_that_runs(
    valkey: RedisServer, tmp_path: Path
) -> None:
    """Carries out the instructions in their order, with a directory of this test in the place of /srv."""
    srv, sources = tmp_path / "srv", tmp_path / "shop"
    sources.mkdir()
    shutil.copy(EXAMPLES / "shop.py", sources)
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path))
    subprocess.run([*build, str(ROOT)], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    [wheel] = tmp_path.glob("rq_core-*.whl")
    [extras] = re.findall(
        r"^# (rq-core\[[\w,]+\])", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE
    )
    (sources / "requirements.txt").write_text(f"{extras} @ file://{wheel}\n")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.base_prefix + "/bin/python3")
    passed = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    variables = {
        **passed, "PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path),
        "PIP_CONSTRAINT": str(ROOT / ".ci" / "constraints.txt"), "TMPDIR": str(tmp_path),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # fmt: skip
    at, entry, command, health = srv, [""], [""], [""]
    for name, rest in instructions():
        there = rest.replace("/srv", str(srv))
        if name == "WORKDIR":
            at = Path(there)
            at.mkdir(parents=True, exist_ok=True)
        elif name == "RUN":
            subprocess.run(["/bin/sh", "-c", there], cwd=at, env=variables, check=True, timeout=500)
        elif name == "COPY" and not rest.startswith("--from"):
            source, target = [each for each in there.split() if not each.startswith("--")]
            if source == ".":
                shutil.copytree(sources, at / target, dirs_exist_ok=True)
            else:
                shutil.copy(sources / source, at / target)
        elif name == "ENV":
            for each in there.split():
                key, _, value = each.partition("=")
                variables[key] = value.replace("$PATH", variables["PATH"])
        elif name == "ENTRYPOINT":
            entry = json.loads(rest)
        elif name == "CMD":
            command = json.loads(rest)
        elif name == "HEALTHCHECK":
            health = json.loads(rest.partition(" CMD ")[2])
        else:
            # The stages have the same paths, and no other user is there.
            assert name in ("FROM", "COPY", "USER")
    port = free_port()
    command = [each.replace("0.0.0.0:8080", f"127.0.0.1:{port}") for each in command]
    program = srv / "venv" / "bin" / entry[0]
    variables["RQ_CORE_REDIS_URL"] = valkey.url

    def is_healthy() -> bool:
        checked = [str(srv / "venv" / "bin" / health[0]), *health[1:]]
        done = subprocess.run(checked, env=variables, capture_output=True, timeout=60, check=False)
        return done.returncode == 0

    assert not is_healthy()
    with Child([str(program), *command], tmp_path / "log", variables, directory=at) as worker:
        wait_until(lambda: worker.poll() is not None or is_healthy(), "it is healthy", timeout=60)
        assert is_healthy()
        worker.terminate()
        assert worker.wait(60) == 0
