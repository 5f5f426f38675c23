"""What runs inside the sandbox: a warmed parent, and one child for each exercise of a submission.

    python -I -S worker.py '{"mode": "bubblewrap", "control": 3, "paths": [...], ...}'

The parent imports torch once and never sees learner's code, references or verdicts. For each job
it gets two descriptors and forks a supervisor, which makes namespaces and forks the child: pid 1
of its own world. The supervisor keeps the leash: when the marker lets go of it, or the child uses
too much memory, the child is killed, and with it everything that it started.

This file is run by its path and imports nothing of the package but the codec beside it.
"""

import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NoReturn

MAX_FRAME = 256 << 20
LINUX = sys.platform == "linux"

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000,
    0x04000000,
    0x08000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
SET_DUMPABLE, CAPBSET_DROP, SET_NO_NEW_PRIVS, SET_PDEATHSIG, SET_SECCOMP = (4, 24, 38, 1, 22)
NOSUID_NODEV_NOEXEC = 2 | 4 | 8


# --- frames: 4 bytes of length, JSON, and the bytes of tensors ----------------------------------


def send_frame(channel: socket.socket, header: dict[str, Any], blobs: list[bytes]) -> None:
    """Send a header and blobs; the header tells their sizes."""
    text = json.dumps({**header, "sizes": [len(blob) for blob in blobs]}).encode()
    channel.sendall(b"".join([struct.pack(">I", len(text)), text, *blobs]))


