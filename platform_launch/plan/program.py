"""What a job runs: a Python script, a Python module, or a command."""

from __future__ import annotations

import ast
import importlib.util
import os
import shlex
import shutil
import stat
import sys
import warnings
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from platform_launch.environment import Environment
from platform_launch.errors import InputError, UsageError, shown
from platform_launch.plan.request import EXAMPLES, Form, Request
from platform_launch.text import Phrase
from platform_launch.values import dataclass

_THREE_FORMS = Phrase("expected one of --script FILE, --module NAME, and -- COMMAND")
_EXAMPLES_OF_FORMS = Phrase(
    "e.g. --script train.py -- --lr 1e-4, --module pkg.train -- --lr 1e-4, "
    "or -- llamafactory-cli train x.yaml"
)
_LARGEST_SOURCE = 4 * 1024 * 1024


@dataclass(frozen=True)
class Program:
    """What a job runs; a command once per node, everything else in each process.

    ``target`` is the absolute path of a script or command, or the dotted name of a module; empty if nothing
    is named, which only the doctor accepts. ``source`` is the user's own file, which all nodes compare: the
    script, the module's file, or a command that was given by its path. ``reason`` is who chose it.
    ``extra_path`` is a folder that PATH lacks, where the command was found.
    """

    form: Form
    target: str
    arguments: tuple[str, ...] = ()
    source: Path | None = None
    reason: str = ""
    extra_path: str = ""

    @property
    def python_words(self) -> tuple[str, ...]:
        """What follows the interpreter on its command line."""
        module = ("-m",) if self.form is Form.MODULE else ()
        return (*module, self.target, *self.arguments)

    @property
    def name(self) -> str:
        """What must agree between nodes besides the content of its file; paths may differ."""
        if self.form is Form.MODULE:
            return self.target
        return Path(self.target).name if self.form is Form.COMMAND else "script"

    @property
    def title(self) -> str:
        """Its name for people."""
        return f"-m {self.target}" if self.form is Form.MODULE else self.target


def nothing_to_run() -> UsageError:
    """Return the error for a launch that names nothing to run."""
    return UsageError(Phrase("nothing to run: {forms}", forms=Phrase(_THREE_FORMS)), _EXAMPLES_OF_FORMS)


def check_forms(request: Request) -> None:
    """Raise UsageError unless exactly one thing to run is named."""
    named = [
        flag
        for flag, value in (
            ("--script", request.script),
            ("--module", request.module),
            ("--example", request.example),
        )
        if value is not None
    ]
    if len(named) > 1:
        raise UsageError(
            Phrase("{first} and {second}: expected one of them", first=named[0], second=named[1]),
            "leave one out",
        )
    if request.form is Form.NOTHING and not request.examines_only:
        raise nothing_to_run()
    if request.form is Form.COMMAND and request.arguments[0].startswith("-"):
        raise UsageError(
            Phrase(
                "{word} follows -- but is not a command, and no script is named: {forms}",
                word=shown(request.arguments[0]),
                forms=Phrase(_THREE_FORMS),
            ),
            _EXAMPLES_OF_FORMS,
        )


def choose_program(request: Request, env: Environment) -> Program:
    """Find what the request names. Raises InputError if it cannot run, UsageError if it is not well named."""
    check_forms(request)
    if request.script is not None:
        script = named_file(request.script, "--script", _other_form(str(request.script), env))
        tree = _check_source(script, Phrase("--script {script}", script=script), env)
        if tree is not None:
            _refuse_relative_imports(script, tree)
        return Program(Form.SCRIPT, str(script), request.arguments, script, Phrase("--script given"))
    if request.module is not None:
        return _module(request.module, request, env)
    if request.example is not None:
        script = existing_file(
            request.root / EXAMPLES[request.example].script,
            Phrase("--example {name}", name=request.example),
            Phrase("reinstall platform-launch"),
        )
        reason = Phrase("--example {name}: it comes with platform_launch", name=request.example)
        return Program(Form.EXAMPLE, str(script), request.arguments, script, reason)
    if request.form is Form.COMMAND:
        return _command(request, env)
    return Program(Form.NOTHING, "")


