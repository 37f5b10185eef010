"""A running coding agent: its process in the sandbox, and the requests of the protocol to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from acp import PROTOCOL_VERSION, RequestError, text_block
from acp.client.connection import ClientSideConnection
from acp.schema import EnvVarAuthMethod, Implementation, InitializeResponse, PromptResponse
from pydantic import SecretStr, ValidationError

from fanout.orchestrator.cancellation import cancel_and_wait, ended
from fanout.orchestrator.configuration.agent_definitions import CodingAgentDefinition
from fanout.orchestrator.jobs.failures import AgentFailed, InvalidJob, JobFailure
from fanout.orchestrator.shortening import one_line
from fanout.orchestrator.version import VERSION

from ...sandbox import WORKSPACE, Command, Process, Sandbox
from .kept_home import home_of
from .wire import ERROR_CHARACTERS, Wire

START_SECONDS = 120.0
"""The time until the agent has begun a session: a program of Node on a busy machine."""
ERROR_OUTPUT_BYTES = 16_384
"""How much of its error output is kept."""
TAIL_CHARACTERS = 500
"""How much of that is in the text of a failure."""
AUTH_REQUIRED = -32000
"""ACP's code for a session that needs an authentication."""
NOT_FOUND = 127
"""The exit code of a shell for a program that does not exist."""
START = ("sh", "-c", 'mkdir -p "$HOME" && exec "$@"', "sh")
"""A program that makes HOME and becomes the agent."""


class _NoClient:
    """What the agent may ask of the library's client: nothing. `Wire` has the questions."""

    def on_connect(self, _agent: Any) -> None:
        """Nothing is done."""


