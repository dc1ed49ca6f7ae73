"""The output of operators: whole lines, whichever threads write them."""

from collections.abc import Callable
from threading import Thread

from trace_etl.spark.output import AttemptOutput, Lines


def run_in_thread(function: Callable[[], None]) -> None:
    thread = Thread(target=function)
    thread.start()
    thread.join()


def test_a_line_that_one_thread_has_not_ended_is_not_continued_by_another() -> None:
    sent = bytearray()
    lines = Lines(sent.extend)
    lines.write(b"one ")
    run_in_thread(lambda: lines.write(b"another line\n"))
    assert sent == b"another line\n"
    lines.write(b"line\n")
    assert sent == b"another line\none line\n"


def test_a_thread_passes_on_its_own_incomplete_line_and_the_end_passes_on_all() -> None:
    sent = bytearray()
    lines = Lines(sent.extend)
    run_in_thread(lambda: lines.write(b"left"))
    lines.write(b"flushed")
    lines.flush()
    assert sent == b"flushed"
    lines.close()
    assert sent == b"flushedleft"


def test_an_attempt_passes_on_one_byte_more_than_its_limit() -> None:
    sent = bytearray()
    output = AttemptOutput(sent.extend, max_bytes=4)
    output.write(b"123\n5678\n")
    output.write(b"9\n")
    output.close()
    assert sent == b"123\n5"
