"""Baselines: the box convention in one place, the same interface, no downloads, empty batches."""

from dataclasses import replace

import pytest
import torch
from rectangles import rectangle_chunks
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from mast_ray.boxes.batch import ChunkBatch, pad_boxes
from mast_ray.config.errors import ConfigError
from mast_ray.models.baselines.convention import (
    corners_of_shares,
    object_xyxy,
    padded_detections,
    shares_of,
    xyxy_of,
)
from mast_ray.models.baselines.torchvision_detectors import TorchvisionDetector, fcos_matches
from mast_ray.models.build import build_detector
from mast_ray.models.detector import DetectorArchitecture

FAMILIES = ["fcos", "faster_rcnn", "detr", "yolo26"]


@pytest.fixture(scope="module", params=FAMILIES)
def baseline(request):
    if request.param == "yolo26":
        pytest.importorskip("ultralytics")
    torch.manual_seed(0)
    return build_detector(DetectorArchitecture(request.param, "tiny"))


def test_time_is_the_row_and_frequency_the_column_of_an_image():
    ours = torch.tensor([[100.0, 10.0, 300.0, 30.0]])  # t0, f0, t1, f1
    assert xyxy_of(ours).tolist() == [[10.0, 100.0, 30.0, 300.0]]
    shares = shares_of(xyxy_of(ours), (1024, 128))
    assert torch.allclose(shares, torch.tensor([[20 / 128, 200 / 1024, 20 / 128, 200 / 1024]]))
    assert torch.allclose(corners_of_shares(shares, (1024, 128)), ours, atol=1e-4)


def test_only_objects_reach_the_libraries():
    boxes = pad_boxes([torch.tensor([[1.0, 2.0, 3.0, 4.0]])], [torch.tensor([[5.0, 6.0, 7.0, 8.0]])])
    assert [b.tolist() for b in object_xyxy(boxes)] == [[[2.0, 1.0, 4.0, 3.0]]]


def test_lists_of_detections_become_rectangular():
    found = padded_detections(
        [torch.tensor([[10.0, 100.0, 30.0, 300.0]]), torch.zeros(0, 4)], [torch.ones(1), torch.zeros(0)], 3
    )
    assert found.is_valid.tolist() == [[True, False, False], [False, False, False]]
    assert found.corners[0, 0].tolist() == [100.0, 10.0, 300.0, 30.0]


@pytest.mark.slow
def test_baseline_gives_losses_with_gradients_and_rectangular_detections(baseline):
    batch = rectangle_chunks(2)
    losses = baseline.train().losses(batch)
    losses["loss"].backward()
    assert losses["loss"].ndim == 0 and bool(losses["loss"].isfinite()) and len(losses) >= 3
    gradients = [p.grad for p in baseline.parameters() if p.grad is not None]
    assert all(bool(g.isfinite().all()) for g in gradients)
    assert sum(float(g.abs().sum()) for g in gradients) > 0
    baseline.zero_grad()
    found = baseline.detect(batch.logmel, score_floor=0.0, max_detections=50)
    assert found.corners.shape[0] == 2 and found.corners.shape[2] == 4 and found.corners.shape[1] <= 50
    assert float(found.corners[..., 2].max()) <= 1024 and float(found.corners[..., 3].max()) <= 128
    assert float(found.score.min()) >= 0 and float(found.score.max()) <= 1
    size = (found.corners[..., 2:] - found.corners[..., :2])[found.is_valid]
    assert bool((size >= 0).all())
    assert baseline.training


@pytest.mark.slow
def test_baseline_gives_no_box_behind_the_end_of_the_sound(baseline):
    logmel = torch.randn(2, 1, 1024, 128, generator=torch.Generator().manual_seed(1))
    ends = torch.tensor([300.0, 1025.5])
    found = baseline.detect(logmel, 0.0, 0.5, 20, end_frames=ends)
    whole = baseline.detect(logmel, 0.0, 0.5, 20)
    assert torch.equal(found.corners[1], whole.corners[1]) and bool(found.is_valid[0].any())
    assert float(whole.corners[0, :, 2].max()) > 300 >= float(found.corners[0, :, 2].max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["faster_rcnn", "fcos"])
def test_detections_are_those_of_the_librarys_own_suppression(name):
    torch.manual_seed(0)
    detector = TorchvisionDetector(name, "tiny").eval()
    logmel = torch.randn(2, 1, 1024, 128)
    found = detector.detect(logmel, 0.0, 0.3, 10)
    assert bool(found.is_valid.all())
    settings = detector.network.roi_heads if name == "faster_rcnn" else detector.network
    settings.score_thresh, settings.nms_thresh, settings.detections_per_img = 0.0, 0.3, 200
    with torch.no_grad():
        own = detector.network(list(logmel))
    for chunk, one in enumerate(own):
        corners = xyxy_of(one["boxes"])
        has_size = (corners[:, 2:] > corners[:, :2]).all(
            1
        )  # it keeps empty boxes too, which suppress nothing
        assert torch.equal(found.corners[chunk], corners[has_size][:10])
        assert torch.equal(found.score[chunk], one["scores"][has_size][:10])


