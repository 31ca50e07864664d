"""Stops one thread of a process the way a debugger does, and holds it until the process ends.

Usage: stop_thread.py THREAD-ID. Needs the right to trace it. Prints "stopped" once the thread takes no step any more.
A signal would stop the whole process; only a tracer can stop a single thread.
"""

import ctypes
import os
import sys

PTRACE_SEIZE, PTRACE_INTERRUPT, WAIT_ALL = 0x4206, 0x4207, 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
thread = int(sys.argv[1])
for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
    if libc.ptrace(request, thread, None, None) != 0:
        sys.exit("cannot stop thread %d: %s" % (thread, os.strerror(ctypes.get_errno())))
os.waitpid(thread, WAIT_ALL)
print("stopped", flush=True)
while True:
    _, status = os.waitpid(thread, WAIT_ALL)
    if os.WIFEXITED(status) or os.WIFSIGNALED(status):
        break
