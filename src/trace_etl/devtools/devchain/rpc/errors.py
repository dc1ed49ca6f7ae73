"""JSON-RPC errors, with the codes that nodes use."""


class RpcError(Exception):
    """A JSON-RPC error. The default code is the one that nodes use for unclassified errors."""

    code = -32000

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ParseError(RpcError):
    """The body is not JSON."""

    code = -32700


class InvalidRequest(RpcError):
    """The body is JSON, but not a JSON-RPC 2.0 call."""

    code = -32600


class MethodNotFound(RpcError):
    """The method does not exist."""

    code = -32601


class InvalidParams(RpcError):
    """The arguments do not fit the method."""

    code = -32602


class InternalError(RpcError):
    """The server failed."""

    code = -32603


class ResponseTooLarge(RpcError):
    """The responses of a batch exceed the size limit."""

    code = -32003


class LimitExceeded(RpcError):
    """The call has more results than allowed."""

    code = -32005