def _module(name: str, request: Request, env: Environment) -> Program:
    """Find what ``python -m NAME`` would run here. Imports nothing, not even the parent packages."""
    if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
        raise UsageError(
            Phrase("--module {name}: expected the dotted name of a module, e.g. pkg.train", name=shown(name)),
            Phrase("pass a file as --script {name}", name=shlex.quote(name)) if name.endswith(".py") else "",
        )
    spec = _spec(name, env)
    if spec is not None and spec.submodule_search_locations is not None:
        main = _within(spec, "__main__")
        if main is None:
            raise InputError(
                Phrase("--module {name} is a package without __main__.py: it cannot run", name=name),
                Phrase("name a module in it, e.g. --module {name}.train", name=name),
            )
        spec = main
    if spec is None:
        raise InputError(
            Phrase(
                "--module {name} does not exist: looked in the working directory {here}, on PYTHONPATH and "
                "among the packages of {python}",
                name=name,
                here=_working_folder(),
                python=request.python,
            ),
            "start in the folder that contains the package, set PYTHONPATH, or install it on every node",
        )
    source = Path(spec.origin) if spec.origin and spec.has_location else None
    if source is not None and source.suffix == ".py":
        _check_source(source, Phrase("--module {name} ({source})", name=name, source=source), env)
    return Program(Form.MODULE, name, request.arguments, source, Phrase("--module given"))


def _spec(name: str, env: Environment) -> ModuleSpec | None:
    """Find a module without importing its parents, which may take seconds or start something."""
    # Our own path begins with this program's folder, the module's with the working directory.
    path = sys.path[1:] if "PYTHONSAFEPATH" in env else ["", *sys.path[1:]]
    top, *rest = name.split(".")
    found = PathFinder.find_spec(top, path)
    if found is None:
        with suppress(ImportError, ValueError):  # such as an editable install, which has its own finder
            found = importlib.util.find_spec(top)
    for part in rest:
        if found is None or found.submodule_search_locations is None:
            return None
        found = _within(found, part)
    return found


def _within(package: ModuleSpec, part: str) -> ModuleSpec | None:
    """Find a module of a package. Only by its last name, because the full name would import its parents."""
    return PathFinder.find_spec(part, list(package.submodule_search_locations or ()))


def _command(request: Request, env: Environment) -> Program:
    """Find a command on PATH, or beside the interpreter: an environment need not be active to be used."""
    name, *arguments = request.arguments
    extra = ""
    if "/" in name:
        path = _executable_file(name)
    else:
        found = _on_path(name, env)
        if found is None:
            raise InputError(
                Phrase(
                    "command {name} not found on PATH ({search}) or next to {python}",
                    name=shown(name),
                    search=env.get("PATH", os.defpath),
                    python=sys.executable,
                ),
                Phrase("run a Python script with --script {name}", name=shlex.quote(name))
                if Path(name).is_file()
                else "install it on every node, or give its path",
            )
        path, extra = found
    source = Path(path) if "/" in name else None
    reason = Phrase("the command after --, once per node")
    return Program(Form.COMMAND, path, tuple(arguments), source, reason, extra)


def _on_path(name: str, env: Environment) -> tuple[str, str] | None:
    """Return a command's absolute path, and the folder that PATH lacks for it; None if there is none."""
    beside = str(Path(sys.executable).parent)
    for search, extra in ((env.get("PATH", os.defpath), ""), (beside, beside)):
        found = shutil.which(name, path=search)
        if found is not None:
            return os.path.abspath(found), extra  # noqa: PTH100 - resolve() would leave a virtual environment
    return None


def _executable_file(name: str) -> str:
    path = existing_file(
        Path(name),
        Phrase("the command after --"),
        Phrase("nodes may start in another folder: pass its absolute path"),
    )
    if not os.access(path, os.X_OK):
        raise InputError(
            Phrase("{path} is not executable: expected a command after --", path=path),
            Phrase("run a Python script with --script {path}", path=shlex.quote(name))
            if name.endswith(".py")
            else Phrase("chmod +x {path}, or name its interpreter: -- bash {path}", path=shlex.quote(name)),
        )
    return os.path.abspath(name)  # noqa: PTH100 - a link decides what a program does


