"""The state that a balancer shares: file `control` of its folder, with the lock over the fleet's state."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import math
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from balancer.kernel.block import Memory
from balancer.native.envoy_module import Module
from balancer.native.layouts import CANARY_EVENT, COUNTS, LINE, LINES, OUTCOME, RINGS, SEATS, SENT_PROMPT, SLOT, SLOTS

_PARENT = Path("/dev/shm")
FLEET_STATE, CONTROL, JOURNAL = "fleet_state", "control", "journal"
_OWNER = "owner"


class FolderError(Exception):
    """The folder cannot be used; the message says why, and what to do."""


def default_folder(listen: str) -> Path:
    """For a balancer that listens there for Envoy: the same for whoever reads the same config."""
    return _PARENT / f"balancer-{os.getuid()}-{hashlib.sha256(listen.encode()).hexdigest()[:12]}"


class Folder:
    """Owned by one balancer at a time, while it lives."""

    def __init__(self, path: Path) -> None:
        """Take it over, with what the last owner left behind: Envoys go on with that until there is something new.

        Raises:
            FolderError: it is somebody else's, others may enter, or another balancer has it.
        """
        self.path = path
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            about = path.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
                raise FolderError(f"{path} is not a folder of this user alone; remove it, or name another")
            self._owner = os.open(path / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise FolderError(f"{path} cannot be used: {error.strerror}; name another folder") from error
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._owner)
            raise FolderError(f"{path} is in use by another balancer; name another folder for this one") from error

    def write(self, name: str, content: bytes) -> None:
        """A whole file at once; `OSError` where there is no room."""
        draft = self.path / f".{name}.new"
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(file, "wb") as out:
                out.write(content)
            draft.replace(self.path / name)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def rename(self, name: str, to: str) -> None:
        (self.path / name).replace(self.path / to)

    def keep_only(self, *names: str) -> None:
        """Remove directories and options but those."""
        for path in self.path.iterdir():
            if path.name.startswith(("directory-", "options-", ".")) and path.name not in names:
                path.unlink(missing_ok=True)

    def seat_is_free(self, seat: int) -> bool:
        """Whether no living Envoy sits there: each holds a lock on a file, which ends with its process."""
        try:
            file = os.open(self.path / f"seat-{seat}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def close(self) -> None:
        os.close(self._owner)


def in_file(path: Path) -> Memory:
    """Memory in the file of that path, for this user alone.

    Every new block is a new file that takes over the path. A process that mapped the old file keeps it, and reads in
    its header that it is no longer in force. A file that was just made is no block yet, which its first bytes tell.

    `OSError` where there is no room for it, or no right to it.
    """

    def memory(size_bytes: int) -> mmap.mmap:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Now, as what cannot be had later ends the process.
            os.posix_fallocate(file, 0, size_bytes)
            mapped = mmap.mmap(file, size_bytes)
        except BaseException:
            draft.unlink()
            raise
        finally:
            os.close(file)
        draft.replace(path)
        return mapped

    return memory


STALE_AFTER_S = 0.08
"""Without a sign of life from the balancer, after which Envoys look whether its process exists, and do without it if
not: so they do within about 0.1 s of its death."""
HUNG_AFTER_S = 1.0
"""After which they do without it though it exists."""
WAIT_S = 0.25
"""For the lock. Envoys have it for microseconds: one that has it longer ended with it, or was stopped."""
_MOST_AT_ONCE = 4096
_NONE = (1 << 64) - 1


class SharedState:
    """One file `control`; another one takes its place where somebody keeps its lock."""

    def __init__(self, module: Module, folder: Folder, seed: int) -> None:
        """`seed`: of the draws, mixed. `OSError` where there is no room for it."""
        self._module, self._folder, self._seed = module, folder, seed
        self._read = np.zeros(_MOST_AT_ONCE, OUTCOME)
        self._read_canary_events = np.zeros(_MOST_AT_ONCE, CANARY_EVENT)
        self._read_lines = np.zeros(LINES, LINE)
        self._read_prompts = np.zeros(_MOST_AT_ONCE, SENT_PROMPT)
        self._lines_share = 0.0
        self._counted = dict.fromkeys(COUNTS, 0)
        self._left: dict[str, list[npt.NDArray[Any]]] = {}
        self._owned = -1
        self._make(0)

    def _make(self, number: int) -> None:
        self._memory: mmap.mmap = in_file(self._folder.path / CONTROL)(self._module.call("bytes"))
        self.close()
        # Envoys find it locked while this process exists, whatever ends it.
        self._owned = os.open(self._folder.path / CONTROL, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(self._owned, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._known_tickets = 0
        self._alive: set[int] = set()
        self._call("init", self._seed, number, int(STALE_AFTER_S * 1e9), int(HUNG_AFTER_S * 1e9))
        self._call("set_lines_share", self._lines_share)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._module.call(name, self._at, *arguments)

    def replace(self) -> npt.NDArray[Any]:
        """Give this file up for another, which is to be published; returns what was in flight, as `SLOT`."""
        self._call("replaced")
        flying = self._give_up(math.inf, 0)
        self._counted = self.counts()
        self._left = {
            "outcomes": [batch.copy() for batch in self.outcomes()],
            "lines": [batch.copy() for batch in self.lines()],
        }
        before = self._memory
        self._make(self.next)
        del before
        return flying

    def close(self) -> None:
        if self._owned >= 0:
            os.close(self._owned)
        self._owned = -1

    def lock(self) -> bool:
        """False: somebody keeps it."""
        return bool(self._call("lock", int(WAIT_S * 1e9)))

    def unlock(self) -> None:
        self._call("unlock")

    @property
    def next(self) -> int:
        return int(self._call("number"))

    @next.setter
    def next(self, number: int) -> None:
        self._call("set_number", number)

    def take(self) -> int:
        """With the lock held: the number of a decision made here. First those that Envoys left to the balancer."""
        number = int(self._call("owed"))
        if number == _NONE:
            number = self.next
            self.next = number + 1
        return number

    def digest(self, content: mmap.mmap) -> int:
        return int(self._module.call("digest", ctypes.addressof(ctypes.c_char.from_buffer(content)), len(content)))

    def publish(self, serial: int) -> None:
        self._call("publish", serial)

    def beat(self) -> None:
        self._call("beat")

    def serve(self, serving: bool) -> None:
        """Whether Envoys decide; otherwise they ask."""
        self._call("serve", int(serving))

    def row_removed(self, row: int) -> None:
        """With the lock held: rows after this one moved up."""
        self._call("row_removed", row)

    def counts(self) -> dict[str, int]:
        return {name: self._counted[name] + int(self._call("count", place)) for place, name in enumerate(COUNTS)}

    @property
    def in_flight(self) -> int:
        return int(self._call("in_flight"))

    def outcomes(self) -> Iterator[npt.NDArray[Any]]:
        """What ended since this was last read, as `OUTCOME`, in batches that hold until the next."""
        return self._waiting("outcomes", self._read)

    def lines(self) -> Iterator[npt.NDArray[Any]]:
        """Decisions of which the log is to tell, as `LINE`, likewise."""
        return self._waiting("lines", self._read_lines)

    def prompts(self) -> Iterator[npt.NDArray[Any]]:
        """Those that went to workers, as `SENT_PROMPT`, likewise."""
        return self._waiting("prompts", self._read_prompts)

    def _waiting(self, what: str, into: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
        yield from self._left.pop(what, ())
        while count := int(self._call("take", RINGS.index(what), into.ctypes.data, len(into))):
            yield into[:count]

    def log_lines(self, share: float) -> None:
        """For that share of the decisions, as `balancer.server.logs.DecisionLines` has it."""
        self._lines_share = share
        self._call("set_lines_share", share)

    def set_selector(self, selector: bytes) -> None:
        """With the lock held: who decides, as `SELECTOR`."""
        self._call("set_selector", selector)

    def watched(self, side: int) -> int:
        """With the lock held: decisions of that side, ever, that a guard counts."""
        return int(self._call("watched", side))

    def canary_events(self) -> Iterator[npt.NDArray[Any]]:
        """What guard and rollout learn, as `CANARY_EVENT`, in batches as of `outcomes`."""
        return self._waiting("canary_events", self._read_canary_events)

    def expired(self, before_s: float) -> npt.NDArray[Any]:
        """With the lock held: requests that were sent before that are given up, as `SLOT`."""
        return self._give_up(before_s, 0)

    def due(self, before_s: float) -> bool:
        """Whether there are such. Without the lock."""
        return bool(self.in_flight and self._call("due", before_s, False))

    def waits(self, before_s: float) -> bool:
        """Whether requests that were sent before that wait for their clients. Without the lock."""
        return bool(self._call("due", before_s, True))

    def waited(self, before_s: float) -> npt.NDArray[Any]:
        """With the lock held: those that were sent before that are given up, as `SLOT`, until their clients go on."""
        return self._give_up(before_s, 0, waiting=True)

    def left(self) -> list[int]:
        """Tickets of Envoys that are gone, each once. Without the lock."""
        last = int(self._call("last_ticket"))
        self._alive.update(range(self._known_tickets + 1, last + 1))
        self._known_tickets = last
        seated = set()
        for seat in range(SEATS):
            ticket = int(self._call("ticket", seat))
            if ticket in self._alive and not self._folder.seat_is_free(seat):
                seated.add(ticket)
        gone = sorted(self._alive - seated)
        self._alive = seated
        return gone

    def abandoned(self, ticket: int) -> npt.NDArray[Any]:
        """With the lock held: requests of that Envoy are given up, as `SLOT`."""
        return self._give_up(-math.inf, ticket)

    def _give_up(self, before_s: float, ticket: int, *, waiting: bool = False) -> npt.NDArray[Any]:
        out = np.zeros(SLOTS, SLOT)
        count = int(self._call("give_up", before_s, ticket, waiting, out.ctypes.data, len(out)))
        return out[:count]
