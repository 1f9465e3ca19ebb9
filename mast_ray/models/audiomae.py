"""AudioMAE's public checkpoint layout: our autoencoder's names to and from it, refused with a list when
anything does not fit.

The layout has positions as stored tensors. The public file's position table is laid out for an 8 x 64 grid
while its tokens run 64 x 8: it is taken as it is, because its weights were trained with it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mast_ray.config.errors import DataError
from mast_ray.models.autoencoder import (
    DECODER,
    DECODER_SHAPES,
    SIDE,
    AutoencoderArchitecture,
    DecoderName,
    MaskedAutoencoder,
)
from mast_ray.models.decoder_local import META_HIDDEN
from mast_ray.models.encoder import ENCODER_SHAPES, NUM_TOKENS, PATCH, EncoderSize, PatchEncoder

# Ours -> theirs; longest prefixes first, since `encoder.` maps to nothing.
_PREFIXES = (
    ("decoder.mask_token", "mask_token"),
    ("decoder.pos_embed", "decoder_pos_embed"),
    ("decoder.embed.", "decoder_embed."),
    ("decoder.blocks.", "decoder_blocks."),
    ("decoder.norm.", "decoder_norm."),
    ("decoder.predict.", "decoder_pred."),
    ("encoder.", ""),
)
_MOST_LISTED = 12


def public_name(name: str) -> str:
    """AudioMAE's name of one of our parameters."""
    for ours, theirs in _PREFIXES:
        if name.startswith(ours):
            return theirs + name[len(ours) :]
    raise KeyError(name)


def public_layout(size: EncoderSize = "base", decoder: DecoderName = "local") -> dict[str, tuple[int, ...]]:
    """Every name and shape of the public layout, written out from the structure of
    AudioMAE's model definition.
    """
    layout = encoder_layout(size)
    width, shape = ENCODER_SHAPES[size].width, DECODER_SHAPES[size]
    inner, heads = shape.width, shape.num_heads
    layout |= {"mask_token": (1, 1, inner), "decoder_pos_embed": (1, 1 + NUM_TOKENS, inner)}
    layout |= _linear("decoder_embed", width, inner)
    for index in range(shape.global_depth if decoder == "global" else shape.local_depth):
        block = f"decoder_blocks.{index}"
        layout |= _block(block, inner)
        if decoder == "local":
            layout |= {f"{block}.attn.tau": (heads,)}
            layout |= _linear(f"{block}.attn.meta_mlp.fc1", 2, META_HIDDEN)
            layout |= _linear(f"{block}.attn.meta_mlp.fc2", META_HIDDEN, heads)
    return layout | _norm("decoder_norm", inner) | _linear("decoder_pred", inner, PATCH * PATCH)


def encoder_layout(size: EncoderSize = "base") -> dict[str, tuple[int, ...]]:
    """The encoder's part of the public layout."""
    shape = ENCODER_SHAPES[size]
    width = shape.width
    layout: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + NUM_TOKENS, width),
        "patch_embed.proj.weight": (width, 1, PATCH, PATCH),
        "patch_embed.proj.bias": (width,),
    }
    for index in range(shape.depth):
        layout |= _block(f"blocks.{index}", width)
    return layout | _norm("norm", width)


def import_state(autoencoder: MaskedAutoencoder, state: Mapping[str, Tensor]) -> None:
    """Load weights with AudioMAE's names into an autoencoder of the same size and decoder. A side path keeps its own, and so does
    a global decoder: theirs has other heads and a class token.
    """
    architecture: AutoencoderArchitecture = autoencoder.architecture
    _refuse_misfits(state, public_layout(architecture.encoder, architecture.decoder), exact=True)
    own = autoencoder.state_dict()
    kept = (SIDE, DECODER) if architecture.decoder == "global" else (SIDE,)
    renamed = {
        name: value if name.startswith(kept) else state[public_name(name)] for name, value in own.items()
    }
    autoencoder.load_state_dict(renamed)


def import_encoder(encoder: PatchEncoder, state: Mapping[str, Tensor], size: EncoderSize = "base") -> None:
    """Load only the encoder from weights with AudioMAE's names; decoder weights
    beside them are left aside.
    """
    layout = encoder_layout(size)
    _refuse_misfits(state, layout, exact=False)
    encoder.load_state_dict({name: state[name] for name in layout})


def _refuse_misfits(
    state: Mapping[str, Tensor], layout: Mapping[str, tuple[int, ...]], *, exact: bool
) -> None:
    missing = [f"missing {name}" for name in layout if name not in state]
    wrong = [
        f"{name} is {tuple(state[name].shape)}, needs {shape}"
        for name, shape in layout.items()
        if name in state and tuple(state[name].shape) != shape
    ]
    unknown = [f"unknown {name}" for name in state if name not in layout] if exact else []
    faults = missing + wrong + unknown
    if faults:
        listed = "; ".join(faults[:_MOST_LISTED]) + (
            f"; and {len(faults) - _MOST_LISTED} more" * (len(faults) > _MOST_LISTED)
        )
        raise DataError(
            f"the checkpoint does not have AudioMAE's layout, {len(faults)} tensors do not fit:\n{listed}\n"
            "use a pretraining checkpoint of the same size, and model.decoder=local or global as it was trained"
        )


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _block(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return (
        _norm(f"{name}.norm1", width)
        | _linear(f"{name}.attn.qkv", width, 3 * width)
        | _linear(f"{name}.attn.proj", width, width)
        | _norm(f"{name}.norm2", width)
        | _linear(f"{name}.mlp.fc1", width, 4 * width)
        | _linear(f"{name}.mlp.fc2", 4 * width, width)
    )


def is_public_layout(state: Mapping[str, Tensor]) -> bool:
    """Whether a state dict carries AudioMAE's names rather than ours."""
    return "patch_embed.proj.weight" in state and isinstance(state["patch_embed.proj.weight"], torch.Tensor)
