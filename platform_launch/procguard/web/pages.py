"""The pages and their fragments: HTML over the same Control that the API answers from.

Pages look; what they change goes to the JSON API, which checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from platform_launch.procguard.control import Control
from platform_launch.procguard.refused import Refused, Unavailable
from platform_launch.procguard.web import listing
from platform_launch.procguard.web.look import FOLDER, Look, own_path, templates, to_login
from platform_launch.procguard.web.preview import preview
from platform_launch.procguard.web.stream import Stream
from platform_launch.procguard.web.visitor import FindVisitor

GROUPS_SHOWN = 24
EVENTS_SHOWN = 100
_MAX_FORM = 64 * 1024


class _Files(StaticFiles):
    """The page's own files. Their addresses change with their content: a browser may keep them."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Return a file."""
        answer = super().file_response(*args, **options)
        answer.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return answer


def add_pages(app: FastAPI, control: Control, *, visitor: FindVisitor) -> None:
    """Put the web page on the server's application, which sets its headers."""
    app.mount("/static", _Files(directory=FOLDER / "static"), name="static")
    pages = Pages(control, visitor)
    for path, show in {
        "/": pages.overview,
        "/groups/{name}": pages.group,
        "/workers/{worker}/log": pages.log,
        "/events": pages.events,
        "/fragments/groups": pages.group_cards,
        "/fragments/workers": pages.worker_rows,
        "/fragments/names": pages.names,
        "/fragments/move": pages.move,
        "/fragments/groups/{name}": pages.group_state,
        "/fragments/workers/{worker}": pages.worker_state,
        "/fragments/events": pages.event_rows,
    }.items():
        app.add_route(path, pages.guarded(show), methods=["GET"], include_in_schema=False)
    app.add_route("/login", pages.login, methods=["GET"], include_in_schema=False)
    app.add_route("/stream", pages.stream, methods=["GET"], include_in_schema=False)
    app.add_route("/fragments/groups/{name}/ranks", pages.ranks, methods=["POST"], include_in_schema=False)


Show = Callable[[Look], Response]


