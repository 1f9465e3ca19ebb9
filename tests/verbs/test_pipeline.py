"""A list of verbs run one after the other, and what it says about the time that is left."""

import argparse
import json
import math
import threading
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
from small_archive import make_prepared, small_config, write_sound

from mast_ray.config.errors import CONFIG, DATA, PARTIAL, ConfigError
from mast_ray.evaluation import split_truth
from mast_ray.evaluation.intervals import Difference
from mast_ray.on_ray import session
from mast_ray.stages.prepare import PrepareInputs, prepare
from mast_ray.stages.runner import HERE
from mast_ray.stages.score import evaluate as evaluation
from mast_ray.storage.s3 import S3Storage
from mast_ray.storage.storage import open_storage
from mast_ray.tables import prepared as tables
from mast_ray.tables.assumed_rates import Rates
from mast_ray.tables.budgets import Budget
from mast_ray.tables.reading.chunk_sets import chunks_of_split
from mast_ray.training.data.labels import expert_chunks
from mast_ray.verbs import demo, main, pipeline
from mast_ray.verbs.demo import HOURS, demo_steps
from mast_ray.verbs.expected import training_left_s, with_expected
from mast_ray.verbs.pipeline import Step, run_steps, seconds_left, slow_text
from mast_ray.verbs.run import _announce, _is_of_rounds, delivered

FIRST, SECOND, THIRD = (Step(name, name, (), 10.0) for name in ("first", "second", "third"))


def test_time_left_is_what_the_steps_expect_at_the_pace_of_those_that_are_done():
    assert seconds_left([], [FIRST, SECOND], 0.0) == 20.0
    assert seconds_left([], [FIRST, SECOND], 4.0) == 16.0
    assert seconds_left([(FIRST, 20.0)], [SECOND, THIRD], 0.0) == 40.0  # twice as slow as expected
    assert seconds_left([(FIRST, 20.0)], [SECOND, THIRD], 30.0) == 20.0  # the second should have ended by now
    assert (
        seconds_left([(FIRST, 0.1)], [SECOND, THIRD], 0.0) == 20.0
    )  # it was done before: no hint at the pace
    assert seconds_left([], [Step("x", "x", ())], 0.0) is None
    assert seconds_left([], [], 0.0) is None


def test_every_step_says_the_time_so_far_and_the_time_left_and_times_are_kept(tmp_path, capsys):
    clock = iter(range(0, 100, 1))
    code = run_steps([FIRST, SECOND], lambda verb, argv: 0, tmp_path, now=lambda: float(next(clock)))
    shown = capsys.readouterr().out
    assert code == 0 and shown.count("so far, about 0:") == 2
    assert "[1/2] first" in shown and "$ mast second" in shown
    assert set(json.loads((tmp_path / "steps.json").read_text())) == {"first", "second"}


def test_what_is_done_in_parts_says_the_time_of_all_of_them_so_far(tmp_path, capsys):
    """mast run began to count anew at its seventh step, beside a table of steps with the time of all."""
    (tmp_path / "steps.json").write_text('{"first": 600.0}')
    code = run_steps([FIRST, SECOND], lambda verb, argv: 0, tmp_path, now=lambda: 0.0, part=slice(1, None))
    assert code == 0 and "[2/2] second   (10:00 so far" in capsys.readouterr().out


def test_the_time_of_an_interrupted_step_is_kept_too(tmp_path):
    clock = iter(range(0, 100, 7))

    def interrupted(verb, argv):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_steps([FIRST], interrupted, tmp_path, now=lambda: float(next(clock)))
    assert json.loads((tmp_path / "steps.json").read_text())["first"] > 0


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"first": "x"}'])
def test_a_damaged_record_of_times_stops_nobody(tmp_path, content):
    (tmp_path / "steps.json").write_text(content)
    assert run_steps([FIRST], lambda verb, argv: 0, tmp_path) == 0
    assert set(json.loads((tmp_path / "steps.json").read_text())) == {"first"}


def test_the_first_step_that_fails_ends_the_pipeline_with_its_exit_code(tmp_path, capsys):
    ran = []
    code = run_steps(
        [FIRST, SECOND, THIRD], lambda verb, argv: ran.append(verb) or 3 * (verb == "second"), tmp_path
    )
    assert code == 3 and ran == ["first", "second"]
    assert "stopped at step 2 of 3 (second), exit code 3" in capsys.readouterr().err


