"""The output of an attempt: masked across parts, bounded, and sent again after an outage."""

import pytest

from trace_etl.worker.attempt_log import MAX_BYTES, AttemptLog


class Receiver:
    def __init__(self) -> None:
        self.parts: list[tuple[int, str]] = []
        self.is_reachable = True

    def send(self, position: int, text: str) -> bool:
        if self.is_reachable:
            self.parts.append((position, text))
        return self.is_reachable

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.parts)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def test_a_secret_that_arrives_in_pieces_is_masked(receiver: Receiver) -> None:
    log = AttemptLog(receiver.send)
    log.secrets.hide("s3cret-value")
    for piece in (b"before s3cr", b"et-va", b"lue after\nnext"):
        log.write(piece)
        log.flush()
    log.flush(is_end=True)
    assert receiver.text == "before *** after\nnext"


def test_a_secret_in_a_line_longer_than_a_part_is_masked(receiver: Receiver) -> None:
    log = AttemptLog(receiver.send)
    log.secrets.hide("s3cret-value")
    log.write(b"x" * 32_760 + b"s3cret-value" + b"y" * 40_000)
    log.flush(is_end=True)
    assert receiver.text == "x" * 32_760 + "***" + "y" * 40_000


def test_each_line_of_a_secret_is_masked(receiver: Receiver) -> None:
    log = AttemptLog(receiver.send)
    log.secrets.hide("-----BEGIN KEY-----\nabcdefghijkl\n")
    log.write(b"key: abcdefghijkl\n")
    log.flush()
    assert receiver.text == "key: ***\n"
    assert log.secrets.mask("-----BEGIN KEY-----\nabcdefghijkl\n") == "***"


def test_output_is_bounded(receiver: Receiver) -> None:
    log = AttemptLog(receiver.send)
    for _ in range(100):
        log.write(b"0123456789abcde\n" * 4096)
        log.flush()
    log.flush(is_end=True)
    assert MAX_BYTES <= len(receiver.text) < MAX_BYTES + 100
    assert receiver.text.endswith("[more output was dropped]\n")


def test_a_part_that_was_not_sent_is_sent_again_at_its_position(receiver: Receiver) -> None:
    log = AttemptLog(receiver.send)
    log.write("ä\n".encode())
    log.flush()
    receiver.is_reachable = False
    log.write(b"b\n")
    log.flush()
    receiver.is_reachable = True
    log.write(b"c\x00")
    log.flush(is_end=True)
    assert receiver.text == "ä\nb\nc\ufffd"
    assert [position for position, _ in receiver.parts] == [0, 3]
