"""What a check asked of a subject, as code that can be pasted into a cell.

The last line binds `again`: running it shows what the check saw. A tensor that is too large to write
out is drawn again by the check itself: `drawn(exercise_id, seed, step)`.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

import torch

from .expecting import same, short
from .subject import Ref, Reply, Subject

FEW = 12  # elements of a tensor that is written out


@dataclass(slots=True)
class Step:
    """One request: its code, the handles that it mentions, and the one that it made.

    Attributes:
        target, args: the two parts of the code, where it is a call.
        silent: it gave nothing or changed an argument, so the arguments are of interest.
        reply: what came back; None before it does, and where something was made.
    """

    code: str
    uses: set[int]
    makes: int | None
    reads: bool
    large: bool
    target: str = ""
    args: str = ""
    silent: bool = False
    reply: Reply | None = None

    @property
    def touches(self) -> set[int]:
        """The handles that it mentions or makes."""
        return self.uses if self.makes is None else {*self.uses, self.makes}


class Recorder:
    """A `Subject` that passes everything on and writes down the code of it."""

    def __init__(self, subject: Subject, exercise_id: str, seed: int) -> None:
        self.subject, self.source = subject, f'drawn("{exercise_id}", {seed}'
        self.steps: list[Step] = []
        self.names: dict[int, str] = {}
        self.functions: set[int] = set()  # which are shared, and never changed
        self.imports: dict[int, set[str]] = {}

    def new(self, cls: str, *args: Any) -> Ref:
        """Make an object."""
        step = self.note(self.target(cls), args)
        ref = self.subject.new(cls, *args)
        return self.bind(step, ref)

    def call(self, target: "str | tuple[Ref, str]", *args: Any) -> Reply:
        """Call a function or a method."""
        step = self.note(self.target(target), args)
        reply = self.subject.call(target, *args)
        if isinstance(reply.value, Ref):
            self.bind(step, reply.value)
        step.reply = reply
        changed = not same(list(args), list(reply.args_after))
        step.silent = bool(args) and reply.error is None and (changed or reply.value is None)
        return reply

    def get(self, ref: Ref, name: str) -> Any:
        """Read an attribute."""
        step = self.note(self.target((ref, name)), None)
        found = self.subject.get(ref, name)
        step.reply = Reply(found, (), None)
        return self.bind(step, found) if isinstance(found, Ref) else found

    def launch(self, kernel: str, grid: tuple[int, ...], *args: Any) -> Reply:
        """Run a kernel over a grid."""
        self.note(f"{self.target(kernel)}[{grid}]", args)
        return self.subject.launch(kernel, grid, *args)

    def bind(self, step: Step, ref: Ref) -> Ref:
        """Give an object a name: that of its class, in short."""
        if ref.handle not in self.names:
            word = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\w+", ref.kind)[-1].lower()
            taken = sum(
                re.fullmatch(rf"{word}\d*", name) is not None for name in self.names.values()
            )
            self.names[ref.handle] = f"{word}{taken + 1 if taken else ''}"
            step.makes = ref.handle
            if ref.kind == "function":
                self.functions.add(ref.handle)
        return ref

    def target(self, target: "str | tuple[Ref, str]") -> str:
        """How a target is written; what the package has is imported first."""
        if isinstance(target, tuple):
            return f"{self.names[target[0].handle]}.{target[1]}"
        module, _, name = target.rpartition(":")
        if module:
            first = name.split(".")[0]
            self.imports.setdefault(len(self.steps), set()).add(f"from {module} import {first}")
        return name

    def note(self, target: str, args: tuple | None) -> Step:
        """Write down a request before it is made."""
        number = len(self.steps)
        large = any(is_large(arg) for arg in args or ())
        uses = {ref.handle for ref in refs_in(args)}
        uses |= {handle for handle, name in self.names.items() if target.startswith(f"{name}.")}
        if args is None:
            self.steps.append(Step(target, uses, None, True, False))
            return self.steps[-1]
        if large and not refs_in(args):
            told = f"*{self.source}, {number})"
        else:
            told = ", ".join(
                f"{self.source}, {number})[{place}]" if is_large(arg) else self.literal(arg)
                for place, arg in enumerate(args)
            )
        self.steps.append(Step(f"{target}({told})", uses, None, False, large, target, told))
        return self.steps[-1]

    def literal(self, item: Any) -> str:
        """A value as Python."""
        if isinstance(item, Ref):
            return self.names.get(item.handle, "...")
        if isinstance(item, torch.Tensor):
            usual = {torch.float32, torch.int64, torch.bool}
            plain = item.dtype in usual and (item.numel() or item.dtype == torch.float32)
            kind = "" if plain else f", dtype={item.dtype}"
            values = item.tolist()
            if item.dtype == torch.float32:  # the fewest digits that mean the same number
                values = item.numpy().astype(str).astype(float).tolist()
            return f"torch.tensor({self.literal(values)}{kind})"
        if isinstance(item, torch.dtype):
            return f"torch.{short(item)}"
        if isinstance(item, list):
            return f"[{', '.join(map(self.literal, item))}]"
        if isinstance(item, tuple):
            return f"({', '.join(map(self.literal, item))}{',' * (len(item) == 1)})"
        if isinstance(item, dict):
            pairs = (f"{self.literal(key)}: {self.literal(part)}" for key, part in item.items())
            return "{" + ", ".join(pairs) + "}"
        if isinstance(item, float) and not math.isfinite(item):
            return f"torch.{item}" if item >= 0 or item != item else "-torch.inf"
        return repr(item)

    def code(self, seen: Any) -> list[str]:
        """The request that gave `seen`, and those before it that its objects have been through."""
        end = self.giving(seen)
        links = [step.touches - self.functions for step in self.steps[:end]]
        last, linked = self.steps[end], set[int]()
        wanted = last.uses - self.functions
        while wanted != linked:  # what holds an object, or is held by it, may change it
            linked = set(wanted)
            wanted.update(*(link for link in links if link & linked))
        kept, used = [end], set(last.uses)
        for number in range(end - 1, -1, -1):
            step = self.steps[number]
            if step.makes in used or (links[number] & wanted and not step.reads):
                kept.append(number)
                used |= step.touches
        kept.reverse()
        imports = {line for number in kept for line in self.imports.get(number, ())}
        lines = []
        for number in kept[:-1]:
            step = self.steps[number]
            name = f"{self.names[step.makes]} = " if step.makes is not None else ""
            if step.reply and step.reply.error:
                imports.add("from contextlib import suppress")
                name = "with suppress(Exception): "
            lines.append(name + step.code)
        if any(self.steps[number].large for number in kept):
            imports.add("from minipaged.course import drawn")
        lines = [*sorted(imports), *lines]
        reply = last.reply or Reply(None, (), None)
        if last.silent or (not is_in(reply.value, seen) and is_in(reply.args_after, seen)):
            return [*lines, f"args = [{last.args}]", f"again = {last.target}(*args), args"]
        return [*lines, f"again = {last.code}"]

    def giving(self, seen: Any) -> int:
        """The step that an object came back from: the last one, or the call before the last readings."""
        for number in range(len(self.steps) - 1, -1, -1):
            step = self.steps[number]
            if step.reply and is_in((step.reply.value, step.reply.args_after), seen):
                return number
            if not step.reads:
                break
        return len(self.steps) - 1


def is_in(item: Any, seen: Any) -> bool:
    """Whether a value is an object, or holds it somewhere."""
    if isinstance(item, dict):
        item = list(item.values())
    return item is seen or (isinstance(item, list | tuple) and any(is_in(i, seen) for i in item))


def refs_in(item: Any) -> list[Ref]:
    """The handles in a value."""
    if isinstance(item, Ref):
        return [item]
    if isinstance(item, dict):
        item = [*item, *item.values()]
    if isinstance(item, list | tuple):
        return [ref for part in item for ref in refs_in(part)]
    return []


def is_large(item: Any) -> bool:
    """Whether a value has a tensor in it that is not written out: too long, or laid out oddly."""
    if isinstance(item, torch.Tensor):
        return item.numel() > FEW or not item.is_contiguous()
    if isinstance(item, dict):
        item = list(item.values())
    return isinstance(item, list | tuple) and any(map(is_large, item))
