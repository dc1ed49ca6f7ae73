"""Large DAG files are parsed in a separate process, with the same result as small ones."""

from concurrent.futures import ThreadPoolExecutor

from support.lifecycle import Bench

DAG = "name: large\n# {padding}\njobs:\n  - {{name: {name}, source: {{kind: manual}}, outputs: [o]}}\n"


def test_a_large_file_gets_the_same_answer_as_a_small_one(shared: Bench) -> None:
    for name, status in (("good", 200), ("Not a name", 422)):
        replies = [
            shared.user.post("/v1/plans", json={"text": DAG.format(name=name, padding="x" * size)})
            for size in (10, 50_000)
        ]
        assert [reply.status_code for reply in replies] == [status, status]
        assert replies[0].json() == replies[1].json()


def test_other_requests_are_answered_while_a_large_file_is_parsed(shared: Bench) -> None:
    jobs = "".join(
        f"  - {{name: j{n}, source: {{kind: manual}}, outputs: [o]}}\n" for n in range(1500)
    )
    with ThreadPoolExecutor(1) as thread:
        body = {"text": f"name: many\njobs:\n{jobs}"}
        slow = thread.submit(lambda: shared.user.post("/v1/plans", json=body, timeout=300))
        answered = 0
        while not slow.done():
            assert shared.user.get("/healthz", headers={"Authorization": ""}).status_code == 200
            answered += 1
        assert slow.result().status_code == 200, slow.result().text[:300]
    assert answered > 3
