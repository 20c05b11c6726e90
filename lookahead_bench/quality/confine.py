"""What a process can no longer do once `confine` returned, held by the kernel; Linux on x86-64.

A seccomp filter (seccomp(2)) lets through the system calls that computing and reading need. It refuses
everything else: sockets, new processes, programs, signals to others, and files opened to be written, made,
renamed, removed or changed. The rest is resource limits (setrlimit(2)). Neither can be undone.

Imports the standard library alone: it runs before anything else in the process that is confined.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct

ALLOWED = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "pread64": 17, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "select": 23, "sched_yield": 24,
    "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37,
    "setitimer": 38, "getpid": 39, "exit": 60, "uname": 63, "getcwd": 79, "readlink": 89, "gettimeofday": 96,
    "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107,
    "getegid": 108, "getppid": 110, "sigaltstack": 131, "statfs": 137, "gettid": 186, "time": 201, "futex": 202,
    "sched_getaffinity": 204, "getdents64": 217, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262, "readlinkat": 267, "faccessat": 269,
    "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "dup3": 292, "pipe2": 293, "getrandom": 318,
    "membarrier": 324, "statx": 332, "rseq": 334, "faccessat2": 439,
}  # fmt: skip
"""System calls by their numbers on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl)."""
ABSENT = {"clone3": 435, "openat2": 437}
"""Said to be missing: their flags can't be seen, and the C library then takes clone and openat."""
_OPENAT, _CLONE, _IOCTL = 257, 56, 16
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CLONE_THREAD = 0x10000
_HARMLESS_IOCTLS = (0x5401, 0x5450, 0x5451)  # TCGETS, FIONCLEX, FIOCLEX
_ARCHITECTURE = 0xC000003E  # AUDIT_ARCH_X86_64
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # struct sock_filter's codes
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_CAPABILITIES = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_SYS_CAPSET = 126


def confine(cpu_seconds: int, memory_bytes: int, open_files: int) -> None:
    """Confine this process and its threads for good.

    Args:
        cpu_seconds: SIGXCPU ends the process after these, SIGKILL a second later.
        memory_bytes: most address space.
        open_files: most open files. None can be written; what is open already can be.

    Raises:
        OSError: the kernel refuses, or this is not Linux on x86-64.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, f"confinement needs Linux on x86_64, this is {platform.system()} on {platform.machine()}")
    limits = {
        resource.RLIMIT_CPU: (cpu_seconds, cpu_seconds + 1),
        resource.RLIMIT_AS: (memory_bytes, memory_bytes),
        resource.RLIMIT_NOFILE: (open_files, open_files),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for limit, values in limits.items():
        resource.setrlimit(limit, values)
    libc = ctypes.CDLL(None, use_errno=True)
    _drop_capabilities(libc)
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    program = ctypes.create_string_buffer(filter_program())
    count = len(program.raw) // 8
    header = struct.pack("HxxxxxxQ", count, ctypes.addressof(program))
    _check(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(header, len(header)), 0, 0))


def filter_program() -> bytes:
    """The filter as struct sock_filter [n]: code, jump if true, jump if false, operand."""
    refuse = _return(_ERRNO | errno.EPERM)
    code = [
        *_load(4), _jump(_EQUAL, _ARCHITECTURE, 1, 0), _return(_KILL),
        *_load(0), _jump(_AT_LEAST, _X32, 0, 1), _return(_KILL),
    ]  # fmt: skip
    for number in ALLOWED.values():
        code += [_jump(_EQUAL, number, 0, 1), _return(_ALLOW)]
    for number in ABSENT.values():
        code += [_jump(_EQUAL, number, 0, 1), _return(_ERRNO | errno.ENOSYS)]
    opening = [*_argument(2), _jump(_ANY_BIT, _WRITES, 1, 0), _return(_ALLOW), refuse]
    cloning = [*_argument(0), _jump(_ANY_BIT, _CLONE_THREAD, 0, 1), _return(_ALLOW), refuse]
    device = [*_argument(1)]
    for command in _HARMLESS_IOCTLS:
        device += [_jump(_EQUAL, command, 0, 1), _return(_ALLOW)]
    for number, rules in ((_OPENAT, opening), (_CLONE, cloning), (_IOCTL, [*device, refuse])):
        code += [_jump(_EQUAL, number, 0, len(rules)), *rules]
    return b"".join([*code, refuse])


def _load(offset: int) -> list[bytes]:
    """Load 32 bits of struct seccomp_data: the number at 0, the architecture at 4, arguments from 16 on."""
    return [struct.pack("HBBI", _LOAD, 0, 0, offset)]


def _argument(index: int) -> list[bytes]:
    return _load(16 + 8 * index)


def _jump(code: int, operand: int, true: int, false: int) -> bytes:
    return struct.pack("HBBI", code, true, false, operand)


def _return(action: int) -> bytes:
    return struct.pack("HBBI", _RETURN, 0, 0, action)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up what root may do beyond its own files."""
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITIES, 0), 8)
    _check(libc.syscall(_SYS_CAPSET, header, ctypes.create_string_buffer(24)))


def _check(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
