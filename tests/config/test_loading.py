"""Strict loading, overrides, replay and the rules between knobs."""

from pathlib import Path
from typing import get_args

import pytest

from mast_ray.config.describe import described_yaml, knobs_markdown
from mast_ray.config.errors import ConfigError
from mast_ray.config.loading import (
    apply_overrides,
    config_from_yaml,
    config_to_yaml,
    flatten,
    leaf_keys,
    parse_set,
)
from mast_ray.config.recipes import RECIPES
from mast_ray.config.stage_knobs import ALL_BLOCKS, DetectorTrainConfig, lengthened
from mast_ray.config.tree import Config


@pytest.mark.parametrize("name", RECIPES)
def test_a_saved_config_replays_to_the_same_config(name):
    config = RECIPES[name]()
    again = config_from_yaml(config_to_yaml(config), "saved.yaml")
    assert again == config


@pytest.mark.parametrize("name", RECIPES)
def test_the_described_config_can_be_read_back(name):
    config = RECIPES[name]()
    assert config_from_yaml(described_yaml(config), "printed.yaml") == config


def test_every_knob_has_a_description():
    missing = [key for key, field in leaf_keys(Config).items() if not field.description]
    assert not missing
    assert len(leaf_keys(Config)) > 100


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("detector.epoch", "detector.epochs"),
        ("pretrain.lerning_rate", "pretrain.learning_rate"),
        ("self_train.stage1.lamda_con", "self_train.stage1.lambda_con"),
        ("ood_sites", "split.ood_sites"),
    ],
)
def test_an_unknown_key_names_the_nearest_valid_one(typo, meant):
    with pytest.raises(ConfigError, match=f"did you mean {meant}"):
        apply_overrides(Config(), {typo: 1})


def test_values_of_the_wrong_type_or_range_are_refused_with_their_key():
    with pytest.raises(ConfigError, match=r"detector\.epochs='many'"):
        apply_overrides(Config(), {"detector.epochs": "many"})
    with pytest.raises(ConfigError, match=r"split\.train"):
        apply_overrides(Config(), {"split.train": 1.5})
    with pytest.raises(ConfigError, match=r"model\.adapter"):
        apply_overrides(Config(), {"model.adapter": "convolution"})


def test_one_name_where_a_list_is_wanted_is_shown_in_brackets():
    with pytest.raises(
        ConfigError, match=r"is no list:\nwrite it in brackets, --set 'split\.ood_sites=\[S7\]'"
    ) as told:
        apply_overrides(Config(), parse_set(["split.ood_sites=S7"]))
    remedy = str(told.value).partition("--set '")[2].removesuffix("'")
    assert apply_overrides(Config(), parse_set([remedy])).split.ood_sites == ("S7",)


def test_set_reads_numbers_lists_and_exponents():
    parsed = parse_set(["a.b=3", "c=1e-3", "d=[AM4, AM15]", "e=true", "f=", "g=2018-07-10"])
    assert (
        parsed["a.b"] == 3 and parsed["c"] == 1e-3 and parsed["d"] == ["AM4", "AM15"] and parsed["e"] is True
    )
    assert parsed["f"] == ""
    with pytest.raises(ConfigError, match="no '='"):
        parse_set(["detector.epochs"])


def test_names_of_sites_are_taken_as_they_are_written():
    """YAML reads 010 as eight, NO as false and 12:30 as 750."""
    given = parse_set(["split.ood_sites=[001, 010, NO, 12:30, 'S 3']", "split.ood_dev_sites=[7]"])
    split = apply_overrides(Config(), given).split
    assert (split.ood_sites, split.ood_dev_sites) == (("001", "010", "NO", "12:30", "S 3"), ("7",))


def test_dates_given_by_set_stay_text():
    config = apply_overrides(Config(), parse_set(["split.ood_dates=[2018-07-10, 2018-07-11]"]))
    assert config.split.ood_dates == ("2018-07-10", "2018-07-11")


