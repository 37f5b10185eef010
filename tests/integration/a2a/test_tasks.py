"""Messages become jobs, and jobs are seen as tasks, by the SDK's own client."""

from __future__ import annotations

import pytest
from a2a.types import GetTaskRequest, StreamResponse, TaskState
from a2a.utils.errors import InvalidParamsError

from tests.integration.a2a.conftest import Server, events, message

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(300)]


def states(stream: list[StreamResponse]) -> list[str]:
    """The states of a stream, without repetitions."""
    found = [
        TaskState.Name(
            (one.task if one.HasField("task") else one.status_update).status.state
        ).removeprefix("TASK_STATE_")
        for one in stream
        if not one.HasField("artifact_update")
    ]
    return [one for number, one in enumerate(found) if found[:number][-1:] != [one]]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_message_becomes_a_job_whose_steps_and_artifacts_are_streamed(
    server: Server, binding: str
) -> None:
    async with server.client(binding=binding) as client:
        seen = await events(client.send_message(message("write a note")))
        task = await client.get_task(GetTaskRequest(id=seen[0].task.id))
    assert states(seen)[-1] == "COMPLETED"
    artifacts = {one.artifact_id: one for one in task.artifacts}
    assert artifacts["answer"].parts[0].text == "Written."
    assert b"+one" in artifacts["patch"].parts[0].raw
    assert [one.filename for one in artifacts["files"].parts[1:]] == ["notes.txt"]
    updated = [one.artifact_update.artifact for one in seen if one.HasField("artifact_update")]
    sent = [*seen[0].task.artifacts, *updated]
    assert [one.artifact_id for one in sent] == ["answer", "patch", "files"]
    updates = [one.status_update.status.message for one in seen if one.HasField("status_update")]
    steps = [*seen[0].task.history[1:], *(one for one in updates if one.parts)]
    told = {part.metadata.fields["adk_type"].string_value for one in steps for part in one.parts}
    assert told >= {"function_call", "function_response"}
    assert [one.message_id for one in task.history[1:]] == [one.message_id for one in steps]


async def test_a_script_in_the_metadata_of_a_message_is_the_task(server: Server) -> None:
    source = """async def main():
    return [(await agent(f"write {name}")).ok for name in inputs["names"]]
"""
    metadata = {"fanout.script": source, "fanout.inputs": {"names": ["a"]}}
    async with server.client() as client:
        asked = message("Write the notes.", metadata=metadata)
        seen = await events(client.send_message(asked))
        task = await client.get_task(GetTaskRequest(id=seen[0].task.id))
        wrong = message("x", metadata={"fanout.script": "await agnt()"})
        with pytest.raises(InvalidParamsError, match="line 1"):
            await events(client.send_message(wrong))

    assert states(seen)[-1] == "COMPLETED"
    assert "true" in str([one for one in task.artifacts if one.artifact_id == "answer"]).lower()
