"""Errors of the framework, short enough for a line."""


def short(error: BaseException, most: int = 500) -> str:
    """The message of an error in one line, without the framework's stack of C++ calls.

    >>> short(ValueError("wrong\\n\\n- C++ Call Stack: (For framework developers)\\nfile.cc"))
    'wrong'
    """
    text = str(error).split("- C++ Call Stack")[0].split("- The Traceback of Net")[0]
    text = " ".join(text.replace("-" * 10, " ").split())
    return text.rstrip("- ") if len(text) <= most else text[:most] + "..."
