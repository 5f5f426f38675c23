"""Forged submissions: each gets no points, says why, and costs no other submission anything."""

import socket
import subprocess
import textwrap
import time
from dataclasses import replace

import pytest

from minipaged.course.kit.catalogue import ROOT
from tests.grading_tools import LIMITS, marked, sandbox, source

SLOT = "def slot_of(block_ids: list[int], token_idx: int, block_size: int) -> int:\n"


def slot_of(body: str, before: str = "") -> str:
    """A cell that defines slot_of by a body."""
    return textwrap.dedent(before) + "\n" + SLOT + textwrap.indent(textwrap.dedent(body), "    ")


EVERYTHING = """
class Everything(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __lt__(self, other): return True
    def __le__(self, other): return True
    def __bool__(self): return True
    def __getattr__(self, name): return self
    def __call__(self, *args): return self
"""

SEARCH = """
def found_anywhere(names):
    import gc, sys
    seen = []
    for thing in gc.get_objects():
        if type(thing) is dict:
            seen += [thing[name] for name in names if name in thing]
    frame = sys._getframe()
    while frame:
        seen += [frame.f_locals[name] for name in names if name in frame.f_locals]
        frame = frame.f_back
    return seen
"""

# Each writes what it can reach as a claim of its own and then returns nothing of use.
FLOOD = """
def flood(data):
    import os
    for number in range(3, 64):
        try:
            os.write(number, data)
        except OSError:
            pass
"""

