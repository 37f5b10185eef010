"""What a container with credentials trusts, and that each attempt has an authority of its own."""

from __future__ import annotations

import json
import ssl
from typing import Any

from pydantic import SecretStr

from fanout.workers.sandbox import Credential, SandboxSpec
from fanout.workers.sandbox.docker import container_config
from fanout.workers.sandbox.docker.provider import DockerProvider
from fanout.workers.sandbox.protocol import Command
from tests.docker import conftest
from tests.docker.conftest import make_sandbox_spec
from tests.docker.test_hardening import run_python

pytestmark = conftest.ON_SHARED_PROVIDER
provider = conftest.provider_of_session


CANARY = "canary-header-5d20"
OUR_NAME = "fanout: authority of one sandbox"
NAMES = """
import json, os, ssl
variables = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
             "NODE_EXTRA_CA_CERTS")
paths = {os.environ.get(name, "") for name in variables}
context = ssl.create_default_context()
subjects = [dict(pair[0] for pair in one["subject"]) for one in context.get_ca_certs()]
print(json.dumps([sorted(paths), [one.get("commonName", "") for one in subjects]]))
"""


def spec_with_credential(**fields: Any) -> SandboxSpec:
    credential = Credential(
        host="git.example",
        port=443,
        secret="GIT_TOKEN",
        header="Authorization",
        value=SecretStr(CANARY),
        hidden=(SecretStr(CANARY),),
    )
    limits = make_sandbox_spec().limits.model_copy(update={"network": ("git.example",)})
    return make_sandbox_spec(limits=limits, credentials=(credential,), **fields)


async def test_programs_trust_the_images_authorities_and_the_sandboxes_own(
    provider: DockerProvider,
) -> None:
    async with provider.open(spec_with_credential()) as sandbox:
        paths, names = json.loads(await run_python(sandbox, NAMES))

    assert paths == [container_config.CA_BUNDLE]
    assert names.count(OUR_NAME) == 1
    assert len(names) > 50


async def test_each_attempt_has_an_authority_of_its_own_whose_key_is_not_inside(
    provider: DockerProvider,
) -> None:
    search = f"cat /proc/[0-9]*/environ ~/.fanout/* 2>/dev/null | grep -aE 'PRIVATE KEY|{CANARY[:-1]}[0]'"
    bundles = []
    for attempt in (1, 2):
        spec = spec_with_credential(job_id="same-job", attempt=attempt)
        async with provider.open(spec) as sandbox:
            assert (await sandbox.run(Command(argv=search))).output == b""
            bundles.append(await sandbox.read_bytes(container_config.CA_BUNDLE))
    await provider.discard("same-job")

    first, second = (_ours(bundle) for bundle in bundles)
    assert first != second
    assert len(first) == len(second) == 1


def _ours(bundle: bytes) -> list[bytes]:
    context = ssl.create_default_context(cadata=bundle.decode())
    found = zip(context.get_ca_certs(), context.get_ca_certs(binary_form=True), strict=True)
    return [binary for one, binary in found if OUR_NAME in repr(one["subject"])]


async def test_without_credentials_nothing_is_added(provider: DockerProvider) -> None:
    async with provider.open(make_sandbox_spec()) as sandbox:
        shown = await sandbox.run(Command(argv="env | grep -c bundle; ls -a ~"))

    assert b".fanout" not in shown.output
    assert shown.output.startswith(b"0\n")
