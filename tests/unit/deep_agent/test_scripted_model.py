"""Scripts: chosen by agent and task, told by place when wrong, the same in any process."""

import asyncio
from pathlib import Path

import pytest
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from fanout.orchestrator.deep_agent.create import create_deep_agent, create_deep_app
from fanout.orchestrator.deep_agent.failures import ModelNotConfigured, ScriptFailed
from fanout.orchestrator.deep_agent.messages import summary_of
from fanout.orchestrator.deep_agent.models.resolve import resolve_model
from fanout.orchestrator.deep_agent.models.scripted_model import Script
from tests.unit.deep_agent.running import Run, script_file

SCRIPT = r"""
    conversations:
      - agent: general-purpose
        when: 'write (\S+)'
        replies:
          - text: writing {{1}}
            calls: [{tool: write_file, args: {file_path: "/{{1}}", content: "{{task}}"}}]
          - {text: "{{last_result}} {{agent}} {{unknown}}"}
      - agent: coordinator
        replies: [{text: I coordinate.}]
      - when: anything
        replies: [{text: fits all}]
"""


async def test_the_conversation_is_chosen_by_agent_and_task_and_filled_in(tmp_path: Path) -> None:
    path = script_file(tmp_path, SCRIPT)
    run = await Run(f"scripted:{path}", name="general-purpose").to_end("please write x.txt")
    assert run.text == '[{"status": "success", "path": "/x.txt"}] general-purpose {{unknown}}'
    assert (
        await Run(f"scripted:{path}", name="coordinator").to_end("do it")
    ).text == "I coordinate."
    assert (await Run(f"scripted:{path}", name="other").to_end("anything else")).text == "fits all"
    with pytest.raises(ScriptFailed, match="no conversation for this task of agent other"):
        await Run(f"scripted:{path}", name="other").to_end("something")


async def test_a_conversation_can_depend_on_the_system_instruction_and_quote_it(
    tmp_path: Path,
) -> None:
    path = script_file(
        tmp_path,
        r"""
        conversations:
          - {when: 'the (\w+)', system: 'My name is (\w+)', replies: [{text: '{{1}} of {{2}}'}]}
          - replies: [{text: nameless}]
        """,
    )
    named = await Run(f"scripted:{path}", instruction="My name is Ada.").to_end("do the work")
    assert named.text == "work of Ada"
    assert (await Run(f"scripted:{path}").to_end("do the work")).text == "nameless"


async def test_a_script_that_is_not_there_ends_the_run_with_its_name() -> None:
    with pytest.raises(ScriptFailed, match="The script file cannot be read: No such file"):
        await Run("scripted:/no/such/file").to_end()


async def test_another_process_goes_on_where_the_first_one_stopped(tmp_path: Path) -> None:
    path = script_file(
        tmp_path,
        """
        conversations:
          - replies:
              - {text: one, calls: [{tool: read_todos}]}
              - {text: two, calls: [{tool: read_todos}]}
              - {text: three}
        """,
    )

    def runner(events: list[Event]) -> Runner:
        app = create_deep_app(create_deep_agent(f"scripted:{path}"))
        return Runner(app=app, session_service=Sessions(events))

    class Sessions(InMemorySessionService):
        def __init__(self, events: list[Event]) -> None:
            super().__init__()
            self.restored = events

    kept: list[Event] = []
    first = runner([])
    await first.session_service.create_session(app_name="fanout", user_id="u", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    async for event in first.run_async(user_id="u", session_id="s", new_message=message):
        kept.append(event)
        if len(kept) == 2:
            break
    session = await first.session_service.get_session(
        app_name="fanout", user_id="u", session_id="s"
    )
    assert session is not None
    second = runner([])
    fresh = await second.session_service.create_session(
        app_name="fanout", user_id="u", session_id="s"
    )
    for event in session.events:
        await second.session_service.append_event(
            fresh, Event.model_validate_json(event.model_dump_json())
        )
    rest = [
        event
        async for event in second.run_async(
            user_id="u", session_id="s", invocation_id=kept[0].invocation_id
        )
    ]
    said = [
        part.text
        for event in rest
        for part in (event.content.parts if event.content else []) or []
        if part.text
    ]
    assert said == ["two", "three"]


async def test_many_agents_use_one_script_at_once(tmp_path: Path) -> None:
    path = script_file(tmp_path, SCRIPT)
    runs = [
        Run(f"scripted:{path}", name="general-purpose").to_end(f"write f{n}.txt") for n in range(30)
    ]
    done = await asyncio.gather(*runs)
    assert [f"/f{n}.txt" in run.text for n, run in enumerate(done)] == [True] * 30


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "conversations:\n- replies:\n  - calls:\n    - args: {}\n",
            "line 4: Field required",
        ),
        ("conversations:\n- replies: []\n", "line 2: Tuple should have at least 1 item"),
        ("conversations:\n- replies:\n  - txt: x\n", "line 3: Extra inputs"),
        ("conversations:\n- when: (\n  replies:\n  - text: x\n", "line 2: this is not a regular"),
        ("conversations: [", "line 1"),
        ("", "line 1"),
    ],
)
def test_a_wrong_script_is_told_with_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    path = script_file(tmp_path, text)
    with pytest.raises(ScriptFailed) as caught:
        Script.load(path)
    assert words in str(caught.value)
    assert f"The script {path.name} is " in str(caught.value)


def test_a_script_that_is_not_utf_8_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "script.yaml"
    path.write_bytes(b"# one\n# caf\xe9\n")
    with pytest.raises(ScriptFailed, match=r"script\.yaml cannot be read: line 2 is not UTF-8"):
        Script.load(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "No model is named"),
        ("mystery", "Unknown model: mystery"),
        ("gemini-2.5-flash", "GOOGLE_API_KEY"),
        ("claude-x", "ANTHROPIC_API_KEY|package anthropic"),
        ("gpt-x", "OPENAI_API_KEY|package openai"),
        ("ollama_chat/x", "package litellm"),
    ],
)
def test_what_is_missing_for_a_model_is_one_sentence(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("GOOGLE_API_KEY", "GEMINI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(
        "fanout.orchestrator.deep_agent.models.access.find_spec",
        lambda name: name != "litellm" or None,
    )
    with pytest.raises(ModelNotConfigured, match=words):
        resolve_model(name, agent_name="a")


def test_the_summary_is_the_text_under_the_last_heading() -> None:
    assert summary_of("work\n## Summary\nold\n## Summary:\nnew\n", 100) == "new"
    assert summary_of("no heading", 100) == "no heading"
    assert summary_of("## Summary\n", 100) == "## Summary"
    assert len(summary_of("x" * 500, 100)) == 100
