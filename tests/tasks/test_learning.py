"""Learning from few and unequal samples: folds, splits with every label, class weights, dropout."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from coterie.tasks.models import ModelError, build_network
from coterie.tasks.samples import DataError
from coterie.tasks.splits import split
from coterie.tasks.training import FlatSgd, Samples, Sgd, balanced_weights

LABELS = st.lists(st.integers(0, 4), min_size=6, max_size=60).map(lambda labels: np.array(labels, np.int64))


@given(LABELS, st.integers(2, 6), st.integers(0, 99))
def test_every_sample_is_tested_in_one_fold_and_labels_are_spread_evenly(labels, folds, seed):
    made = [
        split(
            np.arange(len(labels)), labels, test_fraction=0.2, validation_fraction=0.2, seed=seed, fold=i, folds=folds
        )
        for i in range(1, folds + 1)
    ]
    assert sorted(np.concatenate([one.test for one in made])) == list(range(len(labels)))
    for one in made:
        assert sorted([*one.train, *one.validation, *one.test]) == list(range(len(labels))) and len(one.train)
    for label in set(labels.tolist()):
        often = [int((labels[one.test] == label).sum()) for one in made]
        assert max(often) - min(often) <= 1


def test_more_folds_than_samples_are_refused():
    with pytest.raises(DataError, match="folds = 5: a client has 3 samples"):
        split(np.arange(3), np.zeros(3, np.int64), test_fraction=0.2, validation_fraction=0.1, seed=1, fold=1, folds=5)


@given(LABELS, st.integers(0, 99))
def test_a_label_is_tested_and_trained_where_there_is_room(labels, seed):
    made = split(
        np.arange(len(labels)), labels, test_fraction=0.3, validation_fraction=0.2, seed=seed, every_label=True
    )
    assert sorted([*made.train, *made.validation, *made.test]) == list(range(len(labels)))
    names, often = np.unique(labels, return_counts=True)
    twice = set(names[often > 1].tolist())
    tested, trained = set(labels[made.test].tolist()), set(labels[made.train].tolist())
    if len(made.test) >= len(names):
        assert twice <= tested
    if len(made.train) + len(made.validation) >= 2 * len(names):
        assert twice <= trained


@given(LABELS)
def test_class_weights_are_scikit_learns(labels):
    weights = balanced_weights(np.bincount(labels, minlength=5))
    there = np.unique(labels)
    assert np.array(weights)[there] == pytest.approx(compute_class_weight("balanced", classes=there, y=labels))
    assert all(weights[label] == 1.0 for label in set(range(5)) - set(there.tolist()))


def test_a_weight_of_two_is_a_sample_twice():
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.normal(size=(9, 4)).astype(np.float32)), torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1])
    gradients = []
    for settings, samples in (
        (Sgd(0.1, 32, class_weights=(1.0, 2.0)), Samples(x, y)),
        (Sgd(0.1, 32), Samples(torch.cat([x, x[6:]]), torch.cat([y, y[6:]]))),
    ):
        sgd = FlatSgd(build_network("linear", (4,), 2, seed=1), ["classifier"], settings)
        sgd.slope((samples.x, samples.y))
        gradients.append(sgd.gradients[0].numpy().copy())
    assert gradients[0] == pytest.approx(gradients[1], abs=1e-6)


def test_dropout_drops_in_training_alone_and_a_saved_model_needs_none():
    with_dropout, plain = (build_network("mlp", (5,), 2, seed=1, dropout=share) for share in (0.5, 0.0))
    assert {n: v.tolist() for n, v in with_dropout.state_dict().items()} == {
        n: v.tolist() for n, v in plain.state_dict().items()
    }
    x = torch.ones(3, 5)
    assert not torch.equal(with_dropout.train()(x), plain(x)) and torch.equal(with_dropout.eval()(x), plain(x))
    with pytest.raises(ModelError, match=r"dropout = 0\.5: is for the model 'mlp', and this run has 'linear'"):
        build_network("linear", (5,), 2, seed=1, dropout=0.5)
