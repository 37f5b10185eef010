"""What a service of docker-compose.yml may do: the least that it needs."""

import os
import re
import subprocess

import pytest
import yaml

from tests.architecture.sources import REPOSITORY

SERVICES = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text(encoding="utf-8"))[
    "services"
]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_capabilities_gains_none_and_writes_to_its_volumes_only(name):
    service = SERVICES[name]

    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert not service.get("privileged")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_bounds_for_memory_and_processes(name):
    assert SERVICES[name]["mem_limit"]
    assert SERVICES[name]["pids_limit"]


def test_only_the_proxy_opens_the_engines_socket_and_it_has_no_network():
    opening = [
        name for name, service in SERVICES.items() if "docker.sock" in str(service.get("volumes"))
    ]

    assert opening == ["engine"]
    assert SERVICES["engine"]["network_mode"] == "none"
    assert SERVICES["engine"]["command"][0] == "fanout.workers.extras.engine_proxy"


def test_workers_and_flower_are_not_root_and_only_workers_reach_the_proxy():
    assert SERVICES["worker"]["user"].startswith("${FANOUT_USER:?")
    assert SERVICES["redis"]["user"] == "redis"
    assert "user" not in SERVICES["flower"]  # the image's, which is not root
    assert "USER 10002" in (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    reaching = [
        name for name, service in SERVICES.items() if "engine:/run" in str(service.get("volumes"))
    ]
    assert reaching == ["engine", "worker"]


def test_no_password_is_an_argument_of_a_process():
    commands = [str(service.get("command", "")) for service in SERVICES.values()]

    assert not any("requirepass " in line and "--" in line for line in commands)
    assert not any("${" in command.replace("$${", "") for command in commands)


@pytest.mark.parametrize("given", [{}, {"SERVER_PASSWORD": "p4"}], ids=["without", "with"])
def test_no_user_of_redis_keeps_the_password_of_the_example(given):
    service = SERVICES["redis"]
    program = re.search(r"awk '(.*?)' /etc", service["command"][2].replace("$$", "$"), re.DOTALL)
    assert program is not None
    passwords = {"REDISCLI_AUTH": "p1", "WORKER_PASSWORD": "p2", "DASHBOARD_PASSWORD": "p3"}

    written = subprocess.run(
        ["awk", program[1], str(REPOSITORY / "config" / "redis-acl.example")],
        env=os.environ | passwords | given,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert ">change-me-" not in written
    assert ("user fanout-server " in written) is bool(given)
    assert "user fanout-client on >p1 " in written
