"""Parameter groups read off names: component, decay, and the epoch from which they train."""

import torch
from torch import nn
from toy import ToyObjective

from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import tiny
from mast_ray.training.assembly import detection, groups_of, reconstruction
from mast_ray.training.groups import Multipliers, parameter_groups
from mast_ray.training.schedule import Unfreezing


def found(groups):
    return {
        name: (group.component, group.multiplier, group.weight_decay, group.start_epoch)
        for group in groups
        for name in group.names
    }


def test_blocks_stem_adapter_and_head_get_their_own_rates_and_epochs():
    unfreezing = Unfreezing(from_start=1, start_epoch=2.0, every_epochs=3.0, blocks_at_a_time=1)
    groups = parameter_groups(
        ToyObjective(), weight_decay=0.1, multipliers=Multipliers(0.2, 0.5, 1.0), unfreezing=unfreezing
    )
    table = found(groups)
    assert table["encoder.blocks.2.weight"] == ("encoder", 0.2, 0.1, 0.0)
    assert table["encoder.blocks.1.bias"] == ("encoder", 0.2, 0.0, 2.0)
    assert table["encoder.blocks.0.weight"] == table["encoder.patch.weight"] == ("encoder", 0.2, 0.1, 5.0)
    assert table["encoder.norm.weight"] == ("encoder", 0.2, 0.0, 0.0)
    assert table["adapter.weight"] == ("adapter", 0.5, 0.1, 0.0)
    assert table["head.bias"] == ("head", 1.0, 0.0, 0.0)


def test_what_never_trains_is_in_no_group():
    table = found(parameter_groups(ToyObjective(), weight_decay=0.1, unfreezing=Unfreezing(from_start=1)))
    assert "encoder.blocks.2.weight" in table and "encoder.blocks.0.weight" not in table
    assert "encoder.patch.weight" not in table


def test_norms_biases_tokens_and_positions_are_not_decayed():
    module = nn.Module()
    module.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
    module.pos_embed = nn.Parameter(torch.zeros(1, 4, 8))
    module.linear, module.norm = nn.Linear(8, 8), nn.LayerNorm(8)
    decayed = {name for name, row in found(parameter_groups(module, weight_decay=0.1)).items() if row[2] > 0}
    assert decayed == {"linear.weight"}


def test_every_parameter_of_the_real_objectives_is_grouped_once():
    config = tiny()
    for objective, knobs in (
        (reconstruction(config), config.pretrain),
        (detection(config, config.detector), config.detector),
    ):
        names = [name for group in groups_of(objective, knobs, config.model) for name in group.names]
        trainable = [name for name, parameter in objective.named_parameters() if parameter.requires_grad]
        assert sorted(names) == sorted(trainable)
        components = {group.component for group in groups_of(objective, knobs, config.model)}
        assert "encoder" in components


def test_layer_decay_lowers_the_rate_block_by_block_and_most_for_the_stem():
    """The toy encoder has three blocks: 2 is the top."""
    multipliers = Multipliers(encoder=0.2, adapter=0.5, layer_decay=0.5)
    table = found(parameter_groups(ToyObjective(), weight_decay=0.1, multipliers=multipliers))
    rates = {name: row[1] for name, row in table.items()}
    assert rates["encoder.norm.weight"] == 0.2
    assert [rates[f"encoder.blocks.{block}.weight"] for block in (2, 1, 0)] == [0.1, 0.05, 0.025]
    assert rates["encoder.patch.weight"] == 0.0125
    assert (rates["adapter.weight"], rates["head.weight"]) == (0.5, 1.0)


def test_the_side_path_is_part_of_the_adapter():
    config = apply_overrides(tiny(), {"model.adapter": "hybrid"})
    table = found(groups_of(detection(config, config.detector), config.detector, config.model))
    assert table["detector.adapter.side.0.conv.weight"][0] == "adapter"