def test_a_part_of_the_steps_keeps_its_numbers_and_the_last_part_shows_the_times_of_all(tmp_path, capsys):
    ran = []
    steps = [FIRST, SECOND, THIRD]
    run = partial(run_steps, steps, lambda verb, argv: ran.append(verb) or 0, tmp_path)
    assert run(part=slice(2)) == 0 and ran == ["first", "second"]
    shown = capsys.readouterr().out
    assert "[2/3] second" in shown and "all steps" not in shown
    assert run(part=slice(2, None)) == 0 and ran == ["first", "second", "third"]
    shown = capsys.readouterr().out
    assert "[3/3] third" in shown and "all steps" in shown and "first" in shown


@pytest.mark.parametrize(
    ("gain", "chosen", "said"),
    [
        (Difference(0.08, 0.02, 0.14), "pieces", "pieces make the boxes, not the trained network"),
        (Difference(0.08, -0.01, 0.17), "self_trained/model", "F1 +0.080 [-0.010, +0.170] on val"),
        (Difference(0.08, math.nan, math.nan), "self_trained/model", "too few recordings to be sure"),
        (None, "self_trained/model", "no split is held out to choose on"),
    ],
)
def test_a_run_takes_the_boxes_of_pieces_only_where_they_are_better_beyond_noise(
    tmp_path, monkeypatch, gain, chosen, said
):
    out = open_storage(str(tmp_path))
    network = delivered(small_config(), out, HERE)
    assert network.model.endswith("self_trained/model"), "pieces were not tried"
    out.at("scores/pieces").write_atomic("metrics.json", b"{}")
    asked = []

    def scored(config, model, prepared, at, *, runner):
        asked.append((model.removeprefix(out.url), at.removeprefix(out.url)))
        splits = {} if gain is None else {"val": None}
        return SimpleNamespace(splits=splits, gains_over=lambda other, config: {"val": {"f1": gain}})

    monkeypatch.setattr(evaluation, "evaluate_model", scored)
    monkeypatch.setattr(split_truth, "selection_split", lambda archive: "val")
    monkeypatch.setattr(tables, "open_prepared", lambda *place: None)
    found = delivered(small_config(), out, HERE)
    assert found.model == out.at(chosen).url and said in found.why
    assert asked == [("/pieces", "/scores/pieces"), ("/self_trained/model", "/scores/self_trained")]


@pytest.mark.parametrize(
    ("minutes", "rounds", "train_s", "rounds_s"),
    [
        ({"self_train.stage2": 3.0}, 0, 180.0, 0.0),
        ({"self_train.stage1": 4.0, "self_train.stage2": 6.0}, 1, 180.0, 420.0),
        ({"detector": 2.0, "self_train.stage1": 4.0, "self_train.stage2": 6.0}, 1, 120.0, 600.0),
        ({"first_lessons": 1.0, "detector": 2.0}, 0, 180.0, 0.0),
    ],
)
def test_the_minutes_of_a_budget_are_expected_of_the_steps_that_take_them(minutes, rounds, train_s, rounds_s):
    # a finished detector learns the boxes as a stage 2, before those of the rounds
    steps = [Step("boxes", "train", ()), Step("rounds", "self-train", ()), Step("pieces", "train", (), 60.0)]
    expected = [step.expected_s for step in with_expected(steps, Budget({}, minutes), rounds, None)]
    assert expected == pytest.approx([train_s, rounds_s, 60.0])


def trained_rows(*chunks_per_s, samples=40):
    return [{"kind": "train", "step": 1, "samples": samples, "chunks_per_s": one} for one in chunks_per_s]


def test_what_is_left_of_a_training_is_its_chunks_at_the_pace_of_its_log():
    # 60 chunks at 3 a second, the median; the first look pays for the start
    assert training_left_s(trained_rows(0.1, 2.0, 30.0, 3.0), 100.0) == 20.0
    assert training_left_s([*trained_rows(2.0), {"kind": "validation"}], 100.0) is None  # too early
    assert training_left_s(trained_rows(2.0, 3.0, samples=120), 100.0) == 0.0


def test_a_step_that_will_take_longer_than_planned_says_by_how_much_and_the_remedy():
    step = Step("boxes", "train", (), 600.0)
    said = slow_text(step, 1800.0).splitlines()
    assert len(said) == 3 and said[0] == ""
    assert (
        "takes 30:00 or more and was planned with 10:00" in said[1] and "--minutes divided by 3.0" in said[2]
    )
    assert slow_text(step, 700.0) == ""  # a sixth more
    assert slow_text(Step("boxes", "train", (), 30.0), 80.0) == ""  # less than a minute more


