"""dw on a second stream of the device, beside the communication of the first one."""

from typing import Any, Callable

from mindspore import runtime

from mindspore_zb.errors import UnsupportedError


class SecondStream:
    """Work that is issued to a stream of its own. Its order, and what it waits for, stay right; only the device
    decides what runs at the same time.

    Raises:
        UnsupportedError: the device has no streams.
    """

    def __init__(self) -> None:
        try:
            self._stream = runtime.Stream()
            with runtime.StreamCtx(self._stream):
                pass
        except Exception as error:  # which one depends on the device
            raise UnsupportedError("dw_stream=True needs a device with several streams, which this one has not"
                                   ) from error

    def run(self, work: Callable[[], Any]) -> Any:
        """Issue ``work`` behind what the current stream has been given so far, and behind earlier work."""
        self._stream.wait_stream(runtime.current_stream())
        with runtime.StreamCtx(self._stream):
            return work()

    def join(self) -> None:
        """What the current stream is given from now on runs behind all work."""
        runtime.current_stream().wait_stream(self._stream)
