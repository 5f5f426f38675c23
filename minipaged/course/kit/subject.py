"""How checks see what they judge: through messages of plain values, tensors and handles.

A check calls a learner's objects only through a `Subject`. `LocalSubject` runs them in this
process, the grader's in another; both translate every argument and every result with the codec of
this file, so that a check comes to the same verdict in a notebook and in the grader.
"""

import importlib
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

import torch

CALL_SECONDS = 30.0  # what a call may take in a notebook, where a loop may have no end


@dataclass(frozen=True, slots=True)
class Ref:
    """A handle of an object that lives with the subject; `kind` is the name of its class."""

    handle: int
    kind: str

    def __repr__(self) -> str:
        return f"<{self.kind}>"


@dataclass(frozen=True, slots=True)
class Error:
    """What was raised.

    Attributes:
        kind: the name of the nearest built-in exception.
        text: its text.
        name: the name of its own class.
        line: the line of the subject's source where it came from, or "".
    """

    kind: str
    text: str
    name: str = field(default="", compare=False)
    line: str = field(default="", compare=False)

    def __str__(self) -> str:
        told = f"{self.name or self.kind}: {self.text}".strip(": ")
        return f"{told}, in the line `{self.line}`" if self.line else told


@dataclass(frozen=True, slots=True)
class Reply:
    """What a call came to.

    Attributes:
        value: plain values, lists, tuples, dicts, tensors, dtypes and `Ref`s.
        args_after: the arguments after the call, to see what it changed.
        error: what it raised, or None.
    """

    value: Any
    args_after: tuple
    error: Error | None


class Subject(Protocol):
    """A learner's objects, or the reference's.

    A target is the name of the exercise's object ("BlockPool"), dotted ("WasteReport.of"), a
    method of a handle ((ref, "free")), or something given by the package
    ("minipaged.block_table:BlockPool").
    """

    def new(self, cls: str, *args: Any) -> Ref: ...

    def call(self, target: "str | tuple[Ref, str]", *args: Any) -> Reply: ...

    def get(self, ref: Ref, name: str) -> Any: ...

    def launch(self, kernel: str, grid: tuple[int, ...], *args: Any) -> Reply: ...


class SubjectError(Exception):
    """`new` or `get` raised on the subject's side."""

    def __init__(self, error: Error) -> None:
        super().__init__(str(error))
        self.error = error


# --- the codec ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Message:
    """A value as a tree of JSON's types, and the bytes of its tensors' storages."""

    tree: Any
    storages: list[bytes]


def encode(value: Any, keep: Callable[[Any], Ref]) -> Message:
    """Turn a value into a message.

    Only exact types pass as they are: an int subclass is no int. Tensors keep their strides, and
    those that share memory still share it afterwards. Anything else becomes a handle.

    Args:
        keep: takes an object to be kept where it is, and gives its handle.
    """
    storages: list[bytes] = []
    seen: dict[int, int] = {}

    def tensor_tree(tensor: torch.Tensor) -> list:
        tensor = tensor.detach().resolve_conj().resolve_neg()
        pointer = tensor.untyped_storage().data_ptr()
        if pointer not in seen or pointer == 0:
            seen[pointer] = len(storages)
            storage = tensor.untyped_storage().cpu()
            storages.append(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes())
        geometry = [list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]
        return ["tensor", seen[pointer], str(tensor.dtype).removeprefix("torch."), *geometry]

    def tree(item: Any) -> Any:
        kind = type(item)
        if item is None or kind is bool or kind is int or kind is str:
            return ["int", str(item)] if kind is int else item
        if kind is float:
            return ["float", item.hex()]
        if kind is list or kind is tuple:
            return [kind.__name__, [tree(part) for part in item]]
        if kind is torch.Size:
            return ["tuple", [tree(part) for part in item]]
        if kind is dict:
            return ["dict", [[tree(key), tree(part)] for key, part in item.items()]]
        if kind is torch.Tensor and item.layout is torch.strided and item.device.type != "meta":
            return tensor_tree(item)
        if kind is torch.dtype:
            return ["dtype", str(item).removeprefix("torch.")]
        ref = item if kind is Ref else keep(item)
        return ["ref", ref.handle, ref.kind]

    return Message(tree(value), storages)


def decode(message: Message, find: Callable[[Ref], Any]) -> Any:
    """Turn a message back into a value; ValueError where it is malformed.

    Args:
        find: gives the object that a handle stands for (or the handle itself).
    """
    buffers: dict[int, torch.Tensor] = {}

    def tensor(index: int, dtype: str, shape: list, stride: list, offset: int) -> torch.Tensor:
        if index not in buffers:
            raw = bytearray(message.storages[index])
            buffers[index] = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0)
        flat = buffers[index].view(torch_dtype(dtype)) if buffers[index].numel() else None
        if flat is None:
            return torch.empty(shape, dtype=torch_dtype(dtype))
        return flat.as_strided(shape, stride, offset)

    def value(item: Any) -> Any:
        if item is None or type(item) in (bool, str):
            return item
        match item:
            case ["int", str(text)]:
                return int(text)
            case ["float", str(text)]:
                return float.fromhex(text)
            case ["list", list(parts)]:
                return [value(part) for part in parts]
            case ["tuple", list(parts)]:
                return tuple(value(part) for part in parts)
            case ["dict", list(pairs)]:
                return {value(key): value(part) for key, part in pairs}
            case ["tensor", int(index), str(dtype), list(shape), list(stride), int(offset)]:
                return tensor(index, dtype, shape, stride, offset)
            case ["dtype", str(name)]:
                return torch_dtype(name)
            case ["ref", int(handle), str(kind)]:
                return find(Ref(handle, kind))
        raise ValueError(f"malformed message: {str(item)[:60]}")

    try:
        return value(message.tree)
    except (IndexError, TypeError, OverflowError, RuntimeError) as error:
        raise ValueError(f"malformed message: {str(error)[:60]}") from None


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of that name; ValueError when there is none."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"malformed message: no dtype {name[:40]!r}")
    return dtype


