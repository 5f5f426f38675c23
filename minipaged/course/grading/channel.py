"""The marker's end of one child: requests go in, and replies come back that are trusted in nothing.

A frame is 4 bytes of length, JSON, and the bytes of tensors. A request carries a number that
nobody can guess, and its reply must carry the same.
"""

import contextlib
import json
import re
import secrets
import signal
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any, Self

from ..kit.subject import Error, Message, MessageSubject

HEADER_BYTES = 8 << 20
TENSOR_BYTES = 64 << 20


class SandboxError(Exception):
    """The sandbox itself does not work; this is no fault of a submission."""


class Lost(Exception):
    """The child gave no proper reply; the text says what happened, in a learner's words."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one exercise of one submission may use.

    Attributes:
        seconds: of wall time in all; call_seconds: until one reply has come.
        memory: private bytes of all its processes together, counted some thirty times a second.
        address_space: of each process, beyond what torch itself takes; the kernel's own limit.
    """

    seconds: float = 60.0
    call_seconds: float = 15.0
    cpu_seconds: int = 60
    memory: int = 2 << 30
    address_space: int = 4 << 30
    processes: int = 16
    file_bytes: int = 16 << 20
    open_files: int = 48


@dataclass(frozen=True, slots=True)
class Job:
    """What a child gets to load.

    Attributes:
        name: of the module.
        source: its text.
        view: the package as it may be seen, texts by path.
    """

    name: str
    source: str
    view: dict[str, str] = field(default_factory=dict)


