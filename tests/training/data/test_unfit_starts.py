"""What a training cannot begin with is refused before anything is written: a folder with the record of a refused run is
not empty any more, and the next command would go on as that one said.
"""

from pathlib import Path

import pytest
import torch

from mast_ray.config.errors import ConfigError, DataError
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import tiny
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.stages.runner import HERE
from mast_ray.stages.search.tune import run_tune, run_tune_losses
from mast_ray.stages.self_train.first_lessons import learn_first_lessons
from mast_ray.stages.self_train.self_train import run_self_train
from mast_ray.stages.train.train import run_pretrain, run_train_detector
from mast_ray.storage.storage import open_storage
from mast_ray.training.data.archive_inputs import refuse_unfit_starts
from mast_ray.training.files.model_files import Card, write_model


@pytest.fixture
def models(tmp_path):
    for kind in ("autoencoder", "detector"):
        card = Card(kind, tiny().model.model_dump(mode="json"), Normalisation(-8.0, 3.0).to_dict())
        write_model(open_storage(tmp_path / kind), {"one": torch.zeros(1)}, card)
    write_model(open_storage(tmp_path / "cut"), {"one": torch.zeros(1)}, card)
    (tmp_path / "cut" / "weights.safetensors").unlink()
    (tmp_path / "public.pth").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("encoder", "detector", "what"),
    [
        ("detector", "", "holds detector weights, not autoencoder"),
        ("", "autoencoder", "holds autoencoder weights, not detector"),
        ("", "cut", "only its card"),
        ("nowhere", "", "no card.json"),
        ("public.pth", "", "spectrogram.divisor=2"),
    ],
)
def test_weights_that_do_not_fit_are_named(models, encoder, detector, what):
    places = [str(models / name) if name else "" for name in (encoder, detector)]
    with pytest.raises((ConfigError, DataError), match=what):
        refuse_unfit_starts(tiny(), *places)


def test_weights_that_fit_are_not(models):
    refuse_unfit_starts(tiny(), str(models / "autoencoder"), str(models / "detector"))
    divided = apply_overrides(tiny(), {"spectrogram.divisor": 2.0})
    refuse_unfit_starts(divided, str(models / "public.pth"))
    refuse_unfit_starts(tiny(), "", "")


def test_every_stage_refuses_them_before_it_opens_an_archive_or_writes(models):
    """The archive is not there either: what is told first is what the folder of weights is."""
    out, archive = str(models / "out"), str(models / "no archive")
    of_detector, of_encoder = str(models / "detector"), str(models / "autoencoder")
    initialised = apply_overrides(tiny(), {"pretrain.init": of_detector})
    commands = [
        lambda: run_pretrain(initialised, [archive, archive], out, runner=HERE),
        lambda: run_train_detector(tiny(), [archive, archive], out, init_encoder=of_detector, runner=HERE),
        lambda: run_train_detector(tiny(), archive, out, init_detector=of_encoder, runner=HERE),
        lambda: run_self_train(tiny(), archive, of_encoder, out, runner=HERE),
        lambda: run_self_train(tiny(), archive, of_detector, out, also=[of_encoder], runner=HERE),
        lambda: run_tune(tiny(), archive, of_encoder, out, runner=HERE),
        lambda: run_tune_losses(tiny(), archive, out, encoder=of_detector),
        lambda: learn_first_lessons(tiny(), archive, "energy", out, encoder=of_detector, runner=HERE),
    ]
    for command in commands:
        with pytest.raises(ConfigError, match="weights, not"):
            command()
        assert not Path(out).exists()
