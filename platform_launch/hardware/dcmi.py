"""The health of Ascend NPUs, from DCMI, a library of Huawei's driver.

Sources: hiascend.com, DCMI API (functions, and 0xFFFFFFFF for a chip that does not exist);
Ascend/mind-cluster, devmanager (-8012 is the answer for a card that dropped off).
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_uint
from functools import cache

from platform_launch.errors import HardwareError
from platform_launch.text import Phrase

# The second is where Ascend's container runtime mounts it.
_LIBRARIES = ("libdcmi.so", "/usr/local/dcmi/libdcmi.so")
_MOST_CARDS = 64
_NOT_READY = -8012
_ABSENT = 0xFFFFFFFF


@cache
def library() -> ctypes.CDLL | None:
    """Return the library, None if it is not installed here."""
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


class Dcmi:
    """The NPUs of this node, each by the number N of its ``/dev/davinciN``."""

    def __init__(self) -> None:
        """Open the driver. Raises HardwareError if it answers with an error."""
        cards, count = (c_int * _MOST_CARDS)(), c_int()
        self._chips: dict[int, tuple[int, int]] = {}
        self._require("dcmi_init")
        self._require("dcmi_get_card_list", byref(count), cards, _MOST_CARDS)
        for card in cards[: count.value]:
            chips, others = c_int(), (c_int(), c_int())
            self._require("dcmi_get_device_id_in_card", card, byref(chips), *map(byref, others))
            for chip in range(chips.value):
                logical, number = c_int(), c_uint()
                self._require("dcmi_get_device_logic_id", byref(logical), card, chip)
                self._require("dcmi_get_device_phyid_from_logicid", c_uint(logical.value), byref(number))
                self._chips[number.value] = card, chip

    def alarm(self, number: int) -> int | None:
        """Return an NPU's worst alarm: 0 none, 1 minor, 2 major, 3 critical; None if it is unknown.

        Raises LookupError with the answer for an NPU that is lost.
        """
        chip, level = self._chips.get(number), c_uint()
        if chip is None:
            return None
        code = self._ask("dcmi_get_device_health", *chip, byref(level))
        if code == _NOT_READY or level.value == _ABSENT:
            raise LookupError(f"DCMI: {code if code else hex(_ABSENT)}")
        return None if code else level.value

    def _require(self, function: str, *arguments: object) -> None:
        code = self._ask(function, *arguments)
        if code:
            raise HardwareError(
                Phrase(
                    "the Ascend driver answered {function} with error {code}", function=function, code=code
                )
            )

    @staticmethod
    def _ask(function: str, *arguments: object) -> int | None:
        """Return the function's return code; None if the library does not have it."""
        try:
            return int(getattr(library(), function)(*arguments))
        except AttributeError:
            return None
