"""Who of a group is served badly by the group's model, label by label.

A member tells, for each label c, the sum of the model's losses on its n_c samples and that of their squares. What the others
tell says what to expect of that label, mean m_c and variance s_c^2; whoever has rare or difficult labels is not blamed for them:

    Z = sum_c (losses_c - n_c m_c) / sqrt(sum_c n_c s_c^2 (1 + n_c / N_c)),    N_c: samples of the others

is about standard normal for a member of the group's kind. Who is above 5 (and above 5 times the spread of the group's Z, where
that is larger than 1) and has 1.3 times the losses expected does not belong to the group. Where that holds for more than a
quarter, or where fewer than five are asked, nothing can be said: who tells false losses cannot drive the others apart.
"""

import numpy as np

SURE = 5.0
RATIO = 1.3
FEWEST_MEMBERS = 5
MOST = 0.25
FEWEST_SAMPLES = 3  # of the others, for a label to count


def outsiders(losses: np.ndarray, squares: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(members,) bool, from sums over samples, (members, labels) each."""
    members = len(counts)
    if members < FEWEST_MEMBERS:
        return np.zeros(members, bool)
    scores, ratios = surprises(losses, squares, counts)
    spread = 1.4826 * float(np.median(np.abs(scores - np.median(scores))))
    found = (scores > SURE * max(1.0, spread)) & (ratios > RATIO)
    return found if found.mean() <= MOST else np.zeros(members, bool)


def surprises(losses: np.ndarray, squares: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Z of each member, and how many times the expected losses it has; 0 and 1 where nothing can be compared."""
    others = counts.sum(axis=0) - counts
    used = (counts > 0) & (others >= FEWEST_SAMPLES)
    safe = np.maximum(others, 1.0)
    mean = (losses.sum(axis=0) - losses) / safe
    variance = np.maximum((squares.sum(axis=0) - squares) / safe - np.square(mean), 0.0)
    expected = np.where(used, counts * mean, 0.0).sum(axis=1)
    found = np.where(used, losses, 0.0).sum(axis=1)
    chance = np.where(used, counts * variance * (1 + counts / safe), 0.0).sum(axis=1)
    scores = (found - expected) / np.sqrt(np.maximum(chance, 1e-12))
    known = chance > 0
    return np.where(known, scores, 0.0), np.where(known, found / np.maximum(expected, 1e-12), 1.0)
