"""The module's own functions in this process: Envoys load the same library. See envoy/module/state.h."""

import ctypes
from pathlib import Path
from typing import Any

from balancer.kernel.compiled.library import Library
from balancer.native.header import DIGEST

PATH = Path(__file__).with_name("module.so")
BUILD = "build it: python -m balancer.native.build"

_PLACE, _NUMBER, _REAL = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_double
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "bytes": (_NUMBER, ()),
    "stamp": (ctypes.c_char_p, ()),
    "shared": (ctypes.c_char_p, ()),
    "init": (None, (_PLACE, _NUMBER, _NUMBER, _NUMBER, _NUMBER)),
    "publish": (None, (_PLACE, _NUMBER)),
    "beat": (None, (_PLACE,)),
    "serve": (None, (_PLACE, _NUMBER)),
    "replaced": (None, (_PLACE,)),
    "lock": (ctypes.c_bool, (_PLACE, _NUMBER)),
    "unlock": (None, (_PLACE,)),
    "number": (_NUMBER, (_PLACE,)),
    "set_number": (None, (_PLACE, _NUMBER)),
    "count": (_NUMBER, (_PLACE, _NUMBER)),
    "in_flight": (_NUMBER, (_PLACE,)),
    "ticket": (_NUMBER, (_PLACE, _NUMBER)),
    "last_ticket": (_NUMBER, (_PLACE,)),
    "take": (_NUMBER, (_PLACE, _NUMBER, _PLACE, _NUMBER)),
    "set_selector": (None, (_PLACE, ctypes.c_char_p)),
    "watched": (_NUMBER, (_PLACE, _NUMBER)),
    "owed": (_NUMBER, (_PLACE,)),
    "set_lines_share": (None, (_PLACE, _REAL)),
    "row_removed": (None, (_PLACE, ctypes.c_int64)),
    "due": (ctypes.c_bool, (_PLACE, _REAL, ctypes.c_bool)),
    "journal_bytes": (_NUMBER, ()),
    "journal_init": (None, (_PLACE, _REAL, _NUMBER)),
    "journal_written": (_NUMBER, (_PLACE,)),
    "journal_dropped": (_NUMBER, (_PLACE,)),
    "journal_take": (_NUMBER, (_PLACE, _NUMBER, _PLACE, _NUMBER)),
    "journal_done": (None, (_PLACE, _NUMBER)),
    "digest": (_NUMBER, (_PLACE, _NUMBER)),
    "give_up": (_NUMBER, (_PLACE, _REAL, _NUMBER, ctypes.c_bool, _PLACE, _NUMBER)),
}


class ModuleError(Exception):
    """The module cannot be used; the message says why, and what to do."""


class Module:
    def __init__(self, kernel: Library, path: Path = PATH) -> None:
        """Load it.

        Raises:
            ModuleError: there is none, or it does not fit the kernel.
        """
        if not path.exists():
            raise ModuleError(f"there is no {path.name}; {BUILD}")
        try:
            # Without letting go of Python's lock: no call takes longer than handing that over, but a wait for the lock.
            self._library = ctypes.PyDLL(str(path))
            self._functions = {name: self._function(name) for name in _SIGNATURES}
        except (OSError, AttributeError) as error:
            raise ModuleError(f"{path.name} cannot be loaded: {error}; {BUILD}") from error
        if self.call("stamp") != kernel.stamp.encode():
            raise ModuleError(f"{path.name} was built for another kernel; {BUILD}")
        if self.call("shared") != DIGEST.encode():
            raise ModuleError(f"{path.name} was built from other sources; {BUILD}")

    def _function(self, name: str) -> Any:
        function = getattr(self._library, f"balancer_state_{name}")
        function.restype, function.argtypes = _SIGNATURES[name]
        return function

    def call(self, name: str, *arguments: Any) -> Any:
        return self._functions[name](*arguments)
