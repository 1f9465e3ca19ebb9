"""The whole detector: shapes, `detect` against a slow reference, precision, embeddings, and overfitting."""

import pytest
import torch
from rectangles import best_f1, rectangle_chunks
from torchvision.ops import nms

from mast_ray.config.errors import ConfigError
from mast_ray.models.build import build_detector
from mast_ray.models.detector import DetectorArchitecture, MastDetector
from mast_ray.training.objectives import detection_objective


@pytest.fixture(scope="module")
def detector() -> MastDetector:
    torch.manual_seed(0)
    return MastDetector(DetectorArchitecture(size="tiny")).eval()


def test_strides_and_points_are_the_papers():
    levels = DetectorArchitecture(size="base").levels
    assert [level.stride for level in levels] == [(8, 4), (16, 8), (32, 16), (64, 32)]
    assert [level.size for level in levels] == [(128, 32), (64, 16), (32, 8), (16, 4)]
    assert sum(level.num_points for level in levels) == 5440


def test_outputs_cover_every_point(detector):
    with torch.no_grad():
        outputs = detector(torch.randn(2, 1, 1024, 128))
    assert outputs.score_logit.shape == outputs.centerness_logit.shape == (2, 5440)
    assert outputs.distances.shape == (2, 5440, 4)
    assert outputs.features.shape == (2, 48, 128, 32)


def test_detect_equals_torchvision_suppression_chunk_by_chunk(detector):
    torch.manual_seed(1)
    logmel = 3 * torch.randn(2, 1, 1024, 128)
    floor = 0.06
    with torch.no_grad():
        found = detector.detect(logmel, score_floor=floor, nms_overlap=0.4, max_detections=20)
        outputs = detector(logmel)
    score = (outputs.score_logit.sigmoid() * outputs.centerness_logit.sigmoid()).sqrt()
    boxes = detector.boxes(outputs.distances)
    for chunk in range(2):
        best = score[chunk].topk(512)
        best_boxes = boxes[chunk][best.indices]
        keep = [index for index in nms(best_boxes, best.values, 0.4).tolist() if best.values[index] >= floor][
            :20
        ]
        count = int(found.is_valid[chunk].sum())
        assert count == len(keep) > 0
        assert torch.allclose(found.corners[chunk, :count], best_boxes[keep], atol=1e-4)
        assert torch.allclose(found.score[chunk, :count], best.values[keep])


def test_boxes_stay_inside_the_chunk(detector):
    boxes = detector.boxes(torch.full((1, 5440, 4), 200.0))
    assert float(boxes.min()) == 0.0
    assert boxes.amax((0, 1)).tolist() == [0.0, 0.0, 1024.0, 128.0]


def test_a_model_cast_to_bf16_keeps_exact_point_positions(detector):
    cast = MastDetector(DetectorArchitecture(size="tiny")).bfloat16()
    points = cast.points(torch.device("cpu"))
    assert points.centres.dtype == torch.float32
    assert points.centres[:4096, 0].max() == 1020.0  # bf16 would say 1024


def test_bf16_detections_are_close_to_fp32(detector):
    logmel = rectangle_chunks(2).logmel
    with torch.no_grad():
        exact = detector.detect(logmel, score_floor=0.0)
        with torch.autocast("cpu", torch.bfloat16):
            rough = detector.detect(logmel, score_floor=0.0)
    assert rough.score.dtype == torch.float32
    assert torch.allclose(exact.score[:, 0], rough.score[:, 0], rtol=0.05)


@pytest.mark.parametrize(("name", "width"), [("encoder", 128), ("neck", 48), ("projection", 128)])
def test_boxes_are_embedded_from_the_named_layer(detector, name, width):
    logmel = torch.randn(2, 1, 1024, 128)
    boxes = torch.tensor([[0.0, 0.0, 1024.0, 128.0], [96.0, 16.0, 160.0, 48.0]]).expand(2, 2, 4)
    with torch.no_grad():
        vectors = detector.embed_boxes(logmel, boxes, name)
        tokens = detector.encoder(logmel)
    assert vectors.shape == (2, 2, width)
    if name == "encoder":  # tokens 6..9 in time and 1..2 in frequency; 14 samples weigh them all but equally
        expected = tokens[:, :, 6:10, 1:3].mean((2, 3))
        assert torch.nn.functional.cosine_similarity(vectors[:, 1], expected).min() > 0.98
    if name == "projection":
        assert torch.allclose(vectors.norm(dim=-1), torch.ones(2, 2), atol=1e-5)


def test_variants_without_adapter_work_at_stride_16_and_have_no_projection():
    detector = build_detector(DetectorArchitecture("audiomae", "tiny"))
    assert [level.stride for level in detector.levels] == [(16, 16), (32, 32), (64, 64), (128, 128)]
    with torch.no_grad(), pytest.raises(ConfigError, match="no projection head"):
        detector.embed_boxes(torch.zeros(1, 1, 1024, 128), torch.zeros(1, 1, 4), "projection")


