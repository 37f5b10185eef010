"""What can be said of a graph of jobs before anything is stored."""

from __future__ import annotations

import random

import pytest

from fanout.orchestrator.jobs import graph
from fanout.orchestrator.jobs.graph import InvalidGraph, longest_paths, resolved, specs_in_order
from fanout.orchestrator.jobs.spec import JobSpec
from tests.builders import make_spec


def named(name: str, *after: str, **fields: object) -> JobSpec:
    return make_spec(name, name=name, after=after, **fields)


def problems(*specs: JobSpec) -> list[tuple[int, str]]:
    with pytest.raises(InvalidGraph) as refused:
        resolved(specs)
    return [(one.position, one.text) for one in refused.value.problems]


def test_names_become_ids_also_those_of_later_jobs_and_ids_of_others_stay() -> None:
    end, begin = resolved([named("end", "begin", "other-job", "begin"), named("begin")])

    assert end.after == (begin.id, "other-job")


def test_jobs_that_come_after_each_other_are_one_tree_and_others_are_not() -> None:
    a, b, alone, c, below = resolved(
        [
            named("a"),
            named("b", "c"),
            named("alone"),
            named("c", "a"),
            named("below", "a", parent_id="parent", root_id="root"),
        ]
    )

    assert {a.root_id, b.root_id, c.root_id} == {a.id}
    assert alone.root_id == alone.id
    assert below.root_id == "root"


def test_a_name_that_is_used_twice_is_refused_where_it_is_second() -> None:
    assert problems(named("a"), named("b"), named("a")) == [(2, "the name a is already used")]


@pytest.mark.parametrize(
    ("specs", "position", "shown"),
    [
        ([named("a", "a")], 0, "a → a"),
        ([named("x"), named("a", "c"), named("b", "a"), named("c", "b")], 1, "a → b → c → a"),
        ([named(f"n{at}", f"n{(at + 8) % 9}") for at in range(9)], 0, "n4 → n5 → … → n0"),
    ],
)
def test_jobs_that_would_wait_for_themselves_are_refused_with_their_names(
    specs: list[JobSpec], position: int, shown: str
) -> None:
    [(where, text)] = problems(*specs)

    assert where == position
    assert shown in text


def test_more_links_than_redis_should_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MAX_EDGES", 5)

    [(where, text)] = problems(
        named("a"), named("b"), named("c", "a", "b"), named("d", "a", "b", "c"), named("e", "a")
    )

    assert where == 4
    assert "put a job between" in text


def test_each_job_comes_behind_those_of_its_after_and_otherwise_in_the_order_of_the_file() -> None:
    ordered, position = specs_in_order(
        resolved([named("d", "b"), named("a"), named("b"), named("c")])
    )

    assert [spec.name for spec in ordered] == ["a", "b", "d", "c"]
    assert position == [2, 0, 1, 3]


def test_a_path_is_counted_in_jobs() -> None:
    ordered, _ = specs_in_order(
        resolved([named("a"), named("b", "a"), named("c", "b"), named("d", "a"), named("e")])
    )

    paths = longest_paths(ordered)

    assert [paths[spec.id] for spec in ordered] == [2, 1, 0, 0, 0]


def test_a_chain_of_ten_thousand_jobs_is_put_in_order_whatever_the_order_of_its_lines() -> None:
    chain = [named("j0"), *(named(f"j{at}", f"j{at - 1}") for at in range(1, 10_000))]
    random.Random(1).shuffle(chain)  # noqa: S311 - repeatable

    ordered, _ = specs_in_order(resolved(chain))

    assert [spec.name for spec in ordered] == [f"j{at}" for at in range(10_000)]
    assert longest_paths(ordered)[ordered[0].id] == 9_999
