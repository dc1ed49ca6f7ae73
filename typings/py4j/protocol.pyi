from typing import Any

# Only the exceptions that we catch.
class Py4JError(Exception): ...
class Py4JNetworkError(Py4JError): ...

class Py4JJavaError(Py4JError):
    java_exception: Any