def test_a_training_slower_than_its_plan_is_told_once_while_it_runs_where_there_is_a_limit(
    tmp_path, monkeypatch, capsys
):
    """12,000 chunks are planned for 20 minutes, and half as many a second are learned."""
    out, budget = open_storage(tmp_path), Budget({}, {"detector": 20.0}, Rates(train_chunks_per_gpu_s=10.0))
    log = "".join(json.dumps(row) + "\n" for row in trained_rows(5.0, 5.0, 5.0, samples=1200))
    out.write_atomic("detector/metrics.jsonl", log.encode())
    boxes = Step("boxes", "train", ())
    (unlimited,), (step,) = (with_expected([boxes], budget, 0, place) for place in (None, out))
    assert unlimited.left_s is None and step.left_s() == pytest.approx((12_000 - 1200) / 5.0)
    monkeypatch.setattr(pipeline, "LINE_EVERY_S", 0.001)
    asked, enough = [], threading.Event()

    def counted():
        asked.append(1)
        if len(asked) == 4:
            enough.set()
        return step.left_s()

    watched = Step("boxes", "train", (), step.expected_s, counted)
    assert run_steps([watched], lambda verb, argv: int(not enough.wait(60)), tmp_path, now=lambda: 0.0) == 0
    said = capsys.readouterr().err
    assert said.count("this step about 36:00 more") >= 3
    assert said.count("this step takes 36:00 or more and was planned with 20:00") == 1
    asked.clear()
    enough.clear()

    def silent():
        asked.append(1)
        if len(asked) == 2:
            enough.set()

    clock = iter([0.0])  # then the time that was planned is over, and the log says nothing
    watched = Step("boxes", "train", (), 60.0, silent)
    run_steps(
        [watched], lambda verb, argv: int(not enough.wait(60)), tmp_path / "2", now=lambda: next(clock, 200.0)
    )
    assert "this step takes 3:20 or more and was planned with 1:00" in capsys.readouterr().err
    lessons = Budget({}, {"first_lessons": 1.0, "detector": 20.0}, Rates())
    assert with_expected([boxes], lessons, 0, out)[0].left_s is None  # two trainings in one step


def test_the_demo_expects_five_minutes_or_less_and_scales_with_the_hours(tmp_path):
    expected_s = sum(step.expected_s for step in demo_steps(tmp_path, HOURS, 0, 2))
    assert 0 < expected_s <= 300
    twice_s = sum(step.expected_s for step in demo_steps(tmp_path, 2 * HOURS, 0, 2))
    assert twice_s == pytest.approx(2 * expected_s)


def test_a_run_is_not_made_in_what_listen_wrote(tmp_path, capsys):
    (tmp_path / "listened" / "listen_first").mkdir(parents=True)
    (tmp_path / "listened" / "listen_first" / "x.txt").write_text("x")
    given = ["--audio", "sound", "--annotations", "boxes.csv", "--out", str(tmp_path / "listened")]
    assert main.run_verb("run", [*given, "--runner", "here"]) == CONFIG
    assert "holds what `mast listen` found" in capsys.readouterr().err


