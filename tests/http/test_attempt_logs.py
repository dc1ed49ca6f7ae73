"""Output of attempts over HTTP: kept once, fenced, bounded, readable in the own organisation only."""

import httpx

from support.lifecycle.lifecycle import Attempt, Bench
from trace_etl.state.tasks.attempt_logs import MAX_LOG_BYTES


def send(bench: Bench, attempt: Attempt, position: int, text: str) -> httpx.Response:
    return bench.call("/v1/task/logs", attempt, position=position, text=text)


def read(bench: Bench, task_id: str, **query: int) -> dict:
    reply = bench.user.get(f"/v1/tasks/{task_id}/logs", params=query)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_parts_are_kept_once_and_read_from_a_position(shared: Bench) -> None:
    [task] = shared.tasks()
    attempt = shared.claimed(task)
    for position, text in ((0, "one\n"), (0, "one\n"), (4, "zwei ä\n")):
        assert send(shared, attempt, position, text).json() == {"status": "Accepted"}
    answer = read(shared, task)
    assert [part["text"] for part in answer["parts"]] == ["one\n", "zwei ä\n"]
    assert (answer["attempt"], answer["status"], answer["next_start"]) == (1, "Running", 12)
    assert [p["text"] for p in read(shared, task, start=4)["parts"]] == ["zwei ä\n"]
    assert read(shared, task, start=12)["parts"] == []


def test_windows_from_the_end_have_every_character_once(shared: Bench) -> None:
    [task] = shared.tasks()
    attempt, position, whole = shared.claimed(task), 0, ""
    for n in range(5):
        text = f"{n} zwölf €\n" * 7
        assert send(shared, attempt, position, text).status_code == 200
        position, whole = position + len(text.encode()), whole + text
    for size in (4, 5, 64, 1000):
        found, before = "", position
        while before > 0:
            answer = read(shared, task, tail=size, before=before)
            assert answer["size"] == position
            found = "".join(part["text"] for part in answer["parts"]) + found
            assert answer["next_start"] == before
            before = answer["first"]
        assert found == whole, size
    assert read(shared, task, tail=8)["next_start"] == position
    assert read(shared, task, start=3)["parts"][0]["text"].startswith("wölf")


def test_an_answer_is_bounded_and_reading_goes_on(shared: Bench) -> None:
    [task] = shared.tasks()
    attempt, text = shared.claimed(task), "ä" * 65_536
    for n in range(12):
        assert send(shared, attempt, n * 131_072, text).status_code == 200
    first = read(shared, task, start=131)
    assert first["next_start"] - first["first"] <= 1024 * 1024
    rest = read(shared, task, start=first["next_start"])
    texts = [part["text"] for part in (*first["parts"], *rest["parts"])]
    assert rest["next_start"] == rest["size"] == 12 * 131_072
    assert sum(map(len, texts)) == 12 * 65_536 - 66


def test_an_attempt_without_its_lease_adds_nothing(shared: Bench) -> None:
    [task] = shared.tasks()
    attempt = shared.claimed(task)
    assert shared.complete(attempt, "Failed", error_message="x").status_code == 200
    reply = send(shared, attempt, 0, "late")
    assert (reply.status_code, reply.json()["code"]) == (409, "lease_lost")
    assert read(shared, task)["parts"] == []


def test_the_output_of_an_attempt_is_bounded(shared: Bench) -> None:
    [task] = shared.tasks()
    attempt, text = shared.claimed(task), "x" * 131_072
    assert send(shared, attempt, 0, text + "x").status_code == 422
    for n in range(MAX_LOG_BYTES // len(text) + 2):
        assert send(shared, attempt, n * len(text), text).status_code == 200
    assert send(shared, attempt, 0, text + "x").status_code == 422
    [[size]] = [
        list(row.values())
        for row in shared.rows(
            f"SELECT sum(octet_length(text)) FROM attempt_logs WHERE task_id = '{task}'"
        )
    ]
    assert size == MAX_LOG_BYTES
