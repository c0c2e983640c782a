"""Networks: their sizes as published, their parts, and what a user's own file may get wrong."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie.tasks.models import (
    MODELS,
    PARTS,
    WEIGHTS,
    HalvingPool,
    ModelError,
    Network,
    build_network,
    default_model,
)
from coterie.tasks.resolve import model_name, number_of_clients, partition_kind, task_spec
from coterie.tasks.samples import DataError

SMALL = ["lenet5", "cnn", "mlp", "linear"]
BIG = ["mobilenet-v2", "resnet18", "resnet34", "efficientnet-b0"]


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


# --- sizes -----------------------------------------------------------------------------------------------------------

# McMahan et al. 2017 name the first two. LeNet-5 on colour images has 62,006 weights, and two numbers for each of the
# 6 + 16 normalised channels.
PUBLISHED = [
    ("cnn", (1, 28, 28), 10, 1_663_370),
    ("mlp", (1, 28, 28), 10, 199_210),
    ("lenet5", (3, 32, 32), 10, 62_006 + 2 * (6 + 16)),
    ("linear", (1, 28, 28), 10, 7_850),
    ("linear", (20,), 1, 21),
]


@pytest.mark.parametrize(("model", "shape", "outputs", "expected"), PUBLISHED)
def test_parameters_as_published(model, shape, outputs, expected):
    assert count(build_network(model, shape, outputs, seed=0)) == expected


# Weights of torchvision's networks for the 1,000 classes of ImageNet, and the features before the classifier.
IMAGENET = {
    "resnet18": (11_689_512, 512),
    "resnet34": (21_797_672, 512),
    "mobilenet-v2": (3_504_872, 1280),
    "efficientnet-b0": (5_288_548, 1280),
    "vgg19": (143_667_240, 4096),
}


@pytest.mark.parametrize("model", [*BIG, pytest.param("vgg19", marks=pytest.mark.slow)])
def test_networks_of_torchvision(model):
    total, features = IMAGENET[model]
    network = build_network(model, (3, 32, 32), 10, seed=0)
    assert count(network) == total - (features + 1) * 1000 + (features + 1) * 10
    assert (network.classifier.in_features, network.classifier.out_features) == (features, 10)
    check_parts(network)
    with torch.no_grad():
        assert network.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_resnet18_has_4800_normalised_channels():
    parts = build_network("resnet18", (3, 32, 32), 10, seed=0).dump()
    assert parts["norm"].size == parts["buffers"].size == 2 * 4800 and parts["counters"].size == 20


@pytest.mark.parametrize(
    "model", ["mobilenet-v2", "resnet18", "efficientnet-b0", pytest.param("vgg19", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28)])
def test_big_networks_take_small_grey_images(model, shape):
    network = build_network(model, shape, 3, seed=0)
    with torch.no_grad():
        assert network.eval()(torch.rand(2, *shape)).shape == (2, 3)


def test_small_images_are_enlarged_to_at_least_32_pixels():
    from coterie.tasks.models import _Prepare

    for size in range(1, 40):
        enlarged = _Prepare(size)(torch.zeros(1, 1, size, size + 3))
        assert min(enlarged.shape[2:]) >= 32 and enlarged.shape[1] == 3, size
        if size >= 32:
            assert enlarged.shape[2:] == (size, size + 3)


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (2, 9, 21), (1, 15, 15), (1, 16, 16)])
def test_small_networks_take_any_image(model, shape):
    network = build_network(model, shape, 7, seed=0)
    with torch.no_grad():
        assert network.eval()(torch.rand(3, *shape)).shape == (3, 7)
    check_parts(network)


@pytest.mark.parametrize("model", ["mlp", "linear"])
def test_tables(model):
    assert build_network(model, (13,), 2, seed=0)(torch.zeros(4, 13)).shape == (4, 2)


@pytest.mark.parametrize("model", ["lenet5", "cnn", "resnet18"])
def test_images_only(model):
    with pytest.raises(
        ModelError, match=rf"model = '{model}': needs images, this task has 13 features; use 'mlp' or 'linear'"
    ):
        build_network(model, (13,), 2, seed=0)


@pytest.mark.parametrize("model", ["lenet5", "cnn"])
def test_images_that_are_too_small(model):
    with pytest.raises(ModelError, match=f"model = '{model}'.*3x3 pixels.*use 'mlp'"):
        build_network(model, (1, 3, 3), 2, seed=0)


def test_four_channels():
    with pytest.raises(ModelError, match="'mobilenet-v2': needs 1 or 3 channels, this task has 4"):
        build_network("mobilenet-v2", (4, 32, 32), 2, seed=0)


def test_unknown_model():
    with pytest.raises(ModelError, match=r"'lenet6': unknown.*lenet5"):
        build_network("lenet6", (1, 8, 8), 2, seed=0)


# --- parts -----------------------------------------------------------------------------------------------------------


def check_parts(network: Network) -> None:
    """Every number of the state dictionary is in exactly one part: fill each with numbers that occur once, and look."""
    tensors = network.state_dict()
    total = sum(tensor.numel() for tensor in tensors.values())
    parts = network.dump()
    assert set(parts) <= set(PARTS) and all(value.ndim == 1 and value.size for value in parts.values())
    assert sum(value.size for value in parts.values()) == total
    if total > 2**24:  # whole numbers that float32 holds
        return
    before, start = network.dump(), 0
    for value in parts.values():
        value[:] = np.arange(start, start + value.size)
        start += value.size
    network.load(parts)
    seen = np.concatenate([tensor.double().reshape(-1).numpy() for tensor in network.state_dict().values()])
    assert np.array_equal(np.sort(seen), np.arange(total))
    weight, bias = network.classifier.weight.detach().numpy(), network.classifier.bias.detach().numpy()
    assert np.array_equal(parts["classifier"], np.concatenate([weight.reshape(-1), bias]))
    network.load(before)


def test_what_is_in_which_part():
    network = build_network("lenet5", (1, 8, 8), 10, seed=0)
    sizes = {name: value.size for name, value in network.dump().items()}
    assert (
        sizes["norm"] == sizes["buffers"] == 2 * (6 + 16)
        and sizes["counters"] == 2
        and sizes["classifier"] == 84 * 10 + 10
    )
    assert set(build_network("linear", (5,), 2, seed=0).dump()) == {"classifier"}
    assert set(build_network("mlp", (5,), 2, seed=0).dump()) == {"extractor", "classifier"}


def test_the_classifier_is_the_last_linear_layer():
    for model in SMALL:
        network = build_network(model, (1, 28, 28), 10, seed=0)
        layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
        assert layers[-1] is network.classifier and network.classifier.out_features == 10


def one_step(network: Network) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    network.train()
    nn.functional.cross_entropy(network(torch.rand(8, 1, 8, 8)), torch.arange(8)).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_parts_are_views_and_stay_views():
    network = build_network("lenet5", (1, 8, 8), 10, seed=0)
    before = network.dump()
    one_step(network)
    after = network.dump()
    for part in ("extractor", "norm", "classifier", "buffers", "counters"):
        assert not np.array_equal(before[part], after[part]), part
    network.load(before)
    again = {name: value.clone() for name, value in network.state_dict().items()}
    fresh = build_network("lenet5", (1, 8, 8), 10, seed=0).state_dict()
    assert all(torch.equal(again[name], fresh[name]) for name in fresh)


def test_dump_is_a_copy_and_load_leaves_the_other_parts():
    network = build_network("lenet5", (1, 8, 8), 10, seed=0)
    parts = network.dump()
    parts["classifier"][:] = 7
    assert not (network.dump()["classifier"] == 7).any()
    network.load({"classifier": parts["classifier"]})
    assert (network.classifier.weight == 7).all() and (network.classifier.bias == 7).all()
    assert np.array_equal(network.dump()["extractor"], parts["extractor"])
    assert list(network.dump(["counters", "norm", "no-such-part"])) == ["norm", "counters"]


def test_dtypes():
    network = build_network("lenet5", (1, 8, 8), 10, seed=0)
    one_step(network)
    assert {name: str(value.dtype) for name, value in network.dump().items()} == {
        "extractor": "float32",
        "norm": "float32",
        "classifier": "float32",
        "buffers": "float32",
        "counters": "int64",
    }
    assert network.dump()["counters"].tolist() == [1, 1]
    assert all(m.num_batches_tracked.dtype == torch.int64 for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def test_variances_are_where_the_network_says():
    network = build_network("resnet18", (3, 32, 32), 10, seed=0)
    marked = network.dump(["buffers"])["buffers"]
    marked[network.variances()] = -1
    network.load({"buffers": marked})
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert (module.running_var == -1).all() and not (module.running_mean == -1).any()
    assert build_network("mlp", (5,), 2, seed=0).variances().size == 0


def test_same_seed_same_weights_and_nobody_elses_randomness():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = build_network("lenet5", (1, 8, 8), 10, seed=3).dump()
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(99)
    two, other = (
        build_network("lenet5", (1, 8, 8), 10, seed=3).dump(),
        build_network("lenet5", (1, 8, 8), 10, seed=4).dump(),
    )
    assert all(np.array_equal(one[part], two[part]) for part in one)
    assert all(not np.array_equal(one[part], other[part]) for part in ("extractor", "classifier"))


def test_dropped_buffers():
    network = build_network("lenet5", (1, 8, 8), 10, seed=0, buffers="drop")
    assert set(network.dump()) == set(WEIGHTS) and network.variances().size == 0
    check_parts(network)
    plain = build_network("lenet5", (1, 8, 8), 10, seed=0)
    x = torch.randn(16, 1, 8, 8)
    with torch.no_grad():  # in evaluation as a BatchNorm layer in training: by the batch
        assert torch.equal(network.eval()(x), plain.train()(x)) and torch.equal(network.train()(x), network.eval()(x))


def test_default_models():
    assert default_model((1, 8, 8), regression=False) == "lenet5"
    assert default_model((13,), regression=False) == "mlp" and default_model((20,), regression=True) == "linear"


# --- a user's own network --------------------------------------------------------------------------------------------

OWN = """
from torch import nn

