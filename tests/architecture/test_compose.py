import os
import re
import shutil
import subprocess

import pytest
import yaml

from fanout.orchestrator.cli.commands.configuration import effective_settings
from fanout.orchestrator.cli.commands.processes import flower
from fanout.orchestrator.configuration.settings import PREFIX, Settings, load_settings
from fanout.orchestrator.deep_agent.models import anthropic, google, openai
from tests.architecture.sources import REPOSITORY

COMPOSE = REPOSITORY / "docker-compose.yml"
SERVICES = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
SECRETS = {"FANOUT_USER": "1:1", "FLOWER_BASIC_AUTH": "u:p"} | {
    f"FANOUT_{user}_PASSWORD": "p" for user in ("REDIS", "WORKER", "DASHBOARD")
}


NOT_PASSED = {
    "FANOUT_STATE_DIR": "of the command line: nothing of it is kept in a container",
    "FANOUT_EMBEDDED_IDLE_SECONDS": "of an embedded Redis and worker",
    "FANOUT_WORKER__POOL": "set by fanout where it starts workers for a set of settings",
    "FANOUT_REDIS_MEMORY_BYTES": "as above; here it is FANOUT_REDIS_MAXMEMORY",
    "FANOUT_WORKSPACE": "of `adk web` and `adk run`",
    "FANOUT_FLOWER__PORT": "in the container it is fixed; FANOUT_FLOWER_PORT is the host's",
    "FANOUT_FLOWER__BASIC_AUTH": "FLOWER_BASIC_AUTH, which has to be set",
}


def test_what_is_published_is_published_on_loopback():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]

    assert len(ports) == 3
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("provider", [anthropic, google, openai])
def test_what_a_models_client_reads_reaches_the_worker_and_no_value_stands_in_the_file(provider):
    environment = SERVICES["worker"]["environment"]

    assert {name: environment.get(name, "missing") for name in provider.VARIABLES} == dict.fromkeys(
        provider.VARIABLES
    )


def test_workers_can_be_scaled_and_have_time_to_give_jobs_back():
    worker = SERVICES["worker"]
    grace_seconds = float(worker["stop_grace_period"].removesuffix("s"))

    assert grace_seconds > load_settings().worker.shutdown_grace_seconds
    assert "container_name" not in worker
    assert "ports" not in worker
    assert worker["init"] is True


def test_redis_keeps_what_it_acknowledged():
    command = SERVICES["redis"]["command"][-1]

    assert "appendonly yes" in command
    assert "maxmemory-policy noeviction" in command
    assert "redis:/data" in SERVICES["redis"]["volumes"]


def test_flower_is_for_looking_only_and_has_a_password():
    environment = SERVICES["flower"]["environment"]

    assert environment["FLOWER_BASIC_AUTH"].startswith("${FLOWER_BASIC_AUTH:?")  # or it ends there
    assert environment["FLOWER_READ_ONLY"] == "true"


def test_workers_and_parents_find_blobs_under_one_path():
    path = SERVICES["worker"]["environment"]["FANOUT_BLOBS_URL"].removeprefix("file://")

    assert f"{path}:{path}" in SERVICES["worker"]["volumes"]


def test_every_documented_setting_reaches_a_service():
    documented = {name for name, _, _ in effective_settings(load_settings())}
    passed = {name for service in SERVICES.values() for name in service.get("environment", {})}

    assert documented - passed == NOT_PASSED.keys()


READERS = {
    **dict.fromkeys(("API", "NOTIFICATIONS"), ("server",)),
    **dict.fromkeys(("WORKER", "SANDBOX", "WEB", "TOOLS", "SECRETS"), ("worker",)),
    **dict.fromkeys(("MAX_OUTPUT_TOKENS", "MAX_RESULT_TOKENS"), ("worker",)),
}
"""The groups of settings that one service reads. Any other setting reaches both, a new one too."""


def test_every_documented_setting_reaches_all_services_that_read_it():
    documented = {name for name, _, _ in effective_settings(load_settings())} - NOT_PASSED.keys()
    missing = {
        (service, name)
        for name in documented
        for service in READERS.get(name.removeprefix(PREFIX).split("__")[0], ("worker", "server"))
        if name not in SERVICES[service]["environment"]
    }

    assert missing == {("server", "FANOUT_API__PORT")}  # in the container it is the default


@pytest.mark.parametrize(
    ("prefix", "services"), [("OTEL_", ("worker", "server")), ("FLOWER_", ("flower",))]
)
def test_every_documented_variable_of_other_projects_reaches_the_services_that_read_it(
    prefix, services
):
    pages = [page.read_text("utf-8") for page in (REPOSITORY / "docs").glob("*.md")]
    pattern = re.compile(rf"(?<![A-Z_]){prefix}[A-Z_]+[A-Z]")
    documented = {name for text in [*pages, str(flower.__doc__)] for name in pattern.findall(text)}

    assert documented
    for service in services:
        assert documented <= SERVICES[service]["environment"].keys()


def test_secrets_reach_only_the_services_that_use_them():
    users = {
        name: {one for one, service in SERVICES.items() if name in service.get("environment", {})}
        for name in ("FANOUT_SECRETS", "FANOUT_API__KEYS", "FANOUT_QUEUE__SIGNING_KEYS")
    }

    assert users == {
        "FANOUT_SECRETS": {"worker"},
        "FANOUT_API__KEYS": {"server"},
        "FANOUT_QUEUE__SIGNING_KEYS": {"server", "worker"},
    }


def test_every_service_says_whether_it_is_healthy_and_keeps_a_bounded_log():
    for name, service in SERVICES.items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}, name
    assert SERVICES["worker"]["environment"]["FANOUT_LIMITS__HOST_JOBS"].endswith(":-8}")


def test_every_setting_that_is_passed_on_exists():
    known = {name for name, _, _ in effective_settings(load_settings())}
    known |= {PREFIX + name.upper() for name in Settings.model_fields}  # a group, as JSON
    passed = {
        name
        for service in SERVICES.values()
        for name in service.get("environment", {})
        if name.startswith(PREFIX)
    }

    assert passed <= known


def test_compose_and_the_dockerfile_name_the_same_default_base():
    dockerfile = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    (default,) = re.findall(r"^ARG BASE=(.*)$", dockerfile, re.MULTILINE)

    assert f"-{default}}}" in COMPOSE.read_text(encoding="utf-8")


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