# --- the side where the objects live -----------------------------------------------------------


class Host:
    """Holds a learner's module and the objects that it made, and serves requests about them."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.objects: list[Any] = []

    def keep(self, item: Any) -> Ref:
        """Keep an object; the same object always has the same handle."""
        for handle, known in enumerate(self.objects):
            if known is item:
                return Ref(handle, type(item).__name__)
        self.objects.append(item)
        return Ref(len(self.objects) - 1, type(item).__name__)

    def find(self, ref: Ref) -> Any:
        """The object of a handle."""
        return self.objects[ref.handle]

    def resolve(self, target: Any) -> Any:
        """The thing that a target names; see `Subject`."""
        if isinstance(target, tuple):
            return getattr(target[0], target[1])
        place, _, path = target.rpartition(":")
        thing: Any = importlib.import_module(place) if place else self.module
        for name in path.split("."):
            thing = getattr(thing, name)
        return thing

    def serve(self, request: Message) -> Message:
        """Do what a request (verb, target, args, grid) says and encode (value, args, error)."""
        verb, target, args, grid = decode(request, self.find)
        value: Any = None
        error: tuple[str, str, str, str] | None = None
        try:
            thing = self.resolve(target)
            if verb == "launch":
                thing = thing[grid]
            value = thing if verb == "get" else thing(*args)
        except Exception as raised:
            error = self.told(raised)
        try:
            return encode((value, args, error), self.keep)
        except Exception as raised:  # a list that holds itself, say
            return encode((None, (), self.told(raised)), self.keep)

    def told(self, raised: Exception) -> tuple[str, str, str, str]:
        """The fields of an `Error`."""
        frames = traceback.extract_tb(raised.__traceback__)
        own = [f.line for f in frames if f.filename == getattr(self.module, "__file__", "")]
        line = (own[-1] or "") if own else ""
        return builtin_name(raised), str(raised), type(raised).__name__, line


def builtin_name(raised: BaseException) -> str:
    """The name of the nearest class of an exception that everybody knows."""
    for cls in type(raised).__mro__:
        if cls.__module__ == "builtins":
            return cls.__name__
    return "Exception"


class MessageSubject:
    """A `Subject` that turns calls into messages; how they travel is `exchange`'s matter."""

    def exchange(self, request: Message) -> Message:
        """Bring a request to the host, and its answer back."""
        raise NotImplementedError

    def ask(self, verb: str, target: Any, args: tuple, grid: Any = None) -> Reply:
        """One request and its reply, checked for its form."""
        request = encode((verb, target, tuple(args), grid), keep=self.refuse)
        answer = decode(self.exchange(request), find=lambda ref: ref)
        match answer:
            case (value, tuple(args_after), None):
                return Reply(value, args_after, None)
            case (value, tuple(args_after), (str(kind), str(text), str(name), str(line))):
                return Reply(value, args_after, Error(kind, text, name, line))
        raise ValueError("malformed reply")

    @staticmethod
    def refuse(item: Any) -> Ref:
        """A check sends plain values, tensors and handles, nothing else."""
        raise TypeError(f"{type(item).__name__} cannot be sent to a subject")

    def new(self, cls: str, *args: Any) -> Ref:
        """Make an object; `SubjectError` where that raises."""
        reply = self.ask("call", cls, args)
        if reply.error:
            raise SubjectError(reply.error)
        if not isinstance(reply.value, Ref):
            raise SubjectError(Error("TypeError", f"{cls}(...) gave no object"))
        return reply.value

    def call(self, target: str | tuple[Ref, str], *args: Any) -> Reply:
        """Call a function, or a method of a handle."""
        return self.ask("call", target, args)

    def get(self, ref: Ref, name: str) -> Any:
        """Read an attribute; `SubjectError` where that raises."""
        reply = self.ask("get", (ref, name), ())
        if reply.error:
            raise SubjectError(reply.error)
        return reply.value

    def launch(self, kernel: str, grid: tuple[int, ...], *args: Any) -> Reply:
        """Run a kernel over a grid."""
        return self.ask("launch", kernel, args, grid)


@contextmanager
def time_limit(seconds: float, late: Exception) -> Iterator[None]:
    """Raise `late` in what runs inside when it takes longer; where there are no such alarms
    (Windows, a thread that is not the main one) it may take as long as it likes."""
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "setitimer")):
        yield
        return

    def stop(*_: object) -> None:
        raise late

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class LocalSubject(MessageSubject):
    """The objects of a module of this process; a call may take so many seconds."""

    def __init__(self, module: ModuleType, seconds: float = CALL_SECONDS) -> None:
        self.host, self.seconds = Host(module), seconds

    def exchange(self, request: Message) -> Message:
        """Serve the request here."""
        late = TimeoutError(f"did not end within {self.seconds:g} seconds")
        with time_limit(self.seconds, late):
            return self.host.serve(request)
