import pytest

from fanout.orchestrator.cli.checks.limits import Limit, LimitSource, written


@pytest.fixture(scope="module")
def source() -> LimitSource:
    return LimitSource()


def test_every_limit_has_its_reason(source):
    limits = [*source.constants(), *source.settings()]

    assert [f"{limit.where}: {limit.name}" for limit in limits if not limit.reason] == []
    assert len(limits) > 100


def test_every_limit_is_a_number_that_can_be_read(source):
    assert [
        f"{limit.where}: {limit.name}" for limit in source.constants() if limit.value is None
    ] == []


def test_limits_are_read_from_modules_and_from_settings_with_what_they_inherit(source):
    by_name = {limit.title: limit for limit in (*source.constants(), *source.settings())}

    waits = by_name["delegation.tool_texts.LONGEST_WAIT_SECONDS"]
    assert (waits.value, waits.unit, waits.where) == (
        600.0,
        "seconds",
        "orchestrator/delegation/tool_texts.py",
    )
    assert by_name["tools.execute.MAX_COMMAND_BYTES"].value == 128 * 1024
    assert by_name["FANOUT_LIMITS__DISK_BYTES"].value == 2 * 1024**3
    assert by_name["FANOUT_LIMITS__MAX_TOKENS"].value is None
    assert by_name["FANOUT_LIMITS__MAX_DEPTH"].value == 3
    assert by_name["FANOUT_LIMITS__MAX_TOKENS"].reason == "Input and output tokens together."


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (2 * 1024**3, "bytes", "2 GiB"),
        (100_000, "bytes", "100,000 bytes"),
        (0.075, "seconds", "0.075 s"),
        (8, "", "8"),
        (None, "", "-"),
    ],
)
def test_values_are_written_for_people(value, unit, words):
    assert written(Limit("MAX", value, unit, "a.py", "")) == words
