"""Every argument of every public name, given what it cannot be."""

import pytest

from mindspore_zb.errors import ZeroBubbleError


def each_case(cases):
    """Parametrize a test over ``(function, name of the argument, values)``."""
    return pytest.mark.parametrize(
        "function, name, value", [(function, name, value) for function, name, values in cases for value in values],
        ids=lambda value: "" if callable(value) else repr(value).split(" at 0x")[0][:30])


def message_of(function, name, value):
    """The one sentence that refuses a value."""
    with pytest.raises(ZeroBubbleError) as caught:
        function(**{name: value})
    message = str(caught.value)
    assert 10 < len(message) < 250 and "\n" not in message
    return message


def assert_in_plain_words(message):
    """It shows neither an address nor a name that only Python has."""
    assert "object at 0x" not in message and "NoneType" not in message, message
