"""The settings of SPO and CE, and what their clients choose."""

from typing import NamedTuple

import numpy as np

from coterie.strategies.hypernetworks import HypernetworkSettings
from coterie.strategies.method import setting


class SPOSettings(HypernetworkSettings):
    rays: int = setting(16, "Preferences drawn in a round: as many models go to each client.", ge=1)
    concentration: float = setting(
        0.2, "Of the Dirichlet distribution they come from; small: near single clients.", gt=0.0
    )
    local_steps: int = setting(
        10, "Steps of gradient descent that a client takes from each model; 1: the exact front.", ge=1
    )
    step: float = setting(0.0, "Length of these steps (eta). 0: learning-rate.", ge=0.0)
    samples: int = setting(64, "Most training samples in each of these steps.", ge=1)
    search_steps: int = setting(20, "Most exchanges in which a client's preferences are searched.", ge=1)
    threshold: float = setting(0.1, "Weight of a collaborator, as a share of the largest, from 0 to 1.", gt=0.0, le=1.0)
    fine_tune_epochs: int = setting(
        10, "Epochs of training of the personal model on the client, if they lower its validation loss.", ge=0
    )
    margin: float = setting(
        0.0, "Standard errors that a loss may be above the least if fewer collaborators are needed for it.", ge=0.0
    )
    explore: float = setting(0.5, "ce: share of the rounds before coalitions are formed.", gt=0.0, le=1.0)


class Choice(NamedTuple):
    """What suits a client best: the preferences, and the epochs of fine-tuning."""

    point: np.ndarray
    epochs: int


class Judged(NamedTuple):
    """Validation losses of models, and the standard errors of their differences to the least, (models, as they are or
    fine-tuned); infinite where that was not tried."""

    losses: np.ndarray
    errors: np.ndarray
