"""What every test relies on: no test reaches the network."""

from __future__ import annotations

import os
import socket

import pytest


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("2001:db8::1", 80, 0, 0)])
def test_strangers_are_refused(address: tuple[str, int]) -> None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as ours, pytest.raises(OSError, match="do not speak to the network"):
        ours.connect(address)


def test_the_loopback_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        assert ours.getpeername() == server.getsockname()


def test_the_libraries_are_told_that_they_are_offline() -> None:
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["TRANSFORMERS_OFFLINE"] == "1"
