"""Distributes tests over the test processes: groups of files first, then the other files one by one."""

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Files that share something slow to start, such as Spark: one process runs a whole group. Any other file is
# a group of its own, because its tests share the fixtures of their module.
# The tests of a group run in the order of its files here; a file belongs to the first name that fits. Peers
# close their Spark before the others open theirs: a process has one at a time.
_GROUPS = {
    "e2e/test_everyday": "stack",
    "e2e/test_functions": "stack",
    "e2e/test_processes": "stack",
    "e2e/test_release_home": "stack",
    "e2e/test_alerts": "stack",
    "e2e/test_secrets": "stack",
    "e2e/test_liars": "stack",
    "e2e/test_quickstart": "stack",
    "e2e/test_worker_chaos": "stack",  # Spark starts again
    "e2e/test_stack_down": "stack",
    # These start Spark in other processes.
    "spark/test_operator_host": "hosts",
    "spark/test_spark_session": "hosts",
    "spark/test_deploy_check": "hosts",
    # These read from nodes, without Spark.
    "spark/test_complete_columns": "nodes",
    "spark/test_endless_answers": "nodes",
    "spark/test_evm_faults": "nodes",
    "spark/test_evm_limits": "nodes",
    "spark/test_evm_pool": "nodes",
    "spark/test_finality": "nodes",
    "spark/test_lying_nodes": "nodes",
    "spark/test_verification": "nodes",
    "tests/peers/": "spark",
    "tests/spark/": "spark",
    "tests/cluster/": "cluster",
    "tests/aws/": "aws",
    "tests/liars/": "liars",
    "browser/test_console_on_a_chain": "chain",  # expects a stack without DAGs
    "chain/test_whole_stack": "chain",
    "chain/test_real_node": "chain",
    "e2e/test_worker_resilience": "resilience",
    "e2e/test_demo": "demo",
    "e2e/test_stack_lifecycle": "lifecycle",
    "e2e/": "e2e",
    "http/test_lifecycle_schema": "schema",
    "http/test_user_api_schema": "schema",
    "http/test_http_fuzz": "schema",
    "postgres/test_hot_path_plans": "plans",
    "tests/browser/": "browser",
}
# The groups that take longest come first.
_ORDER = (
    *(
        "stack",
        "spark",
        "cluster",
        "hosts",
        "aws",
        "chain",
        "browser",
        "lifecycle",
        "demo",
        "nodes",
    ),
    *("liars", "resilience", "e2e", "schema", "plans"),
)
_MIN_QUEUED = 2  # a test process starts a test when it knows the next one


class GroupScheduling(LoadScopeScheduling):
    """Runs each group in one process, and goes on without a test process that died."""

    def _split_scope(self, nodeid: str) -> str:
        return _find_group(nodeid) or nodeid.partition("::")[0]

    def _reschedule(self, node: WorkerController) -> None:
        """Assign tests until the process knows its next one; let it end if there are no more."""
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < _MIN_QUEUED:
            if not self.workqueue:
                node.shutdown()
                return
            self._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test in which a process died, and queue its other tests again.

        The original queues that test too, so it would end the next processes as well.
        """
        left = [
            (scope, nodeid)
            for scope, unit in self.assigned_work.pop(node).items()
            for nodeid, is_done in unit.items()
            if not is_done
        ]
        for scope, nodeid in left[1:]:
            self.workqueue.setdefault(scope, {})[nodeid] = False
        for other in self.nodes:
            self._reschedule(other)
        return left[0][1] if left else None


def order_key(nodeid: str) -> tuple[int, int]:
    """Return the place of a test in a run: the groups in their order, then all other tests."""
    for place, (part, group) in enumerate(_GROUPS.items()):
        if part in nodeid:
            return _ORDER.index(group), place
    return len(_ORDER), 0


def _find_group(nodeid: str) -> str | None:
    return next((group for part, group in _GROUPS.items() if part in nodeid), None)