def test_every_word_of_every_knob_can_be_set_as_it_stands_in_the_list_of_knobs():
    """YAML has its own mind about yes, no, on and off."""
    for key, knob in leaf_keys(Config).items():
        for word in (one for one in get_args(knob.annotation) if isinstance(one, str)):
            set_ = flatten(apply_overrides(Config(), parse_set([f"{key}={word}"])).model_dump(mode="json"))
            assert set_[key] == word


def test_a_bare_yes_or_no_is_taken_as_the_word():
    assert apply_overrides(Config(), parse_set(["cluster.use_gpu=no"])).cluster.use_gpu == "no"
    assert apply_overrides(Config(), parse_set(["cluster.use_gpu=yes"])).cluster.use_gpu == "yes"
    assert apply_overrides(Config(), parse_set(["self_train.governor=off"])).self_train.governor == "off"
    assert config_from_yaml("self_train:\n  governor: off\n", "a file").self_train.governor == "off"


def test_a_batch_that_cannot_be_split_over_workers_names_one_that_can():
    with pytest.raises(
        ConfigError, match=r"detector\.batch_size=50 cannot be split over cluster\.num_workers=8"
    ) as error:
        apply_overrides(Config(), {"cluster.num_workers": 8, "detector.batch_size": 50})
    assert "--set detector.batch_size=48" in str(error.value)


def test_more_workers_at_the_least_than_there_are_is_refused():
    wanted = {"cluster.num_workers": 2, "cluster.min_workers": 3}
    with pytest.raises(
        ConfigError, match=r"cluster\.min_workers=3 is more than cluster\.num_workers=2"
    ) as error:
        apply_overrides(Config(), wanted)
    assert "--set cluster.num_workers=3" in str(error.value)
    assert apply_overrides(Config(), wanted | {"cluster.min_workers": 2}).cluster.min_workers == 2


