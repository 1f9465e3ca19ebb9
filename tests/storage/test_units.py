"""Exactly-once work: planning, the ledger of deaths, commits and conservation, on a real folder."""

import json
import threading
import time

import pytest
from poison_work import work as poisoned_work

from mast_ray.config.errors import TemporaryError
from mast_ray.storage.ledger import begin_attempt, order_of_work, read_ledger
from mast_ray.storage.storage import open_storage
from mast_ray.storage.unit_runner import WorkDone, run_here, run_unit
from mast_ray.storage.units import (
    Commit,
    DataFile,
    Item,
    Outcome,
    forget_passing,
    items_per_unit,
    num_passing,
    pending_units,
    plan_units,
    put_commit,
    read_commits,
    take_back_empty,
    tally,
)


def items(count, size=10, version="v1"):
    return [Item(f"id{n:03d}", f"site/{n:03d}.wav", size, version) for n in range(count)]


def all_done(attempt, todo):
    outcomes = []
    for item in todo:
        attempt.begin_item(item.item_id)
        outcomes.append(Outcome(item.item_id, "done"))
    return WorkDone(outcomes, [], {})


class Death(BaseException):
    """Stands for the end of a process: nothing of ours may catch it."""


def dying_on(*poison):
    def work(attempt, todo):
        for item in todo:
            attempt.begin_item(item.item_id)
            if item.item_id in poison:
                raise Death(item.item_id)
        return WorkDone([Outcome(item.item_id, "done") for item in todo], [], {})

    return work


def test_the_same_archive_gives_the_same_units_in_any_order_of_listing():
    listed = items(600)
    assert plan_units(listed, 64, 10**9) == plan_units(reversed(listed), 64, 10**9)


def test_units_respect_both_limits_and_cover_every_item_once():
    units = plan_units(items(1000, size=100), most_items=64, most_bytes=250)
    assert all(unit.num_bytes <= 250 for unit in units)
    assert [item.item_id for unit in units for item in unit.items] == [f"id{n:03d}" for n in range(1000)]


def test_a_recording_larger_than_the_limit_is_a_unit_of_its_own():
    units = plan_units([Item("a", "a", 999, ""), Item("b", "b", 1, "")], 64, 100)
    assert [len(unit.items) for unit in units] == [1, 1]


@pytest.mark.parametrize(
    ("num_items", "expected"), [(10, 4), (2_000, 8), (40_000, 64), (100_000, 64), (1_000_000, 500)]
)
def test_small_archives_get_small_units_and_huge_ones_a_bounded_number(num_items, expected):
    assert items_per_unit(num_items, 64) == expected


