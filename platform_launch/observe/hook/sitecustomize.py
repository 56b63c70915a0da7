"""Makes a job's process observable for its launcher; Python imports this at start, before any script.

Its folder is first on PYTHONPATH, and it acts if PLATFORM_LAUNCH_OBSERVE names a private folder. There, each
process gets ``PID.json`` (its identity), ``PID.stacks`` (faulthandler writes the stacks of all threads there
on a real-time signal, even while a thread holds the GIL) and, once torch.distributed is imported,
``PID.sock`` (torch's own ``_WorkerServer``: the flight recorder of gloo and NCCL). Another real-time signal
starts the profiler or a debugger (``_platform_launch_look.py``). A worker of torchrun also creates
``PPID.torchrun``, a link to the folder that torchrun made for its workers.

Before that it binds a rank to the CPUs that PLATFORM_LAUNCH_BIND lists for it, so that every thread and
child inherits them.

A script must never fail because of this hook: if anything goes wrong here, it is ignored, and nothing is
hooked. It runs under the job's interpreter and imports nothing from this package.
"""

import os
import sys

_FOLDER = "PLATFORM_LAUNCH_OBSERVE"
_BIND = "PLATFORM_LAUNCH_BIND"
_SNAPSHOT = "PLATFORM_LAUNCH_MEMORY_SNAPSHOT"
_HERE = os.path.realpath(os.path.dirname(os.path.abspath(__file__)))
_SERVED = "torch.distributed.distributed_c10d"
_LOOK = "_platform_launch_look"
_LISTENS = "00010000"  # the flags of a listening socket in /proc/net/unix


def _run_the_other_sitecustomize():
    """Run the sitecustomize that this one hides, as Python would have."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    # A launch inside a launch may add another copy of this file, which would find this one again.
    seen = sys.__dict__.setdefault("_platform_launch_hooks", [])
    seen.append(_HERE)
    path = [entry for entry in sys.path if os.path.realpath(entry or ".") not in seen]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _open_to_questions(folder):
    if getattr(sys, "_platform_launch_observed", None) == os.getpid():
        return  # a second hook on the path, of another installation
    sys._platform_launch_observed = os.getpid()
    import atexit

    process = _Process(folder)
    process.offer_stacks()
    process.describe()
    process.name_torchruns_folder()
    atexit.register(process.at_exit)
    if "--multiprocessing-fork" in getattr(sys, "orig_argv", ()):
        return  # a helper of a worker, which has no process groups
    _act_after_import(_SERVED, lambda: _serve(process.stem + ".sock"))
    if os.environ.get(_SNAPSHOT) and process.rank is not None:
        snapshot = "%s%d.pickle" % (os.environ[_SNAPSHOT], process.rank)
        _act_after_import("torch.cuda", lambda: _ours("_platform_launch_memory").prepare(snapshot))


class _Process:
    """This process, as it describes itself in its files."""

    def __init__(self, folder):
        self.pid = os.getpid()
        self.stem = os.path.join(folder, str(self.pid))
        self.rank = _number(os.environ.get("RANK"))
        self.local_rank = _number(os.environ.get("LOCAL_RANK"))
        self.signal = self.look_signal = self.descriptor = self.finished = 0

    def offer_stacks(self):
        """Let faulthandler handle a free signal; one that is already in use is left alone."""
        import faulthandler
        import signal

        number = int(signal.SIGRTMAX) - 3  # those at both ends are used by libc, debuggers and batch systems
        if signal.getsignal(number) is not signal.SIG_DFL:
            return
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.stem + ".stacks", flags, 0o600)
        faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
        self.signal, self.descriptor = number, descriptor
        if self.rank is not None and signal.getsignal(number - 1) is signal.SIG_DFL:
            signal.signal(number - 1, self._on_look)
            self.look_signal = number - 1
        signal.signal = self._giving_way(signal.signal)

    def _giving_way(self, original):
        """Return a ``signal.signal`` that releases our signal if the script wants it for itself."""
        from functools import wraps

        @wraps(original)
        def signal(signalnum, handler):
            ours = signalnum in (self.signal, self.look_signal)
            if ours and signalnum == self.signal:
                self.signal = 0
                os.close(self.descriptor)  # identifies a forked child
            elif ours:
                self.look_signal = 0
            if ours and os.getpid() == self.pid:
                self.describe()
            return original(signalnum, handler)

        return signal

    def _on_look(self, number, frame):
        """Start the profiler or debugger on request; whatever happens, the script continues."""
        if os.getpid() != self.pid:
            return
        try:
            _ours(_LOOK).on_signal(self.stem, number, frame)
        except Exception:
            pass

    def describe(self):
        """Write this process's identity, atomically."""
        from _thread import get_ident

        known = {
            "pid": self.pid,
            "rank": self.rank,
            "local_rank": self.local_rank,
            "main_thread": get_ident(),
            "signal": self.signal,
            "look_signal": self.look_signal,
            "descriptor": self.descriptor,
            "finished": self.finished,
        }
        content = ", ".join('"%s": %s' % (name, "null" if n is None else n) for name, n in known.items())
        descriptor = os.open(
            self.stem + ".part", os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW, 0o600
        )
        os.write(descriptor, ("{%s}\n" % content).encode())
        os.close(descriptor)
        os.rename(self.stem + ".part", self.stem + ".json")

    def name_torchruns_folder(self):
        """Create a link to the temporary folder that torchrun made and will not remove."""
        path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        made = path.rsplit("/", 4)[0]  # it contains RUN/attempt_0/LOCAL_RANK/error.json
        if os.path.basename(made).startswith("torchelastic_"):
            try:
                os.symlink(made, "%s/%d.torchrun" % (os.path.dirname(self.stem), os.getppid()))
            except FileExistsError:  # another rank was first
                pass

    def at_exit(self):
        """Remove the files; for a rank, a record remains that it existed."""
        if os.getpid() != self.pid:
            return
        if _LOOK in sys.modules:
            try:
                sys.modules[_LOOK].at_exit()
            except Exception:
                pass
        _end_service(self.stem + ".sock")
        if self.rank is not None:
            # an exception that ended the process is kept here for debuggers
            self.finished = int(not hasattr(sys, "last_value"))
            self.describe()
        for ending in (".stacks",) if self.rank is not None else (".stacks", ".json"):
            try:
                os.unlink(self.stem + ending)
            except OSError:
                pass


