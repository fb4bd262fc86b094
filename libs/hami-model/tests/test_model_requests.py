"""From limits of a container to a request per vendor."""

import pytest
from hami_model import device_config, kube, requests, vendors
from hami_model.errors import InvalidRequestError
from hami_model.requests import CardRequest
from hypothesis import given
from hypothesis import strategies as st

NVIDIA = device_config.default_config().vendor(vendors.NVIDIA)
assert NVIDIA is not None


def ask(settings: device_config.VendorSettings = NVIDIA, /, **limits: str) -> CardRequest | None:
    names = {name: f"nvidia.com/{name.replace('percentage', 'gpumem-percentage')}" for name in limits}
    table = {names[name]: text for name, text in limits.items()}
    return requests.card_request(kube.Container(name="c", resources=kube.Resources(limits=table)), settings)


def request(count: int, memory_mib: int = 0, percent: int | None = None, cores: int = 0) -> CardRequest:
    return CardRequest(vendor="NVIDIA", count=count, memory_mib=memory_mib, memory_percent=percent, cores_percent=cores)


@pytest.mark.case("REQ-02")
@pytest.mark.case("REQ-03")
@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({}, None, id="nothing"),
        pytest.param({"gpu": "0"}, None, id="no card"),
        pytest.param({"gpu": "-1"}, None, id="negative number of cards"),
        pytest.param({"gpumem": "100"}, None, id="memory alone: the webhook adds the count"),
        pytest.param({"gpu": "1"}, request(1, percent=100), id="whole card"),
        pytest.param({"gpu": "2", "gpumem": "4096"}, request(2, 4096), id="memory"),
        pytest.param({"gpu": "1", "gpumem": "5k"}, request(1, 5000), id="k"),
        pytest.param({"gpu": "1", "gpumem": "5Ki"}, request(1, 5120), id="Ki"),
        pytest.param({"gpu": "1", "gpumem": "3e3"}, request(1, 3000), id="exponent"),
        pytest.param({"gpu": "1", "gpumem": "2147483647"}, request(1, 2**31 - 1), id="largest memory"),
        pytest.param({"gpu": "1", "percentage": "50"}, request(1, percent=50), id="percentage"),
        pytest.param({"gpu": "1", "percentage": "150"}, request(1, percent=100), id="percentage above 100"),
        pytest.param({"gpu": "1", "percentage": "0"}, request(1, percent=100), id="percentage 0 is not given"),
        pytest.param({"gpu": "1", "percentage": "500m"}, request(1, percent=100), id="a fraction is not given"),
        pytest.param({"gpu": "1", "gpumem": "1000", "percentage": "50"}, request(1, 1000, 50), id="both"),
        pytest.param({"gpu": "1", "gpucores": "120"}, request(1, percent=100, cores=100), id="cores above 100"),
        pytest.param(
            {"gpu": "1", "gpucores": str(2**32 + 50)}, request(1, percent=100, cores=100), id="cores of 33 bits"
        ),
        pytest.param({"gpu": "1", "percentage": str(2**32 + 50)}, request(1, percent=100), id="percentage of 33 bits"),
        pytest.param(
            {"gpu": "1", "percentage": "-1"}, request(1, percent=100), id="a negative percentage is not given"
        ),
        pytest.param({"gpu": "1", "gpumem": "2000", "percentage": "0"}, request(1, 2000), id="memory, percentage 0"),
        pytest.param({"gpu": "1", "gpumem": "0"}, request(1, percent=100), id="memory 0 is not given"),
        pytest.param({"gpu": "2147483647"}, request(2**31 - 1, percent=100), id="the largest number of cards"),
        pytest.param({"gpu": "1e0", "gpumem": "4e3"}, request(1, 4000), id="exponents are whole numbers"),
        pytest.param({"gpu": "1", "gpucores": "500m"}, request(1, percent=100), id="a fraction of cores is not given"),
    ],
)
def test_limits_become_a_request(limits: dict[str, str], expected: CardRequest | None) -> None:
    assert ask(**limits) == expected


@pytest.mark.case("REQ-01")
@pytest.mark.parametrize(
    "limits",
    [
        {"gpu": "1", "gpumem": "2147483648"},
        {"gpu": "1", "gpumem": "4Gi"},
        {"gpu": "1", "gpumem": "512Mi"},
        {"gpu": "1", "gpumem": "16M"},
        {"gpu": "1", "gpumem": "500m"},
        {"gpu": "1", "gpumem": "-1"},
        {"gpu": "1", "gpumem": "much"},
        {"gpu": "500m"},
        {"gpu": "4294967297"},
        {"gpu": "2147483648"},
        {"gpu": "9223372036854775808"},
        {"gpu": "1", "gpumem": "9223372036854775808"},
        {"gpu": "1", "gpumem": "1e400"},
        {"gpu": "1", "gpumem": "0x10"},
        {"gpu": "1", "gpucores": "-1"},
    ],
)
def test_what_cannot_be_understood_is_refused_with_advice(limits: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match=r"container c: nvidia\.com/gpu"):
        ask(**limits)


FACTOR_2 = device_config.parse(
    "nvidia: {resourceCountName: nvidia.com/gpu, resourceMemoryName: nvidia.com/gpumem, "
    "resourceMemoryPercentageName: nvidia.com/gpumem-percentage, resourceCoreName: nvidia.com/gpucores, "
    "memoryFactor: 2, defaultMemory: 512, defaultCores: 20}"
)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({"gpu": "1", "gpumem": "1024"}, request(1, 2048, cores=20), id="the factor"),
        pytest.param({"gpu": "1"}, request(1, 512, cores=20), id="the default memory is not multiplied"),
        pytest.param({"gpu": "1", "percentage": "50"}, request(1, percent=50, cores=20), id="a percentage"),
        pytest.param({"gpu": "1", "gpumem": "1073741823", "gpucores": "0"}, request(1, 2**31 - 2), id="the largest"),
    ],
)
def test_the_configurations_factor_and_defaults(limits: dict[str, str], expected: CardRequest) -> None:
    settings = FACTOR_2.vendor(vendors.NVIDIA)
    assert settings is not None
    assert ask(settings, **limits) == expected
    with pytest.raises(InvalidRequestError, match="not between 0 and 1073741823"):
        ask(settings, gpu="1", gpumem="1073741824")


def test_limits_count_before_requests() -> None:
    resources = kube.Resources(
        limits={"nvidia.com/gpu": "2"}, requests={"nvidia.com/gpu": "3", "nvidia.com/gpumem": "700"}
    )
    assert requests.card_request(kube.Container(name="c", resources=resources), NVIDIA) == request(2, 700)


@given(st.text(), st.text(), st.text(), st.text())
def test_any_text_is_a_request_none_or_refused(count: str, memory: str, percent: str, cores: str) -> None:
    try:
        found = ask(gpu=count, gpumem=memory, percentage=percent, gpucores=cores)
    except InvalidRequestError:
        return
    if found is not None:
        assert found.count > 0
        assert found.memory_mib > 0 or found.memory_percent in range(1, 101)
        assert found.cores_percent in range(101)