def build(input_shape, num_outputs):
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], 6), nn.BatchNorm1d(6), nn.LayerNorm(6), nn.ReLU())
    return extractor, nn.Linear(6, num_outputs)
"""


def test_own_network(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(OWN)
    network = build_network(str(path), (4,), 3, seed=0)
    assert {name: value.size for name, value in network.dump().items()} == {
        "extractor": 30,
        "norm": 24,
        "classifier": 21,
        "buffers": 12,
        "counters": 1,
    }
    check_parts(network)
    assert network.eval()(torch.zeros(5, 4)).shape == (5, 3)


def test_shared_weights_are_counted_once(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(
        "from torch import nn\n"
        "def build(shape, outputs):\n"
        "    one, two = nn.Linear(4, 4), nn.Linear(4, 4)\n"
        "    two.weight = one.weight\n"
        "    return nn.Sequential(one, nn.ReLU(), two), nn.Linear(4, outputs)\n"
    )
    network = build_network(str(path), (4,), 2, seed=0)
    assert {name: value.size for name, value in network.dump().items()} == {"extractor": 16 + 4 + 4, "classifier": 10}
    assert network.extractor[0].weight is network.extractor[2].weight


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1", r"define build\(input_shape, num_outputs\)"),
        ("def build(shape, outputs):\n    return 1", r"must return \(extractor, classifier\)"),
        (
            "from torch import nn\ndef build(s, o):\n    return nn.Flatten(), nn.Conv2d(1, 1, 1)",
            r"classifier a torch.nn.Linear",
        ),
        ("def build(:", "SyntaxError"),
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        ("def build(shape):\n    return 1", "TypeError"),
        (
            "from torch import nn\ndef build(s, o):\n    return nn.Flatten(), nn.Linear(5, o)",
            "fails on an input of shape",
        ),
        (
            "from torch import nn\ndef build(s, o):\n    return nn.Flatten(), nn.Linear(4, o + 1)",
            "3 outputs, this task has 2",
        ),
    ],
)
def test_own_network_with_a_mistake(source, expected, tmp_path):
    path = tmp_path / "net.py"
    path.write_text(source)
    with pytest.raises(ModelError, match=expected) as caught:
        build_network(str(path), (4,), 2, seed=0)
    assert str(path) in str(caught.value)


def test_own_network_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match=r"nowhere.py'?: there is no such file"):
        build_network(str(tmp_path / "nowhere.py"), (4,), 2, seed=0)


# --- what the words of a configuration mean --------------------------------------------------------------------------


def test_words_of_a_configuration():
    digits, heart, synthetic = task_spec("digits"), task_spec("heart"), task_spec("synthetic-linear")
    assert [partition_kind(spec, "auto") for spec in (digits, heart, synthetic)] == [
        "pathological",
        "natural",
        "natural",
    ]
    assert [number_of_clients(spec, "auto", 0) for spec in (digits, heart, synthetic)] == [10, 4, 6]
    assert number_of_clients(heart, "iid", 0) == 10 and number_of_clients(heart, "auto", 7) == 7
    assert [model_name(spec, "auto") for spec in (digits, heart, synthetic)] == ["lenet5", "mlp", "linear"]
    assert model_name(digits, "my/net.py") == "my/net.py"


@pytest.mark.parametrize(
    ("shape", "classes", "expected"),
    [
        ("1x28x28", "10", ("classification", (1, 28, 28), 10)),
        ("3,32,32", "cat,dog,bird", ("classification", (3, 32, 32), 3)),
        ("13", "regression", ("regression", (13,), 1)),
    ],
)
def test_own_data_in_words(shape, classes, expected):
    spec = task_spec("own", classes, shape)
    assert (spec.kind, spec.input_shape, spec.num_outputs) == expected


@pytest.mark.parametrize("shape", ["axb", "1x2", "0", "1x-1x3", "-3", "3x32x32x1"])
def test_wrong_input_shapes(shape):
    with pytest.raises(DataError, match=f"input-shape.*{shape}"):
        task_spec("own", "2", shape)


@pytest.mark.parametrize("classes", ["0", "1", "cat", "-3"])
def test_too_few_classes(classes):
    with pytest.raises(DataError, match=f"classes.*{classes}"):
        task_spec("own", classes, "4")


def test_wrong_words():
    with pytest.raises(DataError, match=r"task = 'digit': unknown. Did you mean 'digits'"):
        task_spec("digit")
    with pytest.raises(DataError, match="needs classes beside input-shape"):
        task_spec("own", input_shape="13")
    with pytest.raises(ModelError, match=r"model = 'lenet': unknown. Did you mean 'lenet5'"):
        model_name(task_spec("digits"), "lenet")
    assert set(MODELS) == {*SMALL, *BIG, "cnn-bn", "vgg19"}


@pytest.mark.parametrize("shape", [(3, 4, 8, 8), (2, 1, 7, 9), (1, 2, 2, 3)])
def test_pooling_by_slices_gives_the_bits_of_torch(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).relu()
    with torch.no_grad():
        assert torch.equal(HalvingPool()(x), torch.nn.functional.max_pool2d(x, 2))
    wanted, got = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.nn.functional.max_pool2d(wanted, 2).sum().backward()  # type: ignore[no-untyped-call]
    HalvingPool()(got).sum().backward()
    assert wanted.grad is not None and got.grad is not None and torch.equal(wanted.grad, got.grad)