class Channel:
    """Requests to one child, and its replies, which are trusted in nothing.

    Attributes:
        loaded: what loading the source raised, or None.
        broken: why there will be no more replies, or None.
        fault: of the sandbox, not of the child, or None.
    """

    def __init__(
        self,
        channel: socket.socket,
        leash: socket.socket,
        job: Job,
        data: str | None,
        limits: Limits,
    ) -> None:
        self.channel, self.leash, self.limits = channel, leash, limits
        self.end = time.monotonic() + limits.seconds
        self.loaded: Error | None = None
        self.broken: str | None = None
        self.fault: str | None = None
        header = {"name": job.name, "source": job.source, "view": job.view, "data": data}
        try:
            reply, _ = self.exchange(header, [])
        except BaseException:
            self.close()
            raise
        match reply.get("error"):
            case None if "error" in reply:
                pass
            case [str(kind), str(text), str(name), str()]:
                self.loaded = Error(kind, text, name)
            case _:
                self.close()
                raise Lost("its process answered in a form that is none")

    def ask(self, subject: int, request: Message) -> Message:
        """One request to the objects of a subject."""
        header = {"subject": subject, "tree": request.tree}
        reply, blobs = self.exchange(header, request.storages)
        try:
            inspect_tree(reply.get("tree"), blobs)
        except (ValueError, RecursionError) as error:
            raise self.lose(f"its process answered in a form that is none: {error}") from None
        return Message(reply["tree"], blobs)

    def exchange(
        self, header: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send a frame and receive the one that answers it.

        Raises:
            Lost: whatever goes wrong; and again at every later use.
        """
        if self.broken:
            raise Lost(self.broken)
        due = min(self.end, time.monotonic() + self.limits.call_seconds)
        wanted = secrets.token_hex(16)
        header = {**header, "id": wanted, "sizes": [len(blob) for blob in blobs]}
        text = json.dumps(header).encode()
        try:
            self.channel.settimeout(max(0.001, due - time.monotonic()))
            self.channel.sendall(b"".join([struct.pack(">I", len(text)), text, *blobs]))
            (size,) = struct.unpack(">I", self.receive(4, due))
            if size > HEADER_BYTES:
                raise self.lose("its answer is too large")
            reply = json.loads(self.receive(size, due))
            if type(reply) is not dict or reply.get("id") != wanted:
                raise self.lose("its process answered in a form that is none")
            sizes = reply.get("sizes")
            if type(sizes) is not list or any(type(n) is not int or n < 0 for n in sizes):
                raise self.lose("its process answered in a form that is none")
            if len(sizes) > 4096 or sum(sizes) > TENSOR_BYTES:
                raise self.lose("its answer is too large")
            return reply, [self.receive(n, due) for n in sizes]
        except TimeoutError:
            seconds = f"{self.limits.call_seconds:g} s"
            if time.monotonic() >= self.end:
                seconds = f"{self.limits.seconds:g} s in all"
            raise self.lose(f"it took longer than {seconds}") from None
        except (OSError, EOFError):
            raise self.lose(self.epitaph()) from None
        except (ValueError, RecursionError):
            raise self.lose("its process answered in a form that is none") from None

    def lose(self, why: str) -> Lost:
        """Give the child up."""
        self.broken = why
        self.close()
        return Lost(why)

    def receive(self, size: int, due: float) -> bytes:
        """Exactly so many bytes, in time."""
        parts = bytearray()
        while len(parts) < size:
            left = due - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.channel.settimeout(left)
            part = self.channel.recv(min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def epitaph(self) -> str:
        """How the child ended, told by its supervisor."""
        try:
            self.leash.settimeout(10)
            report = json.loads(self.leash.recv(4096) or b"{}")
        except TimeoutError:  # the supervisor still waits for the child's end
            return "its process closed its line to the marker"
        except (OSError, ValueError):
            report = {}
        if "refused" in report:
            self.fault = f"no child could be made: {report['refused']}"
        status = report.get("status")
        if report.get("memory"):
            return f"it used more than {self.limits.memory >> 20} MB of memory"
        if status is None:
            self.fault = self.fault or "the parent or the supervisor of the child is gone"
            self.broken = self.fault
            raise SandboxError(self.fault)
        if status < 0:
            with contextlib.suppress(ValueError):
                return f"its process was ended by {signal.Signals(-status).name}"
        return f"its process ended by itself, with status {status}"

    def close(self) -> None:
        """Let go of the leash, which ends the child and everything that it started."""
        self.channel.close()
        self.leash.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


WIDTHS = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}
MAX_NODES = 100_000
MAX_ELEMENTS = 1 << 18  # a check may walk over each of them, in the marker; none needs 10,000


def inspect_tree(tree: Any, blobs: list[bytes]) -> None:
    """Refuse what the codec would not have made; `decode` then meets nothing strange.

    Raises:
        ValueError: saying what is wrong.
    """
    elements = 0
    waiting = [(tree, 0)]
    nodes = 0
    while waiting:
        item, depth = waiting.pop()
        nodes += 1
        if nodes > MAX_NODES or depth > 60:
            raise ValueError("too large or too deep")
        if item is None or type(item) in (bool, str):
            continue
        match item:
            case ["int", str(text)]:
                if not re.fullmatch(r"-?[0-9]{1,40}", text):
                    raise ValueError("no whole number")
            case ["float", str(text)]:
                if not re.fullmatch(r"-?0x[01](\.[0-9a-f]{1,13})?p[+-][0-9]{1,4}|-?inf|nan", text):
                    raise ValueError("no float")
            case ["list" | "tuple", list(parts)]:
                waiting += [(part, depth + 1) for part in parts]
            case ["dict", list(pairs)]:
                for pair in pairs:
                    if type(pair) is not list or len(pair) != 2:
                        raise ValueError("no dict")
                    waiting += [(part, depth + 1) for part in pair]
            case ["tensor", int(idx), str(dtype), list(shape), list(stride), int(offset)]:
                elements += inspect_tensor(idx, dtype, shape, stride, offset, blobs)
                if elements > MAX_ELEMENTS:
                    raise ValueError("tensors too large")
            case ["dtype", str(name)]:
                if name not in WIDTHS:
                    raise ValueError("no dtype")
            case ["ref", int(handle), str()]:
                if type(handle) is not int:
                    raise ValueError("no handle")
            case _:
                raise ValueError("no such kind of value")


def inspect_tensor(
    idx: int, dtype: str, shape: list, stride: list, offset: int, blobs: list[bytes]
) -> int:
    """How many elements a tensor has; ValueError where it would not lie in its memory."""
    if type(idx) is not int or not 0 <= idx < len(blobs) or dtype not in WIDTHS:
        raise ValueError("no tensor")
    numbers = [*shape, *stride, offset]
    if any(type(n) is not int or not 0 <= n <= 1 << 40 for n in numbers):
        raise ValueError("no tensor")
    if len(shape) != len(stride) or len(shape) > 16:
        raise ValueError("no tensor")
    elements, last = 1, offset
    for size, step in zip(shape, stride, strict=True):
        elements *= size
        last += (size - 1) * step
    width = WIDTHS[dtype]
    if elements and (last + 1) * width > len(blobs[idx]):
        raise ValueError("a tensor outside of its memory")
    if len(blobs[idx]) % width:
        raise ValueError("a tensor's memory is no multiple of its elements")
    if dtype == "bool" and max(blobs[idx], default=0) > 1:
        raise ValueError("a bool that is neither True nor False")
    return elements


class RemoteSubject(MessageSubject):
    """A `Subject` whose objects live in a child; `number` tells it when to begin afresh."""

    def __init__(self, channel: Channel, number: int) -> None:
        self.channel, self.number = channel, number

    def exchange(self, request: Message) -> Message:
        """Ask the child."""
        return self.channel.ask(self.number, request)
