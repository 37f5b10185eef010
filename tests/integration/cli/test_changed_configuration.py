"""Definitions and keys that change while a worker runs take effect at the next job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.cli.conftest import Ended, Fanout
from tests.integration.cli.test_embedded import within
from tests.integration.cli.test_services import LOCAL
from tests.integration.models.model_server import Answer, ModelServer, environment, model_server
from tests.integration.models.model_server import text as said
from tests.integration.scripts import conversation, says, shell, write_script

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]

AGENT = "name: mine\ndescription: d\ninstruction: i\n"


class Person:
    """Somebody with a configuration folder, a scripted model and a loopback one."""

    def __init__(self, fanout: Fanout, server: ModelServer) -> None:
        self.folder = fanout.folder / "conf"
        (self.folder / "agents").mkdir(parents=True)
        self.server = server
        wait = shell("until test -e go; do sleep 0.2; done")
        script = write_script(
            fanout.folder,
            conversation("^long", wait, says("Long.")),
            conversation("", says("## Summary\nBy the old one.")),
        )
        reached = environment(server, "")
        keys = [name for name in reached if name.endswith("_API_KEY")]
        self.fanout = Fanout(
            fanout.folder,
            {
                **fanout.env,
                **LOCAL,
                **{name: value for name, value in reached.items() if name not in keys},
                "FANOUT_CONFIG": str(self.folder / "config.toml"),
                "FANOUT_MODEL": f"scripted:{script}",
            },
        )
        (self.folder / "config.toml").write_text("")

    def agent(self, answer: str) -> None:
        """Write the definition of an agent that gives this answer."""
        agents = self.folder / "agents"
        script = write_script(agents, conversation("", says(f"## Summary\n{answer}")))
        script.rename(agents / f"{answer}.script")
        (agents / "mine.yaml").write_text(f"{AGENT}model: scripted:{answer}.script\n")

    def key(self, value: str) -> None:
        (self.folder / ".env").write_text(f"GOOGLE_API_KEY={value}\n")

    def submit(self, *arguments: str, **env: str) -> Ended:
        return self.fanout("submit", "hello", "--wait", *arguments, env=env, timeout=90)

    def worker(self) -> str:
        (one,) = self.fanout("up", "--no-serve", "--json", timeout=90).json["workers"]
        return str(one["name"])

    def doctor(self, **env: str) -> dict[str, str]:
        found = self.fanout("doctor", "--json", env=env, timeout=60).json["checks"]
        return {one["found"]: one["advice"] for one in found if one["name"] == "worker"}


@pytest.fixture
def person(lonely_fanout: Fanout) -> Iterator[Person]:
    with model_server([Answer((said("From the service."),))] * 20) as server:
        made = Person(lonely_fanout, server)
        yield made
        made.fanout("down", timeout=60)


def test_an_added_and_an_edited_agent_work_at_the_next_job_of_a_busy_worker(
    person: Person,
) -> None:
    person.agent("first")
    before = person.worker()
    busy = person.fanout("submit", "long").out.strip()
    assert within(60, lambda: "running" in person.fanout("show", busy).out)

    first = person.submit("--agent", "mine")
    person.agent("second")
    second = person.submit("--agent", "mine")
    (person.folder / "agents" / "new.yaml").write_text(
        AGENT.replace("mine", "new") + "model: scripted:second.script\n"
    )
    new = person.submit("--agent", "new")
    shown = person.doctor()
    (person.folder / "agents" / "new.yaml").write_text("name: new\ncolour: red\n")
    refused = person.submit("--agent", "new")
    (person.folder / "agents" / "new.yaml").unlink()

    assert "first" in first.out, first.err
    assert "second" in second.out, second.err
    assert "second" in new.out, new.err
    assert shown == {}
    assert (refused.code, "colour" in refused.err) == (2, True)
    assert person.worker() == before
    assert "running" in person.fanout("show", busy).out
    assert person.fanout("cancel", busy).code == 0


def test_a_key_in_the_dotenv_is_used_and_a_changed_one_by_the_next_job(person: Person) -> None:
    person.key("first-key")
    before = person.worker()
    run = ("run", "hello", "--model", "gemini-2.5-flash", "--agent", "general-purpose", "--yes")

    first = person.fanout(*run, timeout=90)
    person.key("second-key")
    second = person.fanout(*run, timeout=90)

    assert (first.code, first.out) == (0, "From the service.\n"), first.err
    assert (second.code, second.out) == (0, "From the service.\n"), second.err
    assert person.server.keys == ["first-key", "second-key"]
    assert person.worker() == before


def test_an_exported_key_reaches_the_next_job_although_the_worker_is_busy(person: Person) -> None:
    person.worker()
    busy = person.fanout("submit", "long").out.strip()
    assert within(60, lambda: "running" in person.fanout("show", busy).out)

    done = person.submit("--model", "gemini-2.5-flash", GOOGLE_API_KEY="exported")

    assert "Settings changed: starting a worker with them …" in done.err
    assert done.code == 0, done.err
    assert person.server.keys == ["exported"]
    assert "running" in person.fanout("show", busy).out
    assert person.fanout("cancel", busy).code == 0
