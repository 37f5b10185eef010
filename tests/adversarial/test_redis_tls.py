"""A Redis behind TLS: whoever cannot prove to be it gets no byte, above all no password."""

from __future__ import annotations

import contextlib
import datetime as dt
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme
from kombu import Connection

from fanout.orchestrator.configuration.settings import InvalidSetting, load_settings
from fanout.orchestrator.jobs.failures import LedgerMisconfigured, LedgerUnavailable
from fanout.orchestrator.jobs.store.connection import connect
from fanout.orchestrator.jobs.store.keys import Keys
from fanout.orchestrator.jobs.store.ledger import Dispatched, Ledger
from fanout.orchestrator.jobs.store.queue import CeleryQueue
from tests.adversarial.redis_servers import GuardedRedis, guarded_redis
from tests.builders import make_spec
from tests.integration.scripts import DONE, conversation, write_script
from tests.services import REPOSITORY, Installation

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(300)]
PASSWORD = "hunter2-4711"  # noqa: S105 - a canary
PATIENCE_SECONDS = 60
"""For a process of ours to start and to try, on a busy machine."""
RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""Of SO_LINGER: on, no seconds."""
PAST = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)


@dataclass
class Impostor:
    """Ends TLS with a certificate of its own, and records what it is told then, or hangs up."""

    port: int
    hangs_up: bool = False
    connections: int = 0
    heard: bytes = b""
    closing: threading.Event = field(default_factory=threading.Event)

    def url(self, authority: Path) -> str:
        return f"rediss://:{PASSWORD}@localhost:{self.port}/0?ssl_ca_certs={authority}"

    def serve(self, listening: socket.socket, context: ssl.SSLContext) -> None:
        while not self.closing.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                self.connections += 1
                threading.Thread(target=self._talk, args=(connection, context), daemon=True).start()

    def _talk(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(5)
            with context.wrap_socket(connection, server_side=True) as secured:
                if self.hangs_up:
                    secured.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                    return
                while heard := secured.recv(4096):
                    self.heard += heard
                    secured.sendall(b"+OK\r\n")


@contextlib.contextmanager
def impostor(certificate: trustme.LeafCert, hangs_up: bool = False) -> Iterator[Impostor]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)
        made = Impostor(listening.getsockname()[1], hangs_up)
        thread = threading.Thread(target=made.serve, args=(listening, context), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.closing.set()
            thread.join()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(path)
    return path


CERTIFICATES = ("of an unknown authority", "of another host", "that is over")


@pytest.fixture(params=CERTIFICATES)
def listener(request: pytest.FixtureRequest, authority: trustme.CA) -> Iterator[Impostor]:
    issued = {
        CERTIFICATES[0]: lambda: trustme.CA().issue_cert("localhost"),
        CERTIFICATES[1]: lambda: authority.issue_cert("elsewhere.example"),
        CERTIFICATES[2]: lambda: authority.issue_cert("localhost", not_after=PAST),
    }
    with impostor(issued[request.param]()) as made:
        yield made


def test_a_client_that_does_not_verify_would_tell_the_impostor_its_password() -> None:
    with impostor(trustme.CA().issue_cert("localhost")) as listener:
        careless = Connection(
            f"rediss://:{PASSWORD}@localhost:{listener.port}/0",
            ssl={"ssl_cert_reqs": ssl.CERT_NONE, "ssl_check_hostname": False},
        )
        with contextlib.suppress(Exception):
            careless.default_channel.client.ping()

        assert PASSWORD.encode() in listener.heard, "else the tests below prove nothing"


async def test_the_ledger_tells_it_nothing_and_says_why(listener: Impostor, trusted: Path) -> None:
    async with connect(listener.url(trusted)) as client:
        with pytest.raises(
            LedgerMisconfigured, match="certificate of Redis is not trusted"
        ) as told:
            await Ledger(client, Keys()).now_ms()

    assert listener.heard == b""
    assert listener.connections == 1, "a refused certificate is not asked for again"
    assert PASSWORD not in str(told.value)


async def test_the_queue_tells_it_nothing_and_says_why(listener: Impostor, trusted: Path) -> None:
    queue = CeleryQueue(listener.url(trusted), "fanout", "fanout")
    with pytest.raises(LedgerMisconfigured, match="certificate of Redis is not trusted"):
        await queue.send([Dispatched(make_spec(), 1)])
    await queue.close()

    assert listener.connections >= 1
    assert listener.heard == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["celery", "-A", "fanout.workers.celery_app", "inspect", "ping", "--timeout", "1"],
        ["celery", "-A", "fanout.workers.celery_app", "events", "--dump"],
        ["celery", "-A", "fanout.workers.celery_app", "flower", "--port=0"],
        ["workers"],
        ["orchestrator", "ps"],
    ],
    ids=["control", "events", "flower", "worker", "client"],
)
def test_no_process_of_ours_tells_it_anything(
    listener: Impostor, trusted: Path, command: list[str], tmp_path: Path
) -> None:
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(REPOSITORY),
        "FANOUT_REDIS_URL": listener.url(trusted),
        "FANOUT_STATE_DIR": str(tmp_path / "state"),
        "FANOUT_SANDBOX__PROVIDER": "local",
    }
    child = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        if command[0] == "celery" and listener.connections > 1:
            break  # it goes on trying
        time.sleep(0.2)
    child.kill()
    _, said = child.communicate()

    assert listener.connections >= 1, said
    assert listener.heard == b""
    assert PASSWORD.encode() not in said
    if command[0] != "celery":
        assert child.returncode == 3
        assert said.startswith(b"The certificate of Redis is not trusted")


@pytest.fixture
def guarded(authority: trustme.CA, trusted: Path, tmp_path: Path) -> Iterator[GuardedRedis]:
    """A Redis that wants TLS, a certificate of its clients and a password."""
    folder = tmp_path / "redis"
    folder.mkdir()
    for name in ("server", "client"):
        leaf = authority.issue_cert("localhost", "127.0.0.1")
        leaf.private_key_pem.write_to_path(folder / f"{name}.key")
        leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    mine = {"ssl_certfile": f"{folder}/client.pem", "ssl_keyfile": f"{folder}/client.key"}
    query = "&".join(f"{name}={path}" for name, path in mine.items())
    with guarded_redis(
        folder,
        *("--port", "0", "--tls-port", "{port}", "--tls-auth-clients", "yes"),
        *("--tls-cert-file", f"{folder}/server.pem", "--tls-key-file", f"{folder}/server.key"),
        *("--tls-ca-cert-file", str(trusted), "--requirepass", PASSWORD),
        url=f"rediss://:{PASSWORD}@localhost:{{port}}/0?ssl_ca_certs={trusted}&{query}",
        password=PASSWORD,
        ssl=True,
        ssl_ca_certs=str(trusted),
        **mine,
    ) as made:
        yield made


@pytest.fixture
def place(guarded: GuardedRedis, tmp_path: Path) -> Iterator[Installation]:
    script = write_script(tmp_path, conversation("quick", DONE))
    made = Installation(tmp_path, guarded, script=script)
    yield made
    made.stop()


async def test_a_job_runs_over_verified_connections(place: Installation) -> None:
    place.start_worker()
    async with place.client() as client:
        await place.ready(client)
        result = await client.wait(await client.submit(make_spec("quick")), 40)

    assert result.success, result.error


async def test_a_server_that_wants_a_certificate_of_the_client_says_so(
    guarded: GuardedRedis,
) -> None:
    without = guarded.url.partition("&ssl_certfile")[0]
    async with connect(without) as client:
        with pytest.raises(LedgerUnavailable, match="ssl_certfile"):
            await Ledger(client, Keys()).now_ms()


async def test_a_server_that_hangs_up_after_the_handshake_may_want_a_certificate(
    authority: trustme.CA, trusted: Path
) -> None:
    with impostor(authority.issue_cert("localhost"), hangs_up=True) as listener:
        async with connect(listener.url(trusted)) as client:
            with pytest.raises(LedgerUnavailable, match="ssl_certfile"):
                await Ledger(client, Keys()).now_ms()

    assert listener.connections > 1, "another try might have worked"


@pytest.mark.parametrize(
    "query",
    [
        "ssl_cert_reqs=none",
        "ssl_cert_reqs=CERT_NONE",
        "ssl_check_hostname=false",
        "ssl_ca_certs=/not/there.pem",
        "ssl_ca_certs=relative.pem",
        "ssl_exclude_verify_flags=VERIFY_X509_STRICT",
        "ssl_ciphers=NULL",
        "credential_provider=os.system",
    ],
)
def test_no_option_of_the_url_turns_the_check_off(query: str) -> None:
    with pytest.raises(InvalidSetting, match="FANOUT_REDIS_URL") as told:
        load_settings(redis_url=f"rediss://:{PASSWORD}@h/0?{query}")

    assert PASSWORD not in str(told.value)
