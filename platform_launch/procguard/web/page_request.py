"""A request for a page: its user, language and theme, and the templates for the answer."""

from __future__ import annotations

import hashlib
import re
import zlib
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from urllib.parse import quote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from platform_launch.procguard.api.shapes.groups import GroupPhase
from platform_launch.procguard.api.shapes.people import Person
from platform_launch.procguard.core.group import ACTIVE
from platform_launch.procguard.web import listing
from platform_launch.procguard.web.language import LANGUAGES, Words, choose

FOLDER = Path(__file__).parent
# Browsers treat a backslash as a slash and drop tabs and line ends: "/<tab>/host" is another site's.
_OWN_PATH = re.compile(r"/(?![/\\])[!-~]*")


class PageRequest:
    """A request for a page or a fragment.

    ``query`` has the query's fields, each once; ``words`` are the messages in the reader's language.
    """

    def __init__(self, request: Request, person: Person | None) -> None:
        self.request = request
        self.person = person
        self.query = dict(request.query_params)
        cookies = request.cookies
        self.words = Words(choose(cookies.get("language"), request.headers.get("Accept-Language", "")))
        theme = cookies.get("theme", "")
        self._theme = theme if theme in ("light", "dark") else ""

    @property
    def name(self) -> str:
        """The group, worker or node of the address."""
        return str(self.request.path_params["name"])

    def number(self, field: str) -> int | None:
        """Return a field of the query as a number; None if it is not one."""
        return self.as_number(self.query.get(field, ""))

    @staticmethod
    def as_number(text: str) -> int | None:
        """Return a part of an address as a number; None if it is not one."""
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None

    def show(self, template: str, answer: int = 200, /, **values: object) -> Response:
        """Return a page or a fragment. Takes milliseconds: not for the event loop."""
        about = {
            "t": self.words,
            "theme": self._theme,
            "person": self.person,
            "address": str(self.request.base_url).rstrip("/"),
        }
        return HTMLResponse(templates().get_template(template).render({**about, **values}), answer)


def own_path(path: str) -> str:
    """Return a path of this server to open after logging in, never another site's address."""
    return path if _OWN_PATH.fullmatch(path) else "/"


def to_login(request: Request) -> Response:
    """Redirect to the login page, and back afterwards."""
    if "HX-Request" in request.headers:
        shown_now = urlsplit(request.headers.get("HX-Current-URL", ""))
        place = quote(f"{shown_now.path}?{shown_now.query}" if shown_now.query else shown_now.path)
        return Response(status_code=401, headers={"HX-Redirect": f"/login?ended=1&next={place}"})
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"/login?next={quote(request.url.path + query)}", 303)


@cache
def templates() -> Environment:
    """Return the page templates. All values are escaped; an undefined name is an error."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # A file's URL contains its hash: browsers may cache it, and fetch a new version at once.
    marks = {
        path.relative_to(FOLDER / "static").as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in (FOLDER / "static").rglob("*")
        if path.is_file()
    }
    made.globals.update(
        static=lambda name: f"/static/{name}?{marks[name]}",
        now=lambda: datetime.now(timezone.utc),
        since=lambda at: (datetime.now(timezone.utc) - at).total_seconds(),
        moment=lambda seconds: datetime.fromtimestamp(seconds, timezone.utc),
        mark=lambda text: zlib.crc32(text.encode()),
        languages=LANGUAGES,
        active=frozenset(phase.value for phase in (*ACTIVE, GroupPhase.DEGRADED)),
        gpu_use=listing.gpu_use,
    )
    for name in made.list_templates():
        made.get_template(name)  # compiled now: doing it for the first reader would delay heartbeats by 0.1 s
    for language in LANGUAGES:
        Words(language).script()  # loads the language's file now as well
    return made