def test_run_names_a_missing_archive_before_ray_is_started(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(session, "ray_session", lambda *given, **named: pytest.fail("Ray was started"))
    given = ["--audio", str(tmp_path / "card"), "--annotations", "boxes.csv", "--out", str(tmp_path / "run")]
    assert main.run_verb("run", given) == DATA
    assert "card does not exist" in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("mistake", "code", "said"),
    [
        (("--minutes", "-1"), CONFIG, "--minutes -1 must be 0 (no limit) or more"),
        (("--minutes", "nan"), CONFIG, "--minutes nan must be 0 (no limit) or more"),
        (("--start", "nowhere"), DATA, "nowhere is not a finished model folder"),
        (("--start", "shipped:huge"), CONFIG, "no detector 'huge' is shipped"),
        (
            ("--set", "model.adapter=upsampling"),
            CONFIG,
            "model.adapter=upsampling is not what shipped has (hybrid)",
        ),
    ],
)
def test_run_refuses_what_its_training_cannot_use_before_anything_is_prepared(
    tmp_path, monkeypatch, capsys, mistake, code, said
):
    run_verb = main.run_verb
    monkeypatch.setattr(main, "run_verb", lambda verb, argv: pytest.fail(f"{verb} was run"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sound").mkdir()
    given = ["--audio", "sound", "--annotations", "boxes.csv", "--out", "run", "--runner", "here", *mistake]
    assert run_verb("run", given) == code
    assert said in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_run_hands_the_column_of_groups_to_prepare(tmp_path, monkeypatch):
    asked: list[list[str]] = []
    run_verb = main.run_verb
    monkeypatch.setattr(main, "run_verb", lambda verb, argv: asked.append([verb, *argv]) or DATA)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sound").mkdir()
    given = ["--audio", "sound", "--annotations", "boxes.csv", "--table", "sites.csv", "--group", "event"]
    assert run_verb("run", [*given, "--out", str(tmp_path / "run"), "--runner", "here"]) == DATA
    assert " ".join(asked[0]).startswith(
        "prepare sound --annotations boxes.csv --table sites.csv --group event"
    )


@pytest.mark.parametrize("failing", ["train", "detect"])
def test_run_ends_with_the_code_of_the_step_that_failed_also_after_rejected_recordings(
    tmp_path, monkeypatch, capsys, failing
):
    make_prepared(tmp_path, num_recordings=8, seconds=12)
    run_verb, ran = main.run_verb, []

    def one_of_them_fails(verb, argv):
        ran.append(verb)
        if verb == "prepare":
            assert run_verb(verb, argv) == 0
            return PARTIAL
        return CONFIG if verb == failing else 0

    monkeypatch.setattr(main, "run_verb", one_of_them_fails)
    given = ["--audio", str(tmp_path / "archive"), "--annotations", str(tmp_path / "labels.csv")]
    assert run_verb("run", [*given, "--out", str(tmp_path / "run"), "--runner", "here"]) == CONFIG
    assert ran[-1] == failing and f"exit code {CONFIG}" in capsys.readouterr().err


def test_the_demo_ends_with_the_code_of_a_last_step_that_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(session, "ray_session", lambda num_cpus: nullcontext())
    monkeypatch.setattr(demo, "run_steps", lambda *given: PARTIAL)
    monkeypatch.setattr(demo, "listening_step", lambda out: FIRST)
    run_verb = main.run_verb
    monkeypatch.setattr(main, "run_verb", lambda verb, argv: DATA)
    assert run_verb("demo", ["--out", str(tmp_path)]) == DATA


def test_run_says_before_training_that_there_is_nothing_to_mix_in(tmp_path, capsys):
    make_prepared(tmp_path, num_recordings=8, seconds=12)
    given = ["--audio", str(tmp_path / "archive"), "--annotations", str(tmp_path / "labels.csv")]
    out = ["--out", str(tmp_path / "run"), "--runner", "here", "--set", "self_train.curriculum=mixed"]
    assert main.run_verb("run", [*given, *out]) == DATA
    assert "self_train.curriculum=stage2_only" in capsys.readouterr().err
    assert not (tmp_path / "run/detector").exists()


def test_a_first_look_at_a_bucket_stays_in_the_bucket(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(
        "mast_ray.verbs.listen.run_steps", lambda steps, run_verb, stage: asked.append((steps, stage)) or 0
    )
    monkeypatch.setattr(S3Storage, "list", lambda self, prefix="": iter(()))  # nothing is there yet
    where = ("--set", "storage.endpoint_url=http://127.0.0.1:1")
    assert main.main(["listen", "s3://field/audio", "--out", "s3://field/first/", *where]) == 0
    ((steps, stage),) = asked
    assert stage.url == "s3://field/first"
    for step in steps:
        assert "storage.endpoint_url=http://127.0.0.1:1" in step.argv
        places = [word for word in step.argv if word.startswith("s3:")]
        assert len(places) >= 2 and all(word.startswith("s3://field/") for word in places)
    assert "s3://field/first/report.html" in capsys.readouterr().out


@pytest.mark.parametrize(("code", "is_kept"), [(DATA, False), (CONFIG, False), (75, True)])
def test_a_mistake_at_the_first_step_leaves_nothing_behind(code, is_kept, tmp_path):
    steps = [Step("first", "prepare", ()), Step("second", "train", ())]
    assert run_steps(steps, lambda verb, argv: code, tmp_path / "out") == code
    assert (tmp_path / "out").exists() == is_kept


def test_a_run_on_empty_tables_says_that_no_call_was_marked(tmp_path, capsys):
    write_sound(tmp_path, 3, 12)
    (tmp_path / "tables").mkdir()
    for path in sorted((tmp_path / "archive").rglob("*.wav"))[:2]:
        (tmp_path / "tables" / f"{path.stem}.txt").write_text("")
    given = ["--audio", str(tmp_path / "archive"), "--annotations", str(tmp_path / "tables")]
    assert main.run_verb("run", [*given, "--out", str(tmp_path / "run"), "--runner", "here"]) == DATA
    said = capsys.readouterr().err
    assert "there is no box to learn from: 2 recordings were gone through, and no call was marked" in said
    assert "add tables with boxes around calls" in said


def test_a_run_that_could_not_be_scored_ends_before_anything_is_trained(tmp_path, capsys):
    """One annotated recording: it was trained on for all of --minutes, and then nothing was held out to evaluate on."""
    write_sound(tmp_path, 3, 12)
    header, first, *_ = (tmp_path / "labels.csv").read_text().splitlines()
    (tmp_path / "labels.csv").write_text(f"{header}\n{first}\n")
    given = ["--audio", str(tmp_path / "archive"), "--annotations", str(tmp_path / "labels.csv")]
    assert main.run_verb("run", [*given, "--out", str(tmp_path / "run"), "--runner", "here"]) == DATA
    said = capsys.readouterr().err
    assert "no annotated recording is held out" in said and "annotate three recordings or more" in said
    assert not (tmp_path / "run" / "detector").exists()


def test_what_nobody_went_through_is_not_counted_as_labelled(tmp_path, capsys):
    """Ten seconds of every recording were: minutes were dealt out as if the experts had labelled all of it, and mixed batches
    were refused, as if there was nothing to mix in.
    """
    write_sound(tmp_path, 6, 40)
    rows = (tmp_path / "labels.csv").read_text().splitlines()
    heard = [rows[0], *(row for row in rows[1:] if float(row.split(",")[2]) < 10)]
    (tmp_path / "labels.csv").write_text("\n".join(heard) + "\n")
    names = dict.fromkeys(row.split(",")[0] for row in heard[1:])
    (tmp_path / "listened.csv").write_text(
        "file,begin_s,end_s\n" + "".join(f"{name},0,10\n" for name in names)
    )
    places = [str(tmp_path / name) for name in ("archive", "run/prepared", "labels.csv")]
    inputs = PrepareInputs(*places, listened=str(tmp_path / "listened.csv"))
    config = small_config(**{"self_train.curriculum": "mixed"})
    assert prepare(inputs, config, runner=HERE) == 0
    out = open_storage(tmp_path / "run")
    out.write_atomic("pace.json", b'{"train_chunks_per_s": 2.0}')
    _announce(config, out, has_gpu=False, minutes=0.0, start="shipped:tiny")
    archive = tables.open_prepared(out.at("prepared").url)
    pool, labelled = len(chunks_of_split(archive, "pool")), len(expert_chunks(archive, config))
    assert 0 < labelled < len(chunks_of_split(archive, "train"))
    said = capsys.readouterr().out
    assert f"{pool} chunks to learn from, {labelled} labelled ones to train on" in said
    assert "no round" not in said
    for wants_rounds in (False, True):  # half a minute has no room for both; who names rounds gets them
        budget = _announce(config, out, False, 0.5, "shipped:tiny", wants_rounds)
        assert (
            "no round of self-training: its share of --minutes 0.5 goes to your boxes"
            in capsys.readouterr().out
        ) == (not wants_rounds)
        assert budget.overrides.get("self_train.rounds", config.self_train.rounds) == int(wants_rounds)


@pytest.mark.parametrize(
    ("knob", "wanted"),
    [
        ("self_train.rounds=2", True),
        ("self_train.curriculum=mixed", True),
        ("self_train.stage2.epochs=9", False),
        ("self_train.rounds=0", False),
        ("seed=1", False),
    ],
)
def test_who_sets_a_knob_of_the_rounds_wants_them(knob, wanted):
    assert _is_of_rounds(knob) == wanted


def test_the_numbers_of_workers_that_demo_takes_are_those_its_batches_can_be_split_over():
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    (workers,) = (one for one in parser._actions if one.dest == "workers")
    for number in range(1, 9):
        try:
            main.config_of("tiny", None, [f"cluster.num_workers={number}"])
        except ConfigError:
            assert number not in workers.choices
        else:
            assert number in workers.choices