class AgentConnection:
    """The connection to one process.

    Args:
        process: The agent's process.
        definition: The key `acp` of its definition.
        secrets: Those of the worker, which no text may contain.
    """

    def __init__(
        self,
        process: Process,
        definition: CodingAgentDefinition,
        secrets: Mapping[str, SecretStr],
    ) -> None:
        self._process = process
        self._definition = definition
        self._secrets = secrets
        self.wire = Wire(process)
        nothing: Any = _NoClient()
        self._library: Any = ClientSideConnection(nothing, self.wire)
        self._greeting: InitializeResponse | None = None
        self.session = ""
        """The open session; empty before there is one."""
        self.prompting: asyncio.Task[PromptResponse] | None = None
        """The prompt that the agent works on."""

    async def start(self) -> None:
        """Begin the protocol.

        Raises:
            JobFailure: The agent cannot be used.
        """
        self._greeting = await self._timely(
            self._library.initialize(
                protocol_version=PROTOCOL_VERSION,
                client_info=Implementation(name="fanout", version=VERSION),
            )
        )
        version = self._greeting.protocol_version
        if version != PROTOCOL_VERSION:
            raise AgentFailed(
                f"The coding agent speaks version {version} of ACP, and fanout version "
                f"{PROTOCOL_VERSION}: use another release of it."
            )

    @property
    def can_load(self) -> bool:
        """Whether it can go on with a session of an earlier process."""
        capabilities = self._greeting.agent_capabilities if self._greeting else None
        return bool(capabilities and capabilities.load_session)

    async def load(self, session: str) -> bool:
        """Go on with a session of an earlier process; return whether that was possible.

        What the agent plays again of the session is dropped: the journal has it.

        Raises:
            JobFailure: The agent cannot be used.
        """
        if not self.can_load:
            return False
        try:
            await self._timely(self._library.load_session(cwd=WORKSPACE, session_id=session))
        except AgentFailed:
            if self.wire.ended is not None or self.wire.fault:
                raise
            return False
        self.session = session
        return True

    async def begin(self) -> None:
        """Begin a new session; one that needs an authentication gets the one that it may have.

        Raises:
            JobFailure: The agent cannot be used.
        """
        try:
            self.session = await self._new_session()
        except _AuthRequired as refused:
            method = self._auth_method()
            if method is None:
                raise self._needs_login(refused.text) from None
            try:
                await self._timely(self._library.authenticate(method_id=method))
                self.session = await self._new_session()
            except _AuthRequired as again:
                raise self._needs_login(again.text) from None

    async def _new_session(self) -> str:
        answer = await self._timely(self._library.new_session(cwd=WORKSPACE, mcp_servers=[]))
        return str(answer.session_id)

    def _auth_method(self) -> str | None:
        """Return the method that the definition names, or one whose variables it sets."""
        if self._definition.auth_method is not None:
            return self._definition.auth_method
        for method in (self._greeting.auth_methods if self._greeting else None) or ():
            if isinstance(method, EnvVarAuthMethod):
                needed = {variable.name for variable in method.vars if not variable.optional}
                if needed <= self._definition.env.keys():
                    return method.id
        return None

    def _needs_login(self, text: str) -> InvalidJob:
        methods = (self._greeting.auth_methods if self._greeting else None) or ()
        offered = ", ".join(str(method.id)[:50] for method in methods[:10])
        return InvalidJob(
            f"The coding agent wants a login ({one_line(text, 100)}"
            f"{f'; it offers {offered}' if offered else ''}), and nobody logs in inside of a "
            "sandbox: give its model's host and key by network and credentials, a dummy key by "
            "acp.env, and the method that takes it by acp.auth_method."
        )

    def prompt(self, text: str) -> asyncio.Task[PromptResponse]:
        """Send a prompt; the task ends with the turn, with an error of `failure` if it fails."""
        work = self._library.prompt(session_id=self.session, prompt=[text_block(text)])
        self.prompting = asyncio.create_task(work)
        return self.prompting

    async def end_turn(self, seconds: float) -> None:
        """Tell the agent to end its turn, and give it some time to do so."""
        turn = self.prompting
        if turn is None or turn.done() or not self.session:
            return
        telling = asyncio.create_task(self._library.cancel(session_id=self.session))
        await ended(seconds, telling, turn)
        telling.cancel()
        turn.cancel()

    async def failure(self, error: BaseException) -> JobFailure:
        """Return why a request has failed.

        Args:
            error: What the request has raised.
        """
        if isinstance(error, JobFailure):
            return error
        if self.wire.fault:
            return AgentFailed(f"The coding agent was ended: {self.wire.fault}.")
        if isinstance(self.wire.ended, JobFailure):
            return self.wire.ended  # the sandbox failed
        if self.wire.ended is not None:
            return self._exit_failure(self.wire.ended.result.exit_code)
        if isinstance(error, RequestError):
            text = self._without_secrets(one_line(str(error), ERROR_CHARACTERS))
            if error.code == AUTH_REQUIRED:
                return _AuthRequired(text)
            return AgentFailed(f"The coding agent reports an error: {text} (code {error.code}).")
        if isinstance(error, TimeoutError):
            return AgentFailed(
                f"The coding agent did not begin within {START_SECONDS:g} s.{self._tail()}"
            )
        if isinstance(error, ValidationError):
            return AgentFailed("The coding agent gave an answer that is not one of ACP.")
        return AgentFailed(f"The connection to the coding agent broke off.{self._tail()}")

    def _exit_failure(self, exit_code: int) -> JobFailure:
        program = self._definition.command[0]
        if exit_code == NOT_FOUND and program in self._errors():
            return InvalidJob(
                f"The sandbox has no program {program}: name an image that has it by image in the "
                "agent's definition."
            )
        return AgentFailed(
            f"The coding agent ended with exit code {exit_code} while it was needed.{self._tail()}"
        )

    def _errors(self) -> str:
        return self._process.error_output.decode(errors="replace").strip()

    def _tail(self) -> str:
        """Return the end of its error output as a sentence; empty for none."""
        text = self._without_secrets(self._errors())[-TAIL_CHARACTERS:]
        return f" It last wrote: {one_line(text)}" if text else ""

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets.values():
            if value := secret.get_secret_value():
                text = text.replace(value, "…")
        return text

    async def _timely(self, request: Any) -> Any:
        """Return the answer to a request of the start; what else the agent says is dropped.

        Raises:
            JobFailure: There is none.
        """
        asking = asyncio.create_task(request)
        dropping = asyncio.create_task(self._drop())
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await asking
        except (RequestError, ConnectionError, ValidationError, TimeoutError) as error:
            raise await self.failure(error) from None
        finally:
            await cancel_and_wait(asking, dropping)
        while not self.wire.received.empty():
            self.wire.received.get_nowait()
        return answer

    async def _drop(self) -> None:
        while True:
            await self.wire.received.get()

    async def close(self) -> None:
        """End the connection; the process is ended by its context."""
        await self._library.close()


class _AuthRequired(AgentFailed):
    """The agent wants an authentication before it begins a session."""

    @property
    def text(self) -> str:
        """What it said."""
        return str(self)


@contextlib.asynccontextmanager
async def connect(
    sandbox: Sandbox,
    definition: CodingAgentDefinition,
    secrets: Mapping[str, SecretStr],
) -> AsyncIterator[AgentConnection]:
    """Start an agent's process in a sandbox and begin the protocol; it ends with the context.

    Args:
        sandbox: The job's sandbox; it is open.
        definition: The key `acp` of the agent's definition.
        secrets: Those of the worker.

    Raises:
        JobFailure: The agent cannot be used, or the sandbox failed.
    """
    _check_env(definition.env.values(), secrets)
    command = Command(
        argv=(*START, *definition.command),
        env={**definition.env, "HOME": home_of(sandbox)},
        max_output_bytes=ERROR_OUTPUT_BYTES,
    )
    async with sandbox.open_process(command) as process:
        connection = AgentConnection(process, definition, secrets)
        try:
            await connection.start()
            yield connection
        finally:
            await connection.close()


def _check_env(values: Collection[str], secrets: Mapping[str, SecretStr]) -> None:
    for name, secret in secrets.items():
        if any(secret.get_secret_value() in value for value in values):
            raise InvalidJob(
                f"acp.env contains the secret {name}, which the agent could read: give it a dummy, "
                "and the secret by credentials."
            )
