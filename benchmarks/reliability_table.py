"""docs/reliability.md: what may go wrong, what is promised, the test that shows it, and how that test ended today.

    python benchmarks/reliability_table.py                        runs every test named below, then writes the page
    python benchmarks/reliability_table.py --junit RESULTS.xml    takes results of pytest --junitxml=RESULTS.xml instead; repeatable

A test may add a measured figure with record_property("figure", "..."); figures of whole benchmarks are read from their results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Measured:
    """Figures of a benchmark that a test could not measure in a minute."""

    file: str
    text: str

    def said(self) -> str:
        return self.text.format(**json.loads((RESULTS / self.file).read_text()))


class Row(NamedTuple):
    """One fault or threat; `tests` are file::function below tests/, `beyond` is what no test shows."""

    name: str
    promise: str
    tests: tuple[str, ...]
    beyond: str = ""
    measured: tuple[Measured, ...] = ()


class Outcome(NamedTuple):
    """How one case of a test ended."""

    how: str  # passed, failed, skipped
    figures: tuple[str, ...]


FAULTS = (
    Row("a training worker is killed at a random step", "the run completes, at most one checkpoint interval is done again",
        ("stages/train/test_train_on_ray.py::test_workers_killed_at_random_steps_cost_nothing_but_time",)),
    Row("a stopped run against an undisturbed one", "weights equal to the bit, the same samples in the same order",
        ("training/test_loop.py::test_a_run_stopped_before_any_step_and_started_again_ends_with_the_same_bits",
         "training/test_engines_together.py::test_two_workers_stopped_and_started_again_end_with_the_same_bits")),
    Row("a run goes on with another number of workers", "the same global batches",
        ("training/test_engines_together.py::test_a_run_goes_on_with_another_number_of_workers_on_the_same_global_batches",
         "stages/train/test_elastic.py::test_training_goes_on_with_one_worker_when_the_other_ones_node_is_gone")),
    Row("a raylet is killed during inference", "no detection is lost, none doubled",
        ("stages/detect/test_detect_faults.py::test_ray_gives_the_tables_of_a_single_process_even_when_a_raylet_is_killed",
         "on_ray/test_jobs.py::test_a_detect_job_that_loses_a_raylet_writes_what_a_plain_process_writes")),
    Row("the driver is killed, the same command again", "every result exactly once",
        ("stages/detect/test_detect_faults.py::test_killed_three_times_and_run_again_the_tables_are_those_of_an_undisturbed_run",
         "stages/test_prepare_faults.py::test_killed_at_random_moments_it_ends_with_the_tables_of_an_undisturbed_run",
         "stages/self_train/test_self_train.py::test_killed_in_every_stage_it_ends_with_the_same_tables_and_metrics",
         "storage/test_units.py::test_deaths_of_drivers_quarantine_nobody"),
        measured=(Measured("control_plane_two_cores.json", "a resume of {recordings:,} recordings is planned in {planning_a_resume_s:.0f} s"),)),
    Row("the head of the cluster is killed", "three lines and exit code 75 within 30 s; the same command goes on",
        ("stages/detect/test_detect_faults.py::test_when_the_head_dies_the_driver_says_so_within_half_a_minute_and_can_go_on",)),
    Row("a store answers 30 % of requests with 500, 503, resets and half bodies", "no error reaches the user, no wrong byte",
        ("storage/test_s3.py::test_thirty_percent_faults_lose_nothing_and_corrupt_nothing",
         "stages/test_prepare_faults.py::test_on_s3_through_thirty_percent_faults_the_tables_are_the_same",
         "stages/detect/test_detect_faults.py::test_a_faulty_store_and_three_kills_change_nothing")),
    Row("a request hangs", "it is given up and tried again",
        ("storage/test_s3.py::test_a_hanging_request_is_given_up_and_tried_again",)),
    Row("credentials expire on the way", "fresh ones are looked up; those that stay expired are named",
        ("storage/test_s3.py::test_expired_credentials_are_looked_up_afresh_and_the_request_repeated",
         "storage/test_s3.py::test_credentials_that_stay_expired_are_named_in_the_error")),
    Row("a store stays away", "exit code 75 within storage.io_deadline_s, resumable",
        ("storage/test_s3.py::test_a_store_that_stays_away_ends_in_a_temporary_error_within_the_deadline",
         "training/test_training_on_s3.py::test_an_outage_is_survived_for_two_checkpoints_and_stops_the_run_at_the_third")),
    Row("a disk is full", "said as such; the last good checkpoint loads, no broken one is chosen",
        ("training/files/test_checkpoints.py::test_a_disk_that_fills_in_mid_write_leaves_nothing_behind_and_the_last_good_one_loads",
         "on_ray/test_units_on_ray.py::test_what_a_worker_meets_keeps_its_meaning",
         "verbs/test_mistakes.py::test_a_full_disk_and_a_locked_folder_are_told_apart")),
    Row("an archive with damaged files of fifteen kinds", "every good one analysed, every bad one listed with its reason",
        ("stages/test_prepare_faults.py::test_every_damaged_file_is_listed_with_its_reason_and_every_good_one_is_done",
         "recordings/test_faults.py::test_a_hopeless_file_is_rejected_with_its_reason"),
        measured=(Measured("prepare_faults_two_cores.json",
                           "of {rejects[offered]:,} files {rejects[right_reason]} of {rejects[damaged]} damaged ones are listed with the "
                           "right reason, {rejects[good_files_rejected]} good ones rejected"),)),
    Row("a file that crashes its decoder", "at most three deaths, then CRASH; the others are done",
        ("storage/test_units.py::test_a_file_that_kills_its_process_kills_three_and_is_then_quarantined_alone",
         "on_ray/test_units_on_ray.py::test_a_crashing_and_a_hanging_file_are_quarantined_and_harm_nobody")),
    Row("truncated WAV and FLAC", "at least 99 % of the readable seconds are kept, and flagged",
        ("recordings/test_faults.py::test_at_least_99_percent_of_a_truncated_file_is_kept",
         "recordings/test_faults.py::test_a_damaged_file_is_salvaged_and_says_so")),
    Row("a FLAC that unfolds to hours of silence", "refused, memory stays bounded",
        ("recordings/test_decoding.py::test_a_flac_bomb_is_refused_before_it_unfolds",
         "recordings/test_decoding.py::test_a_flac_bomb_that_hides_its_length_is_stopped_on_the_way",
         "recordings/test_decoding.py::test_a_24_hour_file_is_read_in_under_500_mb_with_exact_times")),
    Row("one output, five runs at once", "one works, four say `run already active`",
        ("stages/detect/test_detect_faults.py::test_of_five_runs_at_once_one_wins_and_four_say_so",
         "storage/test_lease.py::test_of_five_contenders_at_once_one_wins")),
    Row("memory runs out", "the batch that fits is named; a unit that dies of it is tried again, then set aside",
        ("training/test_loop.py::test_out_of_memory_names_the_batch_that_fits_and_the_setting_that_makes_it",
         "storage/test_units.py::test_a_unit_nobody_can_finish_stops_the_job_instead_of_going_on_for_ever"),
        "a worker ended by Ray's own memory monitor, which is a death like any other to the ledger"),
    Row("a machine whose clock is a day off", "leases go by the store, not by clocks",
        ("storage/test_lease.py::test_a_beating_holder_on_another_machine_is_respected_whatever_its_clock_says",
         "storage/test_lease.py::test_a_silent_holder_on_another_machine_is_replaced_after_the_time_to_live")),
    Row("names of recordings in every convention, clock resets, daylight saving", "the right time or a flag, never silently wrong",
        ("recordings/test_clock.py::test_a_name_gives_the_right_time_or_a_flag",
         "recordings/test_clock.py::test_sources_that_name_different_moments_are_flagged")),
    Row("batches without boxes, values that are not finite", "skipped and counted; twenty in a row stop the run",
        ("training/test_objectives.py::test_chunks_without_boxes_give_finite_loss_and_gradients_everywhere",
         "training/test_loop.py::test_a_step_that_is_not_finite_is_skipped_counted_and_leaves_the_weights_alone",
         "training/test_loop.py::test_twenty_bad_steps_in_a_row_stop_the_run_and_name_components_and_chunks")),
    Row("any file of a checkpoint or an output is damaged", "noticed before use; the one before is used, the lost part done again",
        ("training/files/test_checkpoints.py::test_a_hundred_random_damages_to_any_file_are_all_noticed_and_the_previous_one_is_used",
         "stages/test_damaged_outputs.py::test_prepare_does_again_what_was_deleted_emptied_or_flipped",
         "stages/test_damaged_outputs.py::test_detect_does_again_the_units_whose_files_are_gone_or_changed")),
    Row("one fault after another, for as long as you like", "0 lost, 0 doubled",
        ("stages/self_train/test_self_train.py::test_killed_in_every_stage_it_ends_with_the_same_tables_and_metrics",
         "stages/detect/test_detect_faults.py::test_a_faulty_store_and_three_kills_change_nothing",
         "test_chaos.py::test_in_a_folder_every_stage_ends_with_the_tables_of_an_undisturbed_run",
         "test_chaos.py::test_in_a_bucket_every_stage_ends_with_the_tables_of_an_undisturbed_run"),
        "a run of six hours with memory and open files watched"),
    Row("recordings of 24 hours", "times exact to a sample at hour 24, for any chunking",
        ("stages/detect/test_detect.py::test_times_are_exact_at_hour_24",
         "recordings/test_decoding.py::test_a_click_keeps_its_time_after_twenty_minutes_at_an_awkward_rate")),
    Row("Ctrl-C and SIGTERM", "ends within 20 s with exit code 130, nothing half committed",
        ("stages/detect/test_detect_faults.py::test_a_termination_signal_ends_the_run_soon_and_whole",
         "stages/test_prepare_faults.py::test_sigterm_ends_it_within_twenty_seconds_and_it_goes_on_later",
         "stages/train/test_train_on_ray.py::test_a_killed_driver_and_the_same_command_again_end_with_the_same_bits")),
)  # fmt: skip

THREATS = (
    Row("code inside weights and checkpoints", "safetensors and JSON only; nothing is unpickled",
        ("test_layers.py::test_loading_is_never_unsafe",
         "training/files/test_model_files.py::test_a_folder_of_the_wrong_kind_size_or_state_is_refused_with_the_remedy",
         "test_hostile_inputs.py::test_cards_manifests_and_commits")),
    Row("open ports of Ray", "clusters ask for a token, the dashboard listens at home; doctor tells an open one",
        ("test_deploy.py::test_clusters_ask_for_a_token_and_files_hold_no_secret", "on_ray/test_jobs.py::test_a_job_needs_the_token",
         "stages/test_doctor.py::test_an_open_dashboard_is_told_from_one_that_asks_for_a_token")),
    Row("secrets in logs, configs, errors", "never written: refused in settings, hidden in addresses",
        ("config/test_shown.py::test_no_verb_prints_a_key_or_an_escape_it_was_given", "config/test_loading.py::test_credentials_are_refused",
         "config/test_shown.py::test_an_address_with_keys_in_it_is_refused_before_anything_is_written")),
    Row("paths in annotation tables that lead out of the archive", "refused",
        ("recordings/test_annotation_reading.py::test_no_reference_leaves_the_root",
         "reporting/exports/test_exports.py::test_no_name_of_a_recording_or_site_leads_out_of_the_folder")),
    Row("hostile YAML", "plain settings only; tags, bombs and depth are refused in one line",
        ("config/test_loading.py::test_hostile_yaml_is_refused_in_one_line",
         "config/test_loading.py::test_yaml_that_is_not_plain_settings_is_refused", "test_hostile_inputs.py::test_yaml")),
    Row("archives that unfold without end", "refused unopened",
        ("recordings/test_annotation_reading.py::test_a_zip_bomb_is_refused_unopened",
         "recordings/test_decoding.py::test_a_flac_bomb_is_refused_before_it_unfolds")),
    Row("scripts in names that a report shows", "shown as text, nothing runs, nothing is loaded",
        ("reporting/report/test_report.py::test_a_hostile_string_in_every_text_field_appears_as_text",
         "reporting/report/test_report_in_browser.py::test_hostile_strings_open_no_dialog_and_run_nothing",
         "reporting/report/test_report.py::test_the_policy_lets_only_our_own_script_run_and_nothing_load")),
    Row("formulas in exported tables", "defused",
        ("reporting/exports/test_exports.py::test_formulas_are_defused_in_every_text_column",)),
    Row("decoders fed with mutated files", "a result or a reason; a crash costs its own file",
        ("recordings/test_faults.py::test_three_hundred_mutated_files_raise_nothing_else",
         "storage/test_units.py::test_a_recording_that_kills_its_process_harms_nobody_in_the_processes_beside_it"),
        "more than 304 mutated files"),
    Row("what is installed", "every dependency is declared, imported and pinned; weights carry their sha256",
        ("test_dependencies.py::test_every_dependency_is_pinned",
         "training/files/test_model_files.py::test_a_flipped_bit_in_the_weights_is_refused_before_they_are_used"),
        "an audit against lists of known holes, which needs a network"),
    Row("addresses of stores in data files", "an endpoint comes from settings alone",
        ("config/test_loading.py::test_an_endpoint_without_scheme_or_host_is_refused_with_the_remedy",
         "recordings/test_annotation_reading.py::test_no_reference_leaves_the_root")),
)  # fmt: skip

# What people found who broke it by hand; line -> tests that decide. What each version does is in broken_by_hand.json.
BY_HAND: dict[int, tuple[str, ...]] = {
    1: ("stages/test_out_of_reach.py::test_a_second_archive_into_the_same_folder_keeps_the_detections_of_the_first",),
    2: ("stages/test_out_of_reach.py::test_a_recording_the_disk_will_not_give_is_tried_again_by_the_next_run",
        "stages/test_out_of_reach.py::test_an_archive_that_vanishes_in_the_middle_stops_the_job_at_once"),
    3: ("storage/test_units.py::test_deaths_of_drivers_quarantine_nobody",),
    4: ("stages/test_out_of_reach.py::test_links_to_nowhere_and_to_themselves_and_pipes_are_offered_and_rejected",),
    5: ("stages/test_damaged_outputs.py::test_prepare_does_again_what_was_deleted_emptied_or_flipped",
        "stages/test_damaged_outputs.py::test_an_emptied_table_is_named_by_readers_and_written_again_by_prepare"),
    6: ("stages/detect/test_detect.py::test_a_site_of_any_name_a_disk_takes_reads_back_the_same",
        "reporting/exports/test_exports.py::test_names_as_long_as_a_disk_takes_are_cut_for_their_endings_and_stay_different"),
    7: ("on_ray/test_units_on_ray.py::test_what_a_worker_meets_keeps_its_meaning",
        "on_ray/test_worker_error.py::test_a_lost_process_or_machine_is_temporary"),
    8: ("stages/train/test_train_on_ray.py::test_a_killed_driver_and_the_same_command_again_end_with_the_same_bits",
        "verbs/test_mistakes.py::test_what_libraries_do_at_the_end_of_a_process_does_not_change_its_exit_code"),
    9: ("training/files/test_model_files.py::test_weights_that_are_not_numbers_are_refused_although_their_checksum_is_right",
        "training/files/test_model_files.py::test_a_card_with_impossible_values_is_refused_in_two_lines"),
    10: ("config/test_shown.py::test_no_verb_prints_a_key_or_an_escape_it_was_given",),
    11: ("recordings/test_clock.py::test_a_name_gives_the_right_time_or_a_flag",),
    12: ("config/test_loading.py::test_hostile_yaml_is_refused_in_one_line", "test_hostile_inputs.py::test_yaml"),
}  # fmt: skip


def outcomes_of(files: Iterable[Path]) -> dict[str, list[Outcome]]:
    """test -> how its cases ended, of results in JUnit's form; where a case is in several, the last counts."""
    found: dict[str, dict[str, Outcome]] = {}
    for file in files:
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            path = case.get("classname", "").removeprefix("tests.").replace(".", "/")
            case_name = case.get("name", "")
            how = next(
                (kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed"
            )
            figures = tuple(p.get("value", "") for p in case.iter("property") if p.get("name") == "figure")
            test = f"{path}.py::{case_name.partition('[')[0]}"
            how = {"failure": "failed", "error": "failed"}.get(how, how)
            found.setdefault(test, {})[case_name] = Outcome(how, figures)
    return {test: list(cases.values()) for test, cases in found.items()}


def today(row: Row, outcomes: dict[str, list[Outcome]]) -> str:
    """One cell: cases that held, measured figures, what is not shown."""
    cases = [case for test in row.tests for case in outcomes.get(test, ())]
    count = {how: sum(case.how == how for case in cases) for how in ("passed", "failed", "skipped")}
    parts = [f"{count['passed']} of {count['passed'] + count['failed']} cases held"] if cases else ["not run"]
    missing = sum(test not in outcomes for test in row.tests)
    if cases and missing:
        parts.append(f"{missing} of its tests not run")
    if count["skipped"]:
        parts.append(f"{count['skipped']} skipped")
    parts += [figure for case in cases for figure in case.figures]
    parts += [one.said() for one in row.measured]
    return "; ".join([*parts, *([f"not shown: {row.beyond}"] if row.beyond else [])])


def table(rows: Sequence[Row], title: str, outcomes: dict[str, list[Outcome]]) -> list[str]:
    lines = [f"| {title} | promise | today | shown by |", "|---|---|---|---|"]
    for row in rows:
        tests = "<br>".join(f"`{test}`" for test in row.tests)
        lines.append(f"| {row.name} | {row.promise} | {today(row, outcomes)} | {tests} |")
    return lines


def all_tests() -> list[str]:
    """Every test that is named on the page."""
    named = (*(row.tests for row in (*FAULTS, *THREATS)), *BY_HAND.values())
    return list(dict.fromkeys(test for tests in named for test in tests))


def by_hand(outcomes: dict[str, list[Outcome]]) -> list[str]:
    """What the commands of an old version and of this one do, and the tests that decide since."""
    file = RESULTS / "broken_by_hand.json"
    tried = json.loads(file.read_text()) if file.exists() else {}
    lines = ["| tried by hand | 6c54e59 | now | tests that decide | today |", "|---|---|---|---|---|"]
    for number, tests in BY_HAND.items():
        one = tried.get(str(number), {})
        named = "<br>".join(f"`{test}`" for test in tests)
        held = today(Row("", "", tests), outcomes)
        said = one.get("line", f"line {number}"), one.get("old", "not tried"), one.get("new", "not tried")
        lines.append(f"| {' | '.join(said)} | {named} | {held} |")
    return lines


def page(outcomes: dict[str, list[Outcome]], when: datetime) -> str:
    """The whole document."""
    names = all_tests()
    cases = [case for test in dict.fromkeys(names) for case in outcomes.get(test, ())]
    held, failed = (sum(case.how == how for case in cases) for how in ("passed", "failed"))
    return "\n".join(
        [
            "# Reliability: what may go wrong, and the test that shows what happens then",
            "",
            "Written by `python benchmarks/reliability_table.py`, which runs every test named here (below `tests/`); do not edit.",
            f"Results of {when:%d %B %Y}: {held:,} cases held, {failed:,} failed.",
            "",
            "Every stage may be interrupted at any moment: run the same command again. Rows that were not run need clusters and servers;",
            "the command runs them too.",
            "",
            "## Faults",
            *table(FAULTS, "fault", outcomes),
            "",
            "## Threats",
            *table(THREATS, "threat", outcomes),
            "",
            "## Broken by hand",
            "Commands alone, before and after: `python benchmarks/broken_by_hand.py --code old=WORKTREE_OF_6c54e59 --code new=. --out JSON`",
            "",
            *by_hand(outcomes),
            "",
        ]
    )


def run_tests(results: Path) -> None:
    """Every test named, the quick ones too; what fails is a line of the table."""
    names = dict.fromkeys(f"tests/{test}" for test in all_tests())
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"--junitxml={results}", *names], cwd=ROOT, check=False
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--junit", action="append", default=[], type=Path, metavar="XML")
    parser.add_argument("--out", type=Path, default=PAGE)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        files = args.junit
        if not files:
            files = [Path(folder) / "results.xml"]
            run_tests(files[0])
        outcomes = outcomes_of(files)
    args.out.write_text(page(outcomes, datetime.now(UTC)))
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
