"""A training that begins with what an untrained detector finds in the pool."""

from types import SimpleNamespace

import pytest
from small_archive import make_prepared, small_config

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import RECIPES
from mast_ray.config.stage_knobs import ALL_BLOCKS
from mast_ray.stages.runner import HERE
from mast_ray.stages.self_train.first_lessons import FOLDER, TEACHER, is_untrained, lessons_config
from mast_ray.stages.train import pieces as teaching
from mast_ray.storage.storage import open_storage
from mast_ray.training.files.model_files import read_card, read_model
from mast_ray.training.files.shipped import shipped_model
from mast_ray.verbs.main import main

SMALL = (
    "model.size=tiny",
    "detector.batch_size=4",
    "detector.max_steps=2",
    "detector.warmup_epochs=0",
    "detector.validate_every_epochs=100",
    "self_train.stage1.epochs=2",
    "self_train.stage1.max_steps=3",
    "self_train.stage1.warmup_epochs=0",
    "self_train.stage1.validate_every_epochs=100",
    "evaluate.bootstrap=20",
)


def test_lessons_are_trained_as_from_nothing_for_as_long_as_stage_1():
    config = RECIPES["field"]()
    lessons = lessons_config(config).self_train
    assert (lessons.rounds, lessons.curriculum, lessons.student) == (1, "stage1_only", "fresh")
    assert lessons.stage1.epochs == config.self_train.stage1.epochs
    assert lessons.stage1.learning_rate == config.detector.learning_rate
    assert lessons.stage1.backbone_multiplier == 1.0 and lessons.stage1.unfrozen_blocks == ALL_BLOCKS
    assert not lessons.stage1.unfreeze_every_epochs, "all blocks train from the start"


def test_a_batch_that_fits_a_small_gpu_in_parts_alone_has_these_in_first_lessons_too():
    config = apply_overrides(RECIPES["field"](), {"detector.batch_size": 32, "detector.accumulate": 4})
    stage1 = lessons_config(config).self_train.stage1
    assert (stage1.batch_size, stage1.accumulate) == (32, 4)


def test_only_the_energy_detector_is_untrained(tmp_path):
    config = small_config()
    assert is_untrained(str(shipped_model("energy")), config)
    assert not is_untrained(str(shipped_model("tiny")), config)
    assert not is_untrained("", config)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_prepared(tmp_path_factory.mktemp("small"), num_recordings=6, seconds=12)


def train(archive, out, *more):
    sets = [part for one in SMALL for part in ("--set", one)]
    return main(
        ["train", str(archive), "--out", str(out), "--runner", "here", "--recipe", "field", *sets, *more]
    )


@pytest.mark.slow
def test_a_training_from_the_energy_detector_learns_the_pool_first_and_then_the_experts(
    archive, tmp_path, capsys, caplog
):
    assert train(archive, tmp_path, "--start", "shipped:energy", "--dry-run") == 0
    plan = capsys.readouterr().out
    assert plan.index("round1/stage1") < plan.index("then")
    assert not list(tmp_path.iterdir())
    assert train(archive, tmp_path, "--start", "shipped:energy") == 0
    said = capsys.readouterr().out
    assert "on the new archive (val" in said, "figures of the energy detector and of what was trained"
    first = tmp_path / FOLDER / "round1" / "stage1"
    learned, card = read_model(first, "detector")
    after, final = read_model(tmp_path, "detector")
    assert card.model["name"] == final.model["name"] == "mast"
    assert card.weights_sha256 != final.weights_sha256
    assert learned.keys() == after.keys()
    began_with = [(one.how, one.name) for one in final.began_with]
    assert began_with[0] == ("start", "round1/stage1") and began_with[1][0] == "teacher"
    assert began_with[1][1] in ("shipped:energy", "first_lessons/teacher")
    close = max(
        float((learned[name] - after[name]).abs().max()) for name in learned if "encoder.blocks" in name
    )
    assert close < 0.01, "two steps away from the first lessons, not from nothing"
    caplog.clear()
    assert train(archive, tmp_path, "--start", "shipped:energy") == 0, "finished, it has nothing to do"
    assert read_card(tmp_path).weights_sha256 == final.weights_sha256


@pytest.mark.slow
def test_lessons_begin_with_a_pretrained_encoder_where_one_is_given(archive, tmp_path, capsys):
    encoder = tmp_path / "encoder"
    few = ("model.size=tiny", "pretrain.batch_size=4", "pretrain.max_steps=1", "pretrain.warmup_epochs=0")
    argv = ["pretrain", str(archive), "--out", str(encoder), "--runner", "here", "--recipe", "field"]
    assert main([*argv, *(part for one in few for part in ("--set", one))]) == 0
    begin = ("--start", "shipped:energy", "--encoder", str(encoder))
    assert train(archive, tmp_path / "out", *begin) == 0
    pretrained, _ = read_model(encoder, "autoencoder")
    for folder in (tmp_path / "out" / FOLDER / "round1" / "stage1", tmp_path / "out"):
        learned, _ = read_model(folder, "detector")
        names = [name for name in learned if name.startswith("encoder.blocks") and name in pretrained]
        assert names
        furthest = max(float((learned[name] - pretrained[name]).abs().max()) for name in names)
        assert furthest < 0.01, f"{folder} is a few steps away from the encoder"
    capsys.readouterr()
    assert train(archive, tmp_path / "out", "--start", "shipped:energy") != 0, (
        "another run: it begins with nothing"
    )
    assert train(archive, tmp_path / "other", "--start", "shipped:tiny", "--encoder", str(encoder)) == 2
    assert "leave out --detector and --encoder" in capsys.readouterr().err