FORGED = {
    "an object equal to everything": slot_of("return Everything()", EVERYTHING),
    "a class that is an int by name": slot_of(
        "return int(1)", "class int(int):\n    def __eq__(self, other): return True\n"
    ),
    "an int subclass with the right value": slot_of(
        """
        class Number(int):
            pass
        return Number(block_ids[token_idx // block_size] * block_size + token_idx % block_size)
        """
    ),
    "a bool for a number": slot_of("return True"),
    "a float with the right value": slot_of(
        "return float(block_ids[token_idx // block_size] * block_size + token_idx % block_size)"
    ),
    "os._exit(0)": slot_of("import os\nos._exit(0)"),
    "sys.exit(0)": slot_of("import sys\nsys.exit(0)"),
    "an atexit hook that exits": slot_of(
        "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)"
    ),
    "KeyboardInterrupt": slot_of("raise KeyboardInterrupt"),
    "a number out of a table of public cases": slot_of(
        "return {9: 23, 0: 48, 5: 21}.get(token_idx, 23)"
    ),
    "patched equality of torch, json and builtins": slot_of(
        """
        import builtins, json, math, torch
        torch.equal = torch.allclose = lambda *args, **kwargs: True
        math.isclose = lambda *args, **kwargs: True
        json.dumps = lambda *args, **kwargs: '{"id": 0, "tree": true, "sizes": []}'
        builtins.isinstance = lambda *args: True
        builtins.all = lambda *args: True
        return 0
        """
    ),
    "a patched codec": slot_of(
        """
        import sys
        codec = sys.modules["codec"]
        codec.encode = lambda value, keep: codec.Message(["tuple", [None, None, None]], [])
        return 0
        """
    ),
    "replies and verdicts on every descriptor": slot_of(
        """
        text = b'{"id": "0", "tree": ["int", "0"], "sizes": [], "status": "passed", "score": 9}'
        flood(len(text).to_bytes(4, "big") + text)
        return 0
        """,
        FLOOD,
    ),
    "endless replies": slot_of("while True:\n    flood(b'x' * 65536)", FLOOD),
    "a huge reply": slot_of("return 'x' * (100 << 20)"),
    "a tensor that claims to be huge": slot_of(
        "import torch\nreturn torch.zeros(1).expand(1 << 40)"
    ),
    "a list of a million": slot_of("return [0] * 1_000_000"),
    "a list in itself": slot_of("a = []\na.append(a)\nreturn a"),
    "a deep list": slot_of("a = 0\nfor _ in range(5000):\n    a = [a]\nreturn a"),
    "input transformers": slot_of(
        """
        from IPython import get_ipython
        get_ipython().input_transformers_cleanup.append(lambda lines: [])
        return 0
        """
    ),
    "import hooks": slot_of(
        """
        import sys
        class Hook:
            def find_spec(self, name, path=None, target=None):
                return None
        sys.meta_path.insert(0, Hook())
        for name in list(sys.modules):
            if "minipaged" in name or name == "torch":
                del sys.modules[name]
        return 0
        """
    ),
    "the stack and gc searched for what is due": slot_of(
        """
        seen = found_anywhere(["due", "expected", "draw", "seed", "verdict"])
        return seen[0] if seen else 0
        """,
        SEARCH,
    ),
    "the answer from the package": slot_of(
        "from minipaged.block_table import slot_of as ours\n"
        "return ours(block_ids, token_idx, block_size)"
    ),
    "the answer from the package through a later module": slot_of(
        "import minipaged.paged_cache as later\n"
        "return later.slot_of(block_ids, token_idx, block_size)"
    ),
    "the answer from the package's file": slot_of(
        f"""
        import importlib.util
        for place in ({str(ROOT)!r}, "/course", "/libraries", "/tmp"):
            try:
                spec = importlib.util.spec_from_file_location(
                    "a", place + "/minipaged/block_table.py")
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module.slot_of(block_ids, token_idx, block_size)
            except OSError:
                pass
        return 0
        """
    ),
    "the reference found on the disk": slot_of(
        """
        import os
        for place, folders, names in os.walk("/"):
            for name in names:
                if name == "block_table.py" or name.startswith(("lesson_0", "test_", "04_")):
                    text = open(os.path.join(place, name), errors="replace").read()
                    if "token_idx // block_size" in text:
                        space = {}
                        exec(text, space)
                        return space["slot_of"](block_ids, token_idx, block_size)
        return 0
        """
    ),
    "the parent's memory": slot_of(
        """
        import os
        for number in range(1, 40):
            for name in ("mem", "environ", "cmdline", "maps"):
                try:
                    open(f"/proc/{number}/{name}", "rb").read(10)
                    return block_ids[token_idx // block_size] * block_size + token_idx % block_size
                except OSError:
                    pass
        return 0
        """
    ),
    "SIGKILL to all": slot_of(
        """
        import os, signal
        for pid in [os.getppid(), -1, *range(2, 50)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        os.kill(os.getpid(), signal.SIGSEGV)
        return 0
        """
    ),
    "a segmentation fault": slot_of("import ctypes\nctypes.string_at(0)"),
    "deep recursion": slot_of(
        """
        import sys
        sys.setrecursionlimit(10**9)
        def down(n): return [down(n + 1)]
        return down(0)
        """
    ),
    "while True": slot_of("while True:\n    pass"),
    "sleep": slot_of("import time\ntime.sleep(10**6)"),
    "a fork bomb": slot_of(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    ),
    "a thread bomb": slot_of(
        """
        import threading, time
        while True:
            try:
                threading.Thread(target=time.sleep, args=(1000,)).start()
            except RuntimeError:
                pass
        """
    ),
    "100 GB of memory": slot_of(
        "keep = []\nwhile True:\n    keep.append(bytearray(b'x') * (64 << 20))"
    ),
    "100 GB of memory in many processes": slot_of(
        """
        import os
        for _ in range(8):
            try:
                if os.fork() == 0:
                    break
            except OSError:
                pass
        keep = []
        while True:
            keep.append(bytearray(b'x') * (16 << 20))
        """
    ),
    "memory in files": slot_of(
        """
        number = 0
        while True:
            with open(f"/tmp/{number}", "wb") as file:
                file.write(b"x" * (8 << 20))
            number += 1
        """
    ),
    "an endless file": slot_of(
        "with open('/tmp/file', 'wb') as file:\n    while True:\n        file.write(b'x' * 65536)"
    ),
    "endless output": slot_of("while True:\n    print('x' * 100_000)"),
    "an exception with a hostile text": slot_of(
        """
        class Mine(Exception):
            def __str__(self): raise SystemExit
        raise Mine
        """
    ),
    "control characters in a message": slot_of(
        "raise ValueError('\\x1b[2J\\x1b]0;title\\x07<script>alert(1)</script>\\ud800\\u202e')"
    ),
    "the codec's host taught to say what it was asked": slot_of(
        """
        import sys
        codec = sys.modules["codec"]
        serve = codec.Host.serve
        def talk(self, request):
            codec.decode(request, self.find)
            return codec.encode((request.tree, (), None), self.keep)
        codec.Host.serve = talk
        return 0
        """
    ),
    "the worker's functions replaced": slot_of(
        """
        import __main__ as worker
        worker.send_frame = lambda channel, header, blobs: channel.sendall(b"\\0\\0\\0\\2{}")
        return 0
        """
    ),
    "the descriptor closed, and another in its place": slot_of(
        """
        import os, socket
        for number in range(3, 48):
            try:
                os.close(number)
            except OSError:
                pass
        keep = [socket.socketpair() for _ in range(4)]
        return 0
        """
    ),
    "the line closed, and no end": slot_of(
        "import os, time\nos.closerange(3, 64)\ntime.sleep(1000)"
    ),
    "the line shut, and no end": slot_of(
        """
        import socket, time
        for number in range(3, 20):
            try:
                socket.socket(fileno=number).shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        time.sleep(1000)
        """
    ),
    "a child that answers after its parent": slot_of(
        "import os\nif os.fork():\n    os._exit(0)\nimport time\ntime.sleep(1)\nreturn 0"
    ),
    "two processes that both answer": slot_of("import os\nos.fork()\nreturn 0"),
    "descriptors handed to the marker": slot_of(
        """
        import os, socket
        for number in range(3, 20):
            try:
                channel = socket.socket(fileno=os.dup(number))
                socket.send_fds(channel, [b"\\0\\0\\0\\2{}"], [0, 1, 2])
            except OSError:
                pass
        return 0
        """
    ),
    "new namespaces and mounts": slot_of(
        """
        import ctypes
        libc = ctypes.CDLL(None)
        free = [libc.unshare(0x10000000), libc.setuid(0), libc.chroot(b"/tmp"),
                libc.mount(b"proc", b"/proc", b"proc", 0, None), libc.umount2(b"/proc", 2)]
        if 0 in free:
            return block_ids[token_idx // block_size] * block_size + token_idx % block_size
        return 0
        """
    ),
    "memory that all see": slot_of(
        """
        import ctypes, mmap
        libc = ctypes.CDLL(None)
        free = [libc.shmget(0, 1 << 30, 0o1600), libc.memfd_create(b"x", 0)]
        if max(free) >= 0:
            return block_ids[token_idx // block_size] * block_size + token_idx % block_size
        keep = [mmap.mmap(-1, 1 << 28) for _ in range(20)]
        for part in keep:
            part[:: 4096] = b"x" * len(part[:: 4096])
        return 0
        """
    ),
    "work while it is loaded": "import os\n\n@os._exit\n" + SLOT + "    return 0\n",
    "no definition at all but a loop in a decorator": (
        "def forever(f):\n    while True:\n        pass\n\n\n@forever\n" + SLOT + "    return 0\n"
    ),
}