def _ours(name):
    """Load a file next to this one when it is needed; a script may have changed sys.path."""
    if name not in sys.modules:
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location(name, os.path.join(_HERE, name + ".py"))
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


def _number(text):
    return int(text) if text and text.isdigit() and len(text) < 10 else None


def _act_after_import(name, act):
    """Call a function once a module is imported; at once if it already is."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _AfterImport(name, act))


class _AfterImport:
    """Calls a function once, when a module has been imported."""

    def __init__(self, name, act):
        self._name = name
        self._act = act

    def find_spec(self, fullname, path=None, target=None):
        """Find the module as the other finders would, and add a step after its execution."""
        if fullname != self._name:
            return None
        try:
            sys.meta_path.remove(self)
        except ValueError:  # two threads import it at once
            return None
        from importlib.util import find_spec

        spec = find_spec(fullname)
        try:
            execute, act = spec.loader.exec_module, self._act

            def execute_and_act(module):
                execute(module)
                try:
                    act()
                except Exception:
                    pass

            spec.loader.exec_module = execute_and_act
        except AttributeError:  # not found, or its loader cannot be extended
            pass
        return spec


def _serve(path):
    """Start torch's server on a socket. Raises whatever a torch without such a server raises."""
    from torch._C._distributed_c10d import _WorkerServer

    # By a short name, since the address of a socket ends at 107 bytes.
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_CLOEXEC)

    if os.path.exists(path):  # this process was another program before (exec)
        os.unlink(path)

    def start():
        global _server
        _server = _WorkerServer("/proc/self/fd/%d/%s" % (folder, os.path.basename(path)))

    try:
        _without_words(start)
    finally:
        os.close(folder)
    os.chmod(path, 0o600)


def _end_service(path):
    """Stop the server before the interpreter does, which would print three lines.

    While torch waits for running answers, it holds the GIL, which the stacks of all threads need. So first,
    new requests are refused, and running ones are answered.
    """
    global _server
    if _server is None:
        return
    try:
        os.unlink(path)
    except OSError:
        pass
    try:
        import time

        deadline = time.monotonic() + 5  # for a client that connects and then does nothing
        while _asks_somebody(path) and time.monotonic() < deadline:
            time.sleep(0.01)
    except Exception:
        pass
    try:
        _without_words(_server.shutdown)
    except Exception:
        pass
    _server = None


def _asks_somebody(path):
    """Return whether a connection to our socket is open or waits to be accepted."""
    ending = "/" + os.path.basename(path)
    with open("/proc/net/unix", errors="replace") as sockets:  # others may name theirs by any bytes
        return any(line.rstrip().endswith(ending) and line.split()[3] != _LISTENS for line in sockets)


def _without_words(act):
    """Call a function without the lines that torch prints to stderr."""
    saved, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.set_inheritable(saved, False)
    try:
        os.dup2(nothing, 2)
        act()
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nothing)


def _bind():
    """Bind this rank to its CPUs, before anything starts threads. Its children inherit the binding."""
    rank = _number(os.environ.get("LOCAL_RANK"))
    if rank is None or not os.environ.get(_BIND):
        return  # a launcher, whose ranks are bound
    cpus = os.environ.pop(_BIND).split(";")
    wanted = set()
    for part in cpus[rank].split(",") if rank < len(cpus) else ():
        first, _, last = part.partition("-")
        wanted.update(range(int(first), int(last or first) + 1))
    if wanted:
        os.sched_setaffinity(0, wanted)


_server = None
try:
    _bind()
except Exception:
    pass
try:
    _run_the_other_sitecustomize()
finally:
    try:
        if os.environ.get(_FOLDER):
            _open_to_questions(os.environ[_FOLDER])
    except Exception:
        pass
    try:
        if os.environ.get(_FOLDER) and not hasattr(sys, "_platform_launch_stop"):
            import _platform_launch_stop

            sys._platform_launch_stop = _platform_launch_stop
            _platform_launch_stop.prepare(_act_after_import)
    except Exception:
        pass
    try:
        if os.environ.get("PLATFORM_LAUNCH_DRILL") and hasattr(sys, "_platform_launch_stop"):
            import _platform_launch_drill

            _platform_launch_drill.prepare(_act_after_import)
    except Exception:
        pass
