"""What runs of before recorded of settings that are gone."""

import json

import pytest

from mast_ray.config.errors import ConfigError
from mast_ray.config.loading import apply_overrides, config_from_yaml, config_to_yaml, leaf_keys
from mast_ray.config.recipes import RECIPES
from mast_ray.config.retired import RETIRED, with_retired, without_retired
from mast_ray.config.tree import Config
from mast_ray.storage.stage_folders import sections_hash, text_hash


def recorded(config: Config, bend: float = 0.0) -> dict:
    """The whole configuration as a run of before wrote it."""
    tree = config.model_dump(mode="json")
    for section in (tree["augment"], tree["self_train"]["augment"]):
        section["bend"] = bend
    return tree


def test_what_is_gone_is_no_setting():
    assert not RETIRED.keys() & leaf_keys(Config).keys()


@pytest.mark.parametrize("name", RECIPES)
def test_the_record_of_an_older_run_is_read(name):
    config = RECIPES[name]()
    assert Config.model_validate(recorded(config)) == config
    assert config_from_yaml(json.dumps(recorded(config)), "config.yaml") == config
    assert "bend" not in config_to_yaml(config)


@pytest.mark.parametrize("key", RETIRED)
@pytest.mark.parametrize("value", [0, 0.0])
def test_the_value_that_changed_nothing_may_be_given(key, value):
    assert apply_overrides(Config(), {key: value, "seed": 3}).seed == 3


@pytest.mark.parametrize("key", RETIRED)
@pytest.mark.parametrize("value", [0.6, "", None, [0.0]])
def test_any_other_is_refused_with_what_to_do(key, value):
    with pytest.raises(ConfigError, match=r"this setting is gone.*\nleave it out") as refused:
        apply_overrides(Config(), {key: value})
    assert str(refused.value).startswith(f"{key}=")


def test_the_record_of_a_run_that_used_it_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match=r"augment\.bend=0\.6: this setting is gone"):
        Config.model_validate(recorded(Config(), 0.6))


@pytest.mark.parametrize("section", ["augment", "self_train", "self_train.augment", "detector"])
def test_finished_work_has_the_name_it_had(section):
    node = recorded(Config())
    for part in section.split("."):
        node = node[part]
    assert sections_hash(Config(), section) == text_hash(json.dumps({section: node}, sort_keys=True))


def test_a_section_as_recorded_before_leaves_the_given_one_alone():
    own = Config().self_train.model_dump(mode="json")
    before = json.dumps(own)
    assert with_retired("self_train", own)["augment"]["bend"] == 0.0 and json.dumps(own) == before
    assert without_retired({"self_train": with_retired("self_train", own)}) == {"self_train": own}