def test_test_sites_cannot_serve_for_model_selection():
    with pytest.raises(ConfigError, match="'S3' is in"):
        apply_overrides(Config(), {"split.ood_sites": ["S3"], "split.ood_dev_sites": ["S3"]})


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "https://user:pass@host/bucket",
        "https://h/b?X-Amz-Signature=abc",
        "aws_secret_access_key=x",
    ],
)
def test_credentials_are_refused(secret):
    with pytest.raises(ConfigError, match="credential"):
        apply_overrides(Config(), {"storage.endpoint_url": secret})
    with pytest.raises(ConfigError, match="credential"):
        apply_overrides(Config(), {"split.ood_sites": ["S1", secret]})


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system ['true']", "- 1\n- 2", "a: [1"])
def test_yaml_that_is_not_plain_settings_is_refused(text):
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        config_from_yaml(text, "run.yaml")


def test_errors_are_at_most_three_lines():
    for overrides in ({"x.y": 1}, {"detector.epochs": 0}, {"cluster.num_workers": 7}):
        with pytest.raises(ConfigError) as error:
            apply_overrides(Config(), overrides)
        assert len(str(error.value).splitlines()) <= 3


def test_the_paper_recipe_holds_the_printed_values():
    config = RECIPES["paper"]()
    assert (config.pretrain.epochs, config.pretrain.batch_size, config.pretrain.learning_rate) == (
        400,
        64,
        5e-5,
    )
    assert (config.detector.epochs, config.detector.learning_rate, config.detector.lambda_con) == (
        200,
        3e-4,
        0.5,
    )
    stage1, stage2 = config.self_train.stage1, config.self_train.stage2
    assert (stage1.epochs, stage1.learning_rate, stage1.warmup_epochs, stage1.lambda_con) == (
        80,
        1e-4,
        8,
        0.3,
    )
    assert (stage1.unfreeze_start_epoch, stage1.unfreeze_every_epochs, stage1.unfreeze_blocks) == (20, 10, 3)
    assert (stage2.epochs, stage2.learning_rate, stage2.warmup_epochs, stage2.lambda_con) == (
        40,
        5e-5,
        4,
        0.2,
    )
    assert (config.self_train.policy, config.self_train.threshold) == ("fixed", 0.10)
    assert config.pretrain.target == "raw"  # its equation: squared differences of the spectrogram itself


def test_epochs_that_a_user_sets_count_as_they_are():
    field = Config()
    assert field.detector.min_steps == 1800 and RECIPES["paper"]().detector.min_steps == 0
    assert lengthened(field.detector, num_chunks=128).epochs == 900  # of 2 steps of 64
    assert lengthened(field.detector, num_chunks=1288).epochs == 200  # 20 steps each are 4,000
    assert apply_overrides(field, {"detector.epochs": 3}).detector.min_steps == 0
    assert apply_overrides(field, {"detector.epochs": 3, "detector.min_steps": 9}).detector.min_steps == 9
    assert apply_overrides(field, {"pretrain.epochs": 3}).detector.min_steps == 1800
    assert (field.detector.unfrozen_blocks, field.detector.backbone_multiplier) == (ALL_BLOCKS, 1.0)
    paper = RECIPES["paper"]().detector
    assert (paper.unfrozen_blocks, paper.backbone_multiplier) == (4, 0.1)  # as printed
    tiny = RECIPES["tiny"]()
    assert (tiny.detector.min_steps, tiny.self_train.stage2.min_steps) == (0, 60)


def test_a_small_training_set_is_seen_as_often_as_min_steps_asks_for():
    knobs = DetectorTrainConfig(
        epochs=3, batch_size=4, min_steps=60, warmup_epochs=0.5, unfreeze_start_epoch=0.5,
        unfreeze_every_epochs=1, validate_every_epochs=1.5,
    )  # fmt: skip
    longer = lengthened(knobs, num_chunks=13)  # three steps an epoch
    assert (longer.epochs, longer.warmup_epochs, longer.validate_every_epochs) == (20, 0.5 * 20 / 3, 10.0)
    assert lengthened(knobs, num_chunks=2).epochs == 60  # less than a batch: a step an epoch
    assert lengthened(knobs, num_chunks=80) == knobs  # three epochs are sixty steps
    assert lengthened(knobs.model_copy(update={"min_steps": 0}), num_chunks=4).epochs == 3


def test_the_markdown_begins_with_ten_knobs_and_has_a_row_for_every_one():
    text = knobs_markdown({name: recipe() for name, recipe in RECIPES.items()})
    first, every = text.split("## All of them")
    assert first.count("\n| `") == 10 and every.count("\n| `") == len(leaf_keys(Config))
    assert first.splitlines()[4].startswith("| `audio.timezone` | '' |")


def test_the_knobs_in_the_docs_are_those_of_the_code():
    text = (Path(__file__).parents[2] / "docs" / "knobs.md").read_text()
    made = knobs_markdown({name: recipe() for name, recipe in RECIPES.items()})
    assert text.endswith(made), "run: mast config --markdown, and put it under the heading of docs/knobs.md"


@pytest.mark.parametrize("endpoint", ["127.0.0.1:8333", "minio.example.org", "https:///bucket"])
def test_an_endpoint_without_scheme_or_host_is_refused_with_the_remedy(endpoint):
    with pytest.raises(ConfigError, match="with its scheme"):
        apply_overrides(Config(), {"storage.endpoint_url": endpoint})


@pytest.mark.parametrize("zone", ["-0500", "+0700", "+10:00", "-10:00", "+1000", "'-10:00'", "Asia/Makassar"])
def test_a_time_zone_is_what_was_written_and_no_number_of_yaml(zone):
    for config in (
        apply_overrides(Config(), parse_set([f"audio.timezone={zone}"])),
        config_from_yaml(f"audio:\n  timezone: {zone}\n", "x.yaml"),
        config_from_yaml(f"audio.timezone: {zone}\n", "x.yaml"),
    ):
        assert config.audio.timezone == zone.strip("'")
        assert config_from_yaml(config_to_yaml(config), "x.yaml") == config


def test_names_of_sites_in_a_file_are_what_was_written():
    names = ["001", "5e3", "NO", "12:30", "2024-01-01", "0x1F"]
    config = config_from_yaml(f"split:\n  ood_sites: [{', '.join(names)}]\n", "x.yaml")
    assert list(config.split.ood_sites) == names
    assert config_from_yaml(config_to_yaml(config), "x.yaml") == config
    with pytest.raises(ConfigError, match=r"'split.ood_sites=\[001\]'"):
        apply_overrides(Config(), parse_set(["split.ood_sites=001"]))


def test_a_section_without_lines_changes_nothing_and_one_with_a_value_is_told():
    assert config_from_yaml("audio:\n  # timezone: UTC\nseed: 3\n", "x.yaml") == Config(seed=3)
    with pytest.raises(ConfigError, match=r"audio is a section of settings.*audio.NAME=VALUE"):
        config_from_yaml("audio: 3\n", "x.yaml")


BOMB = "a: &a [x, x]\n" + "".join(
    f"{n}: &{n} [*{m}, *{m}]\n" for m, n in zip("abcdefghijkl", "bcdefghijklm", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "& and *"),
        ("[" * 3000, "nested 17 deep"),
        ("a: " + "{a: " * 40 + "1" + "}" * 40, "nested 17 deep"),
        ("detector: {epochs: 1", "not plain YAML"),
        ("x" * 300_000, "300,000 characters"),
        ("a: 2024-13-45", "not plain YAML"),
        ("seed: 1\nseed: 2", "'seed' in line 1 and again in line 2"),
        ("detector: {epochs: 1, epochs: 2}", "'epochs' in line 1 and again"),
        ("!!python/object/apply:os.getcwd []", "not plain YAML"),
    ],
)
def test_hostile_yaml_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError, match=message) as refused:
        config_from_yaml(text, "run.yaml")
    assert len(str(refused.value).splitlines()) <= 3 and len(str(refused.value)) < 300
    with pytest.raises(ConfigError):
        parse_set([f"detector.epochs={text}"])


