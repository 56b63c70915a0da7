"""All channels of a watch: what to wait for, and what to read and write when it is ready."""

from __future__ import annotations

import select
import time

from platform_launch.supervise.channel import Channel


class Traffic:
    """Moves output from commands to outlets; a blocked outlet stops the reading, as ``tee`` does."""

    def __init__(self) -> None:
        self._channels: list[Channel] = []
        self._last_call = False

    def add(self, channel: Channel) -> None:
        """Add a channel."""
        self._channels.append(channel)

    @property
    def left(self) -> bool:
        """Whether anything is still to be read or written."""
        return any(channel.fd >= 0 or channel.receiver.outlet.blocked for channel in self._channels)

    @property
    def impatient(self) -> bool:
        """Whether there is something to do without waiting."""
        return self._last_call and any(
            channel.fd >= 0 and not channel.receiver.outlet.blocked for channel in self._channels
        )

    def register(self, poll: select.poll) -> float:
        """Register what to wait for; return when :meth:`move` is due at the latest (time.monotonic())."""
        now, again_at = time.monotonic(), float("inf")
        for channel in self._channels:
            outlet = channel.receiver.outlet
            again_at = min(again_at, channel.receiver.due)
            if outlet.blocked:
                poll.register(outlet.fd, select.POLLOUT)
            elif channel.fd >= 0 and channel.read_at > now:
                again_at = min(again_at, channel.read_at)
            elif channel.fd >= 0:
                poll.register(channel.fd, select.POLLIN)
        return again_at

    def move(self, ready: set[int]) -> None:
        """Read and write where it is possible."""
        for channel in self._channels:
            outlet = channel.receiver.outlet
            if outlet.blocked:
                if outlet.fd in ready:
                    outlet.flush()
            elif channel.fd >= 0 and (self._last_call or channel.fd in ready):
                channel.read(at_last_call=self._last_call)
            if channel.receiver.due <= time.monotonic():
                channel.receiver.flush()

    def last_call(self) -> None:
        """Read only what is already in the pipes: their writers have exited, or are not ours."""
        self._last_call = True

    def abandon(self) -> None:
        """Drop what cannot be written at once, from now on."""
        for channel in self._channels:
            channel.receiver.outlet.close()

    def close(self) -> None:
        """Stop reading everywhere."""
        for channel in self._channels:
            channel.close()
