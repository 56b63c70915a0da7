"""Runs torch's profiler or a debugger in a running rank, when the job's user requests it.

``sitecustomize.py`` loads this in the main thread when its signal arrives, wherever that thread is. The
requester listens on ``PID.look`` in the private folder. This side connects, reads the request (one line of
JSON), and answers in lines of JSON (the profiler), or runs the debugger on the connection. If nobody listens,
nothing happens.

It follows the same rules as ``sitecustomize.py``: it never fails a script, leaves nothing behind, and imports
nothing of this package.
"""

import json
import os
import pdb
import socket
import sys
import threading

# The running session, with the methods ``proceed`` (the signal came again) and ``finish``.
_session = None
# How long the process waits at its exit for a trace to be written.
_LAST_WAIT_S = 20.0


def on_signal(stem, number, frame):
    """Start the requested session, or continue it; for the main thread."""
    global _session
    if _session is not None:
        _session.proceed()
        return
    connection = _connect(stem + ".look")
    if connection is None:
        return
    line = b""
    while not line.endswith(b"\n"):  # byte by byte: what follows is for the debugger
        line += connection.recv(1) or b"\n"
    request = json.loads(line)
    if request["do"] == "debug":
        _session = _Debugging(connection, number)
        _session.begin(frame)
    else:
        _session = _Profiling(connection, number, stem + ".trace.json")
        _session.begin(float(request["seconds"]))


def at_exit():
    """End the running session, because the process exits."""
    if _session is not None:
        _session.finish()


def _connect(path):
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # By a short name, since the address of a socket ends at 107 bytes.
        connection.connect("/proc/self/fd/%d/%s" % (folder, os.path.basename(path)))
    except OSError:  # nobody waits any more
        connection.close()
        return None
    finally:
        os.close(folder)
    connection.settimeout(10.0)
    return connection


def _over():
    global _session
    _session = None


class _Profiling:
    """torch's profiler for some seconds. It starts and stops in the main thread, as a script's own would."""

    def __init__(self, connection, number, path):
        self._connection, self._number, self._path = connection, number, path
        self._time_is_up = threading.Event()
        self._stopped = threading.Event()
        self._profiler = self._writer = self._prepare = None

    def begin(self, seconds):
        """Start the profiler, unless the script uses it."""
        try:
            problem = self._start()
        except Exception as error:
            problem = "%s: %s" % (type(error).__name__, error)
        if problem:
            _over()
            self._answer(problem=problem)
            self._connection.close()
            return
        self._answer(started=True)
        self._writer = threading.Thread(target=self._write, args=(seconds,), name="profile", daemon=True)
        self._writer.start()

    def proceed(self):
        """Stop after the requested time."""
        if self._time_is_up.is_set():
            self._stop()

    def finish(self):
        """Stop early, because the process exits."""
        self._time_is_up.set()
        self._stop()
        if self._writer is not None:
            self._writer.join(_LAST_WAIT_S)

    def _start(self):
        if "torch" not in sys.modules:
            return "torch is not imported"
        from torch.autograd import profiler
        from torch.profiler import profile

        if profiler._is_profiler_enabled:
            return "the script uses torch's profiler itself"
        self._profiler = profile()
        self._undynamoed(self._profiler.start)
        # If the script starts its own profiler meanwhile, that has priority.
        self._prepare = prepare = profiler.profile._prepare_trace

        def give_way(own):
            self._time_is_up.set()
            self._stop()
            return prepare(own)

        profiler.profile._prepare_trace = give_way
        return ""

    def _stop(self):
        if self._stopped.is_set():
            return
        from torch.autograd import profiler

        profiler.profile._prepare_trace = self._prepare
        try:
            self._undynamoed(self._profiler.stop)
        finally:
            self._stopped.set()

    def _undynamoed(self, act):
        """Call a function that torch.compile must not trace, even if it was tracing when interrupted."""
        if "torch._dynamo" in sys.modules:
            import torch

            act = torch._dynamo.disable(act)
        act()

    def _write(self, seconds):
        if not self._time_is_up.wait(seconds):
            self._time_is_up.set()
            os.kill(os.getpid(), self._number)  # the main thread stops it
        self._stopped.wait()
        answer = {"done": True}
        try:
            self._profiler.export_chrome_trace(self._path)
        except Exception as error:
            answer = {"problem": "%s: %s" % (type(error).__name__, error)}
        self._profiler = None
        _over()  # first, because whoever sees the end may send a new request
        self._answer(**answer)
        self._connection.close()

    def _answer(self, **values):
        try:
            self._connection.sendall(json.dumps(values).encode() + b"\n")
        except OSError:  # nobody waits for it any more
            pass


