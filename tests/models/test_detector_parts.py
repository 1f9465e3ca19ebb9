"""Adapters, pyramid, head and region features: shapes, parameter counts, and oracles."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import roi_align

from mast_ray.models.adapters import adapter_stride, build_adapter
from mast_ray.models.convolutions import MapNorm
from mast_ray.models.head import FcosHead
from mast_ray.models.pyramid import Pyramid, SmoothingBlock, WeightedSum
from mast_ray.models.regions import ProjectionHead, pooled_regions


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "grid", "stride", "millions"),
    [
        ("conv", (64, 8), (16, 16), 5.31),
        ("anisotropic", (64, 32), (16, 4), 3.56),
        ("upsampling", (128, 32), (8, 4), 3.48),
    ],
)
def test_adapter_has_the_papers_resolution_and_size(name, grid, stride, millions):
    adapter = build_adapter(name, 768, 256)
    with torch.no_grad():
        output = adapter(torch.zeros(1, 768, 64, 8))
    assert output.shape == (1, 256, *grid)
    assert adapter_stride(name) == stride == (1024 // grid[0], 128 // grid[1])
    assert num_parameters(adapter) / 1e6 == pytest.approx(millions, abs=0.01)


def test_upsampling_adapter_parameters_add_up():
    with torch.device("meta"):
        adapter = build_adapter("upsampling", 768, 256)
    convolutions = 768 * 256 + 2 * 9 * 256**2 + 8 * 256**2 + 2 * 3 * 256**2 + 2 * 9 * 256**2
    assert num_parameters(adapter) == convolutions + 8 * 2 * 256  # eight group norms


@pytest.mark.parametrize(("finest", "grid"), [("8x4", (128, 32)), ("4x4", (256, 32)), ("2x4", (512, 32))])
def test_side_path_and_upsampled_tokens_meet_at_the_finest_level(finest, grid):
    adapter = build_adapter("hybrid", 32, 16, finest).eval()
    with torch.no_grad():
        tokens, logmel = torch.randn(2, 32, 64, 8), torch.randn(2, 1, 1024, 128)
        output, *above = adapter(tokens, logmel)
        assert torch.allclose(output, adapter.tokens(tokens) + adapter.side(logmel), atol=1e-5)
    assert output.shape == (2, 16, *grid)
    assert [map.shape for map in above] == [(2, 16, grid[0] // 2**n, grid[1] // 2**n) for n in (1, 2, 3)]
    assert adapter_stride("hybrid", finest) == (1024 // grid[0], 128 // grid[1])


@pytest.mark.parametrize("finest", ["8x4", "4x4", "2x4"])
def test_a_click_reaches_the_cell_of_the_side_path_that_holds_it(finest):
    """The strongest change of the map lies in the cell of the changed frame and bin, or beside it."""
    torch.manual_seed(0)
    side = build_adapter("hybrid", 32, 16, finest).eval().side
    quiet = torch.zeros(1, 1, 1024, 128)
    click = quiet.clone()
    click[0, 0, 612:616, 52:56] = 5.0
    with torch.no_grad():
        change = (side(click) - side(quiet)).abs().sum(1)[0]
    time, frequency = divmod(int(change.argmax()), change.shape[1])
    stride = adapter_stride("hybrid", finest)
    assert abs(time - 614 // stride[0]) <= 1 and abs(frequency - 54 // stride[1]) <= 1


def test_what_comes_from_above_is_added_to_the_coarser_levels_it_fits():
    torch.manual_seed(0)
    pyramid, finest = Pyramid(16, 3).eval(), torch.randn(1, 16, 128, 32)
    above = [torch.randn(1, 16, 64, 16)]
    plain, joined, nothing = (
        pyramid(finest),
        pyramid(finest, above),
        pyramid(finest, [torch.zeros(1, 16, 64, 16)]),
    )
    assert all(torch.equal(*pair) for pair in zip(plain, nothing, strict=True))
    assert not any(torch.equal(*pair) for pair in zip(plain, joined, strict=True))


@pytest.mark.parametrize("num_levels", [3, 4])
def test_pyramid_halves_both_axes_from_level_to_level(num_levels):
    maps = Pyramid(16, num_levels)(torch.randn(1, 16, 128, 32))
    assert [tuple(m.shape[-2:]) for m in maps] == [(128, 32), (64, 16), (32, 8), (16, 4)][:num_levels]


def test_coarse_levels_reach_the_finest_map_through_fusion():
    torch.manual_seed(0)
    pyramid = Pyramid(16, 3)
    features = torch.randn(1, 16, 32, 8)
    before = pyramid(features)[0]
    with torch.no_grad():
        pyramid.lateral[2].weight.mul_(2.0)
    assert not torch.allclose(pyramid(features)[0], before)


def test_fusion_weights_are_non_negative_and_sum_to_one():
    fuse = WeightedSum()
    with torch.no_grad():
        fuse.weight.copy_(torch.tensor([-1.0, 3.0]))
    first, second = torch.randn(2, 1, 4, 8, 8)
    assert torch.allclose(fuse(first, second), second, atol=1e-3)
    with torch.no_grad():
        fuse.weight.copy_(torch.tensor([1.0, 3.0]))
    assert torch.allclose(fuse(first, second), 0.25 * first + 0.75 * second, atol=1e-3)


def test_smoothing_equals_three_convolutions_summed():
    torch.manual_seed(0)
    block = SmoothingBlock(16)
    features = torch.randn(1, 16, 12, 6)
    three = (
        functional.conv2d(features, block.square.weight, padding=(1, 1))
        + functional.conv2d(features, block.along_time.weight, padding=(1, 0))
        + functional.conv2d(features, block.along_frequency.weight, padding=(0, 1))
    )
    assert torch.allclose(block(features), functional.relu(block.norm(three)), atol=1e-5)


def test_head_starts_at_the_prior_with_positive_distances_for_every_point():
    torch.manual_seed(0)
    head = FcosHead(16, 2, tower_depth=2)
    score, centerness, distances = head([torch.randn(2, 16, 8, 4), torch.randn(2, 16, 4, 2)])
    assert score.shape == centerness.shape == (2, 40) and distances.shape == (2, 40, 4)
    assert torch.allclose(score.sigmoid(), torch.full((2, 40), 0.01), atol=0.005)
    assert torch.allclose(distances, torch.full((2, 40, 4), 4.0), rtol=0.5)  # boxes 8 strides long
    assert torch.allclose(centerness.sigmoid(), torch.full((2, 40), 0.5), atol=0.1)


def test_scale_of_a_level_stretches_the_log_distances_of_that_level_only():
    torch.manual_seed(0)
    head = FcosHead(16, 2, tower_depth=1)
    maps = [torch.randn(1, 16, 8, 4), torch.randn(1, 16, 4, 2)]
    before = head(maps)[2]
    with torch.no_grad():
        head.scale[1] = 2.0
    after = head(maps)[2]
    assert torch.equal(after[:, :32], before[:, :32])
    assert torch.allclose(after[:, 32:].log(), 2 * before[:, 32:].log(), atol=1e-5)


def test_head_survives_absurd_features():
    head = FcosHead(16, 1, tower_depth=1)
    nn.init.constant_(head.box.bias, 1e4)
    with torch.no_grad():
        distances = head([torch.full((1, 16, 4, 4), 1e4)])[2]
    assert distances.max().item() == pytest.approx(256.0)


def test_pooled_regions_equal_the_mean_of_roi_align_with_strides_that_are_not_square():
    torch.manual_seed(0)
    features = torch.randn(2, 5, 128, 32)
    low = torch.rand(2, 6, 2) * torch.tensor([700.0, 80.0])
    boxes = torch.cat([low, low + torch.rand(2, 6, 2) * torch.tensor([320.0, 46.0]) + 1.0], dim=-1)
    boxes[0, 0] = torch.tensor([0.0, 0.0, 1024.0, 128.0])
    in_cells = boxes / torch.tensor([8.0, 4.0, 8.0, 4.0])
    rows = torch.cat(
        [torch.arange(2.0).repeat_interleave(6)[:, None], in_cells.flatten(0, 1)[:, [1, 0, 3, 2]]], dim=1
    )
    expected = (
        roi_align(features, rows, (7, 7), 1.0, sampling_ratio=2, aligned=True).mean((2, 3)).reshape(2, 6, 5)
    )
    assert torch.allclose(pooled_regions(features, boxes, (8, 4)), expected, atol=1e-5)


def test_pooling_takes_channels_last_maps_and_sends_gradients():
    features = torch.randn(1, 4, 16, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    pooled_regions(features, torch.tensor([[[16.0, 8.0, 64.0, 16.0]]]), (8, 4)).sum().backward()
    assert float(features.grad.sum()) == pytest.approx(
        4.0, abs=1e-5
    )  # weights of one box sum to one per channel
    assert math.isclose(float(features.grad[:, :, 12:].abs().sum()), 0.0)


def test_projection_has_unit_length_also_for_zero_features():
    vectors = ProjectionHead(16)(torch.cat([torch.randn(3, 16), torch.zeros(1, 16)]))
    assert vectors.shape == (4, 128)
    assert torch.allclose(vectors.norm(dim=-1), torch.ones(4), atol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_norm_by_sums_is_torchs_group_norm_with_its_gradients(offset: float) -> None:
    norm = MapNorm(24)
    nn.init.uniform_(norm.weight, 0.5, 2.0)
    nn.init.uniform_(norm.bias, -1.0, 1.0)
    given = (
        torch.randn(3, 24, 10, 6) * torch.linspace(0.1, 3.0, 24)[:, None, None] + offset
    ).requires_grad_()
    weights = torch.randn(3, 24, 10, 6)

    def output_and_gradients(output: Tensor) -> list[Tensor]:
        return [output, *torch.autograd.grad((output * weights).sum(), (given, *norm.parameters()))]

    by_sums, by_torch = output_and_gradients(norm.by_sums(given)), output_and_gradients(norm(given))
    for own, known in zip(by_sums, by_torch, strict=True):
        torch.testing.assert_close(own, known, rtol=2e-3, atol=2e-3)


def test_norm_by_sums_keeps_the_type_and_survives_a_constant_map() -> None:
    norm = MapNorm(16)
    constant = norm.by_sums(torch.full((2, 16, 4, 4), 7.0, dtype=torch.bfloat16))
    assert constant.dtype == torch.bfloat16
    assert constant.abs().max() < 1e-2


def test_a_compiled_norm_is_the_one_by_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, given = MapNorm(16), torch.randn(2, 16, 5, 4)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(norm(given), norm.by_sums(given))