def _check_source(file: Path, named: Phrase, env: Environment) -> ast.Module | None:
    """Return a file's syntax tree, None if it is not known to be Python.

    Raises InputError if this Python cannot compile it: every node would report it, after waiting.
    """
    if "PYTHON_EXEC" in env:  # torchrun starts the file with another program
        return None
    with suppress(OSError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        with file.open("rb") as opened:
            source = opened.read(_LARGEST_SOURCE + 1)
        if len(source) > _LARGEST_SOURCE or b"\0" in source:
            return None  # such as a zip application, which Python runs too
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source, str(file))
            compile(tree, str(file), "exec", dont_inherit=True)
        except SyntaxError as error:
            version = sys.version.split()[0]
            where = Phrase(", line {line}", line=error.lineno) if error.lineno else ""
            line = Phrase(": {text}", text=shown(error.text.strip())) if error.text else ""
            raise InputError(
                Phrase(
                    "{named}{where}: Python {version} cannot compile it: {problem}{line}",
                    named=named,
                    where=where,
                    version=version,
                    problem=error.msg,
                    line=line,
                ),
                "correct it, or use the Python that it needs; a shell script is a command: -- bash FILE",
            ) from error
        return tree
    return None


def _refuse_relative_imports(script: Path, tree: ast.Module) -> None:
    """Raise InputError for ``from .util import x`` at the top of a script, which only works in a module."""
    line = next((one for one in tree.body if isinstance(one, ast.ImportFrom) and one.level), None)
    if line is None or any(isinstance(one, ast.Name) and one.id == "__package__" for one in ast.walk(tree)):
        return  # a script may set its package itself
    folders = list(script.parents)
    depth = next(number for number, one in enumerate(folders) if not (one / "__init__.py").exists())
    depth = min(max(depth, line.level), len(folders) - 1)
    module = ".".join([*(one.name for one in reversed(folders[:depth])), script.stem])
    raise InputError(
        Phrase(
            "--script {script}, line {line}: {statement}: only modules can import relatively",
            script=script,
            line=line.lineno,
            statement=shown(ast.unparse(line)),
        ),
        Phrase(
            "pass --module {module}, and start in {folder} or add it to PYTHONPATH",
            module=module,
            folder=folders[depth],
        ),
    )


def _other_form(script: str, env: Environment) -> str:
    """Return the form that was probably meant if the argument of --script is not a file; empty if none
    fits.
    """
    if "/" not in script and _on_path(script, env) is not None:
        return Phrase("a command follows --, e.g. platform-launch run -- {name} …", name=shlex.quote(script))
    if all(part.isidentifier() for part in script.split(".")) and _spec(script, env) is not None:
        return Phrase("for the module, pass --module {name}", name=script)
    return ""


def named_file(path: Path, flag: str, likely: str = "") -> Path:
    """Return the file that a flag names; ``likely`` is the hint if there is none. Raises InputError."""
    if path == Path():  # an unset variable in quotes
        raise InputError(
            Phrase("{flag} names no file: expected a path, found nothing", flag=flag),
            "is a variable of the command empty?",
        )
    where = (
        ""
        if path.is_absolute()
        else Phrase(", relative to the working directory {here}", here=_working_folder())
    )
    if os.path.isdir(path):  # noqa: PTH112 - a folder that may not be entered is an answer
        hint: str = Phrase("name the file in it: {flag} {path}/…", flag=flag, path=path)
    elif path.is_absolute():
        hint = "correct the path, or mount its file system: every node needs it under the same path"
    else:
        hint = "nodes may start in another folder: use its absolute path"
    return existing_file(path, Phrase("{flag}{where}", flag=flag, where=where), likely or hint)


def existing_file(path: Path, source: str, hint: str = "") -> Path:
    """Return a file's resolved path. Raises InputError, with ``source`` as who named it."""
    problem: str
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        problem = Phrase("does not exist")
    except (OSError, ValueError) as error:  # the second for a zero byte
        problem = Phrase("cannot be used ({problem})", problem=getattr(error, "strerror", error))
    else:
        if stat.S_ISREG(mode):
            return path.resolve()
        problem = Phrase("is a folder") if stat.S_ISDIR(mode) else Phrase("is not a regular file")
    raise InputError(
        Phrase("{path} {problem}: expected a file ({source})", path=path, problem=problem, source=source),
        hint,
    )


def _working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - the same, in one call
    except OSError:  # removed in the meantime
        return "."
