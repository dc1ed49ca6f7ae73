"""Why a sandbox cannot be used."""

from trace_etl.model.errors import TraceError


class SandboxUnavailable(TraceError, code="sandbox_unavailable"):
    """This machine cannot isolate untrusted code. `fix` says what to change."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")
        self.problem = problem
        self.fix = fix