STUBS = ("the answer from the package", "the answer from the package's file")  # all they find


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never ends is waited for a short while; what is right takes a tenth of it."""
    monkeypatch.setattr(sandbox(), "limits", replace(LIMITS, call_seconds=1.5))


@pytest.mark.parametrize("name", FORGED)
def test_forged_submission_gets_nothing(name: str) -> None:
    outcome = marked("04.2", FORGED[name])
    due = "not done" if name in STUBS else "failed"
    assert outcome.status == due, (outcome.status, outcome.full)
    assert outcome.points == 0
    assert outcome.because or outcome.status == "not done"
    for text in (outcome.saw, outcome.because):
        assert "\x1b" not in text
        text.encode("utf-8")


def test_reference_still_passes_after_the_forged_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox(), "limits", LIMITS)
    outcome = marked("04.2", source("04.2"))
    assert (outcome.status, outcome.points) == ("passed", 1)


def test_infinite_loop_ends_within_its_limit() -> None:
    start = time.monotonic()
    outcome = marked("04.2", FORGED["while True"])
    assert "longer than" in outcome.saw
    assert time.monotonic() - start < sandbox().limits.call_seconds + 3


def test_memory_bomb_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox(), "limits", LIMITS)
    for name in ("100 GB of memory", "100 GB of memory in many processes"):
        outcome = marked("04.2", FORGED[name])
        assert "1024 MB of memory" in outcome.saw or outcome.saw == "MemoryError", outcome


def test_no_connection_leaves_the_sandbox() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        text = slot_of(
            f"""
            import socket
            with socket.create_connection(("127.0.0.1", {port}), timeout=2) as there:
                there.sendall(b"hello")
            return 0
            """
        )
        assert marked("04.2", text).status == "failed"
        with pytest.raises(TimeoutError):
            listener.accept()


def test_no_daemon_is_left_behind() -> None:
    text = slot_of(
        """
        import os
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    pass
            os._exit(0)
        return 0
        """
    )
    marked("04.2", text)
    time.sleep(0.3)
    process = sandbox().process
    assert process is not None
    shown = subprocess.run(
        ["ps", "-eo", "pid,uid,stat,time,args"], capture_output=True, text=True, check=True
    ).stdout
    left = [line for line in shown.splitlines() if 61000 <= int_or_0(line.split()[1]) < 66000]
    assert not [line for line in left if " R" in line], left


def int_or_0(text: str) -> int:
    return int(text) if text.isdigit() else 0


def test_a_file_of_one_submission_is_not_there_for_the_next() -> None:
    leave = slot_of(
        """
        import os
        for place in ("/tmp", "/dev/shm", "/", "/course", "/libraries", "/dev", "/proc", "."):
            try:
                with open(os.path.join(place, "answer"), "w") as file:
                    file.write("23")
            except OSError:
                pass
        return 0
        """
    )
    take = slot_of(
        """
        import os
        for place in ("/tmp", "/dev/shm", "/", "/course", "/libraries", "/dev", "/proc", "."):
            if os.path.exists(os.path.join(place, "answer")):
                return block_ids[token_idx // block_size] * block_size + token_idx % block_size
        return 0
        """
    )
    assert marked("04.2", leave).status == "failed"
    assert marked("04.2", take).status == "failed"


WRITE_KV = """
def write_kv(k_cache, v_cache, k, v, slot_mapping):
    {body}
"""

GATHER = """
def gather_kv(k_cache, v_cache, block_table, seq_len):
    {body}
"""

TENSORS = {
    "zeros": "return (k_cache.new_zeros(seq_len, *k_cache.shape[2:]),) * 2",
    "NaN": "return (k_cache.new_full((seq_len, *k_cache.shape[2:]), float('nan')),) * 2",
    "stale memory": "return (k_cache.new_empty(seq_len, *k_cache.shape[2:]),) * 2",
    "a wrong dtype": (
        "ids = torch.tensor(list(block_table)[: -(-seq_len // k_cache.shape[1])])\n"
        "    return tuple(c[ids].flatten(0, 1)[:seq_len].double() for c in (k_cache, v_cache))"
    ),
    "the inputs": "return k_cache, v_cache",
    "views of the first blocks": (
        "return k_cache.flatten(0, 1)[:seq_len], v_cache.flatten(0, 1)[:seq_len]"
    ),
    "a right answer out of inputs that it destroys": (
        "ids = torch.tensor(list(block_table)[: -(-seq_len // k_cache.shape[1])])\n"
        "    out = tuple(c[ids].flatten(0, 1)[:seq_len].clone() for c in (k_cache, v_cache))\n"
        "    k_cache.zero_(); v_cache.zero_()\n"
        "    return out"
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_forged_tensors_get_nothing(name: str) -> None:
    outcome = marked("04.5", GATHER.format(body=TENSORS[name]))
    assert (outcome.status, outcome.points) == ("failed", 0), outcome.full


def test_writing_nothing_gets_nothing() -> None:
    assert marked("04.4", WRITE_KV.format(body="return None")).status == "failed"