class Pages:
    """What is seen at each address."""

    def __init__(self, control: Control, visitor: FindVisitor) -> None:
        self._control = control
        self._visitor = visitor
        self._now = listing.Snapshot(control)
        self._templates = templates()

    def guarded(self, show: Show) -> Callable[[Request], Response]:
        """Let only those see it who are logged in; what is refused is a page as well."""

        def answer(request: Request) -> Response:
            visitor = self._visitor(request)
            if visitor is None:
                return to_login(request)
            look = Look(self._templates, request, visitor)
            try:
                return show(look)
            except Refused as refused:
                status = refused.status
                return look.show("refused.html", status, status=status, refusal=refused.refusal, here="")

        return answer

    def login(self, request: Request) -> Response:
        """Who are you?"""
        look = Look(self._templates, request, None)
        return look.show("login.html", next=own_path(look.query.get("next", "/")))

    async def stream(self, request: Request) -> Response:
        """Tell the page when to look again."""

        async def admitted() -> bool:
            try:
                return await run_in_threadpool(self._visitor, request) is not None
            except Unavailable:  # the database: nobody can be asked now
                return True

        if await run_in_threadpool(self._visitor, request) is None:
            return Response(status_code=401)
        return Stream(self._control, admitted)

    def overview(self, look: Look) -> Response:
        """All groups and all workers."""
        return look.show("overview.html", here="overview", **self._cards(look), **self._rows(look))

    def group_cards(self, look: Look) -> Response:
        """The groups of the overview."""
        return look.show("groups.html", **self._cards(look))

    def worker_rows(self, look: Look) -> Response:
        """A page of the table of workers. The filter stays in the address, for reloading and sharing."""
        rows = self._rows(look)
        answer = look.show("workers.html", **rows)
        if look.request.headers.get("HX-Trigger") == "filter" and not rows["in_group"]:
            kept = {key: look.query[key] for key in ("text", "state", "group", "page") if look.query.get(key)}
            if kept.get("page") == "1":
                del kept["page"]
            answer.headers["HX-Replace-Url"] = "/?" + urlencode(kept) if kept else "/"
        return answer

    def names(self, look: Look) -> Response:
        """The names of all workers that match the filter, for ticking them."""
        _, workers = self._now.read()
        matching = listing.Filter.read(look.query).matching(workers)
        return JSONResponse([worker.worker for worker in matching])

    def move(self, look: Look) -> Response:
        """The groups that workers can be moved to."""
        groups, _ = self._now.read()
        return look.show("move.html", groups=groups, active=_active())

    def group(self, look: Look) -> Response:
        """A group: its state, its workers, its settings and its ranks."""
        name = look.request.path_params["name"]
        state = self._state_of(name)
        nodes = sorted({worker.node for worker in state["workers"]})
        look_at = {**look.query, "group": name, "in_group": "1"}
        ranks = preview(self._control, name, None)
        return look.show("group.html", here="", nodes=nodes, **state, **self._rows(look, look_at), **ranks)

    def group_state(self, look: Look) -> Response:
        """The part of a group's page that changes by itself."""
        return look.show("group_state.html", **self._state_of(look.request.path_params["name"]))

    async def ranks(self, request: Request) -> Response:
        """The rank table for settings that are not saved yet."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > _MAX_FORM:
                return Response(status_code=413)
        form = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
        name = request.path_params["name"]
        show = self.guarded(lambda look: look.show("ranks.html", **preview(self._control, name, form)))
        return await run_in_threadpool(show, request)

    def log(self, look: Look) -> Response:
        """A worker and its log; the log itself is read from the API."""
        worker = self._control.worker(look.request.path_params["worker"])
        generation = look.query.get("generation", "")
        return look.show(
            "log.html", here="", worker=worker, generation=generation if generation.isdecimal() else ""
        )

    def worker_state(self, look: Look) -> Response:
        """A worker as it is now."""
        return look.show("worker_state.html", worker=self._control.worker(look.request.path_params["worker"]))

    def events(self, look: Look) -> Response:
        """The audit log."""
        return look.show("events.html", here="events", **self._events(look))

    def event_rows(self, look: Look) -> Response:
        """The newest entries of the audit log."""
        return look.show("event_rows.html", **self._events(look))

    def _cards(self, look: Look) -> dict[str, Any]:
        groups, workers = self._now.read()
        shown = groups if "all" in look.query else groups[:GROUPS_SHOWN]
        return {
            "groups": shown,
            "hidden_groups": len(groups) - len(shown),
            "group_names": [group.name for group in groups],
            "counts": listing.counts_by_group(workers),
            "active": _active(),
        }

    def _rows(self, look: Look, query: dict[str, str] | None = None) -> dict[str, Any]:
        query = look.query if query is None else query
        _, workers = self._now.read()
        chosen = listing.Filter.read(query)
        in_group = "in_group" in query
        matching = chosen.matching(workers)
        return {
            "page": listing.paged(
                listing.by_rank(matching) if in_group else matching, query.get("page", "1")
            ),
            "filter": chosen,
            "in_group": in_group,
            "any_workers": any(worker.group == chosen.group for worker in workers)
            if in_group
            else bool(workers),
            "states": listing.STATES,
            "address": str(look.request.base_url).rstrip("/"),
        }

    def _state_of(self, name: str) -> dict[str, Any]:
        group = self._control.group(name)
        _, workers = self._now.read()
        members = [worker for worker in workers if worker.group == name]
        counts = listing.counts_by_group(members)
        return {"group": group, "workers": members, "counts": counts, "active": _active()}

    def _events(self, look: Look) -> dict[str, Any]:
        text = look.query.get("before", "")
        before = int(text) if text.isdecimal() and len(text) < 19 else None
        events = self._control.events(before, EVENTS_SHOWN + 1)
        return {"events": events[:EVENTS_SHOWN], "more": len(events) > EVENTS_SHOWN, "before": before}


def _active() -> frozenset[str]:
    return frozenset(phase.value for phase in listing.ACTIVE)
