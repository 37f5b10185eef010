import os
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml

from orchestrator.deep_agent.models.providers import anthropic, google, openai
from tests.architecture.sources import REPOSITORY

COMPOSE = REPOSITORY / "docker-compose.yml"
SERVICES = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
SECRETS = {"FANOUT_REDIS_PASSWORD": "p", "FLOWER_BASIC_AUTH": "u:p"}


def test_only_the_worker_reaches_the_engine():
    reaching = [
        name for name, service in SERVICES.items() if "docker.sock" in str(service.get("volumes"))
    ]

    assert reaching == ["worker"]


def test_what_is_published_is_published_on_loopback():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]

    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("provider", [anthropic, google, openai])
def test_what_a_models_client_reads_reaches_the_worker_and_no_value_stands_in_the_file(provider):
    environment = SERVICES["worker"]["environment"]

    assert {name: environment.get(name, "missing") for name in provider.VARIABLES} == dict.fromkeys(
        provider.VARIABLES
    )


def test_the_workers_image_reaches_every_kind_of_model():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(
        r"-e '\.\[(.*)\]'", (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    )

    assert sorted(extras.split(",")) == sorted(project["optional-dependencies"])


def test_workers_can_be_scaled_and_end_in_order():
    worker = SERVICES["worker"]

    assert "container_name" not in worker
    assert "ports" not in worker
    assert worker["init"] is True


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="there is no docker-compose")
@pytest.mark.parametrize("missing", [None, *SECRETS])
def test_it_parses_and_asks_for_its_secrets(missing):
    secrets = {name: value for name, value in SECRETS.items() if name != missing}

    done = subprocess.run(
        ["docker-compose", "-f", COMPOSE, "config", "--quiet"],
        env={"PATH": os.environ["PATH"], **secrets},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode == 0) is (missing is None), done.stderr
    assert missing is None or missing in done.stderr
