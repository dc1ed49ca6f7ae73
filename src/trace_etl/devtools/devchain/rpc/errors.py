"""JSON-RPC errors, with the codes that nodes use."""

from typing import ClassVar


class RpcError(Exception):
    """A JSON-RPC error. The default code is the one that nodes use for unclassified errors."""

    code: ClassVar[int] = -32000

    def __init_subclass__(cls, *, code: int) -> None:
        cls.code = code

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ParseError(RpcError, code=-32700):
    """The body is not JSON."""


class InvalidRequest(RpcError, code=-32600):
    """The body is JSON, but not a JSON-RPC 2.0 call."""


class MethodNotFound(RpcError, code=-32601):
    """The method does not exist."""


class InvalidParams(RpcError, code=-32602):
    """The arguments do not fit the method."""


class InternalError(RpcError, code=-32603):
    """The server failed."""


class ResponseTooLarge(RpcError, code=-32003):
    """The responses of a batch exceed the size limit."""


class RpcLimitExceeded(RpcError, code=-32005):
    """The call has more results than allowed."""
