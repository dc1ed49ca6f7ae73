"""Ports and RPC endpoints are chosen, remembered and validated."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from trace_etl.lite import configuration
from trace_etl.lite.configuration import Configuration, Port
from trace_etl.lite.errors import BadSetting, PortTaken
from trace_etl.lite.processes import ports


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind((ports.LOOPBACK, 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_first_start_chooses_different_free_ports() -> None:
    settled = configuration.choose_ports({}, {})
    numbers = {port.number for port in settled.values()}
    assert set(settled) == {"api", "internal", "query", "scheduler", "console", "postgres"}
    assert len(numbers) == len(settled)
    assert all(ports.is_free(number) for number in numbers)
    assert not any(port.by_user for port in settled.values())


def test_the_next_start_keeps_the_ports() -> None:
    first = configuration.choose_ports({}, {})
    assert configuration.choose_ports(first, {}) == first


def test_a_remembered_port_in_use_is_replaced(taken_port: int) -> None:
    settled = configuration.choose_ports({"api": Port(taken_port)}, {})
    assert settled["api"].number != taken_port


def test_a_chosen_port_in_use_is_refused_with_the_process_that_uses_it(
    taken_port: int,
) -> None:
    for saved, chosen in (
        ({"query": Port(taken_port, by_user=True)}, {}),
        ({}, {"query": taken_port}),
    ):
        with pytest.raises(PortTaken, match=rf"port {taken_port} \(query\).*pid \d+") as refused:
            configuration.choose_ports(saved, chosen)
        assert "--query-port" in refused.value.remedy


def test_two_processes_cannot_have_the_same_port() -> None:
    port = ports.free_port()
    with pytest.raises(PortTaken, match="another process of this stack"):
        configuration.choose_ports({}, {"api": port, "query": port})


def test_a_remembered_port_is_replaced_when_the_user_chooses_it_for_another() -> None:
    port = ports.free_port()
    settled = configuration.choose_ports({"api": Port(port)}, {"query": port})
    assert settled["query"] == Port(port, by_user=True)
    assert settled["api"].number != port


def test_port_zero_forgets_the_choice_of_the_user(taken_port: int) -> None:
    settled = configuration.choose_ports({"api": Port(taken_port, by_user=True)}, {"api": 0})
    assert settled["api"].number != taken_port
    assert not settled["api"].by_user


def test_a_written_configuration_is_read_back(tmp_path: Path) -> None:
    settled = Configuration({"api": Port(20001, by_user=True)}, {"default": ["http://h:1"]})
    configuration.write(tmp_path / "config.json", settled)
    assert configuration.read(tmp_path / "config.json") == settled
    assert configuration.read(tmp_path / "missing.json") == Configuration()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"ports": {"api": 7}, "rpc_pools": {}}'])
def test_a_damaged_file_is_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(BadSetting, match=r"config\.json is damaged") as refused:
        configuration.read(path)
    assert str(path) in refused.value.remedy


def test_rpc_urls_are_grouped_into_pools_by_name() -> None:
    urls = ["http://a:1", "https://b/key=x", "base=http://c:2", "base=http://d:3"]
    assert configuration.parse_rpc_urls(urls) == {
        "default": ["http://a:1", "https://b/key=x"],
        "base": ["http://c:2", "http://d:3"],
    }


@pytest.mark.parametrize("url", ["", "a", "ftp://a", "name=", "name=a:1", "http://", "=http://a"])
def test_an_invalid_rpc_url_is_refused(url: str) -> None:
    with pytest.raises(BadSetting, match="--rpc-url"):
        configuration.parse_rpc_urls([url])
