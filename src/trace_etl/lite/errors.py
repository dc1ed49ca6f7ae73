"""What the embedded stack refuses, with what to do about it."""


class StackError(Exception):
    """The stack cannot go on; the message says why, `remedy` says what to do."""

    def __init__(self, message: str, *, code: str, remedy: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.remedy = remedy