def test_of_many_attempts_at_once_one_commit_wins_and_losers_delete_their_files(tmp_path):
    stage = open_storage(tmp_path)
    (unit,) = plan_units(items(2), 64, 10**9)
    wins = []
    barrier = threading.Barrier(8)

    def offer(number):
        key = f"data/{number}.bin"
        stage.write_atomic(key, b"x")
        outcomes = tuple(Outcome(item.item_id, "done") for item in unit.items)
        versions = {item.item_id: item.version for item in unit.items}
        barrier.wait()
        commit = Commit(unit.unit_id, str(number), (DataFile(key, 1, ""),), outcomes, versions)
        wins.append(put_commit(stage, commit))

    threads = [threading.Thread(target=offer, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (commit,) = read_commits(stage)
    assert sorted(wins) == [False] * 7 + [True]
    assert [entry.key for entry in stage.list("data")] == [commit.files[0].key]


def test_a_file_that_kills_its_process_kills_three_and_is_then_quarantined_alone(tmp_path):
    stage = open_storage(tmp_path)
    listed = items(4)
    (unit,) = plan_units(listed, 64, 10**9)
    deaths = 0
    while True:
        try:
            run_unit(stage, unit, "run", dying_on("id001"))
            break
        except Death:
            deaths += 1
    (commit,) = read_commits(stage)
    assert deaths == 3
    assert [(o.item_id, o.status, o.reason) for o in commit.outcomes] == [
        ("id000", "done", ""), ("id001", "rejected", "CRASH"), ("id002", "done", ""), ("id003", "done", ""),
    ]  # fmt: skip
    assert tally(listed, [commit]) == (4, 3, 1)


def test_two_poison_files_in_one_unit_cost_at_most_three_deaths_each(tmp_path):
    stage = open_storage(tmp_path)
    (unit,) = plan_units(items(4), 64, 10**9)
    deaths = 0
    while True:
        try:
            run_unit(stage, unit, "run", dying_on("id001", "id003"))
            break
        except Death:
            deaths += 1
    (commit,) = read_commits(stage)
    assert deaths <= 6
    assert [o.status for o in commit.outcomes] == ["done", "rejected", "done", "rejected"]


def test_deaths_of_drivers_quarantine_nobody(tmp_path):
    stage = open_storage(tmp_path)
    (unit,) = plan_units(items(2), 64, 10**9)
    for number in range(14):  # fourteen runs, each cut short at the same item
        with pytest.raises(Death):
            run_unit(stage, unit, f"run{number}", dying_on("id000"))
    run_unit(stage, unit, "run99", all_done)
    assert [o.status for o in read_commits(stage)[0].outcomes] == ["done", "done"]


def make_poisoned_work():
    return poisoned_work


def test_a_file_that_took_its_driver_with_it_is_found_out_in_a_process_beside_the_next_driver(tmp_path):
    stage = open_storage(tmp_path)
    listed = [*items(2), Item("bad", "site/segfault.wav", 10, "v1")]
    (unit,) = plan_units(listed, 64, 10**9)
    with pytest.raises(Death):  # the driver of the first run worked in its own process, and ended
        run_unit(stage, unit, "first", dying_on("bad"))
    (report,) = run_here(stage, [unit], "second", poisoned_work, make_work=make_poisoned_work)
    assert (report.num_items, report.num_rejected) == (3, 1)
    (commit,) = read_commits(stage)
    assert {o.item_id: o.reason for o in commit.outcomes} == {"id000": "", "id001": "", "bad": "CRASH"}


def test_an_interrupted_attempt_is_no_death_and_leaves_no_trace(tmp_path):
    stage = open_storage(tmp_path)
    (unit,) = plan_units(items(2), 64, 10**9)

    def interrupted(attempt, todo):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_unit(stage, unit, "run", interrupted)
    ledger = read_ledger(stage, unit.unit_id, "later")
    assert (ledger.deaths, ledger.unexplained) == (0, 0)


def test_what_was_rejected_for_now_is_forgotten_and_the_rest_of_its_unit_stays(tmp_path):
    stage = open_storage(tmp_path)
    listed = items(3)
    units = plan_units(listed, 2, 10**9)  # {0, 1}, {2}

    def away(attempt, todo):
        return WorkDone(
            [Outcome(i.item_id, "done") if i.item_id == "id000" else Outcome(i.item_id, "rejected", "READ_ERROR", is_final=False)
             for i in todo], [], {},
        )  # fmt: skip

    list(run_here(stage, units, "a", away))
    assert num_passing(listed, read_commits(stage)) == 2 and pending_units(units, read_commits(stage)) == []
    assert forget_passing(stage) == 2
    left = pending_units(units, read_commits(stage))
    assert [item.item_id for unit in left for item in unit.items] == ["id001", "id002"]
    list(run_here(stage, left, "b", all_done))
    assert tally(listed, read_commits(stage)) == (3, 3, 0)


def test_a_time_out_noted_by_the_watchdog_is_named_so(tmp_path):
    stage = open_storage(tmp_path)
    (unit,) = plan_units(items(2), 64, 10**9)
    for _ in range(3):
        attempt = begin_attempt(stage, unit, "run", read_ledger(stage, unit.unit_id, "run"))
        attempt.begin_item("id001")
        attempt.report_timeout()
    ledger = read_ledger(stage, unit.unit_id, "run")
    work, quarantined = order_of_work(unit.items, ledger, max_deaths=3)
    assert [item.item_id for item in work] == ["id000"]
    assert [outcome.reason for outcome in quarantined] == ["TIMEOUT"]


def test_a_unit_nobody_can_finish_stops_the_job_instead_of_going_on_for_ever(tmp_path):
    stage = open_storage(tmp_path)
    (unit,) = plan_units(items(1), 64, 10**9)

    def dies_while_writing(attempt, todo):
        raise Death

    with pytest.raises(TemporaryError, match="died"):
        for _ in range(50):
            try:
                run_unit(stage, unit, "run", dies_while_writing)
            except Death:
                continue


def test_finished_units_are_not_worked_on_again_and_growth_adds_only_the_new(tmp_path):
    stage = open_storage(tmp_path)
    listed = items(6)
    list(run_here(stage, plan_units(listed, 3, 10**9), "a", all_done))
    assert pending_units(plan_units(listed, 3, 10**9), read_commits(stage)) == []
    grown = [*listed, Item("new", "site/0005.wav", 1, "v1")]
    left = pending_units(plan_units(grown, 3, 10**9), read_commits(stage))
    assert [item.item_id for unit in left for item in unit.items] == ["new"]


def test_a_recording_that_kills_its_process_harms_nobody_in_the_processes_beside_it(tmp_path):
    stage = open_storage(tmp_path)
    listed = [*items(8), Item("bad", "site/segfault.wav", 10, "v1")]
    units = plan_units(listed, 3, 10**9)
    reports = list(run_here(stage, units, "a", poisoned_work, num_processes=2))
    outcomes = {outcome.item_id: outcome for commit in read_commits(stage) for outcome in commit.outcomes}
    assert sorted(report.unit_id for report in reports) == sorted(unit.unit_id for unit in units)
    assert {name for name, outcome in outcomes.items() if outcome.status == "rejected"} == {"bad"}
    assert outcomes["bad"].reason == "CRASH"
    assert tally(listed, read_commits(stage)) == (9, 8, 1)


def test_a_file_replaced_by_another_of_the_same_name_and_size_is_worked_on_again(tmp_path):
    stage = open_storage(tmp_path)
    list(run_here(stage, plan_units(items(2), 64, 10**9), "a", all_done))
    changed = [items(2)[0], items(2)[1]._replace(version="v2")]
    left = pending_units(plan_units(changed, 64, 10**9), read_commits(stage))
    assert [item.version for unit in left for item in unit.items] == ["v2"]
    assert not tally(changed, read_commits(stage)).is_complete


def test_work_that_forgets_an_item_is_refused(tmp_path):
    stage = open_storage(tmp_path)
    (unit,) = plan_units(items(2), 64, 10**9)
    with pytest.raises(AssertionError, match="1 of 2"):
        run_unit(stage, unit, "a", lambda attempt, todo: WorkDone([Outcome("id000", "done")], [], {}))
    assert read_commits(stage) == []


def test_a_commit_is_plain_json_with_every_outcome(tmp_path):
    stage = open_storage(tmp_path)
    (unit,) = plan_units(items(1), 64, 10**9)
    run_unit(stage, unit, "a", all_done)
    tree = json.loads((tmp_path / "commit" / f"{unit.unit_id}.json").read_text())
    assert tree["outcomes"][0]["status"] == "done"
    assert tree["versions"] == {"id000": "v1"}


def test_a_commit_that_is_still_empty_counts_for_nothing_and_its_files_stay(tmp_path):
    stage = open_storage(tmp_path)
    (unit,) = units = plan_units(items(1), 64, 10**9)
    stage.write_atomic(
        f"commit/{unit.unit_id}.json", b""
    )  # as a disk without hard links shows it for a moment
    stage.write_atomic("data/same.bin", b"x")
    commit = Commit(unit.unit_id, "t", (DataFile("data/same.bin", 1, ""),), (), {})
    assert not put_commit(stage, commit) and stage.stat("data/same.bin") is not None
    assert run_unit(stage, unit, "a", all_done).num_items == 1
    take_back_empty(stage)  # whoever put it was killed meanwhile
    assert pending_units(units, read_commits(stage)) == units
    run_unit(stage, unit, "b", all_done)
    take_back_empty(stage)
    assert tally(unit.items, read_commits(stage)) == (1, 1, 0)


def test_beats_keep_the_watchdog_quiet(tmp_path):
    stage = open_storage(tmp_path)
    (unit,) = plan_units(items(1), 64, 10**9)

    def slow_but_alive(attempt, todo):
        until_s = time.monotonic() + 0.6
        while time.monotonic() < until_s:
            attempt.beat()
        return all_done(attempt, todo)

    assert run_unit(stage, unit, "a", slow_but_alive, timeout_s=0.4).num_items == 1