@pytest.mark.parametrize(
    ("name", "adapter"), [("mast", "hybrid"), ("mast", "upsampling"), ("resnet_fpn", "none")]
)
@pytest.mark.parametrize(
    ("finest", "strides"),
    [
        ("8x4", [(8, 4), (16, 8), (32, 16), (64, 32)]),
        ("4x4", [(4, 4), (8, 8), (16, 16), (32, 32), (64, 64)]),
        ("2x4", [(2, 4), (4, 8), (8, 16), (16, 32), (32, 64)]),
    ],
)
def test_maps_have_the_sizes_of_the_levels_from_any_finest_one(name, adapter, finest, strides):
    detector = build_detector(DetectorArchitecture(name, "tiny", adapter, finest=finest)).eval()
    assert [level.stride for level in detector.levels] == strides
    assert detector.extent == (1024, 128)
    with torch.no_grad():
        maps = detector.maps(torch.randn(1, 1, 1024, 128))
        found = detector.detect(torch.randn(1, 1, 1024, 128), score_floor=0.0)
    assert [tuple(one.shape[-2:]) for one in maps] == [level.size for level in detector.levels]
    assert found.corners.shape == (1, 300, 4)


@pytest.mark.parametrize("name", ["encoder", "neck", "projection"])
def test_the_residual_rival_has_embeddings_too(name):
    detector = build_detector(DetectorArchitecture("resnet_fpn", "tiny")).eval()
    boxes = torch.tensor([[[100.0, 20, 160, 60], [0, 0, 1024, 128]]])
    with torch.no_grad():
        vectors = detector.embed_boxes(torch.randn(1, 1, 1024, 128), boxes, name)
    assert vectors.shape == (1, 2, {"encoder": 256, "neck": 48, "projection": 128}[name])


def test_both_shipped_sizes_fit_into_30_megabytes_in_float16():
    with torch.device("meta"):
        tiny, compact = (
            build_detector(DetectorArchitecture("mast", size, "hybrid", finest="4x4"))
            for size in ("tiny", "compact")
        )
    numbers = [tensor.numel() for one in (tiny, compact) for tensor in one.state_dict().values()]
    assert sum(numbers) * 2 < 30e6
    assert (compact.encoder.shape.width, compact.encoder.shape.depth) == (256, 8)


@pytest.mark.slow
def test_detect_compiles_whole_and_agrees_with_eager(detector):
    logmel = torch.randn(2, 1, 1024, 128)
    with torch.no_grad():
        compiled = torch.compile(detector.detect, fullgraph=True, backend="aot_eager")(logmel, 0.001)
        eager = detector.detect(logmel, 0.001)
    assert torch.equal(compiled.is_valid, eager.is_valid)
    assert torch.allclose(compiled.corners, eager.corners, atol=1e-3)


OVERFIT = [
    pytest.param("mast", "upsampling", 2e-3, 300, marks=pytest.mark.long),
    pytest.param("mast", "anisotropic", 2e-3, 300, marks=pytest.mark.long),
    pytest.param("mast", "conv", 2e-3, 300, marks=pytest.mark.long),
    ("mast", "hybrid", 2e-3, 300),
    pytest.param("resnet_fpn", "upsampling", 2e-3, 300, marks=pytest.mark.long),
    pytest.param("audiomae", "upsampling", 2e-3, 300, marks=pytest.mark.long),
    pytest.param("vit_scratch", "upsampling", 2e-3, 300, marks=pytest.mark.long),
    pytest.param("fcos", "upsampling", 1e-3, 300, marks=pytest.mark.long),
    pytest.param("faster_rcnn", "upsampling", 1e-3, 300, marks=pytest.mark.long),
    pytest.param("detr", "upsampling", 3e-4, 800, marks=pytest.mark.long),
    pytest.param("yolo26", "upsampling", 2e-3, 400, marks=pytest.mark.long),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "adapter", "rate", "most_steps"), OVERFIT, ids=lambda value: str(value))
def test_detector_overfits_8_synthetic_chunks_to_f1_over_095(name, adapter, rate, most_steps):
    if name == "yolo26":
        pytest.importorskip("ultralytics")
    torch.manual_seed(0)
    batch = rectangle_chunks(8)
    objective = detection_objective(build_detector(DetectorArchitecture(name, "tiny", adapter)))
    optimizer = torch.optim.AdamW(objective.parameters(), lr=rate)
    reached = 0.0
    for step in range(most_steps):
        objective.seed_step(step)
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 20) * (1 - 0.9 * step / most_steps)
        loss = objective(batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 19:
            with torch.no_grad():
                reached = best_f1(objective.eval().detector.detect(batch.logmel), batch)
            objective.train()
            if reached > 0.95:
                print(f"{name} {adapter}: F1 {reached:.3f} after {step + 1} steps")
                return
    pytest.fail(f"F1 {reached:.3f} after {most_steps} steps")
