"""JSON-RPC errors, with the codes that nodes use."""


class RpcError(Exception):
    """A refusal. The default code is what a node gives when it has no better one."""

    code = -32000

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ParseError(RpcError):
    """The body is not JSON."""

    code = -32700


class InvalidRequest(RpcError):
    """JSON, but not a JSON-RPC 2.0 call."""

    code = -32600


class MethodNotFound(RpcError):
    """No such method here."""

    code = -32601


class InvalidParams(RpcError):
    """The method exists and its arguments do not fit."""

    code = -32602


class InternalError(RpcError):
    """A fault of the server."""

    code = -32603


class ResponseTooLarge(RpcError):
    """A batch whose answers outgrow the limit."""

    code = -32003


class LimitExceeded(RpcError):
    """More results than one call may return."""

    code = -32005