def receive_frame(channel: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """The next header and its blobs; EOFError when the other side is gone."""
    (size,) = struct.unpack(">I", receive(channel, 4))
    header = json.loads(receive(channel, size))
    return header, [receive(channel, size) for size in header.pop("sizes")]


def receive(channel: socket.socket, size: int) -> bytes:
    """Exactly so many bytes."""
    if size > MAX_FRAME:
        raise EOFError("frame too large")
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


# --- the child: loads one exercise's source and answers requests ---------------------------------


def serve(channel: socket.socket, folder: str, codec: ModuleType) -> None:
    """Load what the first frame brings, then answer until the channel closes."""
    job, _ = receive_frame(channel)
    try:
        module = load(job, folder)
    except BaseException as raised:
        send_frame(channel, {"id": job["id"], "error": error_of(raised, codec)}, [])
        return
    send_frame(channel, {"id": job["id"], "error": None}, [])
    hosts: dict[int, Any] = {}
    while True:
        request, blobs = receive_frame(channel)
        if request["subject"] not in hosts:
            hosts = {request["subject"]: codec.Host(module)}
            gc.collect()
        answer = respond(hosts[request["subject"]], codec.Message(request["tree"], blobs), codec)
        send_frame(channel, {"id": request["id"], "tree": answer.tree}, answer.storages)


def respond(host: Any, request: Any, codec: ModuleType) -> Any:
    """An answer to one request, whatever is raised."""
    try:
        return host.serve(request)
    except BaseException as raised:
        _, _, args, _ = codec.decode(request, host.find)
        return codec.encode((None, args, tuple(error_of(raised, codec))), host.keep)


def error_of(raised: BaseException, codec: ModuleType) -> list[str]:
    """The fields of the codec's `Error`, its text as far as it has one."""
    try:
        text = str(raised)[:2000]
    except BaseException:
        text = ""
    return [codec.builtin_name(raised), text, type(raised).__name__, ""]


def load(job: dict[str, Any], folder: str) -> ModuleType:
    """Write the view of the package and the source into the child's own folder, and import it."""
    for name, text in job["view"].items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    if job["data"]:
        os.symlink(job["data"], os.path.join(folder, "minipaged", "data"))
    sys.path.insert(0, folder)
    path = os.path.join(folder, f"{job['name']}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(job["source"])
    spec = importlib.util.spec_from_file_location(job["name"], path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[job["name"]] = module
    spec.loader.exec_module(module)
    return module


# --- the walls ----------------------------------------------------------------------------------

libc = ctypes.CDLL(None, use_errno=True)


def system(name: str, *args: Any) -> None:
    """Call a function of the C library; OSError where it fails."""
    if getattr(libc, name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def own_namespaces() -> None:
    """Leave the parent's world, but for its mounts; the next fork is pid 1 of a new one."""
    uid, gid = os.geteuid(), os.getegid()
    system("prctl", SET_DUMPABLE, 1, 0, 0, 0)
    system("unshare", NEWUSER | NEWPID | NEWNET | NEWIPC | NEWUTS)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def own_folders() -> None:
    """Mounts of one's own: empty folders over all that could be shared, and no /proc."""
    system("unshare", NEWNS)
    for target, options in (
        ("/tmp", "size=64m,nr_inodes=2048,mode=0700"),
        ("/dev/shm", "size=1m,nr_inodes=16,mode=0700"),
        ("/proc", "size=4k,nr_inodes=1,mode=0500"),
    ):
        flags = NOSUID_NODEV_NOEXEC
        system("mount", b"tmpfs", target.encode(), b"tmpfs", flags, options.encode())


def become(uid: int) -> None:
    """Take a user of one's own, for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def address_space() -> int:
    """Bytes of addresses that this process has; 0 where that cannot be known."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
    return 0


def limit(limits: dict[str, int], taken: int) -> None:
    """Set the limits that the kernel keeps; a system without one of them goes without.

    Args:
        taken: addresses that torch's libraries have; a build for GPUs takes many.
    """
    for name, value in (
        ("RLIMIT_CPU", limits["cpu_seconds"]),
        ("RLIMIT_AS", taken + limits["address_space"]),
        ("RLIMIT_NPROC", limits["processes"]),
        ("RLIMIT_FSIZE", limits["file_bytes"]),
        ("RLIMIT_NOFILE", limits["open_files"]),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_MSGQUEUE", 0),
        ("RLIMIT_MEMLOCK", 0),
    ):
        number = getattr(resource, name, None)
        if number is not None:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(number, (value, value))


def drop_privileges() -> None:
    """No capabilities, none to be had, and no system call that a solution has no use for."""
    for capability in range(64):
        libc.prctl(CAPBSET_DROP, capability, 0, 0, 0)
    header = struct.pack("Ii", 0x20080522, 0)
    system("capset", header, bytes(24))
    system("prctl", SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    refuse_system_calls()


# Number on x86_64 and on aarch64: sockets, shared memory that no limit counts, namespaces, mounts,
# other processes' memory, and parts of the kernel that are often at fault.
REFUSED = {
    "socket": (41, 198),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "personality": (135, 92),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "swapon": (167, 224),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
}
CLONE, CLONE3 = (56, 220), 435
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def refuse_system_calls() -> None:
    """A seccomp filter: the calls above fail, and so does a clone into new namespaces."""
    if os.uname().machine not in MACHINES:
        return
    column, architecture = MACHINES[os.uname().machine]
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, errno = 0x7FFF0000, 0x80000000, 0x00050000
    no_permission, no_such_call = errno | 1, errno | 38
    code = [
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        (give, 0, 0, kill),
        (load, 0, 0, 0),
        (at_least, 0, 1, 0x40000000),  # the other way to call an x86_64 kernel
        (give, 0, 0, no_permission),
        (equal, 0, 1, CLONE3),
        (give, 0, 0, no_such_call),
    ]
    for numbers in REFUSED.values():
        code += [(equal, 0, 1, numbers[column]), (give, 0, 0, no_permission)]
    code += [
        (equal, 0, 3, CLONE[column]),
        (load, 0, 0, 16),
        (any_bit, 0, 1, 0x7E020080),
        (give, 0, 0, no_permission),
        (give, 0, 0, allow),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    pointer = struct.pack("HxxxxxxP", len(code), ctypes.addressof(program))
    system("prctl", SET_SECCOMP, 2, pointer, 0, 0)


def keep_only(keep: int) -> None:
    """Nothing to read on stdin, nowhere to write, and no descriptor but one."""
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(3, keep)
    os.closerange(keep + 1, 65536)


# --- the supervisor -----------------------------------------------------------------------------


def supervise(config: dict[str, Any], number: int, channel: socket.socket, leash: int) -> None:
    """Fork the child into a world of its own, and wait for its end or bring it about."""
    mode, uid = config["mode"], config["uid"] + number % 1000
    folder = "/tmp"
    if mode == "bubblewrap":
        if config["own_user"]:
            become(uid)
        uid = os.getuid()
        own_namespaces()
    else:
        folder = tempfile.mkdtemp(prefix="minipaged-box-")
        if mode == "user":
            os.chown(folder, uid, uid)
    pid = os.fork()
    if pid == 0:
        os.close(leash)
        child(config, uid, channel, folder)
    channel.close()
    try:
        report = watch(pid, uid, leash, config)
    finally:
        if mode == "user":
            end_everything_of(uid)
        if mode != "bubblewrap":
            shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.write(leash, json.dumps(report).encode())


def child(config: dict[str, Any], uid: int, channel: socket.socket, folder: str) -> NoReturn:
    """Raise the walls, then serve. Never returns."""
    try:
        os.setsid()
        taken = address_space()
        if config["mode"] == "bubblewrap":
            own_folders()
        if config["mode"] == "user":
            become(uid)
        keep_only(channel.fileno())
        os.chdir(folder)
        limit(config["limits"], taken)
        if LINUX:
            drop_privileges()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        random.seed()
        codec = sys.modules["codec"]
        codec.torch.manual_seed(random.getrandbits(60))  # type: ignore[attr-defined]
        serve(channel, folder, codec)
    except BaseException:
        os._exit(70)
    os._exit(0)


def watch(pid: int, uid: int, leash: int, config: dict[str, Any]) -> dict[str, Any]:
    """Wait for the child's end. Kill it when the leash is let go or memory runs out."""
    report: dict[str, Any] = {"memory": False}
    base = memory_of(os.getpid())
    waiting = [leash]
    if LINUX:
        waiting.append(os.pidfd_open(pid))
    while True:
        ready, _, _ = select.select(waiting, [], [], 0.03)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if memory_used(pid, uid, config["mode"], base) > config["limits"]["memory"]:
            report["memory"] = True
        if report["memory"] or leash in ready:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            break
    report["status"] = os.waitstatus_to_exitcode(status)
    return report


def memory_used(pid: int, uid: int, mode: str, base: int) -> int:
    """Bytes of memory of the child and of all that it started, beyond what each had at first."""
    return sum(max(0, memory_of(other) - base) for other in processes(pid, uid, mode))


def memory_of(pid: int) -> int:
    """Bytes of a process that are no file's; 0 where that cannot be known."""
    total = 0
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1]) << 10
    return total


def processes(pid: int, uid: int, mode: str) -> Iterator[int]:
    """The child and, where it has a user of its own, every other process of that user."""
    if not LINUX:
        return
    if mode == "none":
        yield pid
        return
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and int(name) != os.getpid():
                if os.stat(f"/proc/{name}").st_uid == uid or int(name) == pid:
                    yield int(name)


def end_everything_of(uid: int) -> None:
    """Kill all processes of a user. Needs root."""
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            os.setresuid(uid, uid, uid)
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)
            os._exit(0)
        os.waitpid(pid, 0)


# --- the parent ---------------------------------------------------------------------------------


def warm(codec: ModuleType) -> None:
    """Do once what each child would do again: imports, and torch's first steps."""
    torch = codec.torch  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)
    for name in ("numpy", "dataclasses", "typing", "collections", "heapq", "functools", "math"):
        importlib.import_module(name)
    for name in ("safetensors.torch", "tokenizers", "triton", "triton.language"):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    x = torch.randn(2, 4, 8)
    torch.nn.functional.scaled_dot_product_attention(x, x, x)
    (x @ x.transpose(1, 2)).softmax(-1).double().logsumexp(-1).sum().item()
    torch.einsum("abc,abc->ab", x, x)
    gc.collect()
    gc.freeze()


def main() -> None:
    config = json.loads(sys.argv[1])
    sys.argv = sys.argv[:1]
    sys.dont_write_bytecode = True
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(__file__)]
    sys.path += [path for path in config["paths"] if path not in sys.path]
    spec = importlib.util.spec_from_file_location("codec", config["codec"])
    assert spec and spec.loader
    codec = importlib.util.module_from_spec(spec)
    sys.modules["codec"] = codec
    spec.loader.exec_module(codec)
    warm(codec)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = socket.socket(fileno=config["control"])
    control.sendall(b"R")
    number = 0
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not order or len(descriptors) != 2:
            return
        number += 1
        if os.fork() == 0:
            status = 1
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                channel, leash = socket.socket(fileno=descriptors[0]), descriptors[1]
                supervise(config, number, channel, leash)
                status = 0
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.write(descriptors[1], json.dumps({"refused": str(error)[:500]}).encode())
            finally:
                os._exit(status)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    main()
