"""The turns of a remote agent's job, as its journal has them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fanout.orchestrator.approvals import ApprovalAnswer
from fanout.orchestrator.configuration.agent_definitions import AgentDefinition
from fanout.workers.agent.history import History
from fanout.workers.extras.remote_agents.conversation import RemoteConversation
from fanout.workers.extras.remote_agents.messages import (
    SentFiles,
    answer_text,
    guess_media_types,
    make_message,
)


def conversation(history: History | None = None) -> RemoteConversation:
    return RemoteConversation("far", "job", history or History())


def test_a_message_without_a_known_task_is_sent_again_as_it_was():
    first = conversation()
    begun = first.begun("do it", 0)

    resumed = conversation(History(events=[begun])).last

    assert resumed is not None
    assert (resumed.text, resumed.note.is_taken, resumed.has_ended) == ("do it", False, False)
    first.add(begun)
    assert first.last is not None
    assert make_message(resumed, SentFiles()) == make_message(first.last, SentFiles())
    assert make_message(resumed, SentFiles()).message_id == "job-1"


def test_what_is_lost_with_a_host_is_the_files_and_not_what_the_agent_did():
    made = conversation()
    events = []
    for step in range(3):
        turn = made.last
        if step == 0:
            event = made.begun("do it", 0)
        else:
            assert turn is not None
            event = made.taken(turn, "t1", "c1") if step == 1 else None
            event = event or made.ended(turn, "Done.", state="completed", has_files=True)
        made.add(event)
        events.append(event)

    lost = conversation(History(lost=events))
    halved = conversation(History(lost=events[1:], events=events[:1]))
    kept = conversation(History(events=events))

    for one in (lost, halved, kept):
        assert one.last is not None
        assert (one.last.reply, one.last.note.task, one.last.text) == ("Done.", "t1", "do it")
    assert [turn.note.task for turn in lost.without_files] == ["t1"]
    assert [turn.note.task for turn in halved.without_files] == ["t1"]
    assert kept.without_files == []
    assert kept.task == ""  # nothing is to be cancelled


def test_a_continuation_keeps_the_context_of_its_own_agent_only():
    earlier = conversation()
    earlier.add(earlier.begun("do it", 0))
    assert earlier.last is not None
    taken = earlier.taken(earlier.last, "t1", "c1")

    same = conversation(History(earlier=[taken])).begun("go on", 0)
    other = RemoteConversation("near", "job", History(earlier=[taken])).begun("go on", 0)

    assert (same.custom_metadata or {})["a2a"]["context"] == "c1"
    assert "context" not in (other.custom_metadata or {})["a2a"]


def test_a_persons_answer_is_a_text():
    answers = [
        ApprovalAnswer(decision="approve"),
        ApprovalAnswer(decision="reject", message="Too dear."),
        ApprovalAnswer(decision="respond", response={"colour": "blue"}),
    ]

    texts = [answer_text(answer) for answer in answers]

    assert texts == ["Yes, approved.", "No, rejected.\n\nToo dear.", '{"colour": "blue"}']


@pytest.mark.parametrize(
    ("path", "content", "types"),
    [
        ("a.md", b"# A", ("text/markdown", "text/plain")),
        ("a.unknown", b"text", ("text/plain",)),
        ("a.png", b"\x89PNG\xff", ("image/png", "application/octet-stream")),
        ("a.tar.gz", b"\x1f\x8b", ("application/octet-stream",)),
    ],
)
def test_a_file_is_sent_as_its_type_or_as_text(path, content, types):
    assert guess_media_types(path, content) == types


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"model": "gpt-5"}, "has its own model"),
        ({"instruction": "Do it."}, "has its own instruction"),
        ({"tools": ["ls"]}, "has its own tools"),
        ({"a2a": {"url": "ftp://x"}}, "http://"),
        ({"a2a": {"url": "http://me:word@x"}}, "no password"),
        ({"a2a": {"url": "http://x", "files": ["../x"]}}, "relative to the workspace"),
        ({"a2a": {"url": "http://x", "files": "some"}}, "all"),
        ({"a2a": {"url": "http://x", "token": "t"}}, "token"),
        ({"a2a": {"url": "http://x", "max_bytes": 10**12}}, "max_bytes"),
    ],
)
def test_a_definition_says_nothing_that_a_remote_agent_would_ignore(fields, problem):
    given: dict[str, Any] = {"name": "far", "description": "Far.", "a2a": {"url": "http://x"}}

    with pytest.raises(ValidationError, match=problem):
        AgentDefinition.model_validate(given | fields)
    assert AgentDefinition.model_validate(given).a2a is not None