class _Debugging(pdb.Pdb):
    """pdb on a socket. The rank continues when the debugger quits or its user disconnects."""

    def __init__(self, connection, number):
        connection.settimeout(None)
        self._connection, self._number = connection, number
        self._file = connection.makefile("w", encoding="utf-8", errors="replace")
        self._lines = _Lines(connection, self._on_hang_up)
        self._detached = self._ended = False
        super().__init__(stdin=self._lines, stdout=self._file, nosigint=True, readrc=False)
        self.prompt = "(rank %s) " % os.environ.get("RANK", "?")

    def begin(self, frame):
        """Start the prompt at once, even if the main thread waits in C; trace only on request."""
        self.reset()
        frames = [frame]
        while frames[-1].f_back is not None:
            frames.append(frames[-1].f_back)
        self.botframe = frames[-1]
        self._lines.start()
        self.interaction(frame, None)
        if not self._detached:  # it should stop again
            for one in frames:
                one.f_trace = self.trace_dispatch
            sys.settrace(self.trace_dispatch)

    def trace_dispatch(self, frame, event, arg):
        """Stop tracing once the session is over."""
        result = super().trace_dispatch(frame, event, arg)
        return None if self._detached else result

    def proceed(self):
        """End the session, because its user disconnected while the rank ran."""
        if self._ended:
            self.detach()

    finish = proceed

    def detach(self):
        """Let the rank continue as if there had been no debugger."""
        if not self._detached:
            self._detached = True
            self.clear_all_breaks()
            self.set_continue()
            sys.settrace(None)
            _over()  # first, because whoever sees the end may send a new request
            try:
                self._connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._connection.close()

    def _on_hang_up(self):
        if not self._detached:
            self._ended = True
            os.kill(os.getpid(), self._number)

    def do_continue(self, argument):
        """Continue: to the next breakpoint, or for good."""
        self.set_continue()
        if not self.breaks:
            self.detach()
        return True

    def do_quit(self, argument):
        """End the debugger; the rank continues."""
        self.detach()
        return True

    def do_run(self, argument):
        """Refuse: a rank cannot be started again by itself."""
        self.message("not here: use --max-restarts, or start the job again")

    def do_interact(self, argument):
        """Refuse: it would read from the rank's own input."""
        self.message("not here: use p, pp and !STATEMENT")

    do_c = do_cont = do_continue
    do_q = do_exit = do_EOF = do_quit  # noqa: N815 - pdb's name
    do_restart = do_run

    def message(self, msg):
        """Print a line, unless nobody reads it any more."""
        try:
            super().message(msg)
            self._file.flush()
        except (OSError, ValueError):
            pass


class _Lines:
    """The user's input for pdb, read by a thread, which notices at once when the user disconnects."""

    def __init__(self, connection, on_hang_up):
        from queue import SimpleQueue

        self._lines = SimpleQueue()
        self._connection, self._on_hang_up = connection, on_hang_up

    def start(self):
        threading.Thread(target=self._read, name="debug", daemon=True).start()

    def readline(self):
        """Return the next line; empty at the end."""
        return self._lines.get()

    def _read(self):
        try:
            with self._connection.makefile("r", encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._lines.put(line)
        except (OSError, ValueError):
            pass
        self._lines.put("")
        # Commands from a file end before they are done, so only a closed connection means that the user left.
        from select import poll

        other_side = poll()
        try:
            other_side.register(self._connection, 0)
            other_side.poll()
        except (OSError, ValueError):
            pass
        self._on_hang_up()
