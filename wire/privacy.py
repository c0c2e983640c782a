"""Differential privacy of local training: the keys under `privacy`, read by server and clients alike."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from coterie.wire.config import Settings, split_sections


class PrivacySettings(Settings):
    mode: Literal["off", "dp-sgd", "weights"] = Field(
        "off",
        description="dp-sgd: clipped, noisy steps with a guarantee; weights: noise on what is uploaded, without one.",
    )
    noise_multiplier: float = Field(1.0, gt=0.0, description="Noise in units of max-grad-norm.")
    max_grad_norm: float = Field(1.0, gt=0.0, description="dp-sgd: largest length of a sample's gradient.")
    delta: float = Field(1e-5, gt=0.0, lt=1.0, description="dp-sgd: delta of the guarantee; below 1 / samples.")
    target_epsilon: float = Field(
        0.0,
        ge=0.0,
        description="dp-sgd: choose the noise so that epsilon is this after all rounds. 0: use noise-multiplier.",
    )
    table_epsilon: float = Field(
        1.0, gt=0.0, description="Epsilon of what clients tell of their tables at the start, in any mode but off."
    )

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "PrivacySettings":
        """From a whole run configuration."""
        return cls.parse(split_sections(config)[1].get("privacy", {}), prefix="privacy.")
