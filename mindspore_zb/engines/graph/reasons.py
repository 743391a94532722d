"""Why something does not compile, in one sentence that says where."""

import re

from mindspore_zb.errors import ZeroBubbleError

_PLACE = re.compile(r"In file (\S+?):(\d+)")


def reason_of(error: BaseException) -> str:
    """One line of a compiler's many: what it said first, and the last place in the user's code that it names."""
    if isinstance(error, ZeroBubbleError):
        return str(error)
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
    what = lines[0] if lines else type(error).__name__
    places = [f"{file}:{line}" for file, line in _PLACE.findall(text) if "mindspore_zb" not in file]
    where = f" ({places[-1]})" if places else ""
    return f"MindSpore cannot compile it: {_shortened(what)}{where}"


def _shortened(text: str, length: int = 300) -> str:
    return text if len(text) <= length else text[:length - 3] + "..."