@pytest.mark.slow
def test_baseline_takes_a_batch_without_boxes(baseline):
    batch = ChunkBatch(torch.randn(2, 1, 1024, 128), pad_boxes([torch.zeros(0, 4)] * 2), torch.ones(2))
    loss = baseline.train().losses(batch)["loss"]
    loss.backward()
    baseline.zero_grad()
    assert bool(loss.isfinite())


def test_yolo26_without_its_extra_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install"):
        build_detector(DetectorArchitecture("yolo26", "tiny"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "millions"), [("fcos", 32), ("faster_rcnn", 41), ("detr", 41)])
def test_base_size_is_the_published_network(name, millions):
    with torch.device("meta"):
        detector = build_detector(DetectorArchitecture(name, "base"))
    assert sum(p.numel() for p in detector.parameters()) / 1e6 == pytest.approx(millions, abs=1.0)


@pytest.mark.parametrize("name", ["fcos", "faster_rcnn"])
def test_what_is_done_for_all_images_at_once_equals_the_library_image_by_image(name):
    """The library's own forward with its own transform; one chunk is empty, and one box is in
    the second slot with none in the first.
    """
    torch.manual_seed(0)
    detector = build_detector(DetectorArchitecture(name, "tiny")).train()
    batch = rectangle_chunks(4)
    is_object = batch.boxes.is_object.clone()
    is_object[0, 0] = False
    batch = replace(batch, boxes=replace(batch.boxes, is_object=is_object))
    torch.manual_seed(1)
    ours = {key: value.item() for key, value in detector.losses(batch).items() if key != "loss"}
    library = GeneralizedRCNNTransform(128, 1024, [0.0], [1.0], size_divisible=32, _skip_resize=True)
    own, detector.network.transform = detector.network.transform, library
    label = 1 if name == "faster_rcnn" else 0
    targets = [
        {"boxes": corners[flags][:, [1, 0, 3, 2]], "labels": torch.full((int(flags.sum()),), label)}
        for corners, flags in zip(batch.boxes.corners, is_object, strict=True)
    ]
    torch.manual_seed(1)
    theirs = {key: value.item() for key, value in detector.network(list(batch.logmel), targets).items()}
    assert ours == pytest.approx(theirs, rel=1e-5)
    detector.eval()
    with torch.no_grad():
        found = detector.network(list(batch.logmel))
        detector.network.transform = own
        again = detector.network(list(batch.logmel))
    assert all(torch.allclose(a["boxes"], b["boxes"]) for a, b in zip(found, again, strict=True))


def test_a_batch_without_any_box_matches_nothing():
    anchors = torch.tensor([[0.0, 0, 8, 8], [8, 0, 16, 8]])
    found = fcos_matches(anchors, [1, 1], torch.zeros(2, 0, 4), torch.zeros(2, 0, dtype=torch.bool), 1.5)
    assert found.tolist() == [[-1, -1], [-1, -1]]


def test_the_energy_detector_boxes_what_is_loud_the_loudest_first_and_nothing_behind_the_end():
    detector = build_detector(DetectorArchitecture("energy", "tiny"))
    logmel = torch.zeros(2, 1, 1024, 128)
    per_db = 0.1 * torch.log(torch.tensor(10.0))
    logmel[0, 0, 100:200, 20:40] = 15 * per_db
    logmel[0, 0, 400:500, 60:90] = 25 * per_db
    logmel[0, 0, 900:1000, 20:40] = 40 * per_db
    found = detector.detect(logmel, max_detections=5, end_frames=torch.tensor([880, 1024]))
    assert found.is_valid.tolist() == [[True, True, False, False, False], [False] * 5]
    expected = torch.tensor([[400.0, 60.0, 500.0, 90.0], [100.0, 20.0, 200.0, 40.0]])
    assert torch.allclose(found.corners[0, :2], expected, atol=2.0)
    assert torch.allclose(found.score[0, :2], torch.tensor([0.881, 0.5]), atol=1e-3)  # 25 and 15 dB
    floor = detector.detect(logmel, score_floor=0.6, end_frames=torch.tensor([880, 1024]))
    assert int(floor.is_valid.sum()) == 1


def test_a_compiled_step_leaves_the_energy_detector_out_of_its_graph():
    detector = build_detector(DetectorArchitecture("energy", "tiny"))
    logmel = torch.zeros(1, 1, 1024, 128)
    logmel[0, 0, 100:200, 20:40] = 5.0
    compiled = torch.compile(lambda chunks: detector.detect(chunks * 2.0).corners, backend="eager")
    torch.testing.assert_close(compiled(logmel), detector.detect(logmel * 2.0).corners)