@pytest.mark.parametrize(("value", "meant"), [(True, "on"), (False, "off"), ("auto", "auto"), ("on", "on")])
def test_compile_takes_the_booleans_of_older_configs(value, meant):
    assert apply_overrides(Config(), {"model.compile": value}).model.compile == meant
    assert config_from_yaml(f"model:\n  compile: {value}", "test").model.compile == meant


def test_auto_compiles_training_on_gpus_only():
    model = Config().model
    assert model.compiles_on("cuda") and not model.compiles_on("cpu")
    off = apply_overrides(Config(), {"model.compile": "off"}).model
    on = apply_overrides(Config(), {"model.compile": "on"}).model
    assert on.compiles_on("cpu") and not off.compiles_on("cuda")


def test_a_finer_level_needs_a_network_that_has_one():
    with pytest.raises(ConfigError, match=r"model\.adapter=hybrid"):
        apply_overrides(Config(), {"model.adapter": "conv", "model.finest_level": "4x4"})
    assert apply_overrides(Config(), {"model.adapter": "hybrid", "model.finest_level": "4x4"})


@pytest.mark.parametrize("section", ["pretrain", "detector", "self_train.stage2"])
def test_an_average_over_squares_that_never_moves_is_refused_before_the_optimizer_does(section):
    with pytest.raises(ConfigError, match=rf"{section}\.beta2=1\.0 is not valid"):
        apply_overrides(Config(), {f"{section}.beta2": 1.0})
    assert apply_overrides(Config(), {f"{section}.beta2": 0.0})


def test_a_pattern_that_begins_with_a_star_is_taken_in_quotes_and_asked_for_in_them():
    with pytest.raises(ConfigError, match=r'in quotes, e\.g\. \["\*warbler"\]'):
        parse_set(["labels.include=[*warbler]"])
    assert parse_set(['labels.include=["*warbler", Turdus*]']) == {"labels.include": ["*warbler", "Turdus*"]}