@pytest.mark.slow
def test_pieces_are_put_together_as_the_experts_do_and_used_like_any_model(archive, tmp_path, capsys):
    out, sets = tmp_path / "pieces", ("--set", "model.name=pieces")
    assert train(archive, out, *sets, "--dry-run") == 0
    assert not out.exists()
    assert train(archive, out, *sets) == 0
    said = capsys.readouterr().out
    assert "pieces put together" in said and "(n = " in said
    card = read_card(out)
    assert card.model["name"] == "pieces" and card.data_hash
    assert (card.began_with, card.licence) == ((), ""), "the boxes alone taught it"
    assert 0.0 < card.score_threshold < 1.0
    assert train(archive, out, *sets) == 0, "nothing to do"
    assert read_card(out) == card
    argv = ["evaluate", str(out), str(archive), "--out", str(tmp_path / "scores")]
    assert main([*argv, "--runner", "here", "--set", "evaluate.bootstrap=20"]) == 0
    assert "val" in capsys.readouterr().out
    assert is_untrained(str(out), small_config()), "it can give first lessons"


@pytest.mark.slow
def test_first_lessons_are_given_by_pieces_where_there_are_boxes_enough(archive, tmp_path, monkeypatch):
    assert train(archive, tmp_path / "many", "--start", "shipped:energy") == 0
    assert read_card(tmp_path / "many" / FOLDER / TEACHER).model["name"] == "pieces"
    monkeypatch.setattr(teaching, "LEAST_BOXES", 10**6)
    assert train(archive, tmp_path / "few", "--start", "shipped:energy") == 0
    assert not (tmp_path / "few" / FOLDER / TEACHER).exists(), "the energy detector as shipped"
    assert read_card(tmp_path / "few").model["name"] == "mast"


@pytest.mark.slow
def test_too_few_boxes_teach_nothing_and_the_energy_detector_has_nothing_to_learn(
    archive, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(teaching, "LEAST_BOXES", 10**6)
    assert train(archive, tmp_path / "few", "--set", "model.name=pieces") == 3
    assert "too few to teach by" in capsys.readouterr().err
    assert train(archive, tmp_path / "few", "--set", "model.name=pieces", "--start", "shipped") == 2
    assert "leave out --start" in capsys.readouterr().err, "not left aside in silence"
    assert train(archive, tmp_path / "energy", "--set", "model.name=energy") == 2
    assert "model.name=pieces" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("post", "f1_of", "wanted", "asked"),
    [
        ("card", {False: 0.5, True: 0.6}, True, [False, True]),
        ("card", {False: 0.6, True: 0.5}, False, [False, True]),
        ("card", {False: 0.5, True: 0.5}, False, [False, True]),  # no gain, no doubt
        ("none", {False: 0.5, True: 0.6}, False, [False]),  # boxes as the model gives them
    ],
)
def test_pieces_doubt_boxes_within_better_ones_where_held_out_labels_say_so(
    tmp_path, monkeypatch, post, f1_of, wanted, asked
):
    seen = []

    def scored(config, model, *rest, **more):
        seen.append(read_card(model).doubts_nested)
        figure = SimpleNamespace(estimate=f1_of[seen[-1]])
        row = SimpleNamespace(figures={"f1": figure})
        return SimpleNamespace(sheet=SimpleNamespace(whole=lambda split: row))

    monkeypatch.setattr(teaching, "evaluate_model", scored)
    config = small_config(**{"evaluate.post": post})
    card = read_card(shipped_model("energy"))
    chosen, scores = teaching._with_or_without_doubt(
        config, card, open_storage(str(tmp_path)), "prepared", "val", HERE
    )
    assert (chosen.doubts_nested, seen) == (wanted, asked)
    assert scores.sheet.whole("val").figures["f1"].estimate == f1_of[wanted]


def test_a_pool_in_which_nothing_stands_out_is_told_as_that(tmp_path, capsys):
    """It was said to lower a threshold and to choose a policy: lessons have their own, and neither helped."""
    noise = make_prepared(tmp_path, num_recordings=4, seconds=12, tones="none")
    assert train(noise, tmp_path / "out", "--start", "shipped:energy") == 3
    said = capsys.readouterr().err
    assert "nothing that stands out in the pool of" in said and "--start scratch" in said
    assert "self_train.policy" not in said
